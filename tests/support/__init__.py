"""What tests share.  ROOT: where a process of its own finds the package `tests`."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
