"""Planning without running: on real, meta and fake tensors, with nothing lowered and nothing left behind."""

import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import memgraph
from memgraph import BudgetError, MemgraphError, OptionsError
from memgraph.base import compat
from memgraph.base.errors import GraphError
from memgraph.base.sizes import format_size
from memgraph.facts.actions import Recompute
from memgraph.machine.hardware import built_in

WIDTH, ROWS, LAYERS = 64, 2048, 4


@pytest.fixture(autouse=True)
def nothing_is_lowered(monkeypatch):
    import torch._inductor.graph

    def refuse(*args, **kwargs):
        raise AssertionError("Inductor began to lower")

    monkeypatch.setattr(torch._inductor.graph.GraphLowering, "__init__", refuse)


def make(device="cpu"):
    with torch.device(device):
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(LAYERS)]
        model = nn.Sequential(*layers)
        x = torch.empty(ROWS, WIDTH)
    return model, lambda x: model(x).square().mean(), x


def parameter_bytes(model):
    return sum(p.untyped_storage().nbytes() for p in [*model.parameters(), *model.buffers()])


@pytest.mark.slow
def test_real_and_meta_tensors_are_planned_alike():
    reports = []
    for device in ("cpu", "meta"):
        model, loss, x = make(device)
        report = memgraph.plan(loss, x, options={"budget": 0.7}, device="cpu")
        assert report.baseline == parameter_bytes(model) + x.untyped_storage().nbytes()
        assert report.baseline < report.predicted_peak <= report.budget < report.unplanned_peak
        assert report.source_of_peak == report.source_of_unplanned_peak == "graph sweep"
        assert report.unplanned_peak == report.baseline + report.unplanned_timeline.peak
        assert report.decisions and report.device == "cpu"
        assert any(isinstance(decision.action, Recompute) for decision in report.decisions)
        reports.append(report)
    assert reports[0].decisions == reports[1].decisions
    assert reports[0].timeline == reports[1].timeline


def test_fake_tensors_of_a_caller():
    real_model, _, x = make()
    real = memgraph.plan(real_model, x, options={"budget": None})
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        model, _, x = make()
        inside = memgraph.plan(model, x, options={"budget": None})
    outside = memgraph.plan(model, x, options={"budget": None})
    for report in (inside, outside):
        assert (report.baseline, report.predicted_peak) == (real.baseline, real.predicted_peak)


needs_cuda_traces = pytest.mark.skipif(
    not compat.traces_cuda(), reason="a build of torch with CUDA cannot trace for it without a GPU"
)


@needs_cuda_traces
def test_for_a_gpu_that_is_not_here():
    _, loss, x = make("meta")
    report = memgraph.plan(loss, x, options={"budget": 0.7}, hardware="NVIDIA H100 80GB HBM3")
    assert report.device == "cuda"
    assert any("H100" in note for note in report.notes)
    if not torch.backends.cuda.is_built():
        assert any("built without CUDA" in note for note in report.notes)
    # CUDA allocates in blocks of 512 bytes
    assert all(event.bytes % 512 == 0 for event in report.timeline.events)


@pytest.mark.slow
@needs_cuda_traces
def test_the_way_to_the_disk_of_a_gpu_that_is_not_here(tmp_path):
    _, loss, x = make("meta")
    report = memgraph.plan(loss, x, options={"budget": 0.7, "offload": {"nvme": str(tmp_path)}}, hardware="H100")
    assert any("staged" in note and "not by GPUDirect: it was not measured here" in note for note in report.notes)


@needs_cuda_traces
def test_values_are_offloaded_from_a_gpu_that_is_not_here():
    """The graph of torch's CPU build stands for the GPU's: its values leave a GPU, not host memory."""
    _, loss, x = make("meta")
    options = {"budget": 0.7, "recompute": False, "offload": {"host": "1GiB", "min_bytes": 0}}
    report = memgraph.plan(loss, x, options=options, hardware="H100")
    assert report.bytes_on("host") > 0 and report.predicted_peak <= report.budget


