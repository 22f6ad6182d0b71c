"""Every private import from torch, in one place.

tests/base/test_canary.py names each of them, and says what memgraph leans on. Where the supported versions (2.11, 2.13
and 2.15) differ, the shim names the versions that need it and the change of torch that makes it unnecessary.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from memgraph.base.errors import GraphError


def allocation_event_type() -> Any:
    """The tag of an allocation (or a free) among the events of `torch.profiler`'s event tree."""
    from torch._C._profiler import _EventType

    return _EventType.Allocation


def inductor_config_keys() -> frozenset[str]:
    """The names that Inductor's configuration knows, dotted for nested ones (`"triton.cudagraphs"`)."""
    from torch._inductor import list_options  # here, because Inductor takes a while to import

    return frozenset(list_options())


def partitioner_base() -> type:
    """The abstract class that Inductor's `custom_partitioner_fn` must be an instance of."""
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    return CustomPartitionerFn


def stock_partition(joint: Any, joint_inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Inductor's own min-cut split of a joint graph (torch/_functorch/partitioners.py).

    It rewrites `joint` in place (dead code, common subexpressions) and returns (forward, backward).
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)


def extract_forward_backward(
    joint: Any, saved: list[Any], saved_symbols: list[Any], *, num_fwd_outputs: int, static_inputs: list[Any]
) -> tuple[Any, Any]:
    """Cut a joint graph at the saved nodes; whatever else the backward needs, it computes again."""
    from torch._functorch.partitioners import _extract_fwd_bwd_modules
    from torch.utils._ordered_set import OrderedSet

    return _extract_fwd_bwd_modules(
        joint,
        saved,
        saved_sym_nodes=saved_symbols,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_nodes=OrderedSet(static_inputs),
    )


def raise_getitems(gm: Any) -> Any:
    """Move every getitem right behind the operator whose output it takes."""
    from torch._functorch.compile_utils import raise_getitems as stock

    return stock(gm)


def activation_memory_budget_is_default() -> bool:
    """Whether `torch._functorch.config.activation_memory_budget` is 1.0: below it dropout would be redrawn."""
    import torch._functorch.config as config

    return config.activation_memory_budget == 1.0


def size_hint(size: Any) -> int:
    """A size as a plain int; of a symbolic one, the value seen when the graph was captured.

    Raises GraphError for a size that only data decide.
    """
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise GraphError(
            f"the size {size} depends on data (nonzero, item, a boolean mask): its bytes are unknown before it runs, "
            "so no budget can be kept. Take the operator out of the compiled function (torch.compiler.disable), or "
            "compile this function with Inductor."
        )
    return int(hint)


def number_hint(number: Any) -> int | None:
    """An integer argument of a graph as a plain int, as `size_hint`.

    None for the ragged dimension of a jagged nested tensor: that is the name of a structure, and measures nothing.
    """
    return size_hint(number) if isinstance(number, int) or not number.node.is_nested_int() else None


def size_node(size: Any, graph: Any) -> Any:
    """A size as an argument of a node that `graph` is about to get: a number, or a node that computes it from the
    symbols among the graph's inputs.

    Raises GraphError where a symbol is not among them.
    """
    import torch.fx as fx
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    if isinstance(size, int):
        return size
    symbols = {}
    for node in graph.find_nodes(op="placeholder"):
        known = getattr(getattr(node.meta.get("val"), "node", None), "expr", None)
        if known is not None and known.is_symbol:
            symbols[known] = fx.Proxy(node)
    if missing := size.node.expr.free_symbols - symbols.keys():
        raise GraphError(f"the size {size} needs {missing}, which the backward does not get")
    made = sympy_interp(PythonReferenceAnalysis, symbols, size.node.expr)
    if not isinstance(made, fx.Proxy):
        return int(made)
    pending = [made.node]
    while pending:  # the nodes on the way: each is computed from sizes that are known
        node = pending[-1]
        unknown = [read for read in node.all_input_nodes if "val" not in read.meta]
        if not unknown:
            arguments = fx.map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
            node.meta.setdefault("val", node.target(*arguments[0], **arguments[1]))
            pending.pop()
        pending += unknown
    return made.node


