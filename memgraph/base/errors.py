"""What memgraph raises. Every error carries its facts as attributes, and says them in its message."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from memgraph.base.sizes import format_size

_SHOWN = 10  # binding tensors that a message lists; the attribute holds them all


class MemgraphError(Exception):
    """The base of every error that memgraph raises on purpose."""


class OptionsError(MemgraphError, ValueError):
    """An option that memgraph does not know, or a value that it does not take."""


class PlanWarning(UserWarning):
    """What the options ask for is not promised: a graph could not be planned, say, and runs as Inductor has it."""


class GraphError(MemgraphError, ValueError):
    """A graph that memgraph cannot plan, though nothing is wrong with it."""


class PlanError(MemgraphError, ValueError):
    """A given plan cannot be used: its file has no plan, or it is the plan of another graph than the one at hand.

    Its message names the first difference.
    """


class RanksError(MemgraphError, RuntimeError):
    """Processes that run one graph with collectives in it do not come to the same plan; none of them may run it.

    Attributes:
        reason: what they differ in, or who has not answered.
    """

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(
            f"a graph with collectives in it needs one plan on all of its ranks, and has none: {reason.rstrip('.')}."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,), self.__dict__


class OffloadError(MemgraphError, RuntimeError):
    """An offloaded value could not be stored or brought back; the step that needs it must not go on.

    Attributes:
        reason: what went wrong, without the places.
        value: the value's name in its graph, `""` where no single value is concerned.
        tier: "host" or "nvme", `""` where neither is concerned.
        path: the scratch folder, `""` for the host tier.
    """

    def __init__(self, reason: str, *, value: str = "", tier: str = "", path: str = ""):
        self.reason, self.value, self.tier, self.path = reason, value, tier, path
        places = [f"value {value!r}"] * bool(value) + [f"tier {tier!r}"] * bool(tier) + [f"in {path}"] * bool(path)
        super().__init__(f"{', '.join(places)}: {reason}" if places else reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(OffloadError._rebuild, type(self)), self.args, self.__dict__

    @staticmethod
    def _rebuild(kind: type[OffloadError], message: str) -> OffloadError:
        return kind(message)  # the message names the places already; `__dict__` brings the attributes


@dataclass(frozen=True)
class Binding:
    """A tensor that is live at the peak of the smallest plan, and so keeps the budget from shrinking.

    Attributes:
        name: the value's name in the joint graph.
        bytes: its size.
        module: path of the module that makes it, `""` where none is known.
        source: `file:line` of the user's code that makes it, `""` where none is known.
    """

    name: str
    bytes: int
    module: str = ""
    source: str = ""


@dataclass(frozen=True)
class FullTier:
    """A tier that lacks the room for values that would have gone there.

    Attributes:
        tier: "host" or "nvme".
        room: bytes that it has for this graph.
        need: bytes that all values that may go there take.
        path: the scratch folder, `""` for the host tier.
        why: what bounds its room, as text.
    """

    tier: str
    room: int
    need: int
    path: str = ""
    why: str = ""

    def __str__(self) -> str:
        place = f" in {self.path}" if self.path else ""
        text = f"The tier {self.tier!r}{place} has room for {_exact(self.room)} only"
        text += f", and the values that may go there need {format_size(self.need)}"
        return f"{text}: {self.why}." if self.why else f"{text}."


class BudgetError(MemgraphError, RuntimeError):
    """The budget cannot be reached; raised before the launch that would pass it, mostly the first.

    Attributes:
        minimum: the smallest budget that can be reached, in bytes, baseline and reserve included.
        binding: the tensors that are live at the peak of the smallest plan, largest first.
        budget: the budget that was asked for, in bytes, where it is known.
        refusals: what was asked for and not done, as (what, reason).
        unused: the options that are off and might lower the minimum.
        baseline: bytes of the minimum that are allocated when the step starts, where they are known.
        states: bytes of the baseline that are state of optimizers.
        others: bytes of the baseline that other graphs of the step hold until their backward.
        to_come: bytes of the minimum that the run allocates later and keeps, such as the state of an optimizer.
        grown: what is allocated when the step starts and was not when it was planned, as (what, bytes).
        reserve: bytes of the minimum that are held back by the options.
        full: tiers that lack the room for values that would have gone there.
        estimated: whether nothing was compiled, so that the minimum of the compiled step may be a little higher.
        unfinished: whether other graphs of the same step are to come, which may need more than the minimum.
        given: whether the plan was given, not made for this budget: another plan may need less than the minimum.
        guesses: what the minimum takes for granted though nobody knows it, a sentence each.
    """

    def __init__(
        self,
        *,
        minimum: int,
        binding: Iterable[Binding] = (),
        budget: int | None = None,
        refusals: Iterable[tuple[str, str]] = (),
        unused: Iterable[str] = (),
        baseline: int | None = None,
        states: int = 0,
        others: int = 0,
        to_come: int = 0,
        grown: Iterable[tuple[str, int]] = (),
        reserve: int = 0,
        full: Iterable[FullTier] = (),
        estimated: bool = False,
        unfinished: bool = False,
        given: bool = False,
        guesses: Iterable[str] = (),
    ):
        self.minimum = minimum
        self.binding = tuple(sorted(binding, key=lambda tensor: -tensor.bytes))
        self.budget = budget
        self.refusals, self.unused, self.estimated = tuple(refusals), tuple(unused), estimated
        self.baseline, self.reserve, self.full = baseline, reserve, tuple(full)
        self.states, self.others, self.to_come = states, others, to_come
        self.grown, self.unfinished, self.given, self.guesses = tuple(grown), unfinished, given, tuple(guesses)
        super().__init__(self._message())

    def _message(self) -> str:
        lines = [*self._sums(), *map(str, self.full)]
        if self.binding:
            lines.append("Live at its peak:")
        for tensor in self.binding[:_SHOWN]:
            places = [place for place in (tensor.module, tensor.source) if place]
            lines.append("  ".join([f"{format_size(tensor.bytes):>12}", tensor.name, *places]))
        if rest := self.binding[_SHOWN:]:
            lines.append(f"{format_size(sum(tensor.bytes for tensor in rest)):>12}  in {len(rest)} more")
        if self.refusals:
            lines.append("Asked for and not done:")
            lines += [f"  {what}: {reason}" for what, reason in self.refusals[:_SHOWN]]
        if more := self.refusals[_SHOWN:]:
            lines.append(f"  and {len(more)} more")
        if self.unused:
            lines.append(f"Options that are off and may lower it: {', '.join(self.unused)}.")
        return "\n".join(lines)

    def _sums(self) -> Iterable[str]:
        """The budget that was asked for, the smallest one, and what that consists of."""
        asked = "the budget" if self.budget is None else f"the budget of {_exact(self.budget)}"
        why = ""
        if self.budget is not None and self.reserve >= self.budget:
            by = "options 'reserve' and 'offload.window', and a little on the CPU"
            why = f": {_exact(self.reserve)} are held back alone ({by})"
        elif self.budget is not None and self.baseline is not None and self._outside_the_step() >= self.budget:
            why = ": so much is allocated or held back before the step starts"
        about = "about " if self.estimated or self.guesses else "at least " if self.unfinished else ""
        if self.given:
            yield f"{asked} is not kept by the plan that option 'plan' gives: that needs {about}{_exact(self.minimum)}."
        else:
            yield f"{asked} cannot be reached{why}; the smallest that can is {about}{_exact(self.minimum)}."
        if self.unfinished:
            yield "Other graphs of this step are to come, which nobody has seen yet: they may need more."
        yield from self.guesses
        if self.estimated:
            yield "That is an estimate: nothing was compiled, and compiling may add a few percent."
        if self.baseline is not None:
            step = self.minimum - self.baseline - self.reserve - self.to_come
            later = f", {format_size(self.to_come)} are still to come (state of the optimizer)" if self.to_come else ""
            held = f", {format_size(self.reserve)} are held back (the reserve)" if self.reserve else ""
            within = f": {format_size(self.states)} of it state of the optimizer" if self.states else ""
            within += "," if self.states and self.others else ":" if self.others else ""
            within += f" {format_size(self.others)} held by other graphs until their backward" if self.others else ""
            start = f"{format_size(self.baseline)} are allocated when the step starts (the baseline{within})"
            yield f"Of these {start}{later}{held}, {format_size(step)} are what the step needs."
        if self.grown:
            what = ", ".join(f"{what} ({format_size(size)})" for what, size in self.grown)
            yield f"Since the graph was first planned, there is more when it starts: {what}."

    def _outside_the_step(self) -> int:
        return (self.baseline or 0) + self.to_come + self.reserve

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from `args`, which cannot hold keyword arguments.
        return functools.partial(type(self), **self._facts()), (), self.__dict__

    def since_it_was_planned(self, grown: Iterable[tuple[str, int]]) -> BudgetError:
        """The same error, with what has grown since the graph was first planned."""
        return BudgetError(**self._facts() | {"grown": tuple(grown)})

    def with_guesses(self, guesses: Iterable[str]) -> BudgetError:
        """The same error, with more that its minimum takes for granted."""
        return BudgetError(**self._facts() | {"guesses": (*self.guesses, *guesses)})

    def _facts(self) -> dict[str, Any]:
        names = "minimum binding budget refusals unused baseline states others to_come grown reserve full"
        names += " estimated unfinished given guesses"
        return {name: getattr(self, name) for name in names.split()}


class VerifyError(MemgraphError, AssertionError):
    """A pass made a graph that is not legal: a bug in memgraph, never in the user's model.

    Attributes:
        pass_name: the pass after which the graph was checked.
        breaches: what is wrong with the graph, one sentence each.
    """

    def __init__(self, pass_name: str, breaches: Iterable[str]):
        self.pass_name = pass_name
        self.breaches = tuple(breaches)
        super().__init__(pass_name, self.breaches)

    def __str__(self) -> str:
        return "\n".join(
            [f"the graph is not legal after pass {self.pass_name!r}:", *map("  - {}".format, self.breaches)]
        )


def _exact(size: int) -> str:
    """A size, rounded, and in brackets its bytes: a budget set to the rounded size might be too small."""
    return f"{format_size(size)} ({size} bytes)"