@needs_cuda_traces
@pytest.mark.parametrize("method", [False, True])
def test_experts_are_counted_as_a_gpu_does(method):
    """transformers counts the tokens of each expert as int32 but on a CPU, which has no such histogram."""
    with torch.device("meta"):
        model, x, chosen = nn.Linear(WIDTH, 8), torch.empty(ROWS, WIDTH), torch.empty(ROWS, dtype=torch.int64)

    def loss(x, chosen):
        whole = chosen.int()
        counts = whole.histc(8, 0, 7) if method else torch.histc(whole, bins=8, min=0, max=7)
        assert counts.dtype == torch.int32
        return (model(x) * counts.cumsum(0)).square().mean()

    report = memgraph.plan(loss, x, chosen, options={"budget": None}, hardware="H100")
    assert any("aten::histc" in note for note in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["5MiB", "3750KiB"])
def test_the_state_of_an_optimizer_is_to_come(budget):
    model, loss, x = make("meta")
    state = 2 * parameter_bytes(model)
    told = {"options": {"budget": budget}, "device": "cpu"}
    without = memgraph.plan(loss, x, **told)
    try:
        report = memgraph.plan(loss, x, optimizer="adamw", **told)
    except BudgetError as error:
        assert budget == "3750KiB" and error.to_come >= state
        return
    assert state <= report.to_come < state + 16 * len(list(model.parameters()))
    assert report.predicted_peak == report.baseline + report.to_come + report.above <= report.budget
    assert without.to_come == 0


@pytest.mark.skipif(compat.traces_cuda(), reason="this torch can")
def test_a_torch_that_cannot_trace_for_cuda_says_so():
    _, loss, x = make("meta")
    with pytest.raises(GraphError, match="CPU build"):
        memgraph.plan(loss, x, hardware="H100")


@needs_cuda_traces
def test_the_capacity_bounds_auto():
    _, loss, x = make("meta")
    report = memgraph.plan(loss, x, hardware=built_in("H100"))
    assert 0 < report.budget < built_in("H100").capacity


def test_a_budget_that_cannot_be_reached():
    _, loss, x = make()
    with pytest.raises(BudgetError) as caught:
        memgraph.plan(loss, x, options={"budget": "600KiB", "reserve": "1KiB"})
    minimum = caught.value.minimum
    assert minimum > 600 * 1024 == caught.value.budget
    assert caught.value.binding
    assert caught.value.estimated and "about" in str(caught.value) and "nothing was compiled" in str(caught.value)
    report = memgraph.plan(loss, x, options={"budget": minimum, "reserve": "1KiB"})
    assert report.predicted_peak + 1024 <= minimum == report.budget


def test_a_budget_that_a_tier_has_no_room_for(tmp_path):
    _, loss, x = make()
    offload = {"nvme": {"path": str(tmp_path), "limit": "600KiB"}, "min_bytes": 0}
    with pytest.raises(BudgetError) as caught:
        memgraph.plan(loss, x, options={"budget": "1200KiB", "recompute": False, "offload": offload})
    error = caught.value
    (full,) = error.full
    assert (full.tier, full.path, full.room) == ("nvme", str(tmp_path), 600 * 1024) and full.need > full.room
    said = f"The tier 'nvme' in {tmp_path} has room for 600.0 KiB (614400 bytes) only, and the values that may go "
    assert f"{said}there need {format_size(full.need)}: its limit is 600.0 KiB." in str(error)
    assert not any(what == "offload to nvme" for what, _ in error.refusals), "said once"
    assert not any(what == "recompute" for what, _ in error.refusals) and "recompute" in error.unused
    with pytest.raises(BudgetError) as caught:
        memgraph.plan(loss, x, options={"budget": "1200KiB", "recompute": False})
    assert caught.value.full == ()


