"""The rules for scratch memory, against the measured table (support/scratch_table.py) and against this machine."""

import functools
import json

import pytest
import torch
from torch.utils._pytree import tree_leaves

from memgraph.facts.kernel_scratch import trial
from memgraph.facts.kernel_scratch.operands import Call
from memgraph.facts.kernel_scratch.rules import RULES, rule_of
from memgraph.machine.measure import peak_above_start
from tests.support import ROOT
from tests.support.lanes import slow_but
from tests.support.scratch_cases import cases

TABLE = json.loads((ROOT / "tests" / "support" / "scratch_table.json").read_text())
ROWS = dict(TABLE["rows"])


@functools.cache
def calls() -> dict[str, Call]:
    """The calls of the table by their text."""
    return {str(case): case for case in cases()}


pytestmark = [
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="no bounds on this processor"
    ),
]

# A bound may be so many times the operands above the truth, in float32, and so much for each thread. The worst in the
# table are convolutions whose few channels would fill whole vectors in another of oneDNN's formats.
TIMES, THREAD = 16, 1024 * 1024


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def operands(case: Call) -> int:
    """Bytes read and made, were they all float32 at least."""
    widened = max(1, 4 // next(o.dtype.itemsize for o in (case.args[0],)))
    return widened * (case.inputs + case.made)


def columns():
    for place, name in enumerate(TABLE["columns"]):
        yield name, int(name.split()[0]), place


def test_every_case_and_every_rule_is_in_the_table():
    assert calls().keys() == ROWS.keys(), "measure again: python -m tests.support.scratch_table"
    held = {case.name for case in calls().values()}
    plain = "as_strided copy_ fill_ zero_ empty empty_strided _assert_async"
    siblings = (
        "scatter scatter_ scatter_add scatter_reduce index_put _unsafe_index_put _embedding_bag_dense_backward "
        "mkldnn_rnn_layer_backward"
    )
    others = {"transformers::grouped_mm_fallback", "transformers::grouped_mm_fallback_backward"}
    assert RULES.keys() - held == others | {f"aten::{name}" for name in f"{plain} {siblings}".split()}


def test_no_rule_is_below_what_was_measured_nor_far_above(threads):
    low, high, compared = [], [], 0
    for column, count, place in columns():
        threads(count)
        for text, case in calls().items():
            measured, rule = ROWS[text][place], rule_of(case)
            if not isinstance(measured, int) or rule is None:
                continue
            figure = rule.bytes(case)
            compared += 1
            if figure < measured:
                low.append((column, text, measured, figure))
            limit = measured * 1.01 + 4096 if rule.exact else measured + TIMES * operands(case) + THREAD * count
            if figure > limit:
                high.append((column, text, measured, figure))
    assert not low
    assert not high
    assert compared > 0.9 * len(ROWS) * len(TABLE["columns"])


def storages(tree) -> dict[int, int]:
    """Bytes by address."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


@pytest.mark.parametrize("count", slow_but([1, 2], fast=[]))
def test_a_sample_on_this_machine(threads, count):
    """The trial counts what memgraph.measure does, by another profiler; and the rule holds here, too."""
    threads(count)
    sample = list(calls().values())[::48]
    compared = 0
    for case in sample:
        try:
            found = trial.measure(case)
        except trial.NotTried:
            continue
        args, kwargs = trial.made_up(case)
        kept = []
        with torch.no_grad():
            peak = peak_above_start(lambda: kept.append(case.op(*args, **kwargs)), "cpu")  # noqa: B023
        given, sizes = storages((args, kwargs)), storages(kept)
        seen = max(0, peak - sum(size for data, size in sizes.items() if data not in given))
        assert found == seen, str(case)
        rule = rule_of(case)
        assert rule is None or seen <= rule.bytes(case), str(case)
        compared += 1
    assert compared > 0.9 * len(sample)
