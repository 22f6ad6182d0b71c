"""`memgraph fit | plan | reports | report | diff | demo | calibrate | doctor | bench`: what a user does at a terminal.

Exit codes: 0 done, or it fits; 1 something else is missing or fails; 2 a wrong option; 3 the budget cannot be reached,
or it does not fit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memgraph.cli.fit import FIT_HELP, fit
from memgraph.cli.plan import PLAN_HELP, plan
from memgraph.cli.stored import DIFF_HELP, REPORT_HELP, diff, report, reports
from memgraph.cli.terminal import console, fail, refusals, show

CHECKOUT = Path(__file__).parents[2]  # of an editable install; in any other it holds no examples


HELP = """
Train models under a budget in bytes: plans, reports, and what this machine can do.

Exit codes of all commands: 0 done, or it fits; 1 something is missing or fails, such as your script; 2 a wrong option;
3 the budget cannot be reached, or it does not fit."""

app = typer.Typer(
    help=HELP, no_args_is_help=True, context_settings={"max_content_width": 100}, pretty_exceptions_enable=False
)
app.command(help=FIT_HELP)(fit)
app.command(help=PLAN_HELP)(plan)
app.command()(reports)
app.command(help=REPORT_HELP)(report)
app.command(help=DIFF_HELP)(diff)


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=1)] = 30,
    budget: Annotated[float, typer.Option(help="share of plain Inductor's peak above the baseline")] = 0.4,
    out: Annotated[Path, typer.Option(help="folder for the report and the picture")] = Path("out"),
) -> None:
    """Train a small Llama with and without memgraph, and compare (about five minutes on two cores)."""
    arguments = [f"--steps={steps}", f"--budget={budget}", f"--out={out}"]
    file = _file_of_the_repository("examples/train_llama.py")
    raise typer.Exit(subprocess.run([sys.executable, str(file), *arguments]).returncode)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Run memgraph beside its peers; what follows is handed to benchmarks/run.py."""
    file = _file_of_the_repository("benchmarks/run.py")
    command = [sys.executable, "-m", "benchmarks.run", *context.args]
    raise typer.Exit(subprocess.run(command, cwd=file.parents[1]).returncode)


def _file_of_the_repository(name: str) -> Path:
    file = CHECKOUT / name
    if not file.is_file():
        raise fail(f"{name} is in memgraph's repository and not in the installed package: clone it and run it there")
    return file


@app.command()
def calibrate(
    device: Annotated[str | None, typer.Option(help="cuda or cpu; by default the GPU where there is one")] = None,
    scratch: Annotated[Path | None, typer.Option(help="measure the disk under this folder, too")] = None,
) -> None:
    """Measure what a device can do, for a few seconds, and keep it for the planner."""
    import torch

    from memgraph.machine import calibration, disk, disk_calibration, hardware

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with Console(stderr=True).status(f"measuring {device}"):
            figures = calibration.calibrate_device(device)
    except (ValueError, RuntimeError, AssertionError) as problem:  # what torch raises for a missing device
        raise fail(f"{device} cannot be measured: {problem}", 2) from problem
    if scratch:
        with refusals(), Console(stderr=True).status(f"measuring {scratch}"):
            rates = disk_calibration.calibrate_disk(scratch, device)
    known = hardware.built_in(figures.name if figures.device == "cuda" else "cpu")
    table = Table("", "measured", f"built in: {known.name}", title=figures.name)
    for (name, measured), (_, built_in) in zip(_rows(figures), _rows(known), strict=True):
        table.add_row(name, measured, built_in)
    if scratch:
        for row in _disk_rows(str(scratch), rates, figures.device == "cuda"):
            table.add_row(*row)
    show(table)
    try:
        console.print(f"kept in {hardware.save(figures)}", markup=False, soft_wrap=True)
        if scratch:
            console.print(f"kept in {disk.save(scratch, rates)}", markup=False, soft_wrap=True)
    except OSError as problem:
        raise fail(f"the figures could not be kept: {problem}") from problem


def _disk_rows(folder: str, rates: Any, on_gpu: bool) -> Iterator[tuple[str, str, str]]:
    from memgraph.machine import disk

    kind = "direct" if rates.direct else "buffered: the file system takes no O_DIRECT"
    for way in ("write", "read"):
        measured, built_in = (f"{getattr(figures, way) / 1e9:,.2f} GB/s" for figures in (rates, disk.BUILT_IN))
        yield f"{way}, {folder} ({kind})", measured, built_in
        if rates.knows_gpudirect:
            yield f"{way}, {folder} (GPUDirect)", f"{getattr(rates, f'gpudirect_{way}') / 1e9:,.2f} GB/s", ""
    if not on_gpu:
        share, once = disk.BUILT_IN.taken
        told, told_once = "not known: the machine had other work", ""
        if rates.drag is not None:
            told, told_once = f"{rates.taken[0]:.0%} of their time", f"{rates.taken[1] * 1e3:.2f} ms"
        yield "taken by copies from a CPU's work", told, f"{share:.0%}"
        yield "and by each value, out and back", told_once, f"{once * 1e3:.2f} ms"
    if on_gpu or rates.knows_gpudirect:
        yield "GPUDirect", f"not used: {rates.against_gpudirect}" if rates.against_gpudirect else "used", ""


def _rows(figures: Any) -> Iterator[tuple[str, str]]:
    from memgraph.base.sizes import format_size

    for dtype in ("float32", "bfloat16", "float16", "float64"):
        yield f"matrix product, {dtype}", f"{figures.rate(dtype) / 1e9:,.1f} GFLOP/s"
    for dtype in ("float32", "bfloat16"):
        for kind, told in (("causal", "causal"), ("masked", "with a mask"), ("whole", "to all keys")):
            yield f"attention {told}, {dtype}", f"{figures.attention_rate(dtype, kind) / 1e9:,.1f} GFLOP/s"
    yield "memory", f"{figures.memory_bandwidth / 1e9:,.1f} GB/s"
    yield "to the host", f"{figures.link_out / 1e9:,.1f} GB/s"
    yield "from the host", f"{figures.link_in / 1e9:,.1f} GB/s"
    yield "exp", f"{figures.transcendental_rate / 1e9:,.2f} G elements/s"
    yield "a truth value stored and loaded", f"{figures.truth_time * 1e9:.2g} ns"
    yield "a random number", f"{figures.random_time * 1e9:.2g} ns"
    yield "a number added up at its place", f"{figures.put_time * 1e9:.2g} ns"
    yield "overhead of a kernel", f"{figures.kernel_overhead * 1e6:.1f} us"
    yield "capacity", format_size(figures.capacity)


@app.command()
def doctor(
    scratch: Annotated[Path | None, typer.Option(help="look at this folder for offload, too")] = None,
) -> None:
    """List what is installed, and whether memgraph can work with it (exit code 0) or not (1)."""
    from memgraph.cli.doctor import checks

    table = Table("", "", "", title="memgraph doctor", show_header=False)
    found = list(checks(scratch))
    for check in found:
        sign = "[green]ok[/]" if check.ok else "[red]no[/]" if check.needed else "[yellow]--[/]"
        table.add_row(sign, check.name, check.text)
    show(table)
    if wrong := [check.name for check in found if check.needed and not check.ok]:
        raise fail(f"memgraph cannot work here: {', '.join(wrong)}")
    console.print("memgraph can work here.")


if __name__ == "__main__":
    app()
