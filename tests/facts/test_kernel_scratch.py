"""Scratch memory of kernels: what is measured, what is kept, what must not run, and where it is used."""

import json

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import memgraph
from memgraph.backend.budget import Bound
from memgraph.backend.hook import Partitioner
from memgraph.backend.options import parse_options
from memgraph.backend.progress import Progress
from memgraph.base import compat
from memgraph.base.store import Store
from memgraph.facts import kernel_scratch
from memgraph.facts.kernel_scratch import known, trial
from memgraph.facts.kernel_scratch.operands import Call, Operand
from memgraph.lower.timeline import Input, read_wrapper
from memgraph.machine import memory
from memgraph.machine.hardware import built_in
from memgraph.machine.measure import allocated_bytes, peak_above_start
from tests.support.harness import Eager, gradients
from tests.support.scratch_cases import aten, call, dense, turned

ROOM = 1 << 30


@pytest.fixture(autouse=True)
def nothing_measured_yet():
    known._measured.clear()


def look(kernels, case):
    return kernels.bytes_of(case.op, case.args, case.kwargs, case.outputs)


def depthwise():
    x, w = dense(4, 8, 32, 32), dense(8, 1, 7, 7)
    every = ([1, 1], [3, 3], [1, 1], False, [0, 0], 8)
    return call(aten.convolution_backward.default, x, x, w, [8], *every, [True, True, True])


def test_what_was_measured_is_counted_and_kept(tmp_path):
    store = Store(tmp_path / "kernels")
    kernels = kernel_scratch.Kernels(ROOM, store)
    found = look(kernels, depthwise())
    assert found == trial.measure(depthwise()) > 100_000
    assert kernels.notes == ()
    assert look(kernel_scratch.Kernels(), depthwise()) == found  # of the process
    known._measured.clear()
    again = kernel_scratch.Kernels(0, store)  # of the disk: nothing runs
    assert look(again, depthwise()) == found and again.notes == ()
    (file,) = (tmp_path / "kernels").iterdir()
    assert json.loads(file.read_text())["bytes"] == found


def test_a_kept_figure_is_of_its_threads_alone(tmp_path):
    store, before = Store(tmp_path / "kernels"), torch.get_num_threads()
    look(kernel_scratch.Kernels(ROOM, store), depthwise())
    try:
        torch.set_num_threads(before + 1)
        other = kernel_scratch.Kernels(0, store)
        look(other, depthwise())
    finally:
        torch.set_num_threads(before)
    assert "aten::convolution_backward" in other.notes[0]


def test_a_damaged_figure_is_as_good_as_none(tmp_path):
    store = Store(tmp_path / "kernels")
    found = look(kernel_scratch.Kernels(ROOM, store), depthwise())
    (file,) = (tmp_path / "kernels").iterdir()
    file.write_text('{"bytes": "many"}')
    known._measured.clear()
    assert look(kernel_scratch.Kernels(ROOM, store), depthwise()) == found


def test_without_room_the_bound_counts_and_a_note_says_so():
    for room, machine, reason in (
        (0, None, "nothing was run"),
        (100_000, ROOM, "there is room for 97.7 KiB"),
        (ROOM, 1_000_000, "the machine has 976.6 KiB for it"),
    ):
        kernels = kernel_scratch.Kernels(room, machine=machine)
        figure = look(kernels, depthwise())
        assert figure >= trial.measure(depthwise())
        (note,) = kernels.notes
        assert "aten::convolution_backward" in note and reason in note and "up to" in note


def test_without_a_bound_none_is_counted_and_a_note_says_so():
    kernels = kernel_scratch.Kernels(0)
    case = call(aten.histogram.bin_ct, dense(100), 10)
    assert look(kernels, case) == 0
    assert kernels.notes == ("scratch memory of aten::histogram is not known (nothing was run): none is counted",)
    assert look(kernels := kernel_scratch.Kernels(ROOM), case) >= 0 and kernels.notes == ()


