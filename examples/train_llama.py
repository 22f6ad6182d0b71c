"""Train a small Llama twice from the same seed: with plain Inductor, and with memgraph at 40 % of its memory.

    python examples/train_llama.py [--steps 30] [--budget 0.4] [--out out]

The model learns to predict the bytes of the Python standard library's own source, which is on every machine
that runs this. All that differs between the two runs is what `torch.compile` is given.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import statistics
import sysconfig
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

import memgraph
from memgraph.base.sizes import format_size
from memgraph.machine.measure import allocated_bytes, peak_above_start

SEED = 0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
console = Console(highlight=False)
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler, which measures on a CPU, says so otherwise


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a model, on how much data a step."""

    hidden: int
    layers: int
    heads: int
    sequence: int
    batch: int
    dtype: torch.dtype


# 10 million parameters on a CPU, about 1 billion on a GPU
SMALL = Size(hidden=320, layers=8, heads=5, sequence=512, batch=2, dtype=torch.float32)
LARGE = Size(hidden=2048, layers=16, heads=16, sequence=4096, batch=2, dtype=torch.bfloat16)


def read_text(most: int = 4_000_000) -> torch.Tensor:
    """The standard library's source files, in a fixed order, as bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[:most]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def make_batches(text: torch.Tensor, size: Size, steps: int) -> list[torch.Tensor]:
    """`steps` batches of windows into the text, the same ones at every call."""
    generator = torch.Generator().manual_seed(SEED)
    starts = torch.randint(len(text) - size.sequence, (steps, size.batch, 1), generator=generator)
    windows = text[starts + torch.arange(size.sequence)]
    return list(windows.long().to(DEVICE))


def make_model(size: Size) -> LlamaForCausalLM:
    """A Llama with random weights, the same ones at every call."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=256,  # bytes
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 27 // 10 // 32 * 32,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.sequence,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(DEVICE, size.dtype)


@dataclasses.dataclass
class Run:
    """What one training run measured."""

    losses: list[float]
    seconds: list[float]  # of each step but the first, which compiles
    first: float
    levels: list[int]  # bytes that were allocated before each step, the measured one as the last
    above: int  # bytes that the measured step allocated on top, at its peak

    @property
    def baseline(self) -> int:
        """Bytes that were allocated before the measured step."""
        return self.levels[-1]

    @property
    def peak(self) -> int:
        """Bytes allocated at the peak of the measured step, if it began where any step began highest."""
        return max(self.levels) + self.above


def make_state(optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer allocate its state now: what is planned afterwards then holds for every step.

    The parameters stay as they are: the gradients of this step are 0, and so is its learning rate.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        state["step"].zero_()


def train(size: Size, batches: list[torch.Tensor], **compile_options) -> Run:
    """Train a fresh model on the batches, and measure the memory of one more step."""
    model = make_model(size)
    loss_of = torch.compile(lambda ids: model(input_ids=ids, labels=ids).loss, **compile_options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    make_state(optimizer)
    losses, seconds, levels = [], [], []
    for batch in batches:
        levels.append(allocated_bytes(DEVICE))
        start = time.perf_counter()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # also waits for a GPU
        seconds.append(time.perf_counter() - start)
        del loss
    levels.append(allocated_bytes(DEVICE))
    above = peak_above_start(lambda: loss_of(batches[0]).backward(), DEVICE)
    return Run(losses, seconds[1:], seconds[0], levels, above)


def forget() -> None:
    """Give back what the run before has left."""
    torch.compiler.reset()
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def sparkline(values: list[float]) -> str:
    """The curve as one character a value."""
    low, high = min(values), max(values)
    bars = "▁▂▃▄▅▆▇█"
    return "".join(bars[round((value - low) / ((high - low) or 1) * (len(bars) - 1))] for value in values)


def show(plain: Run, planned: Run, report: memgraph.Report) -> None:
    """Both runs side by side."""
    memory = Table("", "plain Inductor", "memgraph", title="Memory and time, measured")
    both = (plain, planned)
    bound = report.budget - report.reserve
    memory.add_row("budget", "", format_size(bound))
    memory.add_row("peak of a step", *(format_size(run.peak) for run in both))
    memory.add_row("  allocated when it starts", *(format_size(max(run.levels)) for run in both))
    memory.add_row("  above that", *(format_size(run.above) for run in both))
    share = planned.above / plain.above
    memory.add_row("  above that, of plain Inductor's", "100.0 %", f"{share:.1%}")
    memory.add_row("first step (compiles)", *(f"{run.first:.1f} s" for run in both))
    if plain.seconds:
        memory.add_row("median step", *(f"{statistics.median(run.seconds) * 1000:.0f} ms" for run in both))
    console.print(memory)

    curves = Table("step", "plain Inductor", "memgraph", "difference", title="Loss (nats a byte)")
    last = len(plain.losses) - 1
    for step in sorted({*range(0, last + 1, 5), last}):
        left, right = plain.losses[step], planned.losses[step]
        curves.add_row(str(step), f"{left:.6f}", f"{right:.6f}", f"{abs(left - right):.1e}")
    console.print(curves)
    console.print(f"plain Inductor  {sparkline(plain.losses)}")
    console.print(f"memgraph        {sparkline(planned.losses)}")
    largest = max(abs(a - b) for a, b in zip(plain.losses, planned.losses, strict=True))
    console.print(f"The loss curves differ by at most {largest:.1e} (float rounding in another order).")
    if planned.peak <= bound:
        console.print(f"[green]The budget was kept, with {format_size(bound - planned.peak)} to spare.")
    else:
        console.print(f"[red]The budget was exceeded by {format_size(planned.peak - bound)}.")


def main(steps: int, budget: float, out: Path) -> None:
    size = LARGE if DEVICE == "cuda" else SMALL
    text = read_text()
    batches = make_batches(text, size, steps)
    count = sum(parameter.numel() for parameter in make_model(size).parameters())
    console.print(
        f"A Llama of {count / 1e6:.1f} million parameters on {DEVICE}: {size.layers} layers, sequences of "
        f"{size.sequence} bytes, batch {size.batch}, {steps} steps on {len(text) / 1e6:.1f} MB of source.\n"
    )

    console.print("Training with plain Inductor; the first step compiles, for a minute or so ...")
    plain = train(size, batches, backend="inductor")
    forget()
    console.print(f"Training with memgraph, budget {budget:g} ...\n")
    planned = train(size, batches, backend="memgraph", options={"budget": budget})
    report = memgraph.report()

    show(plain, planned, report)
    out.mkdir(parents=True, exist_ok=True)
    report.plot(out / "timeline.png")
    report.html(out / "report.html")
    (out / "report.txt").write_text(f"{report.details()}\n")
    console.print("\n" + str(report).split("\nModules")[0], markup=False, soft_wrap=True)
    console.print(f"\nTo look at, in a browser: {out / 'report.html'}")
    console.print(f"The whole report: {out / 'report.txt'}; as a picture: {out / 'timeline.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--budget", type=float, default=0.4, help="share of the peak above the baseline")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the report, its page and the picture")
    given = parser.parse_args()
    try:
        main(given.steps, given.budget, given.out)
    except memgraph.MemgraphError as error:
        raise SystemExit(str(error)) from None
