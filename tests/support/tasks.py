"""Tasks for the benchmarks' harness that need no torch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any


def count(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Numbers from 0; what a library prints goes between the results."""
    for number in range(task["most"]):
        print("noise")
        yield {"number": number}


def fail(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"number": 0}
    raise ValueError("first line\nsecond line")


def die(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"number": 0}
    os._exit(3)


def sleep(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"number": 0}
    time.sleep(60)


def arm(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An arm whose steps take as many seconds as it is told, by its own clock; it dies after some."""
    yield {"refused": 7} if task.get("refused") else {"peak": task["seconds"]}
    for number, word in enumerate(sys.stdin):
        if number == task.get("dies_at"):
            os._exit(1)
        with open(task["order"], "a") as out:
            print(task["arm"], word.strip(), file=out)
        yield {"seconds": task["seconds"]} if word.strip() == "step" else {"last": word.strip()}
