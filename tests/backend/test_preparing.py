"""What is done in a thread beside the lowering: Inductor's preparations for C++, and the kernels of a forward.

The first while the graph is traced, the second while the backward is lowered, where no budget can refuse the plan.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent import futures

import pytest
import torch
from torch import fx

from memgraph.backend import inductor
from memgraph.backend.inductor import LONG_TRACE, Job, lower
from memgraph.backend.options import parse_options
from memgraph.backend.progress import Progress
from memgraph.base import compat


def job(nodes: int, device: str = "cpu") -> Job:
    graph = fx.Graph()
    value = graph.placeholder("x")
    while len(graph.nodes) < nodes - 1:
        value = graph.call_function(torch.tanh, (value,))
    graph.output((value,))
    module = fx.GraphModule(torch.nn.Module(), graph)
    return Job(module, [torch.ones(1)], parse_options({}), torch.device(device), Progress(False), "a graph")


def lowered(monkeypatch, asked: Job, prepare) -> list[threading.Thread]:
    """The threads in which `prepare` ran while a graph was lowered; each was done before the trace was."""
    ran = []

    def noted():
        ran.append(threading.current_thread())
        prepare()

    def traced(*args, **kwargs):
        for thread in threading.enumerate():
            if thread.name.startswith("memgraph prepares"):
                thread.join(10)

    monkeypatch.setattr(compat, "prepare_cpp", noted)
    monkeypatch.setattr(compat, "compile_graph", traced)
    lower(asked, None, cache=False)
    return ran


def test_it_is_done_beside_the_trace_of_a_graph_on_the_cpu(monkeypatch):
    (thread,) = lowered(monkeypatch, job(LONG_TRACE), lambda: None)
    assert thread is not threading.main_thread() and thread.daemon


@pytest.mark.parametrize(("nodes", "device"), [(LONG_TRACE - 1, "cpu"), (LONG_TRACE, "cuda")])
def test_it_is_not_done_for_a_toy_nor_on_a_gpu(monkeypatch, nodes, device):
    assert not lowered(monkeypatch, job(nodes, device), lambda: None)


def test_what_goes_wrong_there_is_left_to_the_first_kernel(monkeypatch, caplog):
    def broken():
        raise OSError("no compiler")

    with caplog.at_level("DEBUG", logger=inductor.__name__):
        assert lowered(monkeypatch, job(LONG_TRACE), broken)
    assert "not done beside the rest" in caplog.text


SCRIPT = """
import torch
from torch._inductor import codecache
from memgraph.base import compat

compat.prepare_cpp()
before = codecache._precompile_header.cache_info()
assert before.currsize == 1, before
torch.compile(lambda x: torch.tanh(x) + 1)(torch.ones(100))
after = codecache._precompile_header.cache_info()
assert after.misses == before.misses and after.hits > before.hits, (before, after)
"""


@pytest.mark.inductor
def test_the_header_that_is_prepared_is_that_of_the_kernels():
    """By the same flags: else the first kernel would have one of its own compiled."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


@pytest.fixture
def loads(monkeypatch):
    """The threads in which wrappers are loaded, in turn."""
    found: list[threading.Thread] = []
    stock = compat.Wrapper.load

    def load(wrapper):
        found.append(threading.current_thread())
        return stock(wrapper)

    monkeypatch.setattr(compat.Wrapper, "load", load)
    return found


def trained(options: dict) -> None:
    torch._dynamo.reset()
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(3)))  # no kernel of C++
    torch.compile(layers, backend="memgraph", options=options | {"cache": False})(torch.ones(4, 8)).sum().backward()


def test_the_forward_is_compiled_while_the_backward_is_lowered(loads):
    trained({"budget": None})
    assert loads[0].name == "memgraph compiles the forward" and loads[0].daemon
    assert set(loads[1:]) == {threading.main_thread()}  # which waits for it, and loads the backward


@pytest.mark.parametrize("options", [{"budget": "1GiB"}, {"budget": 1.0}, {"inductor": {"cpp.simdlen": 256}}])
def test_what_a_budget_may_refuse_or_settings_decide_is_compiled_later(loads, options):
    trained(options)
    assert loads and set(loads) == {threading.main_thread()}


def test_a_wrapper_is_loaded_once_by_all_threads():
    begun, made = threading.Barrier(2), []

    def load():
        made.append(object())
        return made[-1]

    def both():
        begun.wait(10)
        return wrapper.load()

    wrapper = compat.Wrapper("here", load)
    with futures.ThreadPoolExecutor(2) as pool:
        first, second = (future.result(10) for future in [pool.submit(both) for _ in range(2)])
    assert first is second and made == [first]
