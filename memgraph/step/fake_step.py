"""An optimizer's step, rehearsed: the same class on fake tensors, and what it would allocate.

A twin of the optimizer gets its options and its state, all tensors fake, and no hook. It steps a few times, while
`FakeMemory` adds up the storages that operators make and takes them off as they die.

    live bytes                     . . . . . . . . . . . . . . .  peak
                        ____      |temporaries|      |temporaries|
              _________|    state that exists, and state to come
             |   gradients
    _________|  parameters
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch

from memgraph.base import compat
from memgraph.step.fake_memory import CannotRehearse, FakeMemory, bytes_of, fake_of, storages, tensors_in

# Steps: at least two (most state is made in the first), and up to eight while all of them take at most _CHEAP
# operators, since some optimizers take another way later: RAdam's sixth step is its first with a rectified rate.
_FEWEST, _MOST, _CHEAP = 2, 8, 6000  # steps, steps, operators
_LONGEST = 256  # parameters in a stretch that repeats


@dataclasses.dataclass(frozen=True)
class FakeStep:
    """What a few steps allocate on one device, in bytes."""

    to_come: int
    """Of the state that they leave behind, beyond what exists."""
    temporaries: int
    """The most that a step holds above parameters, gradients and all of the state: tensors and kernels' scratch."""


def fake_step(optimizer: torch.optim.Optimizer, device: torch.device) -> FakeStep:
    """What `optimizer.step()` allocates on `device`, by a few steps of its class on fake tensors.

    Nothing real is allocated, and nothing of the optimizer changes. Raises CannotRehearse, and whatever the step itself
    raises on fake tensors.
    """
    step = _step_of(optimizer)
    with compat.stepping_on_fakes():
        return _rehearse(optimizer, step, device)


