"""The canary: what memgraph takes from torch's private parts, one test for each.

Run this file first with a new torch (`pytest tests/base/test_canary.py`): a test that fails says by its name what
moved, and its message what memgraph needs it for. Nothing here starts a C++ compiler: the compiled programs are matrix
products.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import weakref
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import memgraph.runtime  # noqa: F401  (the operators)
from memgraph.base import compat
from memgraph.lower.timeline import inputs_of, read_wrapper
from memgraph.machine.measure import peak_above_start
from tests.support import ROOT

# Names: what memgraph imports, and what for.

NAMES = {
    "torch._C._DisableAutocast": "operators of a trial run as they are written",
    "torch._C._autograd._profiler_enabled": "a kernel is not tried while the user's profiler runs",
    "torch._C._dispatch_get_all_op_names": "the nearest operator to a name that is none",
    "torch._C._profiler._EventType": "allocations among the profiler's events",
    "torch._C._profiler._ExperimentalConfig": "the profiler of a kernel's trial",
    "torch._dynamo.config": "dry runs trace anew",
    "torch._dynamo.convert_frame.compile_lock": "dry runs keep other threads' sizes",
    "torch._dynamo.exc.ShortenTraceback": "errors reach the user as they are",
    "torch._dynamo.pgo": "dry runs leave no sizes behind",
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
    "torch._higher_order_ops.invoke_subgraph.invoke_subgraph": "tiles call one body",
    "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table": "names of Triton kernels",
    "torch._inductor.compile_fx.compile_fx": "Inductor itself",
    "torch._inductor.compile_fx.compile_fx_inner": "Inductor over one graph",
    "torch._inductor.config": "settings of the lowering",
    "torch._inductor.custom_graph_pass": "the base class of the pass over scheduler nodes",
    "torch._inductor.custom_graph_pass.CustomPartitionerFn": "the base class of memgraph's partitioner",
    "torch._inductor.dependencies.MemoryDep": "what overwrites a buffer waits for its readers",
    "torch._inductor.dependencies.WeakDep": "the plan's order is a dependency",
    "torch._inductor.inductor_prims": "seeds are drawn once",
    "torch._inductor.ir": "lowerings of memgraph's operators",
    "torch._inductor.list_mode_options": "the option `mode`",
    "torch._inductor.list_options": "the option `inductor` is checked",
    "torch._inductor.lowering": "lowerings of memgraph's operators",
    "torch._inductor.lowering.fallback_handler": "lowerings of memgraph's operators",
    "torch._inductor.lowering.lowerings": "lowerings of memgraph's operators",
    "torch._inductor.lowering.register_lowering": "lowerings of memgraph's operators",
    "torch._inductor.runtime.cache_dir_utils.cache_dir": "`memgraph doctor` names the cache",
    "torch._inductor.virtualized.V": "the graph that is being lowered",
    "torch._logging.trace_structured": "every graph before and after each pass, in torch's structured trace",
    "torch._ops.HigherOrderOperator": "operators that call graphs",
    "torch._ops.OpOverload": "operators are told from Python functions",
    "torch._ops._higher_order_ops": "operators that call graphs, by name",
    "torch._subclasses.FakeTensorMode": "tensors without contents",
    "torch._subclasses.fake_tensor": "tensors without contents, those that torch keeps in C++ too",
    "torch.autograd._disable_profiler_legacy": "the profiler of a kernel's trial",
    "torch.autograd._enable_profiler_legacy": "the profiler of a kernel's trial",
    "torch.fx.node._side_effectful_functions": "calls that must stay",
    "torch.utils._ordered_set.OrderedSet": "an argument of the extraction",
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
    "torch._inductor.list_options": ([], []),
    "torch._inductor.list_mode_options": (["mode"], []),
    "torch._inductor.lowering.fallback_handler": (["operator"], []),
    "torch._inductor.lowering.register_lowering": (["operator"], ["type_promotion_kind"]),
    "torch._inductor.ir.ExternKernel.require_exact_strides": (["x", "strides"], []),
    "torch._inductor.ir.FallbackKernel.create": (["operator", "x", "y"], []),
    "torch._inductor.dependencies.WeakDep": (["name"], ["mutating_buf"]),
    "torch._guards.detect_fake_mode": (["values"], []),
    "torch.utils._sympy.interp.sympy_interp": (["analysis", "symbols", "expression"], []),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.suppress_guards": (["self"], []),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.ignore_fresh_unbacked_symbols": (["self"], []),
    "torch._inductor.scheduler.Scheduler.compute_ancestors": (["self"], []),
    "torch._inductor.scheduler.BaseSchedulerNode.get_buffer_names": (["self"], []),
    "torch._inductor.scheduler.BaseSchedulerNode.get_operation_names": (["self"], []),
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
    "reorder_for_peak_memory force_disable_caches realize_reads_threshold",
    "torch._functorch.config": "force_non_lazy_backward_lowering activation_memory_budget donated_buffer",
    "torch._dynamo.config": "automatic_dynamic_shapes suppress_errors recompile_limit accumulated_recompile_limit",
}


@pytest.mark.parametrize(
    ("module", "setting"), [(module, setting) for module, names in SETTINGS.items() for setting in names.split()]
)
def test_setting_is_there(module, setting):
    assert hasattr(found(module), setting), f"torch {torch.__version__} has no setting {module}.{setting}"


# Behaviour: what tiny programs show.


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


def compiled(fn, *args, order=lambda nodes: nodes, stop=False, patches=None, uuid="canary", caches=False) -> Seen:
    """Compile `fn` as memgraph does, without planning.  stop: at the joint graph."""
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
        given = inputs_of(gm)
        with compat.lowering_settings(transfers=True):
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


SQUARE = 8 * 8 * 4  # bytes


@pytest.fixture(scope="module")
def seen() -> Seen:
    return compiled(products, square(), square(), square())


def test_the_partitioner_is_told_what_it_was(seen):
    assert set(seen.told) == {"num_fwd_outputs", "static_lifetime_input_indices", "compiler"}
    assert seen.told["num_fwd_outputs"] == 1
    names = [node.name for node in seen.joint.graph.find_nodes(op="placeholder")]
    assert names == ["primals_1", "primals_2", "primals_3", "tangents_1"]
    assert len(seen.joint.graph.output_node().args[0]) == 1 + 3  # the forward's outputs, then the inputs' gradients


def test_the_backward_is_compiled_with_the_forward(seen):
    """`force_non_lazy_backward_lowering`: both wrappers are known before anything runs."""
    assert [backward for backward, _, _ in seen.wrappers] == [False, True]


def test_settings_reach_both_directions(seen):
    assert seen.settings == [7, 7], "config_patches of compile_fx"


def test_the_backward_overwrites_saved_values(seen):
    """The donated inputs stand in the tracing context when the backward is lowered: here x @ w."""
    assert len(seen.donated[1]) == 1, f"bw_donated_idxs is {seen.donated[1]}"


def test_the_order_pass_sees_scheduler_nodes(seen):
    assert [backward for backward, _ in seen.scheduled] == [False, True]
    for _, nodes in seen.scheduled:
        for node in nodes:
            assert node.is_extern() and not node.is_reduction()
            names = list(node.get_buffer_names())
            assert len(names) == 1 and set(node.get_operation_names())
            assert {write.name for write in node.read_writes.writes} == set(names)
            assert {dep.name for dep in node.unmet_dependencies} <= {read.name for read in node.read_writes.reads}
            users = node.scheduler.name_to_buf[names[0]].users
            assert users and all(hasattr(user, "node") for user in users)
    first, second = seen.scheduled[0][1]
    assert second.ancestors == set(first.get_operation_names())


def test_a_dependency_orders_products():
    """A weak dependency on a buffer that is not written decides the order of two products."""

    def second_first(nodes):
        first, second = nodes
        compat.run_after(first, second)
        return [second, first]

    def two(x, w, v):
        return x @ w, x @ v

    def operands(order) -> list[str]:
        with torch.no_grad():
            ((_, _, source),) = compiled(two, square(), square(), square(), order=order).wrappers
        return re.findall(r"extern_kernels\.mm\(\w+, (\w+)", source)

    in_order = operands(lambda nodes: nodes)
    assert len(in_order) == 2 and operands(second_first) == in_order[::-1]


STATEMENTS = """
    (\\w+, )*\\w+,? = args | args\\.clear\\(\\)
    assert_size_stride(_grouped)?\\(.*\\) | assert_tensor_metadata\\(.*\\) | assert_alignment\\(.*\\)
    \\w+ = empty_strided_cpu\\(\\(8, 8\\), \\(8, 1\\), torch\\.float32\\)
    extern_kernels\\.mm\\(.*, out=\\w+\\) | \\w+ = torch\\.ops\\.aten\\.cumsum\\.default\\(.*\\) | \\w+ = \\w+
    del \\w+ | return \\(.*\\)
