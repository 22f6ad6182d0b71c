"""The bandwidth that the runtime's NVMe tier reaches, beside raw direct I/O with the same blocks and threads.

    python -m benchmarks.offload_bandwidth --folder /scratch

Both move the same blocks of the same file in the same order, taking turns. It has to be the same file: on a virtual
disk two files with the same code and size differed by 2.7 in read bandwidth (1.1 and 3.0 GB/s), by where they lay.
Raw I/O moves one buffer a thread again and again; the runtime moves tensors, from the first offload_start to the last
write, and from the first reload_start to the last reload_finish. On the CPU there is a second raw write, from the very
pages that the tensors lie in: to write 1 GiB of small pages takes longer than one warm buffer, whoever does it.
On a GPU the runtime goes both ways, staged and by GPUDirect where that can be had, in the same slots of that file.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import torch

from benchmarks import harness, table
from benchmarks.table import MIB
from memgraph import runtime
from memgraph.runtime.nvme_file import BLOCK, THREADS

ops = torch.ops.memgraph


@dataclass
class Series:
    """Bytes per second of each round."""

    raw_write: list[float] = field(default_factory=list)
    raw_write_same: list[float] = field(default_factory=list)
    raw_read: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    gpudirect_write: list[float] = field(default_factory=list)
    gpudirect_read: list[float] = field(default_factory=list)


class Raw:
    """Direct I/O without anything around it: one aligned buffer a thread, the blocks in the runtime's order."""

    def __init__(self, file: int, values: int, each: int, block: int, threads: int):
        self.file, self.block, self.threads = file, block, threads
        starts = [range(value * each, (value + 1) * each, block) for value in range(values)]
        self.written = [start for value in starts for start in value]
        self.read_back = [start for value in reversed(starts) for start in value]
        self.buffers = [memoryview(mmap.mmap(-1, block)) for _ in range(threads)]
        for buffer in self.buffers:
            buffer[:] = os.urandom(block)

    def write(self) -> None:
        self._move(os.pwritev, self.written)

    def write_same(self, values: list[torch.Tensor]) -> None:
        """The same blocks from the pages of tensors in the CPU's memory."""
        blocks = []
        for n, x in enumerate(values):
            first = x.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            for start in range(0, x.nbytes, self.block):
                memory = (ctypes.c_char * self.block).from_address(first + start)
                blocks.append((n * x.nbytes + start, memoryview(memory).cast("B")))
        shared = iter(blocks)

        def work(_: memoryview) -> None:
            for start, data in shared:
                if os.pwritev(self.file, [data], start) != len(data):
                    raise OSError("short")

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(work, self.buffers))

    def read(self) -> None:
        self._move(os.preadv, self.read_back)

    def _move(self, call: Callable[[int, list[memoryview], int], int], starts: list[int]) -> None:
        blocks = iter(starts)  # shared by the threads: its `next` is atomic

        def work(buffer: memoryview) -> None:
            for start in blocks:
                if call(self.file, [buffer], start) != self.block:
                    raise OSError("short")

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(work, self.buffers))


class Offloaded:
    """Values of `each` bytes through the runtime, with at most `ahead` of them under way."""

    def __init__(self, folder: str, device: str, values: int, each: int, ahead: int):
        self.options, self.ahead = json.dumps({"folder": folder}), ahead
        self.direct = json.dumps({"folder": folder, "gpudirect": True})
        self.room = runtime.prepare(device, self.options, nvme_bytes=values * runtime.room(each, "nvme", device))
        self.values = [torch.randint(0, 256, (each,), dtype=torch.uint8, device=device) for _ in range(values)]
        self.targets = [torch.zeros(each, dtype=torch.uint8, device=device) for _ in range(ahead)]
        self.held: list[torch.Tensor] = []

    def write(self, options: str = "") -> None:
        begun = []
        self.held = []
        for i, x in enumerate(self.values):
            begun.append((ops.offload_start(x, f"x{i}", "nvme", options or self.options), x))
            if len(begun) > self.ahead:
                self.held.append(ops.offload_finish(*begun.pop(0), "nvme"))
        self.held += [ops.offload_finish(*pair, "nvme") for pair in begun]
        from memgraph.runtime.records import Record
        from memgraph.runtime.tickets import content

        for held in self.held:
            content(held, Record).value.written.wait()

    def write_direct(self) -> None:
        self.write(self.direct)

    def read(self) -> None:
        """Back the way that they went out."""
        begun = []
        for x, held in zip(reversed(self.values), reversed(self.held), strict=True):
            like = list(x.shape), list(x.stride()), x.dtype, x.device, "nvme"
            begun.append((ops.reload_start(held, *like), held, *like))
            if len(begun) > self.ahead:
                ops.reload_finish(*begun.pop(0))
        for arguments in begun:
            ops.reload_finish(*arguments)

    def check(self) -> None:
        for x, held in zip(self.values, self.held, strict=True):
            like = list(x.shape), list(x.stride()), x.dtype, x.device, "nvme"
            assert torch.equal(ops.reload_finish(ops.reload_start(held, *like), held, *like), x)