def is_inductor_seed(target: Any) -> bool:
    """Whether a target draws the seeds from which Inductor makes random numbers."""
    from torch._inductor import inductor_prims

    return target in (inductor_prims.seeds, inductor_prims.seed)


def inductor_pure_random(target: Any) -> bool:
    """Whether a target is Inductor's counter-based generator: a pure function of a seed that was drawn before."""
    from torch._inductor import inductor_prims

    return target in (inductor_prims.lookup_seed, inductor_prims.random, inductor_prims.randint)


def has_side_effect(target: Any) -> bool:
    """Whether FX was told to keep calls of `target` that nothing reads."""
    from torch.fx.node import _side_effectful_functions

    return target in _side_effectful_functions


def triton_kernel(index: int) -> str:
    """The name of the function of a Triton kernel that is called in a graph, by its index there."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return _kernel_name(kernel_side_table.get_kernel(index))


def _kernel_name(kernel: Any) -> str:
    while hasattr(kernel, "fn"):  # an autotuned kernel holds a compiled one, which holds the function
        kernel = kernel.fn
    return kernel.__name__


def operator_names() -> set[str]:
    """All operators that are registered in this process, `namespace::name`, Triton kernels of graphs among them."""
    import torch
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch._ops import _higher_order_ops

    named = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    kernels = {f"triton::{_kernel_name(kernel)}" for kernel in kernel_side_table.id_to_kernel.values()}
    return named | kernels | {f"higher_order::{name}" for name in _higher_order_ops}


def same_contents(left: Any, right: Any) -> bool:
    """Whether two tensors of one shape are equal, nan too; fake ones have no contents to tell apart."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if left is right:
        return True
    if is_fake(left) or is_fake(right):
        return is_fake(left) and is_fake(right)
    with _disable_current_modes(), torch.no_grad():
        left, right = left.detach(), right.detach()
        return bool(((left == right) | ((left != left) & (right != right))).all())


def fake_mode_of(values: Any) -> Any:
    """The fake mode that the fake tensors among `values` were made in, or None."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode(values)


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has a shape, but no contents.

    2.11, 2.13: each is a FakeTensor. 2.15 can keep them in C++ as well (torch/_subclasses/fake_tensor.py), and tells.
    """
    from torch._subclasses import fake_tensor

    if hasattr(fake_tensor, "is_fake_tensor"):
        return fake_tensor.is_fake_tensor(tensor)
    return isinstance(tensor, fake_tensor.FakeTensor)


@contextlib.contextmanager
def propagating(mode: Any) -> Iterator[None]:
    """Ops run on fake tensors of `mode`, and leave no guards and no new symbols behind."""
    import torch

    with contextlib.ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
        stack.enter_context(mode)
        stack.enter_context(torch.no_grad())
        yield


@contextlib.contextmanager
def really() -> Iterator[None]:
    """Within it operators run, on real tensors, as they are written: whatever torch is tracing meanwhile."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C._DisableAutocast():
        yield


@contextlib.contextmanager
def fake_evaluation() -> Iterator[None]:
    """Within it, tensors are fake (a shape, a dtype, no bytes), and operators neither run nor cast.

    A CUDA tensor can be made in it where there is no CUDA device.
    """
    import torch
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), torch._C._DisableAutocast(), torch.no_grad():
        yield


def traces_cuda() -> bool:
    """Whether autograd can trace for a CUDA device: a build with CUDA needs a real one (seen on 2.11)."""
    import torch

    return not torch.backends.cuda.is_built() or torch.cuda.is_available()


def storage_id(tensor: Any) -> int:
    """The same number for tensors that share a storage, for as long as one of them lives; fake ones too."""
    return tensor.untyped_storage()._cdata


def must_save() -> Any:
    """The tag in `node.meta["recompute"]` that keeps Inductor's partitioner from computing a value again."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_SAVE


