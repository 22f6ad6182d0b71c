"""Where a result was measured, and with what; and the folder that it goes to."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def describe(device: str = "cpu") -> dict[str, Any]:
    """The machine, the versions, the commit and the command line."""
    import torch
    import transformers

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if device == "cuda" else _cpu(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "memory_gib": round(memory / 2**30, 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def headline(machine: dict[str, Any]) -> str:
    """The machine in a few lines of Markdown."""
    threads = f", OMP_NUM_THREADS={machine['threads']}" if machine["threads"] else ""
    return (
        f"{machine['date']}, {machine['device']} ({machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB{threads}); torch {machine['torch']}, transformers "
        f"{machine['transformers']}, Python {machine['python']}; commit {machine['commit']}\n\n"
        f"    {machine['command']}\n"
    )


def results_folder(name: str) -> Path:
    """A folder of today's for what was measured; made where it is missing."""
    folder = RESULTS / f"{datetime.date.today().isoformat()}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str:
    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = " with local changes" if git("status", "--porcelain", "memgraph", "passes") else ""
        return git("rev-parse", "--short", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("COMMIT", "unknown")  # a copy without its history