def test_arguments_that_a_rule_does_not_know_end_no_compilation():
    kernels = kernel_scratch.Kernels(ROOM)
    assert kernels.bytes_of(aten.convolution.default, [dense(3)], {}, dense(3)) == 0
    assert "its rule failed: KeyError('weight')" in kernels.notes[0]
    assert kernels.bytes_of(aten.convolution.default, [object()], {}, dense(3)) == 0
    assert "an argument of type object" in kernels.notes[0]


def test_notes_are_few():
    kernels = kernel_scratch.Kernels(0)
    for n in range(20):
        kernels.bytes_of(f"mylib::op{n}", [], {}, ())
    assert len(kernels.notes) == 9 and "12 other" in kernels.notes[-1]


def test_on_cuda_an_operator_without_a_rule_is_not_tried_but_noted():
    from memgraph.facts.kernel_scratch import of_operator

    with kernel_scratch.looking_up(kernel_scratch.Kernels(ROOM)) as kernels:
        case = depthwise()
        assert of_operator(case.op, case.args, case.kwargs, case.outputs, "cuda") == 0
    assert kernels.notes == ("scratch memory of an operator on CUDA is not counted: aten::convolution_backward",)
    assert not known._measured


def test_on_cuda_flash_attention_keeps_sums_of_the_gradient_in_its_backward():
    from memgraph.facts.kernel_scratch import of_operator

    heads, keys = (Operand((4, h, 2048, 128), (h * 262144, 128, h * 128, 1), torch.bfloat16) for h in (16, 4))
    rest = [heads, None, None, None, 2048, 2048, 0.0, True, None, None]
    op = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    with kernel_scratch.looking_up(kernel_scratch.Kernels()) as kernels:
        # As torch 2.13's host code takes them (tests/simulated/test_kernel_scratch.py).
        assert of_operator(op, [heads, heads, heads, heads, *rest], {}, (), "cuda") == 67_633_152
        assert of_operator(op, [heads, heads, keys, keys, *rest], {}, (), "cuda") == 134_742_016
    assert not kernels.notes


def test_on_cuda_sorts_scans_and_grouped_products_have_rules():
    """Figures of torch's host code on a simulated H100; tests/simulated holds the rules against it."""
    from memgraph.facts.kernel_scratch import of_operator

    aten = torch.ops.aten
    index, offsets = torch.empty(8192, dtype=torch.int64, device="meta"), torch.empty(8, device="meta")
    rows, weights = meta(4096, 256), meta(8, 256, 512)
    with kernel_scratch.looking_up(kernel_scratch.Kernels()) as kernels:
        assert of_operator(aten.sort.default, [meta(4, 8192)], {}, (), "cuda") == 928_255
        assert of_operator(aten.cumsum.default, [index, 0], {}, index, "cuda") == 1_279
        given = [meta(4096, 1024), [index], meta(8192, 1024)]
        assert of_operator(aten.index_put.default, [*given, True], {}, given[0], "cuda") == 399_871
        assert of_operator(aten.index_put.default, given, {}, given[0], "cuda") == 0
        assert of_operator(aten._grouped_mm.default, [rows, weights, offsets], {}, rows, "cuda") == 68_064
        assert not kernels.notes
        several = [given[0], [index, index], meta(8192)]
        assert of_operator(aten.index_put.default, [*several, True], {}, given[0], "cuda") == 0
    assert "other indices than one of the first dimension" in kernels.notes[0]


def meta(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.bfloat16, device="meta")


RUNS = []


