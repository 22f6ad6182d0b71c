"""The canary: what memgraph takes from torch's private parts, one test for each.

Run it first with a new torch (`pytest tests/base/test_canary*.py`): a test that fails says what moved, and its message
what memgraph needs it for. Nothing here starts a C++ compiler: the compiled programs are matrix products.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re

import pytest
import torch
from torch import nn

import memgraph.runtime  # noqa: F401  (the operators)
from memgraph.base import compat
from memgraph.machine.measure import peak_above_start
from tests.support import ROOT
from tests.support.inductor_hooks import Caught, compiled, products, square

# Names: what memgraph imports, and what for.

NAMES = {
    "torch._C._DisableAutocast": "operators of a trial run as they are written",
    "torch._C._autograd._get_current_graph_task_keep_graph": "whether another backward may follow",
    "torch._C._autograd._top_saved_tensors_default_hooks": "a forward inside of torch.utils.checkpoint is known",
    "torch._C._autograd._profiler_enabled": "a kernel is not tried while the user's profiler runs",
    "torch._C._current_graph_task_id": "no recording ends within a backward, which would begin it again",
    "torch._C._dispatch_get_all_op_names": "the nearest operator to a name that is none",
    "torch._C._len_torch_dispatch_stack": "whether any mode is on, asked at each launch",
    "torch._C._storage_Use_Count": "who holds an output",
    "torch._C._profiler._EventType": "allocations among the profiler's events",
    "torch._C._profiler._ExperimentalConfig": "the profiler of a kernel's trial",
    "torch.amp.autocast_mode._enter_autocast": "attention is asked for its kernel as it is called",
    "torch.amp.autocast_mode._exit_autocast": "the same",
    "torch.autograd.Variable._execution_engine": "the end of a backward is known",
    "torch._dynamo.OptimizedModule": "a model that is compiled already is not compiled again",
    "torch._dynamo.config": "dry runs trace anew",
    "torch._dynamo.convert_frame.compile_lock": "dry runs keep other threads' sizes",
    "torch._dynamo.exc": "errors of Dynamo's own are told from those they tell of",
    "torch._dynamo.exc.RestartAnalysis": "Dynamo's wish to trace again is no fault",
    "torch._dynamo.exc.ShortenTraceback": "errors reach the user as they are",
    "torch._dynamo.maybe_mark_dynamic": "a step is captured for any size",
    "torch._dynamo.pgo": "dry runs leave no sizes behind",
    "torch._dynamo.utils.preserve_rng_state": "compiling in the middle of a step draws nothing",
    "torch._functorch.compile_utils.raise_getitems": "the split's order",
    "torch._functorch.config": "settings of the joint graph and its split",
    "torch._functorch.partitioners._extract_fwd_bwd_modules": "the joint graph is cut at the plan's saved values",
    "torch._functorch.partitioners._is_backward_state": "inputs of the joint graph that only the backward gets",
    "torch._functorch.partitioners._is_bwd_seed_offset": "the same",
    "torch._functorch.partitioners._is_tangent": "the same",
    "torch._functorch.partitioners.min_cut_rematerialization_partition": "the stock split, as a candidate",
    "torch._guards.CompileContext": "a graph's number in the report",
    "torch._guards.TracingContext": "donated indices, the function's name, the fake mode",
    "torch._guards.detect_fake_mode": "metadata of new nodes",
    "torch._guards.tracing": "a graph is compiled again outside of Dynamo",
    "torch._higher_order_ops.invoke_subgraph.invoke_subgraph": "tiles call one body",
    "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table": "names of Triton kernels",
    "torch._inductor.codecache.PyCodeCache": "kernels are compiled once a plan is accepted",
    "torch._inductor.codecache.CppPythonBindingsCodeCache": "the C++ compiler is prepared beside the trace",
    "torch._inductor.codegen.triton.TritonOverrides": "random numbers that do not depend on the kernel",
    "torch._inductor.compile_fx.compile_fx": "Inductor itself",
    "torch._inductor.compile_fx.compile_fx_inner": "Inductor over one graph",
    "torch._inductor.config": "settings of the lowering",
    "torch._inductor.custom_graph_pass": "the base class of the pass over scheduler nodes",
    "torch._inductor.custom_graph_pass.CustomPartitionerFn": "the base class of memgraph's partitioner",
    "torch._inductor.dependencies.MemoryDep": "what overwrites a buffer waits for its readers",
    "torch._inductor.dependencies.WeakDep": "the plan's order is a dependency",
    "torch._inductor.graph.GraphLowering": "kernels are compiled once a plan is accepted; the layout of convolutions",
    "torch._inductor.inductor_prims": "seeds are drawn once",
    "torch._inductor.ir": "lowerings of memgraph's operators",
    "torch._inductor.scheduler.BaseSchedulerNode": "groups of nodes keep the plan's order",
    "torch._inductor.scheduler.FusedSchedulerNode": "groups of nodes keep the plan's order",
    "torch._inductor.list_mode_options": "the option `mode`",
    "torch._inductor.list_options": "the option `inductor` is checked",
    "torch._inductor.lowering": "lowerings of memgraph's operators",
    "torch._inductor.lowering.fallback_handler": "lowerings of memgraph's operators",
    "torch._inductor.lowering.lowerings": "lowerings of memgraph's operators",
    "torch._inductor.lowering.register_lowering": "lowerings of memgraph's operators",
    "torch._inductor.runtime.cache_dir_utils.cache_dir": "`memgraph doctor` names the cache",
    "torch._inductor.virtualized.V": "the graph that is being lowered",
    "torch._logging.trace_structured": "graphs before and after each pass, and reports, in torch's structured trace",
    "torch._ops.HigherOrderOperator": "operators that call graphs",
    "torch._ops.OpOverload": "operators are told from Python functions",
    "torch._ops._higher_order_ops": "operators that call graphs, by name",
    "torch._subclasses.FakeTensorMode": "tensors without contents",
    "torch._subclasses.fake_tensor": "tensors without contents, those that torch keeps in C++ too",
    "torch.autograd._disable_profiler_legacy": "the profiler of a kernel's trial",
    "torch.autograd._enable_profiler_legacy": "the profiler of a kernel's trial",
    "torch.compiler._is_compiling_flag": "optimizers are rehearsed as they step: eagerly",
    "torch.distributed.distributed_c10d._get_default_store": "ranks agree on plans through it",
    "torch.distributed.distributed_c10d._resolve_process_group": "the ranks of a graph with collectives",
    "torch.fx._lazy_graph_module._make_graph_module": "the code of a graph is made when the graph is run",
    "torch.fx.node._side_effectful_functions": "calls that must stay",
    "torch.ops.aten._local_scalar_dense.default": "an optimizer's rehearsal asks a fake tensor for its number",
    "torch.optim.optimizer._default_to_fused_or_foreach": "how an optimizer steps on its device",
    "torch.utils._foreach_utils._get_foreach_kernels_supported_devices": "how it would step on a device elsewhere",
    "torch.optim.optimizer._global_optimizer_post_hooks": "the same",
    "torch.optim.optimizer._global_optimizer_pre_hooks": "a rehearsal runs no hook of the user",
    "torch.utils._ordered_set.OrderedSet": "an argument of the extraction",
    "torch.utils._python_dispatch.TorchDispatchMode": "births and deaths of fake tensors",
    "torch.utils._python_dispatch._disable_current_modes": "real tensors while torch traces",
    "torch.utils._pytree.tree_leaves": "tensors among an operator's arguments",
    "torch.utils._pytree.tree_map": "operators' arguments",
    "torch.utils._sympy.interp.sympy_interp": "sizes from symbols",
    "torch.utils._sympy.reference.PythonReferenceAnalysis": "sizes from symbols",
}


def found(name: str):
    """What a dotted name stands for: a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            value = getattr(value, part)
        return value
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_name_is_there(name):
    try:
        found(name)
    except (ModuleNotFoundError, AttributeError) as error:
        pytest.fail(f"torch {torch.__version__} has no {name}; memgraph needs it: {NAMES[name]} ({error})")


