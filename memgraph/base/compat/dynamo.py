"""Dynamo: its graphs, its errors, its state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from memgraph.base.compat.fake import is_fake


def autocast_state(devices: Iterable[str]) -> str:
    """Whether autocast is on for each kind of device, and to what it casts, as text."""
    import torch

    found = ((d, torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in sorted(set(devices)))
    return repr((*found, torch.is_autocast_cache_enabled()))


def enters_autocast(target: Any) -> bool:
    """Whether a target of a Dynamo graph begins an autocast, whose arguments are those of `torch.autocast`."""
    from torch.amp.autocast_mode import _enter_autocast

    return target is _enter_autocast


def leaves_autocast(target: Any) -> bool:
    """Whether a target of a Dynamo graph ends the autocast that was begun last."""
    from torch.amp.autocast_mode import _exit_autocast

    return target is _exit_autocast


def through_dynamo(error: Exception) -> Exception:
    """The same error, of a class that Dynamo hands to the user as it is instead of wrapping it."""
    from torch._dynamo.exc import ShortenTraceback

    kind = type(error)
    if isinstance(error, ShortenTraceback):
        return error
    message = str(error)  # Dynamo appends advice on its own debugging to an exception's arguments
    body = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__str__": lambda self: message,
        # A class made here cannot be found again by its name: what is pickled is the error as it was raised.
        "__reduce__": lambda self: error.__reduce__(),
    }
    through: Any = type(kind.__name__, (kind, ShortenTraceback), body)
    copy = through.__new__(through)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.first_useful_frame = None
    return copy.with_traceback(error.__traceback__)


def is_dynamos_own(error: BaseException) -> bool:
    """Whether an error is of a class of Dynamo's: it tells of another error, or of Dynamo itself."""
    import torch._dynamo.exc as of_dynamo

    return type(error).__module__ == of_dynamo.__name__


def restarts_dynamo(error: BaseException) -> bool:
    """Whether Dynamo traces the function again for this error: a Python number turned out to be no symbol, say."""
    from torch._dynamo.exc import RestartAnalysis

    return isinstance(error, RestartAnalysis)


def compile_id() -> str:
    """Dynamo's name for the frame that it is compiling, `[0/0]`; "" outside of Dynamo."""
    from torch._guards import CompileContext

    return str(CompileContext.current_compile_id() or "")


def compiled_function_name() -> str:
    """The name of the function that Dynamo is compiling, for a module that of its forward; "" outside of Dynamo."""
    from torch._guards import TracingContext

    traced = TracingContext.get_traced_code()
    if not traced:
        return ""
    # A module is called through a function of Dynamo's own; of what that calls, the forward is the last to end.
    code = traced[-1] if "_dynamo" in traced[0].co_filename else traced[0]
    return getattr(code, "co_qualname", code.co_name).split("<locals>.")[-1]


def graph_module(root: Any, graph: Any) -> Any:
    """A module of a graph and the attributes of `root`. While torch compiles, its code is made when it is run."""
    from torch.fx._lazy_graph_module import _make_graph_module

    return _make_graph_module(root, graph)


def copy_graph(gm: Any) -> Any:
    """A Dynamo graph that Inductor may take apart; parameters and constants are shared with the original."""
    copy = graph_module(gm, _copied(gm.graph))
    copy.meta = dict(gm.meta)
    for name, attribute in vars(gm).items():
        # Without the sources of its parameters AOTAutograd takes them for ordinary inputs, and a copy of a BERT saved
        # views of them where the original saved none.
        if name not in vars(copy):
            setattr(copy, name, attribute)
    return copy


def _copied(graph: Any) -> Any:
    import torch.fx as fx

    new = fx.Graph(tracer_cls=getattr(graph, "_tracer_cls", None))
    values: dict[Any, Any] = {}
    result = new.graph_copy(graph, values, return_output_node=True)
    if result is not None:
        value, old = result
        output = new.output(value)
        output.meta = dict(old.meta)
    for old, copied in values.items():
        copied.meta = dict(old.meta)
        for name, attribute in vars(old).items():  # Dynamo keeps the input's source on the node itself
            if name.startswith("_dynamo"):
                setattr(copied, name, attribute)
    new.set_codegen(graph._codegen)
    return new