def timed(move, size: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    move()
    if device == "cuda":
        torch.cuda.synchronize()
    return size / (time.perf_counter() - start)


def measure(folder: str, device: str, values: int, each: int, ahead: int, rounds: int) -> Series:
    file = runtime.scratch_file(folder, device)
    both = not runtime.gpudirect_refusal(folder, device)
    offloaded = Offloaded(folder, device, values, each, ahead)
    raw = Raw(file.file, values, each, file.block, file.threads)
    if not file.direct:
        raise SystemExit(f"{folder} takes no O_DIRECT")
    series = Series()
    for i in range(rounds + 1):
        # Who is first in a direction takes turns: the disk's cache and a cloud's throttle remember.
        turns = 1 if i % 2 else -1
        writes = [("raw_write", raw.write), ("write", offloaded.write)][::turns]
        if device == "cpu":
            writes.insert(1, ("raw_write_same", lambda: raw.write_same(offloaded.values)))
        reads = [("raw_read", raw.read), ("read", offloaded.read)][::turns]
        restore = [("", offloaded.write)] if turns < 0 else []  # raw I/O wrote over the values
        last = [("gpudirect_write", offloaded.write_direct), ("gpudirect_read", offloaded.read)] if both else []
        for name, move in [*writes, *restore, *reads, *last]:
            rate = timed(move, values * each, device)
            if i and name:  # the first round writes blocks of the file that were never written
                getattr(series, name).append(rate)
    offloaded.check()
    return series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="/tmp")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--total", type=int, default=1024, help="MiB a round")
    parser.add_argument("--each", type=int, nargs="+", default=[16, 32, 64], help="MiB a value")
    parser.add_argument("--ahead", type=int, default=2, help="values under way")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--block", type=float, default=BLOCK / MIB, help="MiB")
    parser.add_argument("--name", default="", help="of the results' folder; none is written without it")
    given = parser.parse_args()
    file = runtime.scratch_file(given.folder, given.device)
    file.threads, file.block = given.threads, int(given.block * MIB)
    series = {
        f"{each} MiB": measure(given.folder, given.device, given.total // each, each * MIB, given.ahead, given.rounds)
        for each in given.each
    }
    refusal = runtime.gpudirect_refusal(given.folder, given.device)
    text = f"GB/s in {given.folder}, {given.threads} threads, blocks of {given.block:g} MiB, {given.device}\n\n"
    text += body(series, gpudirect=not refusal)
    if refusal and given.device == "cuda":
        text += f"\n\nno GPUDirect: {refusal}"
    print(text)
    if given.name:
        data = {"settings": vars(given), "series": {name: asdict(one) for name, one in series.items()}}
        data["gpudirect"] = refusal or "measured"
        harness.Record(given.name, given.device).write("Bandwidth of offload", data, text)


def body(series: dict[str, Series], gpudirect: bool) -> str:
    """The table: medians in GB/s, and shares of raw I/O."""
    heads = ["values", "raw write", "raw, same memory", "write", "share", "of same", "raw read", "read", "share"]
    heads += ["GPUDirect write", "read"] if gpudirect else []
    lines = []
    for name, one in series.items():
        rate = {kind: statistics.median(rates or [float("nan")]) / 1e9 for kind, rates in asdict(one).items()}
        cells = [f"{rate[kind]:.2f}" for kind in ("raw_write", "raw_write_same", "write")]
        cells += [f"{rate['write'] / rate[raw]:.0%}" for raw in ("raw_write", "raw_write_same")]
        cells += [f"{rate['raw_read']:.2f}", f"{rate['read']:.2f}", f"{rate['read'] / rate['raw_read']:.0%}"]
        cells += [f"{rate['gpudirect_write']:.2f}", f"{rate['gpudirect_read']:.2f}"] if gpudirect else []
        lines.append([name, *cells])
    return table.markdown(heads, lines)


if __name__ == "__main__":
    main()
