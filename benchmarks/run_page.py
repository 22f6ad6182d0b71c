"""The table and the picture of run.py's results; `python -m benchmarks.run_page results.json` makes them again."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine, table

HEADS = ("arm", "peak", "predicted", "relative time", "seconds", "spread", "dominated") + (
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


def title(data: dict[str, Any]) -> str:
    return f"{data['model']} on {data['device']}: step time and peak"


def body(data: dict[str, Any]) -> str:
    """The page below its headline."""
    shape = ", ".join(f"{key} {value}" for key, value in data["shape"].items())
    open_peers = undominated(data)
    lines = [
        f"{data['model']}: {shape}, {data['dtype']}.",
        "The peak is measured, in MiB above the start of the step, the gradients that it makes included.",
        f"Relative time: the median over {data['rounds']} rounds of a step's time by Inductor's in it.",
        "Errors are relative to Inductor.",
        "Dominated: some memgraph arm has at most this peak and at most 1.02 times this time.",
        "",
        table.markdown(HEADS, [_cells(result, open_peers) for result in data["results"]]),
        "",
        f"Peers not dominated: {', '.join(open_peers) or 'none'}.",
    ]
    return "\n".join(lines)


def _cells(result: dict[str, Any], open_peers: list[str]) -> list[str]:
    name = result["arm"]["name"]
    if not result.get("ratios"):
        refused = f"refused: the smallest budget is {table.mib(result.get('refused', 0))} MiB, baseline included"
        what = refused if "refused" in result else f"failed: {result.get('failure')}"
        return [name, what] + [""] * (len(HEADS) - 2)
    ratios = result["ratios"]
    return [
        name,
        table.mib(result["peak"]),
        table.mib(result.get("predicted")),
        f"{statistics.median(ratios):.3f}",
        f"{statistics.median(result['seconds']):.4g}",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
        "" if result["arm"]["kind"] == "memgraph" else "no" if name in open_peers else "yes",
        f"{result['loss_error']:.1e}",
        f"{result['gradient_norm_error']:.1e}",
        f"{result['compile_seconds']:.0f} s",
    ]


def picture(data: dict[str, Any], path: Path) -> None:
    """Step time against peak: memgraph's arms as a curve, the peers as points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 6.5))
    ours = sorted(points(data, memgraph=True), key=lambda point: point[1])
    axes.plot([peak / table.MIB for _, peak, _ in ours], [ratio for *_, ratio in ours], "o-", label="memgraph")
    peers = points(data, memgraph=False)
    families = ("activation_memory_budget", "eager", "inductor")
    for family, mark in zip(families, "svD", strict=True):
        members = [point for point in peers if point[0].startswith(family)]
        axes.plot([peak / table.MIB for _, peak, _ in members], [ratio for *_, ratio in members], mark, label=family)
    for above, group in ((True, ours), (False, peers)):
        for name, peak, ratio in group:
            label = name.removeprefix("memgraph ").removeprefix("activation_memory_budget ")
            offset = (4, 6) if above else (4, -12)
            axes.annotate(label, (peak / table.MIB, ratio), xytext=offset, textcoords="offset points", fontsize=8)
    axes.set_xlabel("measured peak above the start of the step [MiB]")
    axes.set_ylabel("step time relative to Inductor")
    axes.set_title(f"{data['model']}, {data['machine']['device']}, torch {data['machine']['torch']}")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(path: Path) -> None:
    """Write the page and the picture again."""
    data = json.loads(path.read_text())
    text = f"# {title(data)}\n\n{machine.headline(data['machine'])}\n{body(data)}\n"
    (path.parent / "table.md").write_text(text)
    picture(data, path.parent / "time-and-peak.png")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
