"""The table and the picture of run.py's results; `benchmarks/table.py results.json` makes them again."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import machine

MIB = machine.MIB
COLUMNS = ("arm", "peak", "predicted", "relative time", "seconds", "spread", "dominated") + (
    "loss error",
    "gradient error",
    "compile",
)
SLACK = 1.02  # two per cent of step time is less than the rounds differ among themselves


def points(data: dict[str, Any], memgraph: bool) -> list[tuple[str, int, float]]:
    """(arm, peak, time relative to Inductor) of memgraph's arms, or of its peers."""
    return [
        (result["arm"]["name"], result["peak"], statistics.median(result["ratios"]))
        for result in data["results"]
        if (result["arm"]["kind"] == "memgraph") == memgraph and result.get("ratios")
    ]


def undominated(data: dict[str, Any]) -> list[str]:
    """The peers that no memgraph arm matches in peak and, to within SLACK, in time."""
    ours = points(data, memgraph=True)
    return [
        name
        for name, peak, ratio in points(data, memgraph=False)
        if not any(mine <= peak and time <= ratio * SLACK for _, mine, time in ours)
    ]


def markdown(data: dict[str, Any]) -> str:
    """The whole table.md."""
    shape = ", ".join(f"{key} {value}" for key, value in data["shape"].items())
    open_peers = undominated(data)
    lines = [
        f"# {data['model']} on {data['device']}: step time and peak",
        "",
        machine.headline(data["machine"]),
        f"{data['model']}: {shape}, {data['dtype']}.",
        "The peak is measured, in MiB above the start of the step, the gradients that it makes included.",
        f"Relative time: the median over {data['rounds']} rounds of a step's time by Inductor's in it.",
        "Errors are relative to Inductor.",
        "Dominated: some memgraph arm has at most this peak and at most 1.02 times this time.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"| {' | '.join('---' for _ in COLUMNS)} |",
        *(_line(result, open_peers) for result in data["results"]),
        "",
        f"Peers not dominated: {', '.join(open_peers) or 'none'}.",
    ]
    return "\n".join(lines) + "\n"


def _line(result: dict[str, Any], open_peers: list[str]) -> str:
    name = result["arm"]["name"]
    if not result.get("ratios"):
        refused = f"refused: the smallest budget is {result.get('refused', 0) / MIB:.1f} MiB, baseline included"
        what = refused if "refused" in result else f"failed: {result.get('failure')}"
        return f"| {name} | {what} |" + " |" * 8
    ratios = result["ratios"]
    dominated = "" if result["arm"]["kind"] == "memgraph" else "no" if name in open_peers else "yes"
    cells = (
        name,
        f"{result['peak'] / MIB:.1f}",
        f"{result['predicted'] / MIB:.1f}" if "predicted" in result else "",
        f"{statistics.median(ratios):.3f}",
        f"{statistics.median(result['seconds']):.4g}",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
        dominated,
        f"{result['loss_error']:.1e}",
        f"{result['gradient_norm_error']:.1e}",
        f"{result['compile_seconds']:.0f} s",
    )
    return f"| {' | '.join(cells)} |"


def picture(data: dict[str, Any], path: Path) -> None:
    """Step time against peak: memgraph's arms as a curve, the peers as points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 6.5))
    ours = sorted(points(data, memgraph=True), key=lambda point: point[1])
    axes.plot([peak / MIB for _, peak, _ in ours], [ratio for *_, ratio in ours], "o-", label="memgraph")
    peers = points(data, memgraph=False)
    families = ("activation_memory_budget", "eager", "inductor")
    for family, mark in zip(families, "svD", strict=True):
        of_family = [point for point in peers if point[0].startswith(family)]
        axes.plot([peak / MIB for _, peak, _ in of_family], [ratio for *_, ratio in of_family], mark, label=family)
    for above, group in ((True, ours), (False, peers)):
        for name, peak, ratio in group:
            label = name.removeprefix("memgraph ").removeprefix("activation_memory_budget ")
            offset = (4, 6) if above else (4, -12)
            axes.annotate(label, (peak / MIB, ratio), xytext=offset, textcoords="offset points", fontsize=8)
    axes.set_xlabel("measured peak above the start of the step [MiB]")
    axes.set_ylabel("step time relative to Inductor")
    axes.set_title(f"{data['model']}, {data['machine']['device']}, torch {data['machine']['torch']}")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    given = Path(sys.argv[1])
    loaded = json.loads(given.read_text())
    (given.parent / "table.md").write_text(markdown(loaded))
    picture(loaded, given.parent / "time-and-peak.png")
    print(markdown(loaded))
