"""Ranks that agree, each on a thread of its own: what they conclude, and what each is told where they do not."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from memgraph.base import compat
from memgraph.base.errors import RanksError
from memgraph.step.meter import Arguments, Meter
from memgraph.step.ranks import Ranks, SharedMeter, tightest
from memgraph.step.run import Run
from memgraph.step.variants import Entry

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")


def on_threads(work, members=(0, 1, 2), seconds=10.0):
    """What `work(ranks, rank)` returns or raises, by rank."""
    store, outcomes = dist.HashStore(), {}
    store.set_timeout(timedelta(seconds=seconds))
    lock = threading.Lock()

    def run(rank):
        with lock:  # numbers of graphs are those of one process: here three ranks share it
            ranks = Ranks(store, members, rank)
            ranks._name = "graph"
        try:
            outcomes[rank] = work(ranks, rank)
        except Exception as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == sorted(members)
    return outcomes, store


def test_all_go_by_what_the_first_concludes():
    outcomes, store = on_threads(lambda ranks, rank: [ranks.agree("level", 10 * rank + turn, max) for turn in range(5)])
    assert set(map(tuple, outcomes.values())) == {(20, 21, 22, 23, 24)}
    assert store.num_keys() == 3 + 1  # of what was said and concluded, the last turn alone is kept


def test_some_of_the_processes_are_ranks_of_a_graph():
    outcomes, _ = on_threads(lambda ranks, rank: ranks.agree("level", rank, list), members=(3, 5))
    assert outcomes == {3: [3, 5], 5: [3, 5]}


def test_where_they_differ_each_is_told_who_has_what():
    outcomes, _ = on_threads(lambda ranks, rank: ranks.same("the plan of f [0]", "a" if rank < 2 else "b"))
    assert all(isinstance(error, RanksError) for error in outcomes.values())
    assert {str(error) for error in outcomes.values()} == {str(outcomes[0])}
    assert "differ in the plan of f [0]: rank 0, 1: a; rank 2: b" in str(outcomes[0])


@pytest.mark.parametrize("failing", [0, 1])
def test_who_fails_tells_those_who_wait(failing):
    def work(ranks, rank):
        with ranks.telling():
            if rank == failing:
                raise ValueError("no room\non this rank")
        ranks.same("the plan", "a")

    outcomes, _ = on_threads(work)
    assert isinstance(outcomes.pop(failing), ValueError)
    assert all(f"rank {failing} failed: ValueError: no room" in str(error) for error in outcomes.values())


def test_who_is_at_another_place_is_told():
    outcomes, _ = on_threads(lambda ranks, rank: ranks.same("a launch" if rank else "the plan", "a"))
    assert all(isinstance(error, RanksError) for error in outcomes.values())
    assert "rank 1 is at a launch, rank 0 at the plan" in str(outcomes[2])


@pytest.mark.parametrize("silent", [0, 2])
def test_who_does_not_answer_is_named(silent):
    def work(ranks, rank):
        if rank != silent:
            ranks.same("the plan", "a")

    outcomes, _ = on_threads(work, seconds=0.3)
    assert outcomes.pop(silent) is None
    assert all(f"rank {silent} has not answered as to the plan" in str(error) for error in outcomes.values())


def test_the_tightest_entry_is_at_least_as_tight_as_each():
    assert tightest([[10, 3, [4, 9], 0, 1], [12, 0, [5, 2], 7, 0]]) == [12, 3, [5, 9], 7, 1]


@pytest.mark.slow
def test_a_launch_is_that_of_all_ranks():
    """Each finds another size; all take it for the largest, at the highest level that any of them counts."""
    device, arguments, held = torch.device("cpu"), Arguments((0,), ()), torch.ones(1000)

    def work(ranks, rank):
        meter = SharedMeter(Meter(device, arguments, Run()), ranks)
        return [meter.entry([rank + 4]), meter.exact(Entry(0), [rank + 4])]

    outcomes, _ = on_threads(work)
    assert all(entries == outcomes[0] for entries in outcomes.values())
    assert outcomes[0][0].sizes == (6,) and outcomes[0][0].level >= held.nbytes


def test_the_rank_of_this_process(tmp_path):
    assert compat.rank_here() is None
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert compat.rank_here() == 0
    finally:
        dist.destroy_process_group()
