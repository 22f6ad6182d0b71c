"""What is tried after a plan that lowering has made larger than the sweep said."""

import dataclasses
import types

from memgraph.backend.attempt import Next
from memgraph.backend.budget import Bound


def missed(peak, above, plain):
    planned = types.SimpleNamespace(plan=types.SimpleNamespace(peak=peak), plain=plain)
    return types.SimpleNamespace(planned=planned, above=above)


def test_the_margin_grows_by_what_a_plan_has_missed():
    after = Next(Bound(bytes=1000)).after(missed(970, 1050, plain=False), 1000)
    assert 970 - after.bound.margin < 970 - 50 and after.bound.unplanned is None


def test_inductors_own_choice_is_not_tried_again_by_its_sweep():
    """Swept below the bound and lowered above it: no margin for our plans follows from that, but what it takes."""
    first = Next(Bound(bytes=1000))
    after = first.after(missed(970, 1002, plain=True), 1000)
    assert after.bound == dataclasses.replace(first.bound, unplanned=1002)


def test_the_last_attempt_is_what_is_known_to_fit():
    resort = Bound(bytes=1000, margin=500)
    assert Next(Bound(bytes=1000, margin=3), resort).final() == Next(resort)
    assert Next(Bound(bytes=1000, margin=3)).final().bound == Bound(bytes=1000, margin=3, last=True)


def test_nothing_smaller_is_known():
    assert Next(Bound(bytes=1000, last=True)).after(missed(990, 1002, plain=False), 1000) is None
    assert Next(Bound(bytes=1000, margin=100)).after(missed(990, 1002, plain=False), 1000) is None
    resort = Bound(bytes=1000, margin=500)
    assert Next(Bound(bytes=1000, last=True), resort).after(missed(990, 1002, plain=False), 1000) == Next(resort)
