"""How graphs are lowered for CUDA: which kernels of attention, in which order, and how dropout is drawn."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch._inductor.codegen.triton import TritonOverrides
from torch._inductor.utils import run_and_get_code
from torch.nn.attention import SDPBackend

import memgraph
from memgraph import simulator
from memgraph.backend.inductor import Graph
from memgraph.backend.tuning import tune
from memgraph.base import compat
from memgraph.lower.tensors import Layout
from memgraph.lower.timeline import Lowered
from memgraph.machine import cuda_libraries
from tests.simulated.models import made
from tests.support.models import sized


def generated(function, *args, backend: str = "memgraph", **options) -> str:
    """The code of a step's forward and backward."""
    options = {"cache": False, **options} if backend == "memgraph" else {}
    compiled = torch.compile(function, backend=backend, options=options)
    return "\n".join(run_and_get_code(lambda: compiled(*args).backward())[1])


class Attention(nn.Module):
    def forward(self, query: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).float().sum()


def attention_as_torch_prefers_it() -> list:
    """In a process of its own: torch's choice for a call of attention, and the report of a step with it."""
    query = torch.empty(2, 4, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    chosen = torch._fused_sdp_choice(query, query, query, None, 0.0, True)
    with contextlib.suppress(RuntimeError):  # the step is lowered, and then there is no cuDNN to run it
        torch.compile(Attention(), backend="memgraph", options={"cache": False})(query)
    report = memgraph.report()
    return [SDPBackend(chosen).name, report.above, list(report.notes)]


@pytest.mark.skipif(not simulator.here(), reason="on the simulated card alone")
def test_attention_stays_with_cudnn(monkeypatch):
    """On Hopper torch prefers it."""
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "0")  # as on a card
    chosen, above, notes = simulator.call(f"{__name__}:attention_as_torch_prefers_it")
    assert chosen == "CUDNN_ATTENTION" and not notes
    rows, entry = 2 * 4 * 512, 64 * 2
    # Its backward: the output, its gradient and those of queries, keys and values, a number for each row, two scalars,
    # and the kernel's own.
    assert above == pytest.approx(rows * (5 * entry + 4) + rows * 4 * 65 + 256, abs=4096)


def test_the_switches_of_attention_are_in_the_keys():
    before = cuda_libraries.fingerprint()
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert cuda_libraries.fingerprint() != before
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def dropped(given: torch.Tensor) -> torch.Tensor:
    """The product keeps the kernel that draws apart from the sum, so that it has one dimension."""
    return (nn.functional.dropout(given * 2, 0.1) @ given.t()).sum()


def test_random_numbers_do_not_depend_on_the_kernel_that_draws_them():
    given = torch.zeros(64, 1024, device="cuda", requires_grad=True)
    switch = {"use_rand4x": True} if hasattr(torch._inductor.config, "use_rand4x") else {}  # off by itself in 2.15
    with torch._inductor.config.patch(switch):
        if hasattr(TritonOverrides, "_can_use_4x_random"):  # from 2.13 on
            code = generated(dropped, given, backend="inductor")
            assert "rand4x(" in code
        torch._dynamo.reset()
        code = generated(dropped, given)  # a failed assertion shows what it names, and a tensor has no values to show
        assert "rand4x(" not in code


def test_kernels_are_tuned_before_the_first_step():
    from tests.simulated.training import train

    card = torch.cuda.get_device_properties(0)
    found = train("llama", {"budget": None})
    assert max(found.requested) < found.predicted + card.L2_cache_size // 4
    assert found.requested[0] == found.requested[1]