"""


def statements(source: str) -> list[str]:
    """The statements of a wrapper's `call`, in order."""
    (runner,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Runner")
    (call,) = (node for node in runner.body if isinstance(node, ast.FunctionDef) and node.name == "call")
    return [ast.unparse(statement) for statement in call.body]


def test_the_wrapper_is_written_as_before(seen):
    """Line by line; a statement of a new kind must be understood by lower/wrapper.py before it is listed here."""
    with torch.no_grad():
        fallback = compiled(lambda x, w: torch.cumsum(x @ w, 1), square(), square())
    known = re.compile(
        "|".join(f"(?:{kind.strip()})" for line in STATEMENTS.splitlines() for kind in line.split(" | "))
    )
    for _, _, source in seen.wrappers + fallback.wrappers:
        for statement in statements(source):
            assert known.fullmatch(statement), f"torch {torch.__version__} writes a new kind of statement: {statement}"


def test_the_wrapper_allocates_as_before(seen):
    """Each buffer is freed where it dies, none is kept for a later one of its size."""
    (_, forward_inputs, forward), (_, backward_inputs, backward) = seen.wrappers
    events = [event.bytes for event in read_wrapper(forward, forward_inputs, "forward").events]
    assert events == [SQUARE, SQUARE]  # x @ w is saved, the result returned
    events = [event.bytes for event in read_wrapper(backward, backward_inputs, "backward").events]
    assert events == [SQUARE] * 4 + [-SQUARE] or sorted(events) == [-SQUARE] + [SQUARE] * 4
    assert "# reuse" not in forward + backward


def test_a_copy_and_its_end_get_one_buffer():
    """What starts a copy is found behind its ticket: two buffers up to 2.13, one from 2.15 (pytorch#184279)."""

    def offloaded(x, w):
        value = x @ w
        ticket = torch.ops.memgraph.offload_start(value, "value", "host", "{}")
        return torch.ops.memgraph.offload_finish(ticket, value, "host")

    with torch.no_grad():
        ((_, _, source),) = compiled(offloaded, square(), square()).wrappers
    (started,) = re.findall(r"offload_start\.default\((\w+), 'value'", source)
    (finished,) = re.findall(r"offload_finish\.default\(\w+, (\w+), ", source)
    assert started == finished


def test_what_comes_back_is_aligned():
    """Inductor takes what an operator with a CPU input returns for unaligned; a lowering clears the mark."""
    from torch._inductor.virtualized import V

    unaligned = set()

    def note(nodes):
        unaligned.update(V.graph.unaligned_buffers)
        return nodes

    def reloaded(held, w):
        layout = [8, 8], [8, 1], torch.float32, torch.device("cpu"), "host"
        ticket = torch.ops.memgraph.reload_start(held, *layout)
        return ticket, torch.ops.memgraph.reload_finish(ticket, held, *layout)

    with torch.no_grad():
        ((_, _, source),) = compiled(reloaded, torch.zeros(1, dtype=torch.int64), square(), order=note).wrappers
    ((ticket, value),) = re.findall(r"return \((\w+), (\w+), \)", source)
    assert ticket in unaligned and value not in unaligned


def test_shards_are_put_in_place():
    """A functional operator lowered to one that writes: `FallbackKernel.create` with a mutated argument."""

    def whole(x, w):
        first = x @ w
        room = torch.ops.memgraph.shard_whole(first, 0, 16)
        room = torch.ops.memgraph.shard_put(room, first, 0, 0)
        return torch.ops.memgraph.shard_put(room, first, 0, 8)

    with torch.no_grad():
        ((_, inputs, source),) = compiled(whole, square(), square()).wrappers
    assert len(re.findall(r"shard_put_\.default\(", source)) == 2 and "shard_put.default" not in source
    assert read_wrapper(source, inputs, "forward").peak == 3 * SQUARE


def test_bodies_overwrite_nothing_that_they_are_given():
    """Up to 2.14 a body inherits the outer backward's donated inputs by number (pytorch#193960): wrong gradients."""
    from torch._inductor.ir import DonatedBuffer
    from torch._inductor.virtualized import V

    region = torch.compiler.nested_compile_region(products)
    donated: dict[tuple[bool, bool], int] = {}

    def note(nodes):
        inputs = V.graph.graph_inputs_original.values()
        place = compat.lowers_backward(), hasattr(V.graph, "parent")
        donated[place] = donated.get(place, 0) + sum(isinstance(given, DonatedBuffer) for given in inputs)
        return nodes

    given = [square() for _ in range(5)]
    compiled(lambda x, a, b, c, d: region(region(x, a, b), c, d), *given, order=note)
    assert donated[True, False] > 0, "the outer backward may overwrite what was saved for it"
    assert donated[True, True] == 0, "a body may not"


def test_the_cache_key_holds_the_uuid():
    """Nothing else of the partitioner: one uuid finds the graphs of an earlier one, another does not."""
    from torch._inductor.utils import fresh_cache

    def planned(uuid: str) -> bool:
        return compiled(products, *given, uuid=uuid, caches=True).joint is not None

    given = square(), square(), square()
    with fresh_cache():
        assert [planned("one"), planned("one"), planned("other")] == [True, False, True]


def test_dropout_is_seeds():
    joint = compiled(lambda x: nn.functional.dropout(x, 0.5).sum(), square(), stop=True).joint
    targets = [node.target for node in joint.graph.nodes]
    assert targets.count(torch._inductor.inductor_prims.seeds) == 1
    assert sum(map(compat.inductor_pure_random, targets)) == 2  # the seed is looked up, the numbers are made


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


def test_fake_tensors():
    with torch._subclasses.FakeTensorMode() as mode:
        fake = torch.empty(4, 4)
        assert compat.is_fake(fake) and compat.fake_mode_of([fake]) is mode
        assert compat.storage_id(fake) == compat.storage_id(fake.view(16)) != compat.storage_id(fake.clone())
        with compat.really():
            assert not compat.is_fake(torch.empty(1))
    with compat.propagating(mode):
        assert compat.is_fake(torch.empty(2)) and not torch.is_grad_enabled()
    assert not compat.is_fake(torch.empty(1))


def test_calls_without_readers_are_known():
    assert compat.has_side_effect(torch.ops.aten._assert_async.msg)
    assert not compat.has_side_effect(torch.ops.aten.sin.default)


def test_allocations_are_profiled():
    assert peak_above_start(lambda: torch.empty(1024).sum(), "cpu") == 4096 + 4


def test_tangents_are_given_away_or_held():
    """Whether the engine keeps its reference while a compiled backward runs, which decides when their bytes go."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    gone = []

    def backward_compiler(gm, inputs):
        def run(args):
            results = gm.forward(*args)
            tangent = weakref.ref(args[-1])
            args.clear()
            gone.append(tangent() is None)
            return results

        run._boxed_call = True
        return run

    backend = aot_autograd(fw_compiler=lambda gm, _: make_boxed_func(gm.forward), bw_compiler=backward_compiler)
    torch._dynamo.reset()
    torch.compile(products, backend=backend)(square(), square(), square()).sin().sum().backward()
    assert gone == [compat.tangents_are_given_away()]


# Dynamo: names, errors, what it remembers.


def test_errors_come_through():
    def backend(gm, inputs):
        raise compat.through_dynamo(KeyError("mine"))

    torch._dynamo.reset()
    with pytest.raises(KeyError) as raised:
        torch.compile(products, backend=backend)(square(), square(), square())
    assert str(raised.value) == "'mine'"


def test_graphs_have_numbers_and_reasons():
    numbers, reasons = [], []

    def backend(gm, inputs):
        numbers.append(compat.compile_id())
        reasons.append(compat.graph_break_reason(gm))
        return gm.forward

    def broken(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    torch._dynamo.reset()
    torch.compile(broken, backend=backend)(square(False))
    assert numbers == ["0/0", "1/0"] or numbers == ["[0/0]", "[1/0]"]
    assert "graph_break" in reasons[0] and reasons[1] == ""
    assert compat.compile_id() == ""


def test_a_dry_run_leaves_no_sizes_behind():
    def dynamic(*rows: int) -> bool:
        symbols = []

        def backend(gm, inputs):
            symbols.append(any(isinstance(size, torch.SymInt) for size in inputs))
            return gm.forward

        call = torch.compile(lambda x: x.sin(), backend=backend)
        for n in rows:
            call(torch.randn(n, 2))
        return symbols[-1]

    torch._dynamo.reset()
    assert dynamic(3, 5), "Dynamo makes a size that changes dynamic"
    torch._dynamo.reset()
    with compat.only_tracing():
        assert not dynamic(3, 5)


def test_a_compiled_function_is_unwrapped():
    module = nn.Linear(2, 2)
    assert compat.uncompiled(torch.compile(module)) is module
    assert compat.uncompiled(torch.compile(products)) is products
