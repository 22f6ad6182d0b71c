"""`memgraph fit`: does a training step fit on a GPU, with which plan, and what is the nearest that does?"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from memgraph.base.errors import OptionsError
from memgraph.base.sizes import parse_size
from memgraph.cli.outputs import Html, Json, Outputs
from memgraph.cli.target import load_step, own_words
from memgraph.cli.terminal import console, parse_budget, parse_value, refusals

WIDTH = 100  # columns of the answer where no terminal says how wide it is
# A folder for the scratch file that --disk speaks of by its size alone: planning does not look at it.
SCRATCH = "/scratch"
FIT_HELP = """
Tell whether training fits on a GPU: as it is; with a plan and its cost; or not, and the nearest that does.

CONFIG.json is the config.json of a Hugging Face model, or a folder that has one: nothing is downloaded, and no weight
is allocated. SCRIPT.py:FUNCTION returns (callable, args) as for `memgraph plan`; FUNCTION is called with those of
batch, sequence and dtype that it has parameters for.

Nothing runs and no GPU is needed: peaks are predicted from the graph, and times from the figures of the GPU.

Exit codes: 0 it fits; 3 it does not; 2 a wrong option or config; 1 something is missing or fails."""


def fit(
    target: Annotated[str, typer.Argument(metavar="CONFIG.json|SCRIPT.py:FUNCTION", show_default=False)],
    gpu: Annotated[str, typer.Option(help='"H100", "A100 80GB", "RTX 4090"; cpu')],
    optimizer: Annotated[
        str, typer.Option(help='of torch.optim, with its options: adamw, "adamw(fused=True)"; none')
    ] = "adamw",
    dtype: Annotated[str, typer.Option(help="of the weights: bfloat16, float16, float32")] = "bfloat16",
    sequence: Annotated[
        int | None, typer.Option(min=2, help="tokens of a text; by default the positions of the config")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="texts or pictures")] = 1,
    lora: Annotated[
        int | None, typer.Option(min=1, help="train adapters of this rank on all linear layers (needs peft)")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(help='as attn_implementation of transformers; "unmasked": causal, with no mask in memory'),
    ] = None,
    budget: Annotated[str, typer.Option(help='bytes that the step may take: "70GiB"; "auto" for the GPU')] = "auto",
    host: Annotated[str | None, typer.Option(help="host memory that values may be offloaded to: 1TB")] = None,
    disk: Annotated[str | None, typer.Option(help="NVMe that they may be offloaded to: 4TB, or a folder")] = None,
    tile: Annotated[
        bool, typer.Option("--tile/--no-tile", help="whether MLPs, experts and the loss may run in shards")
    ] = True,
    longest: Annotated[bool, typer.Option("--longest", help="find the longest sequence that fits")] = False,
    step: Annotated[int, typer.Option(min=1, help="sequences that are tried are multiples of it")] = 128,
    json: Json = None,
    html: Html = None,
) -> None:
    outputs = Outputs(json=json, html=html)
    with refusals():
        outputs.check()
        told = options(budget, host, disk, tile)
        from memgraph.cli.models import Made, dtype_named, made_from_config

        weights = dtype_named(dtype)
        names_a_script = ":" in target and not target.endswith(".json")
        with own_words(target) if names_a_script else contextlib.nullcontext(), progress():
            if names_a_script:
                if lora is not None or attention is not None:
                    raise OptionsError("--lora and --attention are for a config.json; a script makes its own model")
                given = {"batch": batch, "dtype": weights} | ({} if sequence is None else {"sequence": sequence})
                fn, args = load_step(target, **given)
                made = Made(target.rpartition(":")[2], fn, args, any(a.dim() > 1 for a in args if hasattr(a, "dim")))
            else:
                made = made_from_config(
                    Path(target), dtype=weights, batch=batch, sequence=sequence, lora=lora, attention=attention
                )
            found = _asked(made, told, gpu, optimizer, longest=longest, step=step)
    from memgraph.cli.fit_screen import screen

    shown = screen(found, made, told, lora=lora, dtype=str(weights).removeprefix("torch."))
    width = console.width if console.is_terminal else max(WIDTH, console.width)
    Console(highlight=False, width=width).print(shown)
    outputs.write(found.report)
    if found.verdict.value == "no":
        raise typer.Exit(3)


def _asked(made: Any, told: dict[str, Any], gpu: str, optimizer: str, *, longest: bool, step: int) -> Any:
    from memgraph.backend import fit as backend
    from memgraph.backend.capture import Target
    from memgraph.backend.options import parse_options

    owner = None if optimizer.lower() == "none" else optimizer
    target = Target.of(parse_options(told), gpu, None, owner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers' own
        return backend.fit(made.fn, made.args, target, sequence=made.sequence, longest=longest, step=step)


@contextlib.contextmanager
def progress() -> Iterator[None]:
    """Show on a terminal that something is under way."""
    with Console(stderr=True).status("planning; nothing runs"):
        yield


def options(budget: str, host: str | None, disk: str | None, tile: bool) -> dict[str, Any]:
    """The options of the backend that the answer is about, as `torch.compile` takes them."""
    told: dict[str, Any] = {"budget": parse_budget(budget), "tile": tile}
    offload: dict[str, Any] = {}
    if host is not None:
        offload["host"] = True if host.lower() == "true" else host
    if disk is not None:
        offload["nvme"] = _disk(disk)
    return told | ({"offload": offload} if offload else {})


def _disk(text: str) -> Any:
    """The value of --disk: a size, a folder, or JSON as the option takes it."""
    value = parse_value(text)
    if not isinstance(value, str):
        return value
    try:
        parse_size(value)
    except ValueError:
        return value
    return {"path": SCRATCH, "limit": value}