@torch.library.custom_op("scratch_tests::mul", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    RUNS.append(1)
    return x * 2


@counted.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_of_somebody_else_never_runs():
    kernels = kernel_scratch.Kernels(ROOM)
    case = call(torch.ops.scratch_tests.mul.default, dense(100))
    RUNS.clear()
    assert look(kernels, case) == 0 and not RUNS
    assert "scratch_tests::mul is not known (only torch's own operators are tried)" in kernels.notes[0]


def test_a_rule_is_of_its_operator_not_of_a_name():
    mine = call(torch.ops.scratch_tests.mul.default, dense(100))
    assert known.rule_of(mine) is None and mine.name == "scratch_tests::mul"
    assert known.rule_of(call(aten.topk.default, dense(100), 3)).exact


@pytest.mark.parametrize(
    "case, reason",
    [
        (lambda: call(aten.linalg_lu_solve.default, dense(4, 4), dense(4, dtype=torch.int32), dense(4, 4)), "integers"),
        (lambda: call(aten._linalg_check_errors.default, dense(1, dtype=torch.int32), "x", is_matrix=True), "it acts"),
        (
            lambda: call(aten.index_put_.default, dense(8), [dense(8, dtype=torch.bool)], dense()),
            "how much a mask leaves",
        ),
    ],
)
def test_what_must_not_run_on_made_up_data_does_not(case, reason):
    with pytest.raises(trial.NotTried, match=reason):
        trial.measure(case())


def test_an_operator_that_fails_is_noted_and_not_run_again():
    kernels = kernel_scratch.Kernels(ROOM)
    x, w = dense(4, 8, 32, 32), dense(8, 1, 7, 7)
    every = ([1, 1], [3, 3], [1, 1], False, [0, 0], 7)  # no such groups
    for _ in range(2):
        bound = kernels.bytes_of(aten.convolution_backward.default, [x, x, w, [8], *every, [True] * 3], {}, (x, w, w))
        assert bound > 0
    assert "it failed on made-up data: RuntimeError" in kernels.notes[0]


def test_the_random_state_stays():
    state = torch.get_rng_state()
    assert trial.measure(call(aten.multinomial.default, dense(256, 1024), 2, False)) > 1_000_000
    assert torch.equal(state, torch.get_rng_state())


def test_a_profiler_of_the_user_goes_on():
    kernels = kernel_scratch.Kernels(ROOM)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as session:
        look(kernels, depthwise())
        torch.ones(3).sum()
    assert "another profiler runs" in kernels.notes[0]
    assert any(event.key == "aten::sum" for event in session.key_averages())
    assert not compat.profiling()


def test_trials_run_whatever_is_traced_or_cast_meanwhile():
    plain = trial.measure(depthwise())
    with compat.fake_evaluation(), torch.autocast("cpu", torch.bfloat16):
        assert trial.measure(depthwise()) == plain


def test_the_room():
    free = memory.free_memory() // 2
    assert kernel_scratch.for_compilation(None, 0, False).room == pytest.approx(free, rel=0.2)
    assert (
        kernel_scratch.for_compilation(1000, 0, False).room == known.SMALL
    )  # what is small is tried under every budget
    kernels = kernel_scratch.for_compilation(known.SMALL * 3, known.SMALL, False)
    assert kernels.room == known.SMALL * 2 and kernels.machine == pytest.approx(free, rel=0.2)
    assert kernels.store is None and kernel_scratch.for_compilation(None, 0, True).store is not None
    assert kernel_scratch.for_dry_run(True).room == known.SMALL


def test_products_of_mkl_take_nothing_and_those_of_onednn_do():
    batch = dense(2, 8, 8)
    for case in (call(aten.mm.default, dense(64, 64), turned(64, 64)), call(aten.bmm.default, batch, batch)):
        assert look(kernels := kernel_scratch.Kernels(0), case) == 0 and kernels.notes == ()
    half = call(aten.mm.default, dense(64, 64, dtype=torch.bfloat16), dense(64, 64, dtype=torch.bfloat16))
    assert look(kernels := kernel_scratch.Kernels(0), half) > 0 and kernels.notes


def test_the_threads_are_part_of_the_key():
    def uuid():
        return Partitioner(parse_options({}), built_in("cpu"), Bound(), Progress(None), "x").uuid()

    before, first = torch.get_num_threads(), uuid()
    try:
        torch.set_num_threads(before + 1)
        assert uuid() != first
    finally:
        torch.set_num_threads(before)
    assert uuid() == first


# Where it is used


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1, groups=8))


class Mean(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).square().mean()


def test_the_planner_knows_it():
    backend = Eager()
    with kernel_scratch.looking_up(kernel_scratch.Kernels(ROOM)) as kernels:
        gradients(Mean(convolutions()), backend, torch.randn(4, 8, 32, 32))
    facts = backend.planned[-1].facts
    held = {value.name: value.scratch for value in facts.values if value.scratch}
    assert {"convolution", "convolution_1", "convolution_backward", "convolution_backward_1"} <= held.keys()
    assert held["convolution_backward_1"] > 200_000  # 7 x 7
    assert kernels.notes == ()


