"""What holds for all tests.

Every run has caches of its own: a plan or a kernel kept by an earlier run must not decide what a test sees. A graph
that runs without a plan is a failure, unless the test expects the warning: a bug must not hide behind Inductor. The
fast lane (`make test-fast`) draws few examples of each property, the whole more, `--hypothesis-profile default` all.
"""

import atexit
import gc
import logging
import os
import shutil
import tempfile
import warnings

import pytest
from hypothesis import HealthCheck, settings

from tests.support.compiler import use_quick_compiler

# No test fails for the time that it takes: the machine may be busy with other tests.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fast", max_examples=12, **UNTIMED)
settings.register_profile("whole", max_examples=60, **UNTIMED)  # what `make test` has time for; "default" draws all
settings.load_profile("whole")

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # workers share the cores: who waits for a thread shall not spin
os.environ["KINETO_LOG_LEVEL"] = "6"
# Else each empty cache, and so each process that has its own, compiles nine programs to see what the processor knows.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
_folder = tempfile.mkdtemp(prefix="memgraph-tests-")
os.environ["MEMGRAPH_CACHE"] = f"{_folder}/memgraph"
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{_folder}/inductor"
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
if "MEMGRAPH_TESTS_COMPILER" not in os.environ:  # one for all workers, which inherit it
    os.environ["MEMGRAPH_TESTS_COMPILER"] = f"{_folder}/compiler"
    use_quick_compiler(f"{_folder}/compiler")


LONG = {"inductor": 30, "slow": 15}  # seconds of such a test, about; of any other 0.1


@pytest.hookimpl(trylast=True)  # what is not asked for is gone
def pytest_collection_modifyitems(items):
    """Begin with the files that take longest: two workers then end together. (xdist goes by numbers of tests.)"""
    seconds = dict.fromkeys((item.path for item in items), 0.0)
    for item in items:
        seconds[item.path] += max((LONG.get(mark.name, 0.1) for mark in item.iter_markers()), default=0.1)
    items.sort(key=lambda item: -seconds[item.path])


def pytest_collection_finish():
    """Keep the tests from work that no user's process does.

    What torch and the tests' modules are made of is left to no garbage collection: a full one takes a second else. And
    pytest catches the records of all loggers that do not propagate; of torch's structured trace, for which every graph
    is printed where somebody listens, it shall not.
    """
    logging.getLogger("torch.__trace").propagate = True
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report):
    """With TELL_FAILURES a failure is told when it happens: a run on a lent machine may be cut before its summary."""
    if os.environ.get("TELL_FAILURES") and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} failed ({report.when}):\n{report.longreprtext[-3000:]}", flush=True)


@pytest.fixture(scope="module", autouse=True)
def a_small_heap():
    """What other tests and lazy imports have left is left to no garbage collection either.

    A launch that is counted looks through all objects of the heap, half a million else: a tenth of the tests' time.
    """
    import torch  # once the environment is set

    torch._dynamo.reset()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_recording_is_left():
    """A round that no later step ends is recorded still: a test's own measurements must not meet that."""
    yield
    from memgraph.step import run

    run.current().stop_recording()


@pytest.fixture(autouse=True)
def no_graph_without_a_plan():
    from memgraph.base.errors import PlanWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanWarning)
        yield