def private_names(source: str) -> set[str]:
    """The private names of torch that a file imports or reaches as `torch._...`."""
    names = set()
    tree = ast.parse(source)
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}  # `torch._C` of `torch._C.x`
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and node not in inner:
            names.add(ast.unparse(node))
    return {name for name in names if re.fullmatch(r"torch\.(\w+\.)*_\w+(\.\w+)*", name) and "__" not in name}


@pytest.mark.slow
def test_every_private_name_is_listed():
    """A new import of a private name belongs into NAMES, one that is gone does not."""
    root = ROOT
    used = set()
    for file in [*(root / "memgraph").rglob("*.py"), *(root / "passes").rglob("*.py")]:
        used |= private_names(file.read_text())
    used = {name for name in used if not name.startswith("torch._C._nn")}  # functions that a user's graph calls
    named = {name for name in used if any(name == known or name.startswith(f"{known}.") for known in NAMES)}
    assert not used - named, "private names that the canary does not list"
    assert not {known for known in NAMES if not any(f"{name}.".startswith(f"{known}.") for name in used)}, "not used"


# Signatures: how memgraph calls them.

CALLS = {
    "torch._functorch.partitioners._extract_fwd_bwd_modules": (
        ["joint", "saved"],
        ["saved_sym_nodes", "num_fwd_outputs", "static_lifetime_input_nodes"],
    ),
    "torch._functorch.partitioners.min_cut_rematerialization_partition": (
        ["joint", "inputs"],
        ["num_fwd_outputs", "static_lifetime_input_indices", "compiler"],
    ),
    "torch._functorch.compile_utils.raise_getitems": (["gm"], []),
    "torch._inductor.compile_fx.compile_fx": (["gm", "inputs"], ["inner_compile", "config_patches"]),
    "torch._inductor.compile_fx.compile_fx_inner": (["gm", "inputs"], ["is_backward"]),
    "torch._inductor.codecache.CppPythonBindingsCodeCache.load_pybinding_async": (["argtypes", "code"], ["submit_fn"]),
    "torch._inductor.codecache.PyCodeCache.load_by_key_path": (["key", "path"], ["linemap", "attrs"]),
    "torch._inductor.graph.GraphLowering._compile_to_module_lines": (["self", "code"], []),
    "torch._inductor.graph.GraphLowering.decide_layout_opt": (["forward"], ["is_inference"]),
    "torch._inductor.list_options": ([], []),
    "torch._inductor.list_mode_options": (["mode"], []),
    "torch._inductor.lowering.fallback_handler": (["operator"], []),
    "torch._inductor.lowering.register_lowering": (["operator"], ["type_promotion_kind"]),
    "torch._inductor.ir.ExternKernel": ([], ["name", "layout", "inputs"]),
    "torch._inductor.ir.ExternKernel.require_channels_last": (["x"], []),
    "torch._inductor.ir.ExternKernel.require_exact_strides": (["x", "strides"], []),
    "torch._inductor.ir.NoneLayout": ([], ["device"]),
    "torch._inductor.ir.Pointwise.create": ([], ["device", "dtype", "inner_fn", "ranges"]),
    "torch._inductor.ir.FallbackKernel.create": (["operator", "x", "y"], []),
    "torch._inductor.dependencies.WeakDep": (["name"], ["mutating_buf"]),
    "torch._guards.detect_fake_mode": (["values"], []),
    "torch._guards.tracing": (["context"], []),
    "torch.utils._sympy.interp.sympy_interp": (["analysis", "symbols", "expression"], []),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.suppress_guards": (["self"], []),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.ignore_fresh_unbacked_symbols": (["self"], []),
    "torch._inductor.scheduler.Scheduler.compute_ancestors": (["self"], []),
    "torch._inductor.scheduler.BaseSchedulerNode.add_fake_dep": (["self", "dependency"], []),
    "torch._inductor.scheduler.BaseSchedulerNode.get_buffer_names": (["self"], []),
    "torch._inductor.scheduler.BaseSchedulerNode.get_operation_names": (["self"], []),
    "torch._inductor.scheduler.BaseSchedulerNode.get_outputs": (["self"], []),
    "torch._inductor.scheduler.BaseSchedulerNode.is_extern": (["self"], []),
    "torch._inductor.scheduler.BaseSchedulerNode.is_reduction": (["self"], []),
}