def test_the_wrappers_reader_knows_it():
    source = """
class Runner:
    def call(self, args):
        x, w = args
        args.clear()
        buf0 = extern_kernels.convolution(x, w, None, stride=(1, 1), padding=(3, 3), dilation=(1, 1),
            transposed=False, output_padding=(0, 0), groups=8)
        buf1 = torch.ops.scratch_tests.mul.default(buf0)
        extern_kernels.mystery(x, w, out=buf1)
        return (buf1, )
runner = Runner(partitions=[])
call = runner.call
"""
    inputs = [
        Input("x", 4 * 8 * 1024 * 4, "x", torch.float32, (4, 8, 32, 32), (8192, 1, 256, 8)),
        Input("w", 8 * 49 * 4, "w", torch.float32, (8, 1, 7, 7), (49, 1, 7, 1)),
    ]
    with kernel_scratch.looking_up(kernel_scratch.Kernels(ROOM)) as kernels:
        lowered = read_wrapper(source, inputs, "forward")
    events = [event.bytes for event in lowered.events if "convolution scratch" in event.value]
    x, w = dense(4, 8, 32, 32).channels_last(), dense(8, 1, 7, 7).channels_last()
    case = call(aten.convolution.default, x, w, None, [1, 1], [3, 3], [1, 1], False, [0, 0], 8)
    assert events == [trial.measure(case), -trial.measure(case)]
    assert any("scratch_tests::mul" in note for note in kernels.notes)
    assert any("mystery" in note for note in kernels.notes)


def test_the_parts_of_a_sparse_result_are_no_scratch():
    count = torch.empty(64, dtype=torch.int64, device="meta")
    sizes = torch.empty(8, dtype=torch.int64, device="meta")
    operator = aten._embedding_bag_backward.default
    args = (torch.empty(8, 4, device="meta"), count, sizes, count[:0], sizes, sizes, 16, False, 0, True, None)
    case = Call.of(operator, args, {}, operator(*args))
    found = trial.measure(case)
    assert 64 * 8 <= found < 64 * 4 * 4  # the table of bags, and not the rows of the gradient
    with FakeTensorMode():  # as while a graph is planned
        assert trial.measure(case) == found


def test_a_dry_run_tries_small_kernels_alone():
    report = memgraph.plan(Mean(convolutions()), torch.randn(4, 8, 32, 32), options={"budget": None, "cache": False})
    assert known._measured
    assert not any("scratch" in note for note in report.notes)


def test_a_dry_run_runs_no_large_kernel_and_says_so():
    with torch.device("meta"):
        module, x = Mean(convolutions()), torch.empty(512, 8, 128, 128)
    report = memgraph.plan(module, x, device="cpu", options={"budget": None, "cache": False})
    assert not known._measured
    assert any("scratch memory of aten::convolution_backward is not known" in note for note in report.notes)


@pytest.mark.inductor
@pytest.mark.slow
def test_the_budget_of_depthwise_convolutions_is_kept():
    module, x = Mean(convolutions()), torch.randn(4, 8, 32, 32)
    base = allocated_bytes("cpu")
    budgets = [0.9, base + 1_000_000]
    for budget in budgets:
        torch._dynamo.reset()
        step = torch.compile(
            lambda x: module(x), backend="memgraph", options={"budget": budget, "cache": False, "strict": True}
        )
        try:
            step(x).backward()
        except memgraph.BudgetError as error:
            assert error.minimum > error.budget
            budgets.append(error.minimum)  # what the error names can be had
            continue
        module.zero_grad()
        above = peak_above_start(lambda: step(x).backward(), "cpu")  # noqa: B023
        module.zero_grad()
        report = memgraph.report()
        predicted = report.predicted_peak - report.baseline
        assert above <= predicted <= 1.01 * above + 4096
        assert report.baseline + above <= report.budget
        assert not any("scratch" in note for note in report.notes)
