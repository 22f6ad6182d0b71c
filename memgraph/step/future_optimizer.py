"""An optimizer that nobody has made yet: what it would allocate for parameters that are not there."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from memgraph.base import compat
from memgraph.base.errors import OptionsError
from memgraph.step.forecast import OptimizerForecast, forecast

Optimizer: TypeAlias = str | Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def forecast_of(
    optimizer: Optimizer, parameters: Sequence[torch.Tensor], device: torch.device
) -> OptimizerForecast | None:
    """What an optimizer would allocate on `device` if it owned these parameters there; None where there are none.

    optimizer: as `maker` takes it.  parameters: real, meta or fake, wherever they are.
    Raises OptionsError where the optimizer cannot be made.
    """
    if not parameters:
        return None
    make = maker(optimizer)
    with compat.really(), compat.fake_evaluation():
        fakes = [_fake(parameter, device) for parameter in parameters]
        try:
            made = make(fakes)
        except (TypeError, ValueError, RuntimeError) as problem:
            raise OptionsError(f"optimizer {_name(optimizer)!r} cannot be made: {problem}") from problem
    if not isinstance(made, torch.optim.Optimizer):
        raise OptionsError(f"optimizer {_name(optimizer)!r} made a {type(made).__name__}, no torch.optim.Optimizer")
    step = compat.bare_step(type(made))
    for group in made.param_groups:
        if compat.foreach_on(step, group, device.type):  # of fake parameters torch would decide otherwise
            group["foreach"] = True
    told = forecast(made, device)
    return dataclasses.replace(told, state_to_come=told.state_bytes)  # some make their state with themselves


def maker(optimizer: Optimizer) -> Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]:
    """What makes an optimizer of a list of parameters.

    optimizer: a callable, returned as it is; or text, the name of a class of torch.optim in upper or lower case, with
    its options behind it if there are any: "adamw", "sgd(lr=0.1, momentum=0.9)".
    Raises OptionsError for any other text, with the nearest name.
    """
    if not isinstance(optimizer, str):
        return optimizer
    name, options = _parsed(optimizer)
    known = _classes()
    kind = known.get(name.lower())
    if kind is None:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise OptionsError(f"there is no optimizer {name!r} in torch.optim{meant}; allowed: {', '.join(sorted(known))}")
    return lambda parameters: kind(parameters, **options)


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options in "name(option=value)"."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, {}
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            return call.func.id, {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except (SyntaxError, ValueError):
        pass
    raise OptionsError(
        f"optimizer {text!r} is not understood; allowed: the name of a class of torch.optim, with options if there "
        'are any, as in "adamw" or "adamw(fused=True)"'
    )


def _classes() -> dict[str, Any]:
    """The optimizers of torch.optim whose step takes no closure, by their names in lower case."""
    kinds = (kind for kind in vars(torch.optim).values() if isinstance(kind, type))
    base = torch.optim.Optimizer
    return {k.__name__.lower(): k for k in kinds if issubclass(k, base) and k not in (base, torch.optim.LBFGS)}


def _fake(parameter: torch.Tensor, device: torch.device) -> torch.nn.Parameter:
    fake = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype, device=device)
    return torch.nn.Parameter(fake, requires_grad=True)


def _name(optimizer: Optimizer) -> str:
    return optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