@pytest.mark.parametrize("name", CALLS)
def test_is_called_as_before(name):
    positional, keywords = CALLS[name]
    signature = inspect.signature(found(name))
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        pytest.fail(f"torch {torch.__version__}: {name}{signature} is called with {positional}, {keywords}: {error}")


SETTINGS = {
    "torch._inductor.config": "custom_partitioner_fn _pre_fusion_custom_pass allow_buffer_reuse "
    "reorder_for_peak_memory force_disable_caches realize_reads_threshold realize_opcount_threshold "
    "realize_acc_reads_threshold",
    "torch._functorch.config": "force_non_lazy_backward_lowering activation_memory_budget donated_buffer",
    "torch._dynamo.config": "automatic_dynamic_shapes suppress_errors recompile_limit accumulated_recompile_limit",
}


@pytest.mark.parametrize(
    ("module", "setting"), [(module, setting) for module, names in SETTINGS.items() for setting in names.split()]
)
def test_setting_is_there(module, setting):
    assert hasattr(found(module), setting), f"torch {torch.__version__} has no setting {module}.{setting}"


# Behaviour: what tiny programs show.


def test_dropout_is_seeds():
    joint = compiled(lambda x: nn.functional.dropout(x, 0.5).sum(), square(), stop=True).joint
    targets = [node.target for node in joint.graph.nodes]
    assert targets.count(torch._inductor.inductor_prims.seeds) == 1
    assert sum(map(compat.inductor_pure_random, targets)) == 2  # the seed is looked up, the numbers are made


