"""The four operators that a compiled graph calls. Functional: no aliases, no mutation.

    offload_start(x, name, tier, options) -> ticket                      starts the copy; forward
    offload_finish(ticket, x, tier) -> held                              compute waits for the copy; x's last use
    reload_start(held, size, stride, dtype, device, tier) -> ticket      allocates, starts the copy; backward
    reload_finish(ticket, held, size, stride, dtype, device, tier) -> y  compute waits; y is ready

`tier` is "host" or "nvme"; `options` is a JSON object (`settings.Settings`). Tickets and `held` are int64[1] on the
CPU; their storages own the copy and the value. Dropping a ticket before its finish cancels the copy. All raise
OffloadError.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memgraph.base.errors import OffloadError
from memgraph.runtime.records import Offload, Record, Reload, reload
from memgraph.runtime.settings import Settings
from memgraph.runtime.tickets import content, ticket

_library = torch.library.Library("memgraph", "FRAGMENT")
_TAGS = [getattr(torch.Tag, name) for name in ("cudagraph_unsafe", "needs_exact_strides") if hasattr(torch.Tag, name)]
_LIKE = "SymInt[] size, SymInt[] stride, ScalarType dtype, Device device"


def _refuse_capture(device: torch.device, name: str, tier: str) -> None:
    """Raise OffloadError while a CUDA graph is captured: its replay would copy to a slot that is another value's."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise OffloadError("a copy to another tier cannot be captured into a CUDA graph", value=name, tier=tier)


def offload_start(x: torch.Tensor, name: str, tier: str, options: str) -> torch.Tensor:
    _refuse_capture(x.device, name, tier)
    # A lazy conjugate or negation is a flag of the tensor, which its bytes do not carry.
    return ticket(Offload(name, x.resolve_conj().resolve_neg(), tier, Settings.parse(options)))


def offload_finish(begun: torch.Tensor, x: torch.Tensor, tier: str) -> torch.Tensor:
    return ticket(content(begun, Offload).finish())


def reload_start(
    held: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    tier: str,
) -> torch.Tensor:
    _refuse_capture(device, "", tier)
    record = content(held, Record)
    # An operator may leave a value elsewhere than the graph says (the random state of a kernel of attention, which its
    # backward reads on the host): it comes back to where it was.
    there = record.value.layout.device
    return ticket(reload(record, record.value.layout.or_given(size, stride, dtype, there)))


def reload_finish(
    begun: torch.Tensor,
    held: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    tier: str,
) -> torch.Tensor:
    return content(begun, Reload).finish()


def _ticket_like(*arguments: object) -> torch.Tensor:
    return torch.empty(1, dtype=torch.int64, device="cpu")


def _empty_like(
    ticket: torch.Tensor,
    held: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    tier: str,
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


for _schema, _run, _fake in (
    ("offload_start(Tensor x, str name, str tier, str options) -> Tensor", offload_start, _ticket_like),
    ("offload_finish(Tensor ticket, Tensor x, str tier) -> Tensor", offload_finish, _ticket_like),
    (f"reload_start(Tensor held, {_LIKE}, str tier) -> Tensor", reload_start, _ticket_like),
    (f"reload_finish(Tensor ticket, Tensor held, {_LIKE}, str tier) -> Tensor", reload_finish, _empty_like),
):
    _library.define(_schema, tags=_TAGS)
    _name = _schema.partition("(")[0]
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"memgraph::{_name}", _fake, lib=_library)
