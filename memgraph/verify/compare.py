"""The effects of a graph held against those of the graph that it was made from. Each breach is one sentence."""

from __future__ import annotations

from collections import Counter

from memgraph.verify.frame import Effect, History
from memgraph.verify.operators import describe


def compare_histories(old: History, new: History, *, split: bool) -> list[str]:
    """Breaches: draws, runs and effects that differ.

    split: the new graphs are a forward and a backward, made of one graph.
    """
    return _compare_draws(old, new) + _compare_runs(old, new) + _compare_effects(old, new, split)


def _compare_draws(old: History, new: History) -> list[str]:
    """Breaches: a random operator that draws once more than before, or no more."""
    before, after = {draw.term for draw in old.draws}, {draw.term for draw in new.draws}
    calls = {draw.call for draw in old.draws}
    breaches = []
    for draw in new.draws:
        if draw.term not in before:
            what = "drawn again" if draw.call in calls else "drawn, but not in the graph before,"
            breaches.append(f"a random op is {what} in the {draw.where}: {describe(draw.node)}")
    lost = [draw.node for draw in old.draws if draw.term not in after]
    return breaches + [f"a random op is not drawn any more: {describe(node)}" for node in lost]


def _compare_runs(old: History, new: History) -> list[str]:
    """Breaches: an operator that may run only once and runs more often than before.

    Calls that the user's own checkpoint repeats are no breach. Equal calls may become one: Inductor merges them.
    """
    left = Counter(run.call for run in old.once)
    breaches = []
    for run in new.once:
        left[run.call] -= 1
        if left[run.call] < 0 and run.call not in old.repeated:
            more = "is not declared repeatable, and runs once more than before"
            breaches.append(f"{run.once} {more} in the {run.where}: {describe(run.node)}")
    return breaches


def _compare_effects(old: History, new: History, split: bool) -> list[str]:
    """Breaches: an effect that is missing, repeated, out of the old order, or not on the side where it belongs."""
    place = {effect.term: n for n, effect in enumerate(old.effects)}
    done = {effect.term for effect in new.effects}
    lost = [effect.node for effect in old.effects if effect.term not in done]
    breaches = [f"an effect is missing: {describe(node)}" for node in lost]
    last: dict[str, int] = {}
    for effect in new.effects:
        if effect.term not in place:
            breaches.append(f"an effect in the {effect.where} is repeated or new: {describe(effect.node)}")
            continue
        breaches += _moved(old.effects[place[effect.term]], effect) if split else []
        if place[effect.term] < last.get(effect.where, -1):
            breaches.append(f"an effect in the {effect.where} is out of order: {describe(effect.node)}")
        last[effect.where] = max(last.get(effect.where, -1), place[effect.term])
    return breaches


def _moved(source: Effect, effect: Effect) -> list[str]:
    if source.side in (None, effect.where):
        return []
    return [f"an effect moved from the {source.side} to the {effect.where}: {describe(effect.node)}"]
