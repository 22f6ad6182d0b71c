"""`python -m memgraph.simulator --card "H100 80GB" -- script.py ...`: run a script on a simulated device."""

from __future__ import annotations

import argparse
import os
import sys

from memgraph.base.errors import MemgraphError
from memgraph.simulator.cards import CARDS, card
from memgraph.simulator.process import environment


def main() -> None:
    names = ", ".join(known.name for known in CARDS)
    parser = argparse.ArgumentParser(
        prog="python -m memgraph.simulator",
        description="Run Python on a CUDA device that is not there. Bytes are exact; values, times and cuDNN are not.",
    )
    parser.add_argument("--card", default="H100", help=f"words of a card's name (default: H100), of: {names}")
    parser.add_argument("--memory", help='another size of its memory, such as "10GiB"')
    parser.add_argument("--devices", type=int, default=1, help="how many such cards (default: 1)")
    parser.add_argument("--log", help="a file for all operations on memory, streams and events")
    parser.add_argument("arguments", nargs="+", help="of python: script.py ..., or -m module ... (after --)")
    given = parser.parse_args()
    try:
        env = environment(card(given.card, given.memory), devices=given.devices, log=given.log)
    except MemgraphError as problem:
        parser.exit(2, f"{problem}\n")
    os.execve(sys.executable, [sys.executable, *given.arguments], env)


main()
