"""The example's data and models, without compiling; tests of the whole script would take minutes."""

import dataclasses
import gc
import importlib.util
import sys

import pytest

from tests.support import ROOT

pytest.importorskip("transformers")
FILE = ROOT / "examples" / "train_llama.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_llama", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_llama"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["train_llama"]


def test_batches_are_text_and_the_same_every_time(example):
    text = example.read_text()
    assert 1_000_000 < len(text) <= 4_000_000
    assert b"import" in bytes(text[:100_000].tolist())
    first, again = (example.make_batches(text, example.SMALL, 3) for _ in range(2))
    assert len(first) == 3
    for left, right in zip(first, again, strict=True):
        assert left.shape == (example.SMALL.batch, example.SMALL.sequence)
        assert left.equal(right)
        assert bytes(left[0].tolist()) in bytes(text.tolist())


def test_models_are_the_same_every_time(example):
    size = dataclasses.replace(example.SMALL, layers=1, sequence=32)
    first, again = example.make_model(size), example.make_model(size)
    for left, right in zip(first.parameters(), again.parameters(), strict=True):
        assert left.equal(right)
    batch = example.make_batches(example.read_text(), size, 1)[0]
    assert 4 < first(input_ids=batch, labels=batch).loss.item() < 8  # log(256) = 5.5: it knows nothing yet


def test_the_small_model_has_ten_million_parameters(example):
    count = sum(p.numel() for p in example.make_model(example.SMALL).parameters())
    assert 9e6 < count < 11e6


@pytest.mark.slow
def test_training_and_what_is_shown_of_it(example, capsys):
    size = dataclasses.replace(example.SMALL, hidden=32, heads=2, layers=1, sequence=32)
    batches = example.make_batches(example.read_text(), size, 3)
    gc.unfreeze()  # what other tests have left counts in the first level, and is gone at the next
    gc.collect()
    run = example.train(size, batches, backend="eager")
    assert len(run.losses) == 3 and len(run.seconds) == 2
    assert run.losses[-1] < run.losses[0]
    assert run.above > 0 and len(run.levels) == 4
    parameters = 4 * sum(p.numel() for p in example.make_model(size).parameters())
    # The optimizer's two copies are there before the first step: what is planned for that one holds for all.
    assert max(run.levels) - min(run.levels) < parameters / 4 and min(run.levels) >= 3 * parameters

    from memgraph import Report

    figures = dict(unplanned_peak=2, predicted_peak=1, predicted_time=1.0, unplanned_time=1.0, recompute_time=0.0)
    report = Report(
        key="", graph="", device="cpu", requested="0.4", budget=run.peak, reserve=0, baseline=0,
        source_of_peak="graph sweep", **figures,
    )  # fmt: skip
    example.show(run, run, report)
    shown = capsys.readouterr().out
    assert "The budget was kept" in shown
    assert "differ by at most 0.0e+00" in shown
    example.show(run, run, dataclasses.replace(report, budget=1))
    assert "exceeded" in capsys.readouterr().out


def test_making_the_optimizers_state_changes_nothing_else(example):
    import torch

    size = dataclasses.replace(example.SMALL, hidden=32, heads=2, layers=1, sequence=32)
    batch = example.make_batches(example.read_text(), size, 1)[0]
    trained = []
    for made_first in (False, True):
        model = example.make_model(size)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if made_first:
            example.make_state(optimizer)
            assert len(optimizer.state) == len(list(model.parameters()))
            assert all(parameter.grad is None for parameter in model.parameters())
        for _ in range(2):
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        trained.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert trained[0].equal(trained[1])


def test_sparkline(example):
    assert example.sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert example.sparkline([1.0]) == "▁"
