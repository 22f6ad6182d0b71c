"""The canary, second part: how Inductor lowers what memgraph gives it, shown by tiny programs of matrix products."""

from __future__ import annotations

import ast
import contextlib
import re
import threading

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from memgraph.base import compat
from memgraph.lower.timeline import read_wrapper
from tests.support.inductor_hooks import Seen, compiled, products, square

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


def test_buffers_say_which_nodes_they_come_from(seen):
    for _, nodes in seen.scheduled:
        found = compat.origins(nodes)
        assert found and set(found) == {name for node in nodes for name in node.get_buffer_names()}
        assert all(names and names[0].startswith("mm") for names in found.values()), found


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


def test_a_dependency_outlasts_a_change_of_loops():
    """A fused kernel's loops are read anew: only dependencies among its reads are kept."""
    kept = []

    def changed(nodes):
        product, kernel = sorted(nodes, key=lambda node: not node.is_extern())
        compat.run_after(kernel, product)
        kernel.refresh_dependencies(normalize=False, need_clear_tiling_cache=False)
        kept.append((product.get_buffer_names(), {dep.name for dep in kernel.unmet_dependencies}))
        raise RuntimeError("no C++ compiler for this")

    with torch.no_grad(), pytest.raises(Exception, match="no C"):
        compiled(lambda x, w: (x @ w, x.sin()), square(), square(), order=changed)
    ((product, waits),) = kept
    assert waits == product


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


@pytest.fixture
def loads(monkeypatch):
    """The modules that Inductor loads."""
    from torch._inductor import codecache

    stock, found = codecache._reload_python_module, []
    monkeypatch.setattr(codecache, "_reload_python_module", lambda *a, **k: found.append(a) or stock(*a, **k))
    return found


def test_a_wrapper_is_loaded_once_and_when_it_is_wanted(loads):
    with compat.loading_later() as written:
        compiled(products, square(), square(), square())
    assert len(written) == 2 and not loads
    module = written[0].load()
    assert module is written[0].load() and module.__file__ == written[0].__file__
    assert len(loads) == 1


def test_wrappers_of_other_threads_are_loaded_as_ever(loads):
    """However their times cross, nothing of Inductor's stays replaced."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.graph import GraphLowering

    stock = GraphLowering._compile_to_module_lines, PyCodeCache.__dict__["load_by_key_path"]
    first, second = compat.loading_later(), compat.loading_later()
    run_in_a_thread(first.__enter__)
    compiled(products, square(), square(), square())
    assert len(loads) == 2
    written = second.__enter__()
    run_in_a_thread(lambda: first.__exit__(None, None, None))
    compiled(products, square(), square(), square())
    second.__exit__(None, None, None)
    assert len(written) == 2 and len(loads) == 2
    assert stock == (GraphLowering._compile_to_module_lines, PyCodeCache.__dict__["load_by_key_path"])


def run_in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_wrapper_that_nobody_loaded_runs_all_the_same():
    inputs = square(), square(), square()
    torch._dynamo.reset()
    with compat.loading_later() as written, compat.inductor_settings({"force_disable_caches": True}):
        result = torch.compile(products)(*inputs)
    result.sum().backward()
    assert written and torch.equal(result, products(*inputs))
    assert all(torch.isfinite(given.grad).all() for given in inputs)


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


def test_bodies_overwrite_nothing_that_is_not_known_to_be_theirs():
    """Up to 2.14 a body inherits the outer backward's donated inputs by number (pytorch#193960): wrong gradients."""
    from torch._inductor.ir import DonatedBuffer
    from torch._inductor.virtualized import V

    region = torch.compiler.nested_compile_region(products)  # the fake values of its calls share their memory
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


@pytest.mark.inductor
def test_many_reads_are_not_written_in_between():
    """Inductor writes what reads over 12 buffers (8 on CUDA and before 2.13), though one operator reads it."""
    config = torch._inductor.config
    most = getattr(config, "realize_cpu_acc_reads_threshold", config.realize_acc_reads_threshold)
    given = [torch.randn(64, 64) for _ in range(most + 1)]
    half = torch.randn(64, 64, dtype=torch.bfloat16)

    def step(half: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
        made = factors[0].sin()
        for factor in factors[1:]:
            made = made * factor
        low = made.bfloat16() + half
        return low * ((low * 2) @ half)

    def written(settings: contextlib.AbstractContextManager) -> int:
        torch._dynamo.reset()
        with settings, torch._inductor.config.patch(force_disable_caches=True):
            _, (code,) = run_and_get_code(torch.compile(step), half, *given)
        return len(re.findall(r"= empty_strided_cpu\(.*torch.float32\)", code))

    planned = compat.lowering_settings(in_order=False, transfers=False)
    assert (written(contextlib.nullcontext()), written(planned)) == (1, 0)
