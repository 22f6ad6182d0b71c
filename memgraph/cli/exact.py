"""`memgraph plan --exact`: the command once more, in a process that finds a simulated card, and what it shows there."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from memgraph import simulator
from memgraph.base.errors import OptionsError
from memgraph.base.sizes import format_size
from memgraph.cli.terminal import console, show

CARD = "H100"
Exactly = Annotated[
    bool, typer.Option("--exact", help="compile the step and run it on a simulated card: to the byte, in minutes")
]


def on_card(hardware: str | None) -> typer.Exit:
    """Run this command on a simulated card, and return what ends this process as that one ended.

    hardware: words of the card's name.  Raises OptionsError where it cannot be simulated, or torch knows no CUDA.
    """
    import torch

    if not torch.backends.cuda.is_built():
        raise OptionsError(
            f"--exact runs torch's CUDA build, on a simulated card, and this is torch {torch.__version__}: "
            'python -m venv exact && exact/bin/pip install torch===2.13.0 -e ".[cli]", in a clone (5 GB, and no GPU)'
        )
    chosen = simulator.card(hardware or CARD)
    return typer.Exit(simulator.run(["-m", "memgraph.cli.app", *sys.argv[1:]], chosen).returncode)


def show_exact(found: Any) -> None:
    """Print an exact plan: the report, the phases, the verdict."""
    if found.report is not None:
        console.print(str(found.report), markup=False, soft_wrap=True)
    table = Table("step", "phase", "requested", "allocated", "reserved", title="the most bytes, on a simulated card")
    for phase in found.phases:
        kinds = (phase.requested, phase.allocated, phase.reserved)
        table.add_row(str(phase.step), phase.name, *map(format_size, kinds))
    show(table)
    console.print(str(found), markup=False, soft_wrap=True)
