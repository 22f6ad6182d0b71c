"""How Inductor lowers memgraph's own operators."""

from __future__ import annotations

import functools
from typing import Any

# In a node's metadata: its value is written to memory, whatever reads it, with the strides that it has in the graph.
WRITTEN = "inductor_realize_to_strides"


def lower_transfers() -> None:
    """Teach Inductor about the operators that copy values to other tiers and back.

    - `offload_start` and `offload_finish` read the same buffer. By itself Inductor computes a value that it has fused
      everywhere else into one buffer for each of the two; the first would be freed before the copy ends.
    - What `reload_finish` returns is aligned. Inductor takes every output of an operator with a CPU input, such as a
      ticket, for unaligned, which costs Triton its wide loads.
    """
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, lowerings, register_lowering
    from torch._inductor.virtualized import V

    operators = torch.ops.memgraph
    if operators.offload_start.default in lowerings:
        return
    stock = {
        name: fallback_handler(getattr(operators, name).default)
        for name in ("offload_start", "offload_finish", "reload_finish")
    }

    def offload_start(x: Any, *rest: Any) -> Any:
        x.realize()
        value = V.graph.current_node.args[0].meta["val"]
        strides = [size.node.expr if isinstance(size, torch.SymInt) else size for size in value.stride()]
        # The backward asks for the value with these strides, whatever layout Inductor would have liked better.
        return stock["offload_start"](ir.ExternKernel.require_exact_strides(x, strides), *rest)

    def offload_finish(ticket: Any, x: Any, tier: str) -> Any:
        started = ticket.data.data
        if isinstance(started, ir.MultiOutput):
            # 2.11, 2.13: a second buffer takes the operator's only output; unnecessary from 2.15 (pytorch#184279).
            started = started.inputs[0]
        source = started.inputs[0]
        box = source if isinstance(source, ir.BaseView) else ir.StorageBox(source)
        return stock["offload_finish"](ticket, ir.TensorBox(box), tier)

    def reload_finish(*args: Any) -> Any:
        y = stock["reload_finish"](*args)
        V.graph.unaligned_buffers.discard(y.get_name())
        return y

    for lower in (offload_start, offload_finish, reload_finish):
        register_lowering(getattr(operators, lower.__name__).default, type_promotion_kind=None)(lower)


def lower_kernel_ends() -> None:
    """Teach Inductor about the operator that ends kernels: one that fuses with nothing and runs nothing.

    Before it, the CPU's code generator closes the function that it is writing. It reads nothing either: no buffer lives
    longer for it. But what it is given is computed by then, not where somebody reads it.
    """
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings, register_lowering
    from torch._inductor.virtualized import V

    operator = torch.ops.memgraph.kernel_end.default
    if operator in lowerings:
        return

    class KernelEnd(ir.ExternKernel):
        def __init__(self) -> None:
            super().__init__(name=None, layout=ir.NoneLayout(device=torch.device("cpu")), inputs=[])
            self.name = V.graph.register_buffer(self)
            V.graph.register_operation(self)

        def codegen(self, wrapper: Any) -> None:
            """Nothing is called."""

        def has_side_effects(self) -> bool:
            return True  # else the scheduler would drop it

        def should_allocate(self) -> bool:
            return False

    def kernel_end(written: Any) -> None:
        for value in written:
            value.realize()
        KernelEnd()

    register_lowering(operator, type_promotion_kind=None)(kernel_end)


def lower_parts() -> None:
    """Teach Inductor about the operator that gives a part memory of its own: a kernel that writes it.

    In a graph whose convolutions run channels last, an image is written so: else the first of them would copy it.
    """
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings, register_lowering
    from torch._inductor.virtualized import V

    operator = torch.ops.memgraph.part.default
    if operator in lowerings:
        return

    def part(x: Any) -> Any:
        size = list(x.get_size())
        written = ir.Pointwise.create(device=x.get_device(), dtype=x.get_dtype(), inner_fn=x.make_loader(), ranges=size)
        written.realize()
        if V.graph.layout_opt and len(size) == 4:
            written = ir.ExternKernel.require_channels_last(written)
        return written

    register_lowering(operator, type_promotion_kind=None)(part)


def lower_shards() -> None:
    """Teach Inductor to put shards together in place: each of a chain of operators writes into its first argument.

    The keys of a shard are a view, as a slice is, which does not ask whether its bounds lie within.
    """
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings, register_lowering

    operators = torch.ops.memgraph
    if operators.shard_put.default in lowerings:
        return

    def into(written: Any, *rest: Any, operator: Any) -> Any:
        written.realize()
        ir.FallbackKernel.create(operator, written, *rest)
        return written

    def keys(whole: Any, dim: int, start: Any, length: Any) -> Any:
        return ir.TensorBox(ir.SliceView.create(whole.data, dim, start, start + length, clamp=False))

    register_lowering(operators.shard_keys.default, type_promotion_kind=None)(keys)
    for functional, writing in (
        (operators.shard_put, operators.shard_put_),
        (operators.shard_add, operators.shard_add_),
        (operators.shard_sum, operators.shard_sum_),
    ):
        lower = functools.partial(into, operator=writing.default)
        register_lowering(functional.default, type_promotion_kind=None)(lower)


def write_to_memory(node: Any) -> None:
    """Have Inductor write a node's value to memory, whatever reads it, with the strides that it has in the graph."""
    node.meta[WRITTEN] = True