def graph_text(gm: Any, inputs: Any) -> str:
    """All of a Dynamo graph that decides what it is compiled to, as text."""
    import torch

    lines = [gm.print_readable(print_output=False, include_stride=True, include_device=True)]
    for item in inputs:
        if isinstance(item, torch.Tensor):
            lines.append(f"{tuple(item.shape)} {item.stride()} {item.dtype} {item.device} {item.requires_grad}")
        else:
            lines.append(repr(item))
    return "\n".join(lines)


def operators_text(gm: Any) -> str:
    """What a Dynamo graph does with tensors, as text: the same for any sizes of them, fixed or symbolic."""
    import torch

    calls = (node for node in gm.graph.nodes if node.op.startswith("call_"))
    return "\n".join(str(n.target) for n in calls if isinstance(n.meta.get("example_value"), torch.Tensor))


@contextlib.contextmanager
def only_tracing() -> Iterator[None]:
    """Dynamo traces anew, and remembers no sizes.

    It falls back to eager neither when a backend raises nor when a function was compiled often before. Compilations
    of other threads wait until it is over.
    """
    import copy

    import torch._dynamo.config as config
    import torch._dynamo.pgo as pgo
    from torch._dynamo.convert_frame import compile_lock
    from torch.utils._python_dispatch import _disable_current_modes

    settings = {
        "automatic_dynamic_shapes": False,
        "suppress_errors": False,
        "recompile_limit": 2**30,
        "accumulated_recompile_limit": 2**30,
        "run_gc_after_compile": False,  # nothing of a compilation stays
    }
    # Settings and sizes are those of the process: while this lasts, no other thread compiles.
    with compile_lock:
        # Sizes that differ from those remembered become dynamic; they are written down with the setting off, too.
        sizes = copy.deepcopy(pgo._CODE_STATE)
        try:
            with config.patch(settings), _disable_current_modes():
                yield
        finally:
            pgo._CODE_STATE = sizes


def with_symbol(tensor: Any, dim: int) -> Any:
    """The tensor, marked: Dynamo takes the size of a dimension for a symbol, where the function does not forbid it."""
    from torch._dynamo import maybe_mark_dynamic

    maybe_mark_dynamic(tensor, dim)
    return tensor


def uncompiled(fn: Any) -> Any:
    """The function or module that `torch.compile` was given; `fn` itself where it has not been compiled."""
    while True:
        inner = getattr(fn, "_orig_mod", None) or getattr(fn, "_torchdynamo_orig_callable", None)
        if inner is None:
            return fn
        fn = inner


def graph_break_reason(gm: Any) -> str:
    """Why Dynamo ended this graph before the function did; "" where it did not."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    return str(reason.reason) if reason is not None and reason.graph_break else ""


def rehome(gm: Any, inputs: Any, origins: frozenset[str], device: Any) -> list[Any]:
    """A Dynamo graph as if traced on `device`, instead of on a kind of device in `origins`.

    Returns its inputs, replaced by fake ones; the devices that its operators name are replaced in place.
    Raises TypeError for an input that is not a plain tensor.
    """
    import torch
    from torch._guards import TracingContext

    def moved(item: Any) -> Any:
        return device if isinstance(item, torch.device) and item.type in origins else item

    new = []
    with TracingContext.get().fake_mode:
        for node, given in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
            seen = node.meta.get("example_value", given)  # Dynamo's fake: its sizes may be symbols
            if isinstance(seen, torch.Tensor) and seen.device.type in origins:
                if type(given) not in (torch.Tensor, torch.nn.Parameter) and not is_fake(given):
                    raise TypeError(f"a {type(given).__name__} can only be planned on its own device")
                value = torch.empty_strided(seen.shape, seen.stride(), dtype=seen.dtype, device=device)
                new.append(value.requires_grad_(given.requires_grad))
            else:
                new.append(seen if isinstance(seen, torch.SymInt) else given)
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.args = torch.fx.node.map_aggregate(node.args, moved)
                node.kwargs = torch.fx.node.map_aggregate(node.kwargs, moved)
            module.recompile()
    return new