def must_recompute() -> Any:
    """The tag that makes Inductor's partitioner compute a value again."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_RECOMPUTE


def compile_graph(
    gm: Any, inputs: Any, inner_compile: Any, patches: dict[str, Any], *, retain_graph: bool = False
) -> Any:
    """Inductor over a Dynamo graph; both directions are compiled before this returns.

    The functorch settings hold for this compilation alone. Below a budget of 1.0 torch's partitioner would redraw
    dropout.
    """
    import torch._functorch.config as functorch_config
    from torch._inductor.compile_fx import compile_fx

    settings = {"force_non_lazy_backward_lowering": True, "activation_memory_budget": 1.0}
    if retain_graph:  # a backward that overwrites its saved values can run only once
        settings["donated_buffer"] = False
    with functorch_config.patch(settings):
        return compile_fx(gm, inputs, inner_compile=inner_compile, config_patches=patches)


def lower_transfers() -> None:
    """Teach Inductor about the operators that copy values to other tiers and back.

    - The copy out and its end get one and the same buffer. By itself Inductor computes a value that it has fused
      everywhere else into a buffer of its own for each of the two; the first would be given up before the copy ends.
    - What comes back is aligned. Inductor takes every output of an operator with a CPU input for unaligned, which costs
      Triton its wide loads, and what stands for a copy lies on the CPU.
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


def lower_shards() -> None:
    """Teach Inductor to put shards together in place: each of a chain of operators writes into its first argument."""
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

    for functional, writing in (
        (operators.shard_put, operators.shard_put_),
        (operators.shard_add, operators.shard_add_),
    ):
        lower = functools.partial(into, operator=writing.default)
        register_lowering(functional.default, type_promotion_kind=None)(lower)


def invoke_subgraph() -> Any:
    """The operator that calls a body: a graph that Inductor compiles once for all calls of it."""
    from torch._higher_order_ops.invoke_subgraph import invoke_subgraph as stock

    return stock


def inner_compile() -> Any:
    """Inductor's compiler of one graph, whose bodies write over nothing that they are given."""
    from torch._inductor.compile_fx import compile_fx_inner

    def compile_one(*args: Any, **kwargs: Any) -> Any:
        with _bodies_own_nothing():
            return compile_fx_inner(*args, **kwargs)

    return compile_one


@contextlib.contextmanager
def _bodies_own_nothing() -> Iterator[None]:
    """While this lasts, no body is told that it may overwrite its inputs.

    Up to 2.14 a body takes over the outer backward's list of inputs that may be overwritten, though its own inputs are
    others: it wrote into weights and into values that a later call of it reads. Gradients are wrong, without a word.
    Unnecessary from 2.15 (pytorch#193960).
    """
    from torch._guards import TracingContext
    from torch._inductor.lowering import lowerings

    body = invoke_subgraph()
    stock = lowerings[body]

    @functools.wraps(stock)
    def lower(*args: Any, **kwargs: Any) -> Any:
        context = TracingContext.try_get()
        if context is None or context.fw_metadata is None:
            return stock(*args, **kwargs)
        donated = context.fw_metadata.bw_donated_idxs
        context.fw_metadata.bw_donated_idxs = []  # the body reads it now; the outer graph has read it
        try:
            return stock(*args, **kwargs)
        finally:
            context.fw_metadata.bw_donated_idxs = donated

    lowerings[body] = lower
    try:
        yield
    finally:
        lowerings[body] = stock


