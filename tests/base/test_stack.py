"""Room on Python's stack: no depth of calls makes each of them map memory."""

import resource
import sys

import pytest

from memgraph.base.stack import with_room

CALLS = 400


def leaf(x):
    return x


def faults(depth):
    """Pages that are mapped while a loop calls a function, so many calls below this one."""
    if depth:
        return faults(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for n in range(CALLS):
        leaf(n)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def most(depths=400):
    return max(faults(depth) for depth in range(depths))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python keep their frames otherwise")
def test_a_border_of_the_stack_costs_a_page_with_each_call_and_with_room_there_is_none():
    assert most() >= CALLS
    assert with_room(most) < CALLS // 4


def test_it_is_the_function_that_is_called():
    def fails(x, *, y):
        raise ValueError(x + y)

    assert with_room(lambda *args, **named: (args, named), 1, 2, three=3) == ((1, 2), {"three": 3})
    with pytest.raises(ValueError, match="7"):
        with_room(fails, 3, y=4)
