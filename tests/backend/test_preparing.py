"""What is done in a thread beside something else: Inductor's preparations for C++ beside the trace, kernels later.

Those of the forward while the backward is lowered, those of the backward once it is sure that they are wanted.
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
from memgraph.backend.attempts import Attempts
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
def begun(monkeypatch):
    """The threads that compile kernels, as they were begun."""
    found: list[threading.Thread] = []
    stock = inductor._in_thread

    def in_thread(name, work):
        thread = stock(name, work)
        if name == "memgraph compiles kernels":
            found.append(thread)
        return thread

    monkeypatch.setattr(inductor, "_in_thread", in_thread)
    return found


def noted(monkeypatch, owner, name: str, begun: list) -> list[int]:
    """How many threads were begun at each call of a function."""
    found, stock = [], getattr(owner, name)

    def called(*args):
        found.append(len(begun))
        return stock(*args)

    monkeypatch.setattr(owner, name, called)
    return found


def trained(options: dict) -> None:
    torch._dynamo.reset()
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(3)))  # no kernel of C++
    torch.compile(layers, backend="memgraph", options=options | {"cache": False})(torch.ones(4, 8)).sum().backward()


@pytest.mark.parametrize("budget", [None, "1GiB"])
def test_the_forward_is_compiled_while_the_backward_is_lowered(monkeypatch, begun, budget):
    lowered = noted(monkeypatch, compat, "loading_later", begun)
    trained({"budget": budget})
    assert lowered == [0, 1] and begun[0].daemon


@pytest.mark.parametrize(("budget", "compiling"), [(None, 2), ("1GiB", 1)])
def test_a_backward_is_compiled_at_once_where_nothing_can_refuse_it(monkeypatch, begun, budget, compiling):
    read = noted(monkeypatch, Attempts, "attempt", begun)
    trained({"budget": budget})
    assert read == [compiling]


def test_the_compiler_is_at_work_when_garbage_is_collected_again(monkeypatch, begun):
    taken = noted(monkeypatch, Attempts, "_taken", begun)
    trained({"budget": "1GiB"})
    assert taken == [3] and len(begun) == 3  # the forward is asked for twice


def test_what_a_graph_is_lowered_for_to_be_read_alone_is_not_compiled(monkeypatch, begun):
    """A share asks for what plain Inductor allocates: its forward and its backward are lowered first."""
    lowered = noted(monkeypatch, compat, "loading_later", begun)
    trained({"budget": 1.0})
    assert lowered == [0, 0, 0, 1]


def test_kernels_by_settings_of_the_user_are_compiled_where_these_are_in_force(begun):
    trained({"inductor": {"cpp.simdlen": 256}})
    assert not begun


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