def test_fsdp2_and_ddp_say_whose_parameters_they_have():
    """`compat.gathered`, `compat.wrapped` and `compat.bucket_bytes` read these attributes."""
    sharded = inspect.getsource(importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param").FSDPParam)
    assert "self._unsharded_param = " in sharded and "self.sharded_param = " in sharded
    wrapped = inspect.getsource(nn.parallel.DistributedDataParallel)
    assert "self._module_parameters = " in wrapped and "self.reducer = " in wrapped
    assert "self.gradient_as_bucket_view = " in wrapped


def test_a_joint_graph_is_cut_where_it_is_told():
    joint = compiled(lambda x, w: (x @ w).sin().cos(), square(), square(), stop=True).joint
    sine = joint.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)[0]
    primals = joint.graph.find_nodes(op="placeholder")[:2]
    saved = [*primals, sine]
    forward, backward = compat.extract_forward_backward(joint, saved, [], num_fwd_outputs=1, static_inputs=[])
    outputs = [node.name for node in forward.graph.output_node().args[0]]
    assert len(outputs) == 1 + 3 and set(outputs[1:]) == {node.name for node in saved}
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    assert names[:3] == outputs[1:] and names[3].startswith("tangents")


def test_donation_is_switched_off():
    from torch._guards import TracingContext

    left = []

    def inner(gm, inputs, **kwargs):
        compat.donate_nothing()
        left.append(TracingContext.get().fw_metadata.bw_donated_idxs)
        return gm.forward

    def backend(gm, inputs):
        compat.compile_graph(gm, inputs, inner, {"force_disable_caches": True}, retain_graph=True)
        raise Caught

    torch._dynamo.reset()
    with pytest.raises(Exception, match="Caught"):
        torch.compile(products, backend=backend)(square(), square(), square())
    assert left == [[], []]


