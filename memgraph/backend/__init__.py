"""The conductor. Options and a Dynamo graph in, a compiled training graph that keeps its budget out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memgraph.backend.compilation import Compilation
from memgraph.backend.options import parse_options
from memgraph.base import compat
from memgraph.base.errors import MemgraphError
from memgraph.base.stack import with_room


def memgraph(
    gm: Any, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a Dynamo graph under a budget: `torch.compile(model, backend="memgraph", options={"budget": "20GiB"})`.

    gm, example_inputs: as Dynamo gives them.  mode: as torch.compile takes it.

    Raises OptionsError, BudgetError (with the smallest budget that can be reached), OffloadError, PlanError and
    RanksError; with the option `strict` also whatever stands in the way of a plan, such as VerifyError. Dynamo hands
    them to the caller of the compiled function as they are.
    """
    try:
        parsed = parse_options({**(options or {}), "mode": mode} if mode is not None else options)
        return with_room(Compilation(gm, example_inputs, parsed).run)
    except MemgraphError as error:
        raise compat.through_dynamo(error) from error.__cause__
