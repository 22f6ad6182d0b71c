"""A report on one screen."""

import dataclasses
import io

import pytest
from rich.console import Console

from memgraph.base.errors import Binding
from memgraph.facts.actions import Recompute, Save
from memgraph.planner.decisions import Decision, Refusal
from tests.reporting.test_report import DROPPED, FITS, MIB, example, layer

SCREEN = """\
memgraph: loss_fn [0] on cuda:0
saves 24.0 MiB of a peak of 186.0 MiB = 12.9 % (above the baseline: 17.6 %); predicted slow-down 7.0 %
 fits    yes: 162.0 MiB (by the inductor wrapper) of 200.0 MiB (asked for: 200MiB), 10.0 MiB of it held back:
         28.0 MiB to spare
 costs   100.0 ms -> 107.0 ms a step, +7.0 % (7.0 ms of it recomputation)
 stands  50.0 MiB when the step starts; 112.0 MiB are the step's own
 next    there is room for 28.0 MiB more: a longer sequence or a larger batch; `memgraph calibrate` measures
         this machine: the times are built in; report.html("report.html") to look at it; report.details() for
         all

Modules (sums over equal layers)
 module                      kept   dropped  in time
-----------------------------------------------------
 model.layers.0..2  x3   12.0 MiB  24.0 MiB   3.0 ms
   .attn                 12.0 MiB         -        -
   .mlp                         -  24.0 MiB   3.0 ms
 lm_head                100.0 MiB         -        -
 (no module)                  8 B         -        -

Live at the predicted peak
     bytes  times  value   module   source
------------------------------------------------
 100.0 MiB     x1  logits  lm_head  llama.py:90
       8 B     x1  seeds

Refused
 what                       why
-----------------------------------------------------------------------------
 rule 'foo.*': 'recompute'  no module path of this graph matches the pattern

Notes
 a note with [bold]brackets[/bold]
"""


def test_screen():
    assert str(example()) == SCREEN.rstrip("\n")


def test_layers_that_differ_are_apart_and_numbers_are_ranges():
    odd = dataclasses.replace(layer(2)[0], action=Recompute())
    decisions = [*layer(0), *layer(1), odd, layer(2)[1], *layer(3), *layer(10)]
    text = str(dataclasses.replace(example(), decisions=tuple(decisions)))
    assert "model.layers.0..1,3,10  x4" in text
    assert "model.layers.2  " in text


def test_layers_that_differ_in_a_few_values_are_one_row_with_all_their_bytes():
    def norms(i, action, why):
        return Decision(f"norm_{i}", MIB, action, f"model.layers.{i}.norm", "f.py:1", 0.0, why)

    decisions = [d for i in range(4) for d in (*layer(i), norms(i, Save(), FITS))]
    decisions[-1] = norms(3, Recompute(), DROPPED)  # 2 of 13 MiB differ
    rows = str(dataclasses.replace(example(), decisions=tuple(decisions))).splitlines()
    assert sum("model.layers.0..2  x3 " in row for row in rows) == sum("model.layers.3 " in row for row in rows) == 1

    decisions += [Decision(f"big_{i}", 20 * MIB, Save(), f"model.layers.{i}", "f.py:1", 0.0, FITS) for i in range(4)]
    rows = str(dataclasses.replace(example(), decisions=tuple(decisions))).splitlines()
    (row,) = (row for row in rows if "model.layers.0..3  x4, nearly equal" in row)  # 2 of 33 MiB
    assert "99.0 MiB" in row and "33.0 MiB" in row
    reasons = [*layer(0), dataclasses.replace(layer(1)[0], why="another reason"), layer(1)[1]]
    assert "model.layers.0..1  x2 " in str(dataclasses.replace(example(), decisions=tuple(reasons)))


@pytest.mark.slow
def test_large_reports_stay_short():
    decisions = tuple(Decision(f"v{i}", MIB * (i + 1), Save(), f"m{i}", f"f.py:{i}", 0.0, FITS) for i in range(99))
    report = dataclasses.replace(example(), decisions=decisions)
    assert "86 more" in str(report) and len(str(report).splitlines()) <= 45
    assert all(f" v{i} " in report.details() for i in range(99))


@pytest.mark.parametrize("width", [100, None])
def test_a_report_of_32_equal_layers_is_one_screen(width):
    """Nearly equal ones too, with refusals and notes; where there is no terminal, no word is broken."""
    file = "/site/modeling_llama.py"

    def one(i):
        at = f"model.layers.{i}"
        parts = ("input_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.act")
        for n, part in enumerate(parts):
            action = Recompute() if (i * 7 + n) % 5 == 0 else Save()  # a pattern of its own in each layer
            yield Decision(f"{part}_{i}", (n + 1) * MIB, action, f"{at}.{part}", f"{file}:{n}", 1e-3, FITS)

    decisions = tuple(decision for i in range(32) for decision in one(i))
    binding = tuple(Binding(d.name, d.bytes, d.module, d.source) for d in decisions if isinstance(d.action, Save))
    refusals = tuple(Refusal(f"rule 'layers.{i}.*': 'recompute'", "no module path matches " * 8) for i in range(9))
    notes = tuple(f"note {i}: " + "words that go on and on " * 8 for i in range(9))
    known = {"decisions": decisions, "binding": binding, "refusals": refusals, "notes": notes}
    report = dataclasses.replace(example(), **known, measured_above=9 * MIB, stall_time=1e-3, to_come=7 * MIB)
    if width is None:
        text = str(report)
    else:
        console = Console(file=io.StringIO(), width=width)
        console.print(report)
        text = console.file.getvalue()
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert len(text.splitlines()) <= 45, text
    assert "model.layers.0..31  x32, alike" in text and " more" in text
    for word in ("mlp.gate_proj", "mlp.act", ".self_attn", "memgraph.step_report()"):
        assert word in text
