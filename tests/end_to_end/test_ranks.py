"""Two processes whose graph has collectives in it: both run one plan, made for the tighter of them, or both refuse."""

import json
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.processes import context

pytestmark = [
    pytest.mark.inductor,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
]
TOKENS, WIDTH, MIB = 512, 96, 1 << 20
BUDGET, MORE = 23 * MIB // 4, 2 * MIB


class Parallel(nn.Module):
    """Blocks whose inner width is cut in two, a half for each rank."""

    def __init__(self, blocks=3):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH, bias=False) for _ in range(blocks))

    def forward(self, x):
        from torch.distributed import _functional_collectives as functional

        for up, down in zip(self.up, self.down, strict=True):
            part = down(nn.functional.gelu(up(x)))
            summed = functional.reduce_scatter_tensor_autograd(part, "sum", 0, dist.group.WORLD)
            x = x + functional.all_gather_tensor_autograd(summed, 0, dist.group.WORLD)
        return x.square().mean()


def loss_and_gradients(model, x, **how):
    model.zero_grad()
    loss = (torch.compile(model, **how) if how else model)(x)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def step_of(model, x, how):
    model.zero_grad()
    torch.compile(model, **how)(x).backward()


def of_case(rank, **options):
    """What one rank is told of a plan, or of its refusal."""
    import memgraph

    torch._dynamo.reset()
    torch.manual_seed(rank)
    model = Parallel()
    torch.manual_seed(5)
    x = torch.randn(TOKENS, WIDTH)
    wanted = loss_and_gradients(model, x)
    model.zero_grad()
    others = torch.zeros(rank * MORE, dtype=torch.uint8)  # the second rank has less room
    how = {"backend": "memgraph", "options": {"budget": BUDGET, "strict": True, **options}}
    try:
        found = loss_and_gradients(model, x, **how)
        close = all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(wanted, found, strict=True))
        model.zero_grad()
        del found, wanted  # no more is allocated than when the graph was planned
        # On a busy machine gloo holds what it has sent for longer: up to 13 tensors of 96 KiB were seen above
        # what is planned. So the lowest of some steps is the plan's.
        peak = min(memgraph.measure_peak(lambda: step_of(model, x, how)) for _ in range(5))
    except memgraph.MemgraphError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    report = memgraph.report()
    return {
        "decisions": [(decision.name, repr(decision.action)) for decision in report.decisions],
        "rank": (report.rank, memgraph.step_report().rank),
        "level": report.baseline,
        "peak": peak,
        "unplanned": report.unplanned_peak,
        "close": close,
        "others": others.nbytes,
    }


def of_rank(rank, folder):
    """What happens on one rank, written to a file."""
    os.environ |= {
        "MEMGRAPH_CACHE": f"{folder}/memgraph-{rank}",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor-{rank}",
    }
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    told = {"plain": of_case(rank), "differ": of_case(rank, rules={"*up.0": "recompute" if rank else "save"})}
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(told, file)
    dist.barrier()
    os._exit(0)  # not by way of what other tests have left to the interpreter's end


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks were told, in both cases."""
    folder = tmp_path_factory.mktemp("ranks")
    context()
    torch.multiprocessing.start_processes(of_rank, (str(folder),), nprocs=2, start_method="forkserver")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(900)
def test_both_ranks_run_the_plan_of_the_tighter_one(ranks):
    loose, tight = (told["plain"] for told in ranks)
    assert "error" not in loose and "error" not in tight, (loose, tight)
    assert loose["close"] and tight["close"] and max(loose["peak"], tight["peak"]) <= BUDGET
    assert loose["decisions"] == tight["decisions"] and loose["level"] == tight["level"]
    assert (loose["rank"], tight["rank"]) == ([0, 0], [1, 1])
    # Alone, the first rank would have had room for more.
    assert tight["unplanned"] > BUDGET > loose["unplanned"] - MORE


@pytest.mark.timeout(900)
def test_ranks_whose_plans_differ_refuse(ranks):
    errors = [told["differ"]["error"] for told in ranks]
    assert all("RanksError" in error and "the ranks differ in the plan" in error for error in errors)
