import dataclasses
import json

import pytest

from memgraph.reporting.figures import Source
from memgraph.reporting.step_figures import (
    GraphFigures,
    LaunchFigures,
    OptimizerFigures,
    OutsideFigures,
    RoundFigures,
)
from memgraph.reporting.step_report import StepReport

MIB = 1 << 20


def launch(number, graph="layer [0]", held=4, above=16, measured=None):
    level = 20 + held * number
    return LaunchFigures(
        graph=graph,
        sizes=(),
        level=level * MIB,
        held=held * MIB,
        predicted_forward=(level + above - 2) * MIB,
        predicted_backward=(level + above) * MIB,
        measured_forward=None if measured is None else (level + measured - 2) * MIB,
        measured_backward=None if measured is None else (level + measured) * MIB,
        predicted_above=above * MIB,
        measured_above=None if measured is None else measured * MIB,
    )


def steps(number, measured=None, outside=()):
    launches = [*(launch(n, measured=measured) for n in range(4)), launch(4, "loss [0]", 1, 8, measured and 8)]
    return RoundFigures(number=number, launches=tuple(launches), outside=outside, recorded=measured is not None)


def example(**changes):
    outside = (
        OutsideFigures("forward of layer [0]", "forward of loss [0]", 36 * MIB, 52 * MIB),
        OutsideFigures("forward of loss [0]", "backward of loss [0]", 36 * MIB, 36 * MIB),
    )
    note = "foreach=False or fused=True holds less."
    known = {
        "device": "cpu",
        "budget": 50 * MIB,
        "reserve": 2 * MIB,
        "level": 20 * MIB,
        "to_come": 6 * MIB,
        "rounds": (steps(1, 16, outside), steps(2)),
        "graphs": (
            GraphFigures(
                graph="layer [0]",
                launches=4,
                plans=2,
                made=3,
                unplanned_above=40 * MIB,
                source_of_unplanned_peak=Source.SWEEP,
                off=0,
            ),
        ),
        "optimizers": (
            OptimizerFigures(
                name="AdamW",
                made=0,
                to_come=6 * MIB,
                temporaries=9 * MIB,
                peak=55 * MIB,
                method="steps on fake tensors",
                note=note,
            ),
        ),
        "grown": (("gradients that stand already", 3 * MIB),),
        "notes": ("a note",),
    }
    return StepReport(**known | changes)


GOLDEN = """\
memgraph: a step on cpu, 5 launches, round 2
measured 48.0 MiB, within the budget of 50.0 MiB; predicted 48.0 MiB; outside of the graphs 52.0 MiB, OVER the
budget of 50.0 MiB
 budget          50.0 MiB (2.0 MiB of it held back)
 level           20.0 MiB (allocated when a step starts)
 to come         6.0 MiB (state of the optimizer, which later steps start with)
 predicted peak  48.0 MiB (2.0 MiB to spare; 54.0 MiB in later steps)
 measured peak   48.0 MiB (of the launches of round 1; as predicted; 2.0 MiB to spare)
 AdamW.step()    55.0 MiB by its forecast (5.0 MiB OVER the budget): 9.0 MiB for a moment, 0 B of state and
                 6.0 MiB to come; known by steps on fake tensors. foreach=False or fused=True holds less.
 grown           3.0 MiB gradients that stand already (since the first plan)

Launches of round 1 (planned: held, takes above its level, peak; measured: took, reached)
 graph      times     level     held     takes      took      peak   reached
-------------------------------------------------------------------------------
 layer [0]     x4  20.0 MiB  4.0 MiB  16.0 MiB  16.0 MiB  48.0 MiB  48.0 MiB
 loss [0]      x1  24.0 MiB  1.0 MiB   8.0 MiB   8.0 MiB  32.0 MiB  32.0 MiB

Graphs
 graph      plans  compiled  unplanned takes
-----------------------------------------------
 layer [0]      2         3   about 40.0 MiB

Outside of the graphs
 after                 before                  level     takes      peak
------------------------------------------------------------------------------------------
 forward of layer [0]  forward of loss [0]  36.0 MiB  16.0 MiB  52.0 MiB  OVER the budget

Last rounds
 round  launches     level  predicted  measured   outside
----------------------------------------------------------
     1         5  20.0 MiB   48.0 MiB  48.0 MiB  52.0 MiB
     2         5  20.0 MiB   48.0 MiB         -         -

Notes
 a note
"""


def test_table():
    assert str(example()) == GOLDEN.rstrip("\n")


def test_json_gives_it_back():
    report = example(highest=7)
    assert StepReport.from_json(report.to_json()) == report
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))
    assert hash(report) == hash(StepReport.from_json(report.to_json()))


@pytest.mark.parametrize("text", ["{}", "[]", '{"rounds": [{}]}', "no"])
def test_other_json_is_refused(text):
    with pytest.raises(ValueError):
        StepReport.from_json(text)


def test_a_measurement_that_differs_by_more_than_a_hundredth_is_said():
    for measured, as_predicted in ((16, True), (17, False), (15, False)):
        report = example(rounds=(steps(1, measured),))
        assert report.as_predicted is as_predicted
        assert ("MORE THAN PREDICTED" in report.summary) is (measured == 17)
        assert ("1.0 MiB MORE than planned" in str(report)) is (measured == 17)
        assert ("1.0 MiB less than planned" in str(report)) is (measured == 15)
    nearly = dataclasses.replace(launch(0, measured=16), measured_above=16 * MIB + 36 * MIB // 101)
    assert nearly.as_predicted


def test_what_is_above_the_budget_is_said():
    assert "within the budget" in example().summary
    over = example(budget=47 * MIB)
    assert "OVER the budget of 47.0 MiB" in over.summary and str(over).count("OVER the budget") >= 4


def test_nothing_measured_and_nothing_predicted():
    assert "not measured" in example(rounds=(steps(1),)).summary
    unknown = dataclasses.replace(launch(0), predicted_forward=None, predicted_backward=None)
    report = example(rounds=(RoundFigures(number=1, launches=(unknown,), outside=()),))
    assert report.summary == "nothing is known of its peak" and str(report)


def test_what_was_measured_of_another_composition_does_not_stand_for_the_newest():
    other = RoundFigures(number=1, launches=(launch(0, "evaluation [0]", measured=99),), outside=(), recorded=True)
    off = dataclasses.replace(other, launches=(dataclasses.replace(other.launches[0], measured_above=0),))
    assert not off.as_predicted
    for some in (other, off):
        report = example(rounds=(some, steps(2)))
        assert report.measured is None and report.as_predicted


def test_it_fits_a_screen_however_many_graphs_there_are():
    many = tuple(launch(n, f"layer [{n}]", measured=16) for n in range(64))
    outside = tuple(OutsideFigures(f"forward of {n}", "next", n * MIB, (n + 1) * MIB) for n in range(64))
    rounds = tuple(RoundFigures(number=n, launches=many, outside=outside, recorded=True) for n in range(12))
    graphs = tuple(dataclasses.replace(example().graphs[0], graph=f"layer [{n}]") for n in range(64))
    lines = str(example(rounds=rounds, graphs=graphs)).splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 130
    assert str(example()).isascii()
