"""What an optimizer will still allocate, told before its first step.

Optimizer state is made when `step()` first runs, after the plans of the first graphs were made: a budget that is kept
without it is broken by it. A rehearsal tells (`fake_step`); where a class cannot be rehearsed, a formula does for the
classes that are known by name, and the rest is said not to be known.
"""

from __future__ import annotations

import dataclasses
import enum
import gc
from collections.abc import Callable, Iterable

import torch

from memgraph.base import compat
from memgraph.base.instances import instances
from memgraph.base.sizes import format_size, round_up
from memgraph.step import fake_memory, fake_step

_MATTERS = 1 << 20  # bytes: temporaries below are not worth a sentence in a report


class Method(enum.Enum):
    """How a forecast is known."""

    FAKE_STEP = "steps on fake tensors"
    FORMULA = "a formula for classes of this name"
    UNKNOWN = "not known"


@dataclasses.dataclass(frozen=True)
class OptimizerForecast:
    """Bytes of one optimizer on one device, all parameters of its groups that are there taken together.

    Parameters, gradients, `state_bytes` and `step_bytes` add up to the most that is allocated in any of its steps, as
    far as the optimizer decides.
    """

    name: str
    """Of the class, "AdamW"."""
    state_bytes: int
    """Of its state on the device, once all of it exists."""
    state_to_come: int
    """Of these, not allocated yet."""
    step_bytes: int
    """The most that `step()` holds above parameters, gradients and all of the state: tensors and kernels' scratch.

    Scratch of which only a bound is known counts as the bound: then it is at most so much.
    """
    method: Method
    """How this is known."""
    note: str = ""
    """For the report: what makes `step_bytes` smaller, or why something is not known."""
    gradients: int = 0
    """Of the gradients that its parameters do not have yet: they stand when it steps."""
    identity: int = 0
    """Tells two optimizers apart that are alike."""


def live_optimizers(parameters: Iterable[torch.Tensor]) -> list[torch.optim.Optimizer]:
    """The optimizers of this process that own at least one of `parameters`, in the order of these.

    One that wraps another counts once with it: a wrapper that only passes on is left out (accelerate's), and so is
    an optimizer that another with a state of its own steps. Owning a view of a parameter is owning it. What
    `gc.freeze()` has put aside is not found, nor are optimizers that are no `torch.optim.Optimizer`. Never raises.
    """
    places: dict[tuple[str, int], int] = {}
    for place, parameter in enumerate(parameters):
        for key in _keys(parameter):
            places.setdefault(key, place)
    found = _owners(places)
    owned = [key for optimizer in found for key in {id(p) for p in _owned(optimizer)}]
    if len(owned) > len(set(owned)):  # one of them may be garbage: schedulers make circles
        del found
        gc.collect()
        found = _owners(places)
    return found


def forecast(optimizer: torch.optim.Optimizer, device: torch.device) -> OptimizerForecast:
    """What `optimizer` has, will have and holds meanwhile on `device`, in bytes; assumes a gradient for each parameter
    that wants one.

    The optimizer, the modes of the caller and all random numbers are as before, and none of the user's hooks runs; its
    class's own `step` does, on fake tensors, so what that prints is printed. Never raises: what cannot be told is so
    in `method` and `note`.
    """
    name = type(optimizer).__name__
    try:
        inner = _wrapped(optimizer)
        if inner is not None and _passes_on(optimizer):
            return forecast(inner, device)
    except Exception as error:
        return _unknown(name, 0, error)
    held = 0
    try:
        with compat.really():
            held = fake_step.held_bytes(optimizer, device)
        told = fake_step.fake_step(optimizer, device)
        note = _advice(optimizer, told.temporaries)
        return OptimizerForecast(name, held + told.to_come, told.to_come, told.temporaries, Method.FAKE_STEP, note)
    except Exception as error:
        return forecast(inner, device) if inner is not None else _without_rehearsal(optimizer, device, held, error)


