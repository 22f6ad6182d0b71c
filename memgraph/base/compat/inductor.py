"""Inductor as a compiler, and its configuration."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from memgraph.base.compat.fake import storage_id
from memgraph.base.compat.operators import invoke_subgraph

# So many operations Inductor may put into one kernel before it writes what they make, in place of its 30 (50 on the
# CPU): the mask, the conversions and the derivatives of one layer. Not any number: it reads nested expressions again
# and again.
MOST_OPERATIONS = 64
# And so many buffers it may read there, in place of 8 (12 on the CPU): the backward of a norm whose output three
# products read has 9 or more.
MOST_READS = 32


def inductor_config_keys() -> frozenset[str]:
    """The names that Inductor's configuration knows, dotted for nested ones (`"triton.cudagraphs"`)."""
    from torch._inductor import list_options  # here, because Inductor takes a while to import

    return frozenset(list_options())


def inductor_setting(name: str) -> Any:
    """A value of Inductor's configuration as it stands, by a name of `inductor_config_keys`."""
    import torch._inductor.config as inductor_config

    return getattr(inductor_config, name)


def inductor_settings(settings: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Inductor's configuration with these values, while this lasts."""
    import torch._inductor.config as inductor_config

    return inductor_config.patch(settings)


def heavy_functions() -> str:
    """Names of the pointwise functions that Inductor, on the CPU, writes to memory rather than into several readers.

    2.11: two of them; from 2.13 on all (`should_realize_on_reuse` in torch/_inductor/ir.py, which came with limits of
    its own for the CPU).
    """
    import torch._inductor.config as inductor_config

    newer = hasattr(inductor_config, "realize_cpu_opcount_threshold")
    return "exp sigmoid log log10 log1p log2 tanh" if newer else "exp sigmoid"


def compile_graph(
    gm: Any, inputs: Any, inner_compile: Any, patches: dict[str, Any], *, retain_graph: bool = False
) -> Any:
    """Compile a Dynamo graph by Inductor, forward and backward, before this returns.

    The functorch settings hold for this compilation alone. With `activation_memory_budget` below 1.0 torch's
    partitioner would redraw dropout.
    """
    import torch._functorch.config as functorch_config
    from torch._inductor.compile_fx import compile_fx

    # A backward that overwrites its saved values can run only once. No cache of torch's has this setting in its keys.
    settings = {
        "force_non_lazy_backward_lowering": True,
        "activation_memory_budget": 1.0,
        "donated_buffer": not retain_graph,
    }
    with functorch_config.patch(settings):
        return compile_fx(gm, inputs, inner_compile=inner_compile, config_patches=patches)


def saved_values_are_donated() -> bool:
    """Whether torch is set so that a compiled backward may overwrite its saved values."""
    import torch._functorch.config as functorch_config

    return bool(functorch_config.donated_buffer)


def prepare_cpp() -> None:
    """What Inductor does once before its first kernel of C++, some seconds in which it waits for the compiler.

    It tries out which vector instructions there are, and compiles the header of its kernels. No kernel is compiled.
    """
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    CppPythonBindingsCodeCache.load_pybinding_async(["float*"], _NO_KERNEL, submit_fn=lambda task: None)


_NO_KERNEL = 'extern "C" void kernel(float*) {}  // memgraph: only the header is wanted'


def inner_compile() -> Any:
    """Inductor's compiler of one graph, without two faults that make gradients wrong.

    Bodies overwrite only inputs that are theirs alone, and random numbers do not depend on the kernel that draws them.
    """
    from torch._inductor.compile_fx import compile_fx_inner

    def compile_one(*args: Any, **kwargs: Any) -> Any:
        with _bodies_own_what_they_alone_read(), _drawn_alike():
            return compile_fx_inner(*args, **kwargs)

    return compile_one


@contextlib.contextmanager
def _bodies_own_what_they_alone_read() -> Iterator[None]:
    """While this lasts, a body is told which of its inputs it may overwrite.

    Up to 2.14 a body takes over the outer backward's list of inputs that may be overwritten, though its own inputs are
    others: it writes into weights and into values that a later call of it reads, and gradients are silently wrong. From
    2.15 it may overwrite none (pytorch#193960), and makes room for what the backward without bodies writes into a saved
    value.
    """
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    body = invoke_subgraph()
    stock = lowerings[body]

    @functools.wraps(stock)
    def lower(*args: Any, **kwargs: Any) -> Any:
        graph = V.graph
        make = graph.make_subgraph

        def told(*given: Any, **named: Any) -> Any:
            made = make(*given, **named)
            made.bw_donated_idxs = _read_by_calls_alone(graph)
            return made

        graph.make_subgraph = told  # of this graph alone
        try:
            return stock(*args, **kwargs)
        finally:
            del graph.make_subgraph

    lowerings[body] = lower
    try:
        yield
    finally:
        lowerings[body] = stock


def _read_by_calls_alone(graph: Any) -> list[int]:
    """Places of the inputs that the body which is being lowered may overwrite, whatever call of it runs.

    graph: the lowering of its caller.  In each call such an input is one of the caller's that the caller may overwrite,
    that nothing else reads, and whose memory no other input shares.
    """
    call = graph.current_node
    if not graph.is_backward or call.target is not invoke_subgraph():  # it may be within an operator with effects
        return []
    body, inputs = call.args[0].target, graph.module.graph.find_nodes(op="placeholder")
    storages = collections.Counter(map(_storage, inputs))
    own = {inputs[place] for place in graph.bw_donated_idxs or ()}
    own = {node for node in own if len(node.users) == 1 and storages[_storage(node)] == 1}
    calls = graph.module.graph.find_nodes(op="call_function", target=invoke_subgraph())
    given = [call.args[2:] for call in calls if call.args[0].target == body]
    places = range(min(map(len, given)))
    return [place for place in places if all(args[place] in own and args.count(args[place]) == 1 for args in given)]


def _storage(node: Any) -> Any:
    """What tells the memory of an input from that of others; the node itself, where it is no tensor."""
    import torch

    value = node.meta.get("val")
    return storage_id(value) if isinstance(value, torch.Tensor) else node


@contextlib.contextmanager
def _drawn_alike() -> Iterator[None]:
    """While this lasts, Triton kernels draw each random number by itself, from its own place.

    2.13 to 2.14 draw four at once where a kernel has one dimension, by the place of the first: a kernel of another
    shape that draws them again for the backward makes another mask. Gradients are silently wrong (pytorch#198333).
    2.15 has a switch for it, which is off unless a user turns it on; 2.11 always draws them one by one.
    """
    import torch._inductor.config as inductor_config
    from torch._inductor.codegen.triton import TritonOverrides

    if hasattr(inductor_config, "use_rand4x"):
        with inductor_config.patch(use_rand4x=False):
            yield
    elif hasattr(TritonOverrides, "_can_use_4x_random"):
        stock = TritonOverrides.__dict__["_can_use_4x_random"]
        TritonOverrides._can_use_4x_random = staticmethod(lambda: False)
        try:
            yield
        finally:
            TritonOverrides._can_use_4x_random = stock
    else:
        yield


def mode_options(mode: str) -> dict[str, Any]:
    """What `torch.compile(mode=...)` sets in Inductor's configuration."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode))


def config_fingerprint() -> bytes:
    """A hash of Inductor's and functorch's configuration as it stands."""
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    return inductor_config.get_hash() + functorch_config.get_hash()


def inductor_cache_folder() -> str:
    """Where Inductor keeps compiled graphs."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return cache_dir()


def lowering_settings(*, in_order: bool, transfers: bool) -> contextlib.AbstractContextManager[None]:
    """Inductor's settings for a graph that is planned, while this lasts.

    What is written to memory does not depend on how many operations make it: the plan does not count them
    (docs/decisions/0002).  in_order: its order is the plan's, and every buffer is freed where it dies: a dead one that
    waits for a later one of its size stands at the peak (docs/decisions/0004).  transfers: there are copies to other
    tiers, which reordering would move next to their ends.
    """
    import torch._inductor.config as inductor_config

    settings: dict[str, Any] = {
        "realize_opcount_threshold": max(MOST_OPERATIONS, inductor_config.realize_opcount_threshold or 0),
        "realize_acc_reads_threshold": max(MOST_READS, inductor_config.realize_acc_reads_threshold or 0),
    }
    if in_order:
        settings["allow_buffer_reuse"] = False
    if transfers:
        settings["reorder_for_peak_memory"] = False
    return inductor_config.patch(settings)