def test_of_two_equal_sizes_one_is_taken_by_another_symbol():
    """What `bound_symbol` is there for: a size keeps the symbol that it was made with, beside the one that stands."""
    x, y = square(False), square(False)
    sizes = []

    def backend(gm, inputs):
        sizes.extend(size for size in inputs if isinstance(size, torch.SymInt))
        return gm.forward

    def added(x, y):
        return x + torch.arange(x.shape[0]), y + torch.arange(y.shape[0]), x + y

    torch._dynamo.reset()
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        torch.compile(added, backend=backend, fullgraph=True, dynamic=True)(x[:, 0].clone(), y[:, 0].clone())
    standing, bound = map(compat.symbol_of, sizes), map(compat.bound_symbol, sizes)
    assert len(sizes) == 2 and len(set(standing)) == 1
    assert sum(symbol is not None for symbol in bound) == 1


@pytest.mark.parametrize("mode", ["symbolic", "static"])
def test_sizes_have_hints(mode):
    if mode == "static":
        assert compat.size_hint(3) == 3
        return
    x = square(False)
    torch._dynamo.mark_dynamic(x, 0)
    sizes = []

    def backend(gm, inputs):
        sizes.extend(size for size in inputs if isinstance(size, torch.SymInt))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x.sin(), backend=backend, fullgraph=True)(x)
    (size,) = sizes
    assert compat.size_hint(size * 2) == 16
    assert compat.computed_size(size * 2 + 1, {compat.symbol_of(size): 8}) == 17 and compat.symbol_of(size * 2) is None
    assert compat.is_backed(size) and compat.bound_symbol(size) == compat.symbol_of(size)
    assert compat.bound_symbol(size * 2) is None and compat.bound_symbol(3) is None and compat.bound_symbol(x) is None
    # As memory-efficient attention has it on CUDA: torch's own interpreter of such sizes fails on them.
    rows = 4 * torch.sym_max(1, 32 * math.ceil(size / 32))
    assert compat.size_at(rows, {compat.symbol_of(size): 70}) == 384


def test_fake_tensors():
    with torch._subclasses.FakeTensorMode() as mode:
        fake = torch.empty(4, 4)
        assert compat.is_fake(fake) and compat.fake_mode_of([fake]) is mode and compat.runs_on_fakes()
        assert compat.storage_id(fake) == compat.storage_id(fake.view(16)) != compat.storage_id(fake.clone())
        with compat.really():
            assert not compat.is_fake(torch.empty(1))
    with compat.propagating(mode):
        assert compat.is_fake(torch.empty(2)) and not torch.is_grad_enabled()
    assert not compat.is_fake(torch.empty(1)) and not compat.runs_on_fakes()
    with torch._guards.tracing(torch._guards.TracingContext(mode)):
        assert compat.runs_on_fakes()


def test_holders_of_a_storage_are_counted():
    tensor = torch.empty(4)
    storage = compat.StorageReference(tensor)
    one = storage.holders()
    view = tensor.view(2, 2)
    assert storage.holders() == one + 1 and storage.bytes == 16
    del tensor, view
    assert storage.holders() == 0


def test_calls_without_readers_are_known():
    assert compat.has_side_effect(torch.ops.aten._assert_async.msg)
    assert not compat.has_side_effect(torch.ops.aten.sin.default)


def test_allocations_are_profiled():
    assert peak_above_start(lambda: torch.empty(1024).sum(), "cpu") == 4096 + 4


def test_heavy_functions_are_those_that_this_torch_lists():
    ir = importlib.import_module("torch._inductor.ir")
    source = inspect.getsource(ir.StorageBox.should_realize_on_reuse)
    listed = re.search(r"heavy_ops = \[(.*?)\]", source, re.DOTALL)
    assert listed, "facts/values.py asks which functions Inductor writes to memory where several read them"
    assert set(re.findall(r'"(\w+)"', listed[1])) == set(compat.heavy_functions().split())