def held_bytes(optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Bytes of the optimizer's state that exist on `device`, each storage once."""
    own = storages(tensors_in(list(_parameters_and_gradients(optimizer))))
    return bytes_of(_attributes(optimizer), device, own)


def runs_foreach(optimizer: torch.optim.Optimizer) -> list[bool]:
    """For each group of parameters whether `step()` updates them all at once, with lists of temporaries."""
    step = compat.bare_step(type(optimizer))
    return [_foreach(step, group) for group in optimizer.param_groups]


def _step_of(optimizer: torch.optim.Optimizer) -> Any:
    step = compat.bare_step(type(optimizer))
    try:
        inspect.signature(step).bind(optimizer)
    except TypeError:
        raise CannotRehearse("its step() wants arguments: a closure, mostly, that runs the model") from None
    if compat.hooks_all_steps() and not step.__module__.startswith("torch.optim."):
        # Such a step may call another's, and that would run these hooks.
        raise CannotRehearse("a hook is registered for the steps of all optimizers")
    return step


def _rehearse(optimizer: torch.optim.Optimizer, step: Any, device: torch.device) -> FakeStep:
    foreach = [_foreach(step, group) for group in optimizer.param_groups]
    everything = [(n, p) for n, group in enumerate(optimizer.param_groups) for p in group["params"]]
    kinds = [_kind(n, p, optimizer.state) for n, p in everything]
    kept = list(range(len(kinds)))
    if _one_by_one(step, optimizer.param_groups, foreach):
        kept = _shortened(kinds)
    fakes = {id(everything[n][1]): _fake_parameter(everything[n][1]) for n in kept}
    twin = _twin(optimizer, fakes, foreach)
    mine = [fakes[id(everything[n][1])] for n in kept]
    before = [bytes_of(twin.state.get(fake), device) for fake in mine]
    before_all = bytes_of(_attributes(twin), device, storages(mine))

    memory = FakeMemory(device)
    memory.see((mine, [fake.grad for fake in mine]))
    own = memory.level
    memory.see(_attributes(twin))
    held = 0
    for done in range(_MOST):
        if done >= _FEWEST and memory.operators * (done + 1) > _CHEAP * done:
            break
        with memory:
            step(twin)
        state = storages(tensors_in(_attributes(twin)))
        for fake in mine:  # the next backward makes a new one
            if fake.requires_grad and (fake.grad is None or compat.storage_id(fake.grad) in state):
                fake.grad = torch.empty_like(fake)
                memory.see(fake.grad)
        held = bytes_of(_attributes(twin), device, storages([*mine, *(f.grad for f in mine if f.grad is not None)]))
    temporaries = max(0, memory.peak - own - held)
    memory.close()

    # What one parameter was left with, all of its kind are left with.
    after = [bytes_of(twin.state.get(fake), device) for fake in mine]
    each = {kinds[n]: now - then for n, now, then in zip(kept, after, before, strict=True)}
    left_out = set(range(len(kinds))).difference(kept)
    to_come = held - before_all + sum(each[kinds[n]] for n in left_out)
    return FakeStep(max(0, to_come), temporaries)


def _foreach(step: Any, group: dict[str, Any]) -> bool:
    if group.get("foreach") is not None or group.get("fused") is not None:
        return bool(group.get("foreach"))
    return compat.foreach_by_default(step, [p for p in group["params"] if p.requires_grad], group)


def _one_by_one(step: Any, groups: list[dict[str, Any]], foreach: list[bool]) -> bool:
    """Whether a step goes through the parameters one at a time, and keeps of one at most what a Python loop's variables
    hold until it comes to the next. Known of torch's own alone; a fused kernel allocates nothing."""
    together = any(foreach) or any(group.get("differentiable") for group in groups)
    return step.__module__.startswith("torch.optim.") and not together


def _kind(group: int, parameter: torch.Tensor, state: Mapping[Any, Any]) -> Hashable:
    """What a step can tell of a parameter without reading its entries; equal for parameters that are treated alike."""

    def seen(value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            return value.shape, value.stride(), value.dtype, value.device
        return type(value).__qualname__

    own = state.get(parameter, {})
    entries = tuple((str(key), seen(value)) for key, value in own.items()) if isinstance(own, dict) else ()
    return group, seen(parameter), parameter.requires_grad, entries


def _shortened(kinds: list[Hashable]) -> list[int]:
    """The positions that are left when each stretch that repeats in a row is kept twice.

    A loop over them has every moment of the loop over all: after one turn through a stretch the loop's variables hold
    what they hold after any later turn, and only the first turn begins with what came before. Layers of a model repeat.
    """
    left = list(range(len(kinds)))
    numbers: dict[Hashable, int] = {}
    while True:
        names = [numbers.setdefault(kinds[n], len(numbers)) for n in left]
        shorter: list[int] = []
        at = 0
        while at < len(left):
            saved, period = max(((_repeats(names, at, p) - 2) * p, p) for p in _periods(names, at))
            if saved > 0:
                shorter += left[at : at + 2 * period]
                at += saved + 2 * period
            else:
                shorter.append(left[at])
                at += 1
        if len(shorter) == len(left):
            return left
        left = shorter  # stretches within a stretch


def _periods(names: list[int], at: int) -> list[int]:
    """The lengths that a stretch may have that begins at `at` and is repeated; 1 among them."""
    longest = min(_LONGEST, (len(names) - at) // 3)
    return [1, *(period for period in range(2, longest + 1) if names[at] == names[at + period])]


def _repeats(names: list[int], at: int, period: int) -> int:
    """How often the stretch of `period` names at `at` comes in a row."""
    end = at + period
    while end < len(names) and names[end] == names[end - period]:
        end += 1
    return (end - at) // period


def _fake_parameter(parameter: Any) -> torch.Tensor:
    """A fake of a parameter, or of the shard of it that is here, with a gradient if it wants one."""
    fake = fake_of(parameter)
    if isinstance(parameter, torch.nn.Parameter):
        fake = torch.nn.Parameter(fake, parameter.requires_grad)
    elif parameter.requires_grad:
        fake.requires_grad_()
    if parameter.requires_grad:
        fake.grad = torch.empty_like(fake)
    return fake


class _Fakes(torch.overrides.TorchFunctionMode):
    """Within it a deep copy makes fakes of tensors, wherever they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = fake_of(tensor)
            return memo[id(tensor)]
        if func is torch.Tensor.clone:  # of a parameter's deep copy
            return fake_of(args[0])
        return func(*args, **(kwargs or {}))


def _twin(optimizer: torch.optim.Optimizer, fakes: dict[int, torch.Tensor], foreach: list[bool]) -> Any:
    """An optimizer of the same class over fakes (by the id of the parameter that each stands for), without hooks."""
    kind = type(optimizer)
    attributes: dict[str, Any] = {}
    for name, value in vars(optimizer).items():
        if name.startswith("_optimizer_") and name.endswith("_hooks"):
            attributes[name] = type(value)()
        elif not (callable(value) and hasattr(kind, name)):  # a scheduler puts its wrapper of `step` on the instance
            attributes[name] = value
    state = copy.copy(optimizer.state)
    for key in [key for key in state if isinstance(key, torch.Tensor) and id(key) not in fakes]:
        del state[key]
    groups = [{**g, "params": [p for p in g["params"] if id(p) in fakes]} for g in optimizer.param_groups]
    for group, at_once in zip(groups, foreach, strict=True):
        if at_once:  # by default, maybe: of fakes torch would decide otherwise
            group["foreach"] = True
    twin = object.__new__(kind)
    memo: dict[int, Any] = {id(optimizer): twin, **fakes}
    with _Fakes():
        vars(twin).update(copy.deepcopy({**attributes, "state": state, "param_groups": groups}, memo))
    return twin


def _attributes(optimizer: Any) -> list[Any]:
    """All that an optimizer, and one that it holds, has but parameters and their options."""
    values = [value for name, value in vars(optimizer).items() if name not in ("param_groups", "defaults")]
    for inner in [value for value in values if isinstance(value, torch.optim.Optimizer) and value is not optimizer]:
        values += [value for name, value in vars(inner).items() if name not in ("param_groups", "defaults")]
    return values


def _parameters_and_gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
