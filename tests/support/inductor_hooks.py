"""What Inductor tells its hooks while it compiles a tiny program as memgraph does, without planning."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

import memgraph.runtime  # noqa: F401  (the operators)
from memgraph.base import compat
from memgraph.lower.timeline import inputs_of


class Caught(Exception):
    """Thrown out of the compiler once all has been seen."""


@dataclass
class Seen:
    """What Inductor told its hooks while it compiled one function."""

    joint: torch.fx.GraphModule | None = None
    told: dict = field(default_factory=dict)  # the partitioner's keyword arguments
    scheduled: list = field(default_factory=list)  # (backward, [scheduler node])
    wrappers: list = field(default_factory=list)  # (backward, inputs, source)
    donated: list = field(default_factory=list)
    settings: list = field(default_factory=list)


def compiled(
    fn, *args, order=lambda nodes: nodes, rewrite=lambda gm: None, stop=False, patches=None, uuid="canary", caches=False
) -> Seen:
    """Compile `fn` as memgraph does, unplanned.  rewrite: called with each graph.  stop: at the joint graph."""
    seen = Seen()

    class Partitioner(compat.partitioner_base()):
        def __call__(self, joint, joint_inputs, **told):
            seen.joint, seen.told = joint, told
            if stop:
                raise Caught
            return compat.stock_partition(joint, joint_inputs, **told)

        def uuid(self):
            return uuid

        def __reduce__(self):
            return (str, (uuid,))

        def __deepcopy__(self, memo):
            return self

    class Order(compat.scheduler_pass_base()):
        def __call__(self, nodes):
            seen.scheduled.append((compat.lowers_backward(), nodes))
            return order(nodes)

        def uuid(self):
            return uuid

        __reduce__, __deepcopy__ = Partitioner.__reduce__, Partitioner.__deepcopy__

    def inner(gm, inputs, **kwargs):
        from torch._guards import TracingContext
        from torch._inductor import config

        seen.donated.append(TracingContext.get().fw_metadata.bw_donated_idxs)
        seen.settings.append(config.max_fusion_size)
        compat.lower_transfers()
        compat.lower_shards()
        compat.lower_kernel_ends()
        rewrite(gm)
        given = inputs_of(gm)
        with compat.lowering_settings(in_order=True, transfers=True):
            lowered = compat.inner_compile()(gm, inputs, **kwargs)
        seen.wrappers.append((bool(kwargs.get("is_backward")), given, lowered.source_code))
        return lowered

    def backend(gm, inputs):
        settings = {"custom_partitioner_fn": Partitioner(), "_pre_fusion_custom_pass": Order(), "max_fusion_size": 7}
        settings |= {} if caches else {"force_disable_caches": True}
        compat.compile_graph(compat.copy_graph(gm), inputs, inner, settings | (patches or {}))
        raise Caught

    torch._dynamo.reset()
    with pytest.raises(Exception) as raised:  # Dynamo wraps it
        torch.compile(fn, backend=backend, fullgraph=True)(*args)
    if "Caught" not in repr(raised.value):
        raise raised.value
    return seen


def square(requires_grad: bool = True) -> torch.Tensor:
    return torch.randn(8, 8, requires_grad=requires_grad)


def products(x, w, v):
    return x @ w @ v
