"""Kinds of training under budgets on a GPU, simulated or not: bytes predicted, requested, allocated and reserved.

    python -m benchmarks.simulated --cases plain,lora
    python -m benchmarks.simulated --card here --jobs 8

Run it with a Python that has torch's CUDA build (`make test-simulated` makes one, .venv-cuda). The cases are those of
tests/simulated/matrix.py. Every case runs in a process of its own. Bytes are those of torch's own allocator; where the
GPU is simulated nothing was computed. No figure is a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task
from memgraph import simulator

HEADS = (
    "case", "budget asked for", "budget", "predicted", "requested", "allocated", "reserved", "requested - predicted",
    "first step", "plans tried", "off the device",
)  # fmt: skip


HERE = "here"


def main(
    cases: Annotated[str, typer.Option(help="Names, by commas; all of them without.")] = "",
    card: Annotated[str, typer.Option(help=f"Words of a card's name; {HERE!r} for this machine's own.")] = "H100",
    jobs: Annotated[int, typer.Option(help="Cases at a time.")] = 1,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "simulated-h100",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    from tests.simulated.matrix import CASES, ONLY_SIMULATED

    chosen = cases.split(",") if cases else [case for case in CASES if card != HERE or case not in ONLY_SIMULATED]
    environment = {} if card == HERE else simulator.environment(card)
    record, found = harness.Record(name, "cuda" if card == HERE else "cpu"), {}

    def run(case: str) -> None:
        process = Process("benchmarks.simulated:measure", {"case": case}, environment=environment)
        found[case] = []
        for row in process.results():
            harness.say(f"{case}: {row}")
            found[case].append({"case": case} | row)
            page()

    def page() -> str:
        rows = [row for case in chosen for row in tuple(found.get(case, ()))]
        where = "On the card" if card == HERE else f"Simulated: {card}"
        body = f"{where}. {NOTE}\n\n" + table.markdown(HEADS, map(cells, rows))
        return record.write("Training on a GPU, byte by byte", {"card": card, "rows": rows}, body)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, chosen))
    print(page())


NOTE = (
    "MiB, the baseline included; requested and allocated are the most of all steps, reserved is at the end, and `first "
    "step` is what the first one requested more than the last. Differences in bytes; `off the device` is what a step "
    "keeps on host or disk. A refused budget names the smallest that can be kept, which is tried then. Of regional and "
    "distributed (several graphs a step, each launch against its plan) the launch that reached most is shown, and the "
    "worst difference of all; there a share bounds each graph by itself, and less is requested where the caller of a "
    "graph has let go of an output that the graph saves too."
)


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS."""
    asked = row.get("asked", "")
    asked = table.mib(int(asked.replace(",", ""))) if "," in asked else asked
    if "predicted" not in row:
        said = row.get("failure") or f"refused: at least {table.mib(row['minimum'])}"
        return [row["case"], asked, said, *[""] * (len(HEADS) - 3)]
    figures = [table.mib(row[key]) for key in ("budget", "predicted", "requested", "allocated", "reserved")]
    return [
        row["case"],
        asked,
        *figures,
        *(f"{row[key]:,}" for key in ("off", "first", "attempts")),
        table.mib(row.get("away")),
    ]


def measure(task: Task) -> Iterator[Result]:
    """The rows of a case, in a process on the simulated device."""
    from tests.simulated.launches import Launched
    from tests.simulated.matrix import rows

    for row in rows(task["case"]):
        found = row.trained
        if found is None:
            yield {"asked": row.asked, "minimum": row.minimum}
            continue
        if isinstance(found, Launched):
            yield {"asked": row.asked} | of_launches(found)
            continue
        one = len(set(found.launched)) == 1  # else the plan of the last place in a step, in whole blocks
        predicted = found.predicted if one else found.launched[-1]
        requested, allocated = (peaks if one else peaks[-1:] for peaks in (found.requested, found.allocated))
        yield {
            "asked": row.asked,
            "budget": found.report.budget,
            "predicted": found.level + predicted,
            "requested": found.level + max(requested),
            "allocated": found.level + max(allocated),
            "reserved": found.reserved,
            "off": max((peak - predicted for peak in requested), key=abs),
            "first": requested[0] - requested[-1],
            "attempts": found.report.attempts,
            "away": found.report.bytes_on("host") + found.report.bytes_on("nvme"),
            "notes": found.report.notes,
        }


def of_launches(found: Any) -> Result:
    """The row of a training with several graphs a step: the launch that reached most, and the worst difference."""
    most, last = found.highest, max(launch.step for launch in found.launches)
    ends = (max(launch.reached for launch in found.launches if launch.step == step) for step in (1, last))
    first, after = ends
    return {
        "budget": found.budget if isinstance(found.budget, int) else None,
        "predicted": most.reached - most.off,
        "requested": most.reached,
        "allocated": most.allocated,
        "reserved": found.reserved,
        "off": max((launch.off for launch in found.launches), key=abs),
        "first": first - after,
        "attempts": found.report.attempts,
        "away": found.report.bytes_on("host") + found.report.bytes_on("nvme"),
        "notes": found.report.notes,
        "launches": len(found.launches),
    }


if __name__ == "__main__":
    typer.run(main)
