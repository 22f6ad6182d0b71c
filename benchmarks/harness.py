"""How all benchmarks measure: tasks in processes of their own, arms in turn, results with the place they come from.

A task is a JSON object, and so is each result. `Process("benchmarks.run:work", task)` starts a process that calls
`work(task)` and yields what it returns, one line of JSON for each result. A `work` that goes on after its first result
reads words from its standard input, and answers each (`benchmarks.arm.Arm`).

`compare` starts one process for each arm, and then lets the arms step in turn: one step of each arm a round, and only
one at a time. A machine that others use drifts by more than the arms differ, so the figure to trust is an arm's time
relative to the first arm's in the same round.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from benchmarks import machine

Task = dict[str, Any]
Result = dict[str, Any]
LONGEST_MESSAGE = 300  # characters of an error's text
# With this in its environment a process keeps what it frees, and maps no block for itself. Otherwise glibc gives memory
# back to the system by where its heap happens to end, and each page of it is made again in the next step: of a Llama
# between none and 17,000 from one process to the next, at 2.6 us each here, so up to 6 % of a step. A process with
# jemalloc or tcmalloc does not do that.
HEAP_KEPT = {"GLIBC_TUNABLES": f"glibc.malloc.trim_threshold={1 << 40}:glibc.malloc.mmap_threshold={1 << 40}"}


class Process:
    """One task in a process of its own."""

    def __init__(
        self, work: str, task: Task, log: TextIO | None = None, environment: dict[str, str] | None = None
    ) -> None:
        """`work` is spelled `"module:function"`. The process writes to `log`, or to this process's standard error."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness", work, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"KINETO_LOG_LEVEL": "6"} | (environment or {}),
        )

    def result(self) -> Result:
        """The next result; the end of the process is a failure."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"failure": f"the process ended with {self.process.wait()}"}

    def results(self, limit: float | None = None) -> Iterator[Result]:
        """All results until the process ends, which is killed after `limit` seconds."""
        timer = threading.Timer(limit or 0, self.process.kill)
        if limit is not None:
            timer.start()
        for line in self.process.stdout:
            yield json.loads(line)
        code = self.process.wait()
        timed_out = timer.ident is not None and timer.finished.is_set()
        timer.cancel()
        if timed_out:
            yield {"failure": f"past the limit of {limit:g} s"}
        elif code:
            yield {"failure": f"the process ended with {code}"}

    def ask(self, word: str) -> Result:
        """The answer to a word."""
        with contextlib.suppress(BrokenPipeError):  # the process died: its result says so
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        return self.result()

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


Start = Callable[..., Process]


def compare(
    work: str,
    tasks: dict[str, Task],
    rounds: int,
    start: Start = Process,
    last_word: str = "",
    *,
    jobs: int = 1,
    after_round: Callable[[dict[str, Result]], None] = lambda results: None,
) -> dict[str, Result]:
    """By arm, its first result, the seconds of a step in each round, and the answer to `last_word`.

    jobs: so many arms compile at a time, once the first has. All of them have compiled before the first is timed.
    after_round: is given what there is after each round, to write it: a machine that is lent may be taken back.
    """
    results: dict[str, Result] = {}
    processes: dict[str, Process] = {}

    def compile_arm(name: str) -> Result:
        say(f"{name}: compiling")
        processes[name] = start(work, tasks[name])
        return processes[name].result()

    try:
        with ThreadPoolExecutor(jobs) as pool:
            reference, *others = tasks
            compiled = itertools.chain([compile_arm(reference)], pool.map(compile_arm, others))
            for (name, task), first in zip(tasks.items(), compiled, strict=True):
                results[name] = {"arm": task["arm"]} | first | {"seconds": []}
                if first.keys() & {"failure", "refused"}:
                    say(f"{name}: {first.get('failure', 'refused')}")
                    processes.pop(name).close()
        processes = {name: processes[name] for name in tasks if name in processes}  # not in the order of their starts
        for number in range(rounds):
            for name in list(processes):
                answer = processes[name].ask("step")
                if "seconds" in answer:
                    results[name]["seconds"].append(answer["seconds"])
                else:
                    results[name] |= answer
                    processes.pop(name).close()
            took = ", ".join(f"{name} {results[name]['seconds'][-1]:.3g}" for name in processes)
            say(f"round {number + 1} of {rounds}: {took}")
            after_round(results)
        for name, process in processes.items() if last_word else ():
            results[name] |= process.ask(last_word)
    finally:
        for process in processes.values():
            process.close()
    return results


def compiling_jobs(device: str) -> int:
    """How many arms compile at a time: one where the CPU computes, since an arm's peak and first step are its work."""
    return 1 if device == "cpu" else max(1, (os.cpu_count() or 1) // 2)


def ratios(result: Result, reference: Result, key: str = "seconds") -> list[float]:
    """A figure of each round, relative to the reference's in the same round."""
    return [mine / base for mine, base in zip(result[key], reference[key], strict=False)]


def median(numbers: list[float]) -> float | None:
    """The median, None of no numbers."""
    return statistics.median(numbers) if numbers else None


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def use_few_threads(device: str = "cpu") -> None:
    """Two threads at most where the CPU computes, for this process and those that it starts."""
    if device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))


class Record:
    """A folder of today's for what was measured: JSON to compare with, Markdown to read; both say where it was."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        self.folder = machine.results_folder(name)
        self.machine = machine.describe(device)

    def write(self, title: str, data: dict[str, Any], body: str, name: str = "results", page: str = "table") -> str:
        """Write both files, and return the page. May be called after every row: a run cut short leaves what it has."""
        text = f"# {title}\n\n{machine.headline(self.machine)}\n{body.rstrip()}\n"
        (self.folder / f"{name}.json").write_text(json.dumps({"machine": self.machine} | data, indent=1) + "\n")
        (self.folder / f"{page}.md").write_text(text)
        return text

    def log(self, mode: str = "w") -> TextIO:
        """A file for what the processes write to their standard error."""
        return open(Path(self.folder) / "workers.log", mode)


def main(work: str, task: str) -> None:
    """Within a process of its own: call `work` and print what it yields."""
    # Whatever a library prints must not come between the results.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        module, _, function = work.partition(":")
        for result in getattr(importlib.import_module(module), function)(json.loads(task)):
            print(json.dumps(result), file=out, flush=True)
    except Exception as error:
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        failure = f"{type(error).__name__}: {first_line[:LONGEST_MESSAGE]}"
        print(json.dumps({"failure": failure}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