def conversions(given: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Layers between whose products there are more operations than Inductor puts into one kernel by itself."""
    for weight in weights:
        wide = (given @ weight).float()
        for _ in range(4):
            wide = nn.functional.gelu(wide)
        given = given + wide.bfloat16()
    return given.float().square().mean()


def test_many_operations_are_not_written_in_between():
    """Inductor would write values of four bytes where the plan has some of two: no plan would keep this budget."""
    given = torch.zeros(2048, 256, device="cuda", dtype=torch.bfloat16)
    weights = [torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4)]
    step = torch.compile(conversions, backend="memgraph", options={"budget": 0.7, "cache": False, "strict": True})
    refused = ""
    try:
        step(given, *weights)
    except memgraph.BudgetError as problem:
        refused = str(problem)
    assert not refused and memgraph.report().attempts == 1


@pytest.mark.skipif(not simulator.here(), reason="on the simulated card alone")
def test_copies_that_are_grouped_stay_in_order():
    """Inductor groups the copies of a `cat` on CUDA: those of a U-Net's skips."""
    case = sized.make("unet", sized.Shape(2, 256, 2048, 4096), "cuda", torch.bfloat16)
    step = torch.compile(case.loss, backend="memgraph", options={"budget": 0.72, "cache": False, "strict": True})
    with pytest.raises(RuntimeError, match="cuDNN"):  # the step is lowered, and then there is no cuDNN to run it
        step(*case.inputs)


@pytest.mark.parametrize("name, share", [("gpt2", 0.6), ("gpt_oss", 0.75)])
def test_masks_of_dropout_are_what_is_written(name, share):
    """Else their random numbers stand, four bytes an entry, and the first plan breaks the budget.

    In half precision they are converted before they are compared, and GPT-OSS reads them in kernels with an entry more
    in each row.
    """
    case = sized.make(name, sized.Shape(2, 256, 2048, 4096, dropout=0.1), "cuda", torch.bfloat16)
    step = torch.compile(case.loss, backend="memgraph", options={"budget": share, "cache": False, "strict": True})
    step(*case.inputs)
    assert memgraph.report().attempts == 1


class Kernel:
    """A kernel of two variants that keeps what it is run with."""

    inductor_meta: ClassVar[dict[str, bool]] = {}

    def __init__(self) -> None:
        self.launchers, self.sizes = [1, 2], []

    def run(self, *args, stream) -> None:
        self.sizes.append([tuple(arg.shape) for arg in args])


def test_kernels_of_one_name_in_two_graphs_are_both_tuned():
    layouts = {phase: Layout((size,), (1,), torch.float32) for phase, size in (("forward", 3), ("backward", 5))}
    kernels = {phase: Kernel() for phase in layouts}
    inner = Kernel()
    graphs = [Graph("forward", (), (), None, {"sum": inner})]
    graphs += [Graph(phase, (), (), None, {"sum": kernel}) for phase, kernel in kernels.items()]
    lowered = tuple(Lowered(phase, (), (), (), {"sum": (layout,)}) for phase, layout in layouts.items())
    notes = tune(graphs, torch.device("cuda", 0), lambda: lowered)
    assert [kernel.sizes for kernel in kernels.values()] == [[[(3,)]], [[(5,)]]]
    assert not inner.sizes and len(notes) == 1 and "sum" in notes[0]  # nobody knows what a nested graph's takes


def test_inductors_kernels_are_found():
    model, loss, batch = made("perceptron")
    seen = []
    stock = compat.inner_compile()

    def inner(*args, **kwargs):
        compiled = stock(*args, **kwargs)
        seen.append(compat.triton_kernels_of(compiled))
        return compiled

    def backend(graph, inputs):
        return compat.compile_graph(graph, inputs, inner, {"force_disable_caches": True})

    torch.compile(loss, backend=backend)(*batch).backward()
    assert len(seen) == 2 and all(seen)
    assert all(callable(kernel.run) for kernels in seen for kernel in kernels.values())


def trained(device: torch.device) -> None:
    """A product with a bias, which is recomputed on autograd's thread."""
    model = nn.Linear(512, 512, device=device, dtype=torch.bfloat16)
    x = torch.zeros(512, 512, device=device, dtype=torch.bfloat16)
    out = model(x)

    def again(gradient: torch.Tensor) -> None:
        model(x)

    out.register_hook(again)
    out.sum().backward()


def test_workspaces_that_are_kept_are_taken_once():
    device = torch.device("cuda", 0)
    trained(device)  # with 2.11 a gradient of a process's first backward stands a while longer
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    cuda_libraries.take_workspaces(device)
    taken = torch.cuda.memory_allocated()
    least = 64 * 1024**2 if compat.workspaces_are_kept() else 0  # this thread's and autograd's, on Hopper
    assert taken - before >= least
    cuda_libraries.take_workspaces(device)
    trained(device)
    assert torch.cuda.memory_allocated() == taken
