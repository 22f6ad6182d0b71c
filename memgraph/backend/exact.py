"""A step that is compiled and run on a simulated card: what torch's allocator gives it, to the byte, without a GPU.

    fn, args ── put on the card ── compiled by memgraph ── run twice ──> most bytes of each phase of each step

Kernels do nothing there, and memory is address space: parameters of tens of gigabytes cost none of this machine's. What
the values decide (a branch upon data, a loop until something converges) is arbitrary, and times mean nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from memgraph import simulator
from memgraph.backend import memgraph as memgraph_backend
from memgraph.backend.options import parse_options
from memgraph.base import compat
from memgraph.base.errors import MemgraphError, OptionsError
from memgraph.base.instances import instances
from memgraph.base.sizes import format_size
from memgraph.machine import caching_allocator
from memgraph.reporting.log import reports
from memgraph.reporting.report import Report
from memgraph.step.future_optimizer import Optimizer, maker

WASTE = 0.02  # share of the allocated bytes: where more than that is reserved and unused, the verdict says so
STEPS = 2  # from the second on the optimizer's state stands
ELSEWHERE = (
    "an exact plan runs the step on a simulated card, in a process of its own: memgraph plan script.py:function "
    "--exact, or python -m memgraph.simulator --card H100 -- script.py"
)


@dataclasses.dataclass(frozen=True)
class Phase:
    """The most bytes of one phase of a step, with all that stands meanwhile."""

    step: int
    """1 is the first."""
    name: str
    """ "compiling", "forward", "backward" or "optimizer"."""
    requested: int
    """By torch, before the allocator rounds."""
    allocated: int
    """In the allocator's blocks: what a budget is held against."""
    reserved: int
    """What the allocator had from the device, for reuse as well."""


@dataclasses.dataclass(frozen=True)
class Exact:
    """What a step takes on a card."""

    card: str
    """Its name, as torch gives it."""
    capacity: int
    """Bytes of its memory."""
    budget: int | None
    """Bytes, with all that stands; None without one, and for a share, which bounds what a graph allocates by itself."""
    report: Report | None
    """The plan, as it was lowered; None where the memory was full before there was one."""
    phases: tuple[Phase, ...]
    """In their order."""
    out_of_memory: str = ""
    """The allocator's words, where the card was full; "" where it was not."""

    @property
    def allocated(self) -> int:
        """The most bytes that were allocated in any phase."""
        return max((phase.allocated for phase in self.phases), default=0)

    @property
    def unused(self) -> int:
        """Bytes that the allocator had from the device beyond the most that it gave."""
        return max((phase.reserved for phase in self.phases), default=0) - self.allocated

    @property
    def fits(self) -> bool:
        """Whether the card's memory and the budget were enough in every phase."""
        return not self.out_of_memory and (self.budget is None or self.allocated <= self.budget)

    def __str__(self) -> str:
        most, held = format_size(self.allocated), self.budget
        where = f"on {self.card}, which has {format_size(self.capacity)}"
        if self.out_of_memory:
            return f"does not fit {where}: {self.out_of_memory}"
        verdict = f"{'fits' if self.fits else 'does not fit'} {where}: {most} allocated at most"
        if held is not None:
            verdict += f", of a budget of {format_size(held)}"
        if self.unused > WASTE * self.allocated and caching_allocator.leaves_uncut("cuda"):
            verdict += f"; {format_size(self.unused)} more are reserved, of which {caching_allocator.EXPAND} saves most"
        return verdict


def exact(
    fn: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    optimizer: Optimizer | None = None,
    **kwargs: Any,
) -> Exact:
    """Compile the step `fn(*args, **kwargs)` with memgraph, run it twice with its backward, and return what it took.

    This process must be on a simulated card. All modules that live in it, and the tensors among the arguments, are put
    on the card without their values. What `fn` returns is the loss, has it as `loss`, or is differentiated as it is.
    optimizer: as in `plan`; steps after each backward.

    Raises OptionsError in any other process, BudgetError where the budget cannot be reached, MemgraphError where
    nothing that `fn` returns requires a gradient, and what the step raises, except that the card is full.
    """
    if not simulator.here():
        raise OptionsError(ELSEWHERE)
    parsed = parse_options(options)
    before = reports()
    phases: list[Phase] = []
    full = ""
    try:
        put_on_card()
        args, kwargs = compat.tree_map(_on_card, (args, kwargs))
        _train(fn, args, kwargs, dict(options or {}), optimizer, phases)
    except torch.OutOfMemoryError as problem:
        full = str(problem).splitlines()[0]
    made = [report for report in reports() if not any(report is known for known in before)]
    report = made[-1] if made else None
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    budget = report.budget if report is not None and parsed.budget == "auto" else parsed.budget
    budget = budget if isinstance(budget, int) else None
    return Exact(device.name, device.total_memory, budget, report, tuple(phases), full)


def _train(fn: Any, args: Any, kwargs: Any, options: dict, optimizer: Optimizer | None, phases: list[Phase]) -> None:
    fn = compat.uncompiled(fn)
    stepped = None
    if optimizer is not None:
        stepped = maker(optimizer)([p for p in _parameters() if p.requires_grad])
    number = 1

    def backend(graph: Any, inputs: Any) -> Any:
        made = memgraph_backend(graph, inputs, options=options)
        phases.append(_phase(number, "compiling"))
        torch.cuda.reset_peak_memory_stats()
        return made

    compiled = torch.compile(fn, backend=backend)
    for number in range(1, STEPS + 1):  # noqa: B007  (the backend reads it)
        with _measured(number, "forward", phases):
            found = compiled(*args, **kwargs)
        with _measured(number, "backward", phases):
            _differentiate(found)
        del found
        if stepped is None:
            for parameter in _parameters():
                parameter.grad = None
            continue
        with _measured(number, "optimizer", phases):
            stepped.step()
        stepped.zero_grad()


def put_on_card() -> None:
    """Put every module of this process on the card, its parameters and buffers without their values, tied ones tied."""
    moved: dict[int, Any] = {}
    for module in _modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and not tensor.is_cuda:
                    if id(tensor) not in moved:
                        moved[id(tensor)] = _on_card(tensor)
                    held[name] = moved[id(tensor)]


def _on_card(tensor: Any) -> Any:
    """A tensor on the card, without its values; anything else as it is."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_cuda:
        return tensor
    found = torch.empty_like(tensor, device="cuda").requires_grad_(tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(found.detach(), tensor.requires_grad)
    return found


def _modules() -> list[torch.nn.Module]:
    return [known for known in instances(torch.nn.Module) if "_parameters" in vars(known)]


def _parameters() -> list[torch.nn.Parameter]:
    """Of all modules, each once."""
    return list({id(p): p for module in _modules() for p in module._parameters.values() if p is not None}.values())


def _differentiate(found: Any) -> None:
    loss = getattr(found, "loss", None)
    outputs = [loss] if isinstance(loss, torch.Tensor) else compat.tree_leaves(found)
    outputs = [output for output in outputs if isinstance(output, torch.Tensor) and output.requires_grad]
    if not outputs:
        raise MemgraphError("there is nothing to plan: nothing that the function returns requires a gradient")
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


@contextlib.contextmanager
def _measured(step: int, name: str, phases: list[Phase]) -> Iterator[None]:
    """Append the most bytes within it."""
    torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        phases.append(_phase(step, name))


def _phase(step: int, name: str) -> Phase:
    torch.cuda.synchronize()
    now = torch.cuda.memory_stats()
    most = [now[f"{kind}_bytes.all.peak"] for kind in ("requested", "allocated", "reserved")]
    return Phase(step, name, *most)
