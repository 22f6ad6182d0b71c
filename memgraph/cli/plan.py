"""`memgraph plan`: what the backend would plan for a step, without running or compiling anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from memgraph import simulator
from memgraph.base.errors import OptionsError
from memgraph.cli.exact import Exactly, on_card, show_exact
from memgraph.cli.outputs import Details, Html, Json, Outputs, Plot, Snapshot, Trace
from memgraph.cli.outputs import show as show_report
from memgraph.cli.target import TARGET_HELP, load_step, own_words
from memgraph.cli.terminal import console, pair, parse_budget, parse_offload, parse_value, refusals

PLAN_HELP = f"Plan a step without running or compiling anything.\n\n{TARGET_HELP}"
Budget = Annotated[str, typer.Option(help='"20GiB"; a share such as 0.4; "auto" for the device\'s capacity; "none"')]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; by default that of --hardware or the tensors")]
Recompute = Annotated[
    bool | None, typer.Option("--recompute/--no-recompute", help="whether values may be computed again")
]
Offload = Annotated[str | None, typer.Option(help='"host"; a folder for a scratch file; or JSON: {"host": "64GiB"}')]
Tile = Annotated[
    bool | None, typer.Option("--tile/--no-tile", help="whether MLPs, experts and the loss may run in shards")
]
Rules = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN=ACTION", help="a pin, such as lm_head=tile:16; any number")
]
AnyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help='any other option; VALUE is JSON, or text: tile={"mlp": 8}; any number'),
]
LongestSize = Annotated[
    bool, typer.Option("--longest", help="plan for the largest size of --dim that the budget has room for")
]
OptimizerName = Annotated[
    str | None, typer.Option(help='of torch.optim, whose state is counted: adamw, "adamw(fused=True)"')
]
Curve = Annotated[
    bool, typer.Option("--frontier", help="plan for a dozen budgets, too: time against memory; --html has both")
]
OF_MANY = ("--json", "--plot", "--html, a page of the plan for --budget with the curve in it")
Asked: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A step: what is called, and with what."""


def plan(
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False)],
    budget: Budget = "auto",
    reserve: Annotated[str, typer.Option(help="bytes of the budget to hold back, such as 2GiB")] = "0B",
    device: Device = None,
    hardware: Annotated[str | None, typer.Option(help="plan with the built-in figures of this device: H100")] = None,
    recompute: Recompute = None,
    offload: Offload = None,
    tile: Tile = None,
    rules: Rules = None,
    option: AnyOption = None,
    optimizer: OptimizerName = None,
    longest: LongestSize = False,
    dim: Annotated[int, typer.Option(min=0, help="with --longest: 1 for a sequence, 0 for the batch")] = 1,
    step: Annotated[int, typer.Option(min=1, help="with --longest: sizes are multiples of it")] = 128,
    frontier: Curve = False,
    exact: Exactly = False,
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
    trace: Trace = None,
    snapshot: Snapshot = None,
    details: Details = False,
) -> None:
    outputs = Outputs(json=json, html=html, plot=plot, trace=trace, snapshot=snapshot)
    with refusals():
        if exact and not simulator.here():
            raise on_card(hardware)
        outputs.check()
        if frontier and (longest or exact or trace or snapshot):
            raise OptionsError(f"--frontier asks about many budgets; allowed beside it: {', '.join(OF_MANY)}")
        named = {
            "recompute": recompute,
            "offload": None if offload is None else parse_offload(offload),
            "tile": tile,
            "rules": dict(pair(rule, "rules") for rule in rules) if rules else None,
        }
        options = {"budget": parse_budget(budget), "reserve": reserve} | _given(named, option)
        told: dict[str, Any] = {"options": options, "device": device, "hardware": hardware, "optimizer": optimizer}
        with own_words(target):
            asked = load_step(target)
            if exact:
                raise _exact(asked, told | {"dim": dim, "step": step}, longest, outputs)
            if longest:
                found = _longest(asked, told | {"dim": dim, "step": step})
            else:
                found = _plan(asked, told) if html or not frontier else None
            curve = _frontier(asked, told) if frontier else None
    show_report(curve or found, details)
    if found is not None:
        (Outputs(html=html) if curve else outputs).write(found, frontier=curve)
    if curve is not None:
        dataclasses.replace(outputs, html=None).write(curve)


def _plan(asked: Asked, told: dict[str, Any]) -> Any:
    from memgraph.backend.dry import plan as plan_step

    fn, args = asked
    return plan_step(fn, *args, **told)


def _frontier(asked: Asked, told: dict[str, Any]) -> Any:
    from memgraph.backend.frontier import frontier as frontier_of_step

    fn, args = asked
    return frontier_of_step(fn, *args, **told)


def _longest(asked: Asked, told: dict[str, Any]) -> Any:
    """The plan of the longest, after a line that says how long it is."""
    from memgraph.backend.longest import longest as longest_step

    fn, args = asked
    found = longest_step(fn, *args, **told)
    console.print(str(found), markup=False, soft_wrap=True)
    return found.report


def _exact(asked: Asked, told: dict[str, Any], longest: bool, outputs: Outputs) -> typer.Exit:
    """Run the step, shown and written; returns the exit that says whether it fits."""
    from memgraph.backend.exact import exact as run_exactly
    from memgraph.backend.explore import with_size

    fn, args = asked
    if longest:
        from memgraph.backend.longest import longest as longest_step

        found = longest_step(fn, *args, **told)
        console.print(str(found), markup=False, soft_wrap=True)
        args = with_size(args, told["dim"], found.size)
    measured = run_exactly(fn, *args, options=told["options"], optimizer=told["optimizer"])
    show_exact(measured)
    if measured.report is not None:
        outputs.write(measured.report)
    return typer.Exit(0 if measured.fits else 3)


def _given(named: dict[str, Any], option: list[str] | None) -> dict[str, Any]:
    """The options that were given, by their own names and as KEY=VALUE.  Raises OptionsError for one given twice."""
    options = {key: value for key, value in named.items() if value is not None}
    for key, text in (pair(text, "option") for text in option or ()):
        if named.get(key) is not None:
            raise OptionsError(f"--option {key} is given as --{key} as well; allowed: one of the two")
        options[key] = parse_value(text)
    return options
