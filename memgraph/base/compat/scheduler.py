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
    from torch._inductor.scheduler import BaseSchedulerNode, FusedSchedulerNode

    if node.ancestors.intersection(previous.get_operation_names()):
        return  # it does so already
    name = next(iter(previous.get_buffer_names()))
    # Not a buffer that the node writes: the scheduler would ask whether it may be fused with what it waits for.
    dependency = WeakDep(name, mutating_buf=name, is_fake=True)
    if not isinstance(node, FusedSchedulerNode):
        node.add_fake_dep(dependency)
        return
    for part in node.snodes:  # on CUDA the copies of a `cat` are a group, which is made anew of its parts
        part.add_fake_dep(dependency)
    BaseSchedulerNode.add_fake_dep(node, dependency)


def draw_late(nodes: list[Any]) -> None:
    """Move nodes that draw random numbers, of a seed alone, to right before the first that reads them, in place."""
    for node in reversed(list(nodes)):
        outputs = node.get_outputs()
        if node.is_extern() or not outputs or not all(_draws(buffer) for buffer in outputs):
            continue
        readers = {user.node for buffer in outputs for user in buffer.users}
        at = nodes.index(node)
        first = next((n for n in range(at + 1, len(nodes)) if nodes[n] in readers), at + 1)
        nodes.insert(first - 1, nodes.pop(at))


def _draws(buffer: Any) -> bool:
    from memgraph.base.compat.operators import inductor_pure_random

    made_of = [origin.target for origin in getattr(buffer.node, "origins", ())]
    return bool(made_of) and all(map(inductor_pure_random, made_of))


def overwriters(nodes: list[Any]) -> list[tuple[Any, Any]]:
    """Pairs (writer, reader) of scheduler nodes for which Inductor may let the writer overwrite what the reader reads.

    The writer reads a buffer of this graph entry by entry and could write its result over it. The reader, earlier in
    `nodes`, reads entries of the same buffer by computed indices.
    """
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


def recompute_ancestors(nodes: list[Any]) -> None:
    """Compute all ancestors anew, after dependencies were added and before the nodes of a graph are fused.

    The scheduler does so itself where there are no groups yet: it knows a group by its own name, and not by its parts'.
    """
    if not any(hasattr(node, "snodes") for node in nodes):
        if nodes:
            nodes[0].scheduler.compute_ancestors()
        return
    found: dict[str, Any] = {}
    for place, node in enumerate(nodes):
        made_by = {node.scheduler.name_to_buf[read.name].defining_op_name() for read in node.unmet_dependencies}
        made_by.difference_update(node.get_operation_names())
        node.ancestors = type(node.ancestors)(made_by).union(*(found[name] for name in made_by))
        node.min_order = node.max_order = place
        for part in getattr(node, "snodes", ()):
            part.ancestors = node.ancestors
        found |= dict.fromkeys(node.get_operation_names(), node.ancestors)


def origins(nodes: list[Any]) -> dict[str, tuple[str, ...]]:
    """By the name of each buffer that scheduler nodes write, the names of the fx nodes that it comes from.

    First the node whose value the buffer is, where there is one; then those that were fused into it, the last first.
    """
    found = {}
    for node in nodes:
        for buffer in node.get_outputs():
            one = buffer.node.get_origin_node()
            others = reversed(list(getattr(buffer.node, "origins", ())))
            names = [origin.name for origin in (one, *others) if origin is not None]
            found[buffer.get_name()] = tuple(dict.fromkeys(names))
    return found
