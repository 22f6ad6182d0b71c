"""Inductor's scheduler nodes."""

from __future__ import annotations

from typing import Any


def scheduler_pass_base() -> type:
    """The abstract class of a pass over Inductor's scheduler nodes that may stay in its cache keys.

    2.11 accepts a pass over FX graphs alone; unnecessary from 2.13 (pytorch#179050).
    """
    from torch._inductor import custom_graph_pass

    return getattr(custom_graph_pass, "CustomSchedulerPass", custom_graph_pass.CustomGraphPass)


def lowers_backward() -> bool:
    """Whether the graph that Inductor is lowering is a backward."""
    from torch._inductor.virtualized import V

    return bool(V.graph.is_backward)


def run_after(node: Any, previous: Any) -> None:
    """Make a scheduler node wait for another; no buffer lives longer for it.

    A fake dependency decides over order and fusion, and not when a buffer is freed. It stands among the node's reads:
    where the scheduler reads a node anew, since its loops have changed, it keeps those and no others. A dependency that
    is lost after fusion is worse than none: the scheduler takes the place of a buffer that an ancestor still reads.
    """
    from torch._inductor.dependencies import WeakDep

    if node.ancestors.intersection(previous.get_operation_names()):
        return  # it does so already
    name = next(iter(previous.get_buffer_names()))
    # Not a buffer that the node writes: the scheduler would ask whether it may be fused with what it waits for.
    node.add_fake_dep(WeakDep(name, mutating_buf=name, is_fake=True))


def overwriters(nodes: list[Any]) -> list[tuple[Any, Any]]:
    """Scheduler nodes that write entry by entry where they read a buffer of this graph, each with one that picks
    entries of that buffer and stands before it in the order."""
    from torch._inductor.dependencies import MemoryDep

    pairs = []
    place = {node: n for n, node in enumerate(nodes)}
    for node in nodes:
        writes = [write for write in node.read_writes.writes if isinstance(write, MemoryDep)]
        if node.is_reduction() or node.is_extern() or len(writes) != 1:
            continue
        for read in node.read_writes.reads:
            made = node.scheduler.name_to_buf.get(read.name)
            if made is None or not isinstance(read, MemoryDep) or read.index != writes[0].index:
                continue
            for user in made.users:
                reader = user.node
                if reader is node or not hasattr(reader, "read_writes"):
                    continue
                reads = [r for r in reader.read_writes.reads if isinstance(r, MemoryDep) and r.name == read.name]
                picks = any(r.is_indirect() for r in reads)
                if picks and place.get(reader, len(nodes)) < place[node]:
                    pairs.append((node, reader))
    return pairs


def give_to_bodies(nodes: list[Any]) -> None:
    """Let bodies write over what all of their calls read last: a buffer may then take the place of one of its caller's,
    as it might without the border. A body's inputs are otherwise never overwritten (`donate_nothing`).

    Where the caller itself reuses buffers (`allow_buffer_reuse`), it takes a buffer that it gave to a body for dead,
    and would write over what the body has returned in it: there only inputs of the caller, which it never reuses, are
    given.

    nodes: of the graph that calls, before anything is fused; bodies are scheduled later.
    """
    from torch._inductor import ir

    calls: dict[int, list[Any]] = {}
    for node in nodes:
        if isinstance(getattr(node, "node", None), ir.InvokeSubgraph):
            calls.setdefault(id(node.node.subgraph.graph), []).append(node)
    for of_one_body in calls.values():
        graph = of_one_body[0].node.subgraph.graph
        given = [name for name in graph.graph_input_names if name in graph.graph_inputs_original]
        if len(given) != len(graph.graph_input_names):  # symbols stand among them
            continue
        for place, name in enumerate(given):
            if all(_read_last(call, place) for call in of_one_body):
                known = graph.graph_inputs_original[name]
                graph.graph_inputs_original[name] = ir.DonatedBuffer(name=name, layout=known.layout)


def _read_last(call: Any, place: int) -> bool:
    """Whether a call of a body is the last to read an operand, which is all of a buffer of this graph's own."""
    import torch._inductor.config as inductor_config
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    operands = call.node.inputs
    names = [operand.get_name() for operand in operands]
    name, scheduler = names[place], call.scheduler
    buffer = scheduler.name_to_buf.get(name)
    if buffer is not None and inductor_config.allow_buffer_reuse:
        return False
    if buffer is None and isinstance(V.graph.graph_inputs_original.get(name), ir.DonatedBuffer):
        buffer = scheduler.name_to_donated_buffer.get(name)
    if buffer is None or names.count(name) > 1 or not isinstance(operands[place].get_output_spec(), ir.FixedLayout):
        return False
    if name in scheduler.mutation_renames or name in V.graph.never_reuse_buffers:
        return False  # readers of what was written into it are those of another name
    if name in scheduler.name_to_buf and (buffer.get_aliases() or buffer.get_mutations()):
        return False
    mine, whole = operands[place].get_layout(), buffer.node.get_layout()
    if mine.offset != whole.offset or mine.storage_size() != whole.storage_size():
        return False
    readers = {user.node.get_name() for user in buffer.users}
    return call.get_name() in readers and all(reader in call.ancestors for reader in readers - {call.get_name()})


def recompute_ancestors(node: Any) -> None:
    """Let Inductor's scheduler take note of new dependencies before it fuses."""
    node.scheduler.compute_ancestors()