def gradients_to_come(optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Bytes on `device` of the gradients that its parameters do not have yet, each as large as its parameter."""
    waiting = [p for p in _owned(optimizer) if p.requires_grad and p.grad is None]
    return fake_memory.bytes_of(waiting, device)


# Whose parameters


def _keys(tensor: torch.Tensor) -> list[tuple[str, int]]:
    keys = [("tensor", id(tensor))]
    try:
        keys.append(("storage", compat.storage_id(tensor)))
    except Exception:  # wrappers may have none
        return keys
    return keys


def _owned(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _owners(places: dict[tuple[str, int], int]) -> list[torch.optim.Optimizer]:
    found: dict[int, tuple[int, torch.optim.Optimizer]] = {}
    for candidate in instances(torch.optim.Optimizer):
        try:
            keys = (key for parameter in _owned(candidate) for key in _keys(parameter))
            place = min((places[key] for key in keys if key in places), default=None)
        except Exception:  # not made to its end
            continue
        if place is not None:
            found[id(candidate)] = (place, candidate)
    for _, optimizer in list(found.values()):
        inner = _wrapped(optimizer)
        if inner is not None and id(inner) in found:
            found.pop(id(optimizer) if _passes_on(optimizer) else id(inner), None)
    return [optimizer for _, optimizer in sorted(found.values(), key=lambda pair: pair[0])]


def _wrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """The optimizer that this one holds, if it holds one."""
    held = (value for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer))
    return next((inner for inner in held if inner is not optimizer), None)


def _passes_on(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a wrapper has no state of its own."""
    return "state" not in vars(optimizer)


# Where there is no rehearsal


def _dtype_moments(count: int) -> Callable[[torch.Tensor], int]:
    return lambda parameter: count * parameter.numel() * parameter.element_size()


def _float_moments(count: int) -> Callable[[torch.Tensor], int]:
    return lambda parameter: count * parameter.numel() * 4


def _byte_moments(count: int) -> Callable[[torch.Tensor], int]:
    """bitsandbytes: a byte an element and a float32 for each 256 of them; small parameters stay float32."""

    def size(parameter: torch.Tensor) -> int:
        elements = parameter.numel()
        return count * (4 * elements if elements < 4096 else elements + 4 * (round_up(elements, 256) // 256))

    return size


# Words of a class's name (with its module's first), bytes of a parameter's state, and what the note says of them.
_FORMULAS: tuple[tuple[tuple[str, ...], Callable[[torch.Tensor], int], str], ...] = (
    (("adam", "8bit"), _byte_moments(2), "Adam-like: two moments of 8 bits"),
    (("lion", "8bit"), _byte_moments(1), "Lion-like: one moment of 8 bits"),
    (("apex.", "adam"), _float_moments(2), "Adam-like: two moments in float32"),
    (("apex.", "lamb"), _float_moments(2), "Adam-like: two moments in float32"),
    (("adam",), _dtype_moments(2), "Adam-like: two moments"),
    (("lamb",), _dtype_moments(2), "Adam-like: two moments"),
    (("lion",), _dtype_moments(1), "Lion-like: one moment"),
)


def _without_rehearsal(
    optimizer: torch.optim.Optimizer, device: torch.device, held: int, error: Exception
) -> OptimizerForecast:
    kind = type(optimizer)
    name = kind.__name__
    try:
        words = f"{kind.__module__.partition('.')[0]}.{name}".lower()
        if "paged" in words:  # their state lies in memory that CUDA moves, and no allocator counts
            return _unknown(name, held, error)
        for wanted, size, formula in _FORMULAS:
            if all(word in words for word in wanted):
                mine = [p for p in _owned(optimizer) if p.requires_grad and fake_memory.is_on(p, device)]
                state = sum(round_up(size(compat.local(p)), fake_memory.granularity(device)) for p in mine)
                note = f"{formula}. Its step could not be rehearsed: {_reason(error)}."
                return OptimizerForecast(name, max(held, state), max(0, state - held), 0, Method.FORMULA, note)
    except Exception as worse:
        error = worse
    return _unknown(name, held, error)


def _unknown(name: str, held: int, error: Exception) -> OptimizerForecast:
    note = (
        f"What {name} will allocate is not known: {_reason(error)}. Hold it back with the option `reserve`, "
        "as measured after its first step."
    )
    return OptimizerForecast(name, held, 0, 0, Method.UNKNOWN, note)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    text = lines[0].rstrip(".")
    return text if isinstance(error, fake_memory.CannotRehearse) else f"{type(error).__name__}: {text}"


def _advice(optimizer: torch.optim.Optimizer, temporaries: int) -> str:
    """What makes a step's temporaries smaller; "" where nothing is to be had."""
    at_once = [g for g, runs in zip(optimizer.param_groups, fake_step.runs_foreach(optimizer), strict=True) if runs]
    if temporaries < _MATTERS or not at_once:
        return ""
    fused = " or fused=True" if all("fused" in group for group in at_once) else ""
    return (
        f"step() updates all parameters at once, and holds {format_size(temporaries)} meanwhile: foreach=False{fused} "
        "holds less."
    )