def mode_options(mode: str) -> dict[str, Any]:
    """What `torch.compile(mode=...)` sets in Inductor's configuration."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode))


def autocast_state(devices: Iterable[str]) -> str:
    """Whether autocast is on for each kind of device, and to what it casts, as text."""
    import torch

    found = ((d, torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in sorted(set(devices)))
    return repr((*found, torch.is_autocast_cache_enabled()))


def config_fingerprint() -> bytes:
    """A hash of Inductor's and functorch's configuration as it stands."""
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    return inductor_config.get_hash() + functorch_config.get_hash()


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
    through = type(kind.__name__, (kind, ShortenTraceback), body)
    copy = through.__new__(through)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.first_useful_frame = None
    return copy.with_traceback(error.__traceback__)


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


def copy_graph(gm: Any) -> Any:
    """A Dynamo graph that Inductor may take apart; parameters and constants are shared with the original."""
    import torch.fx as fx

    copy = fx.GraphModule(gm, _copied(gm.graph))
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


def free_memory() -> int:
    """Bytes of memory that the machine could still give out."""
    import os

    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def tangents_are_given_away() -> bool:
    """Whether a compiled backward holds the only reference to its tangents, and so can free them.

    On 2.11 the engine holds them until the backward returns (measured). Unnecessary from 2.13, which boxes them
    (pytorch#177837).
    """
    import torch

    return hasattr(torch.autograd.Function, "boxed_grads_call")


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


def donate_nothing() -> None:
    """Tell AOTAutograd, while it compiles, that the backward leaves its saved values as they are.

    2.11 to 2.15: switched off by configuration alone, it leaves the list at None, which its check at run time takes for
    a donation (`bw_donated_idxs != []` in torch/_functorch/_aot_autograd/runtime_wrappers.py).
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def inductor_cache_folder() -> str:
    """Where Inductor keeps compiled graphs."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return cache_dir()


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

    The dependency is put among those that decide over order and fusion, not among the node's reads: these decide when a
    buffer is freed.
    """
    from torch._inductor.dependencies import WeakDep

    if node.ancestors.intersection(previous.get_operation_names()):
        return  # it does so already
    name = next(iter(previous.get_buffer_names()))
    # Not a buffer that the node writes: the scheduler would ask whether it may be fused with what it waits for.
    node.unmet_dependencies.add(WeakDep(name, mutating_buf=name))


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


def write_to_memory(node: Any) -> None:
    """Have Inductor write a node's value to memory, whatever reads it, with the strides that it has in the graph."""
    node.meta["inductor_realize_to_strides"] = True


def is_written(node: Any) -> bool:
    """Whether a scheduler node computes, without fusion, the value of a node that `write_to_memory` marked."""
    origin = getattr(node.node, "get_origin_node", lambda: None)() if node.node is not None else None
    return origin is not None and bool(origin.meta.get("inductor_realize_to_strides"))


def recompute_ancestors(node: Any) -> None:
    """Let Inductor's scheduler take note of new dependencies before it fuses."""
    node.scheduler.compute_ancestors()


def lowering_settings(transfers: bool) -> contextlib.AbstractContextManager[None]:
    """Inductor's settings for a graph whose order is the plan's, while this lasts.

    Every buffer is freed where it dies: a dead one that waits for a later one of its size stands at the peak
    (docs/decisions/0004).  transfers: there are copies to other tiers, which reordering would move next to their ends.
    """
    import torch._inductor.config as inductor_config

    settings = {"allow_buffer_reuse": False}
    if transfers:
        settings["reorder_for_peak_memory"] = False
    return inductor_config.patch(settings)


def profiling() -> bool:
    """Whether a profiler of torch runs on this thread: a process has one, and a second would end it."""
    from torch._C._autograd import _profiler_enabled

    return bool(_profiler_enabled())


def allocations(call: Any) -> tuple[Any, list[int]]:
    """What `call()` returns, and the bytes of each allocation (positive) and free (negative) on the CPU meanwhile.

    By the older of torch's two profilers: it starts in microseconds, and says nothing of it on the terminal. Only what
    this thread allocates counts. None may run when this is called.
    """
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy

    # inputs' shapes, memory, stacks, flops, modules
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()))
    try:
        result = call()
    finally:
        threads = _disable_profiler_legacy()
    return result, [
        int(event.cpu_memory_usage()) for thread in threads for event in thread if event.kind() == "memory_alloc"
    ]


def falls_back(target: Any) -> bool:
    """Whether Inductor leaves an operator to its own kernel, on the CPU: it has no lowering, or one that calls it."""
    from torch._inductor import lowering

    return target in lowering.fallbacks or target not in lowering.lowerings
