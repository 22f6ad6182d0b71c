"""Objects by their class, whatever they say of it themselves, and while other threads ask too."""

import abc
import threading

import pytest

from memgraph.base.instances import instances, instances_among

Plain = abc.ABCMeta("Plain", (), {})


class Derived(Plain):
    pass


class Proxy:
    """As lazy proxies do, it acts where its class is asked for."""

    @property
    def __class__(self):
        raise AssertionError("asked")


class Claims(type):
    """A class that says it equals, and comes of, any other."""

    __hash__ = type.__hash__

    def __eq__(cls, other):
        return True


class Odd(metaclass=Claims):
    pass


def test_those_of_a_class_and_of_what_comes_of_it():
    plain, derived = Plain(), Derived()
    Plain.register(Odd)  # a virtual base is none
    kept = [plain, Proxy(), derived, Odd(), 3]
    assert list(instances_among(kept, Plain)) == [plain, derived]
    assert list(instances_among(kept, Derived, int)) == [derived, 3]
    assert {id(plain), id(derived)} <= {id(found) for found in instances(Plain)}


@pytest.mark.slow
def test_threads_that_look_through_all_objects_while_classes_come_and_go():
    """An abstract class that is asked of every type keeps them all in a set: not to be done by two threads."""
    found, stop = [], threading.Event()

    def look():
        for _ in range(5):
            found.append(len(list(instances(Plain))))

    def make():
        while not stop.is_set():
            type("Passing", (), {})()

    kept = Plain()
    maker = threading.Thread(target=make)
    lookers = [threading.Thread(target=look) for _ in range(3)]
    maker.start()
    for thread in lookers:
        thread.start()
    for thread in lookers:
        thread.join()
    stop.set()
    maker.join()
    assert len(found) == 15 and min(found) >= 1
    del kept