def test_fused_decisions_are_those_that_no_timeline_has():
    _, loss, x = make()
    report = memgraph.plan(loss, x, options={"budget": 0.7}, device="cpu")
    recomputed = [decision for decision in report.decisions if isinstance(decision.action, Recompute)]
    held = {event.value for event in report.timeline.events}
    assert {d.name for d in recomputed if d.fused} and {d.name for d in recomputed if not d.fused}
    assert {d.name for d in recomputed if d.fused}.isdisjoint(held)
    assert {d.name for d in recomputed if not d.fused} <= held


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern, says",
    [
        ("1.*", None),
        ("*.1", None),
        ("3.2", None),
        ("3.7", "did you mean '3.2'"),
        ("decoder.*.mlp", "matches no module"),
    ],
)
def test_a_rule_that_names_no_module_is_spoken_of(pattern, says):
    model, _, x = make("meta")
    ask = {"budget": None, "rules": {pattern: "recompute"}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        memgraph.plan(model, x, options=ask, device="cpu")
    said = [str(warning.message) for warning in caught if "memgraph: the rule" in str(warning.message)]
    assert len(said) == (says is not None)
    assert all(says in text and repr(pattern) in text for text in said)


def test_a_rule_about_what_an_earlier_rule_has_is_not_called_unmatched():
    model, _, x = make("meta")
    ask = {"budget": None, "rules": {"2": "save", "2.1": "recompute", "9": "save"}}
    with pytest.warns(UserWarning, match="'9'"):
        report = memgraph.plan(model, x, options=ask, device="cpu")
    reasons = {refusal.what: refusal.reason for refusal in report.refusals}
    assert "an earlier rule" in reasons["rule '2.1': 'recompute'"]
    assert "no module path" in reasons["rule '9': 'save'"]


@pytest.mark.parametrize(
    "given, match",
    [
        ({"options": {"bugdet": 1}}, "did you mean 'budget'"),
        pytest.param({"hardware": "H100"}, None, marks=needs_cuda_traces),
        ({"hardware": "H1000000"}, "did you mean 'H100'"),
        ({"hardware": "abacus"}, "abacus"),
        ({"device": "meta"}, "meta"),
    ],
)
def test_what_is_refused(given, match):
    _, loss, x = make("meta")
    if match is None:
        assert memgraph.plan(loss, x, options={"budget": None}, **given)
    else:
        with pytest.raises(OptionsError, match=match):
            memgraph.plan(loss, x, **given)


def test_where_there_is_nothing_to_plan():
    _, loss, x = make()
    with torch.no_grad(), pytest.raises(MemgraphError, match="nothing to plan"):
        memgraph.plan(loss, x)
    with pytest.raises(MemgraphError, match="no graph"):
        memgraph.plan(lambda: 3)


def test_an_error_of_the_function_is_shown_as_it_is():
    def wrong(x):
        return (x @ x).sum()  # not square

    with pytest.raises(Exception, match="matmul"):
        memgraph.plan(wrong, torch.ones(2, 3, requires_grad=True))


def test_several_graphs():
    _, loss, x = make()

    def broken(x):
        y = loss(x)
        torch._dynamo.graph_break()
        return y * 2

    assert any("several graphs" in note for note in memgraph.plan(broken, x, options={"budget": None}).notes)


def test_nothing_is_left_behind():
    _, loss, x = make()
    before = len(memgraph.reports())
    counter = CompileCounter()
    compiled = torch.compile(loss, backend=counter)
    compiled(x)
    memgraph.plan(compiled, x, options={"budget": None})
    memgraph.plan(loss, x[:100], options={"budget": None})
    compiled(x)
    assert counter.frame_count == 1
    torch._dynamo.reset()  # the counter's compilation above did leave its sizes behind
    memgraph.plan(loss, x, options={"budget": None})
    seen = []
    other = torch.compile(loss, backend=lambda gm, inputs: seen.append(inputs) or gm.forward)
    other(x[:50])
    assert all(isinstance(item, torch.Tensor) for item in seen[0])  # no size became dynamic
    assert len(memgraph.reports()) == before  # a dry plan is not a plan of this process


def test_sizes_marked_as_dynamic_are_planned_for_those_seen():
    _, loss, x = make("meta")
    torch._dynamo.mark_dynamic(x, 0)
    dynamic = memgraph.plan(loss, x, options={"budget": None}, device="cpu")
    _, loss, x = make("meta")
    assert dynamic.unplanned_peak == memgraph.plan(loss, x, options={"budget": None}, device="cpu").unplanned_peak


def test_uncompiled_unwraps():
    model, loss, _ = make()
    assert compat.uncompiled(torch.compile(model)) is model
    assert compat.uncompiled(torch.compile(loss)) is loss
    assert compat.uncompiled(loss) is loss
