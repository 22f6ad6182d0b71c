"""FSDP2 and DDP: what optimizers own of gathered parameters, and what stands beside them.

The collectives of these tests do nothing.
"""

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim

from memgraph.base import compat
from memgraph.machine.measure import allocated_bytes, peak_above_start
from memgraph.step.forecast import Method, forecast, live_optimizers
from memgraph.step.meter import Arguments, Meter, bytes_standing
from memgraph.step.run import Run
from memgraph.step.shards import Shards, sets_like
from tests.step.optimizers import CPU, Lion
from tests.support.lanes import slow_but

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")
WIDTH = 64


@pytest.fixture
def mesh():
    """Two ranks, of which this is one."""
    gc.collect()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield dist.init_device_mesh("cpu", (2,))
    dist.destroy_process_group()
    gc.collect()


def sharded(mesh, layers=2):
    from torch.distributed.fsdp import fully_shard

    module = nn.Sequential(
        *(nn.Linear(WIDTH, WIDTH + 1) if n % 2 == 0 else nn.Linear(WIDTH + 1, WIDTH) for n in range(layers))
    )
    for layer in module:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def gathered(module, x):
    """The parameters as each layer's forward sees them."""
    seen = []
    see = lambda layer, *_: seen.append(list(layer.parameters()))  # noqa: E731
    handles = [layer.register_forward_pre_hook(see) for layer in module]
    module(x).sum().backward()
    for handle in handles:
        handle.remove()
    gc.collect()
    return seen


def local_bytes(tensors):
    storages = (compat.local(tensor).untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize(
    "kind",
    slow_but(
        [optim.AdamW, Lion, lambda p: optim.SGD(p, momentum=0.9), lambda p: optim.AdamW(p, foreach=True)],
        fast=[optim.AdamW],
    ),
)
def test_state_to_come_is_that_of_the_shards(mesh, kind):
    module = sharded(mesh)
    gathered(module, torch.ones(2, WIDTH))
    optimizer = kind(module.parameters())
    told = forecast(optimizer, CPU)
    before = allocated_bytes("cpu")
    optimizer.step()
    state = [t for values in optimizer.state.values() for t in values.values() if isinstance(t, torch.Tensor)]
    assert told.method is Method.FAKE_STEP, told.note
    assert told.state_to_come == local_bytes(state) == allocated_bytes("cpu") - before
    assert 0 < local_bytes(state) < 2.1 * sum(p.numel() for p in module.parameters()) * 4 / 2
    again = forecast(optimizer, CPU)
    assert (again.method, again.state_to_come, again.state_bytes) == (Method.FAKE_STEP, 0, told.state_bytes)


def test_a_gathered_parameter_leads_to_its_optimizer(mesh):
    module = sharded(mesh)
    optimizer = optim.AdamW(module.parameters())
    first, second = gathered(module, torch.ones(2, WIDTH))
    shards = Shards()
    by_gathered, by_shards = live_optimizers(first), live_optimizers(shards.owned(second))
    owned = [list(map(id, shards.owned(leaves))) for leaves in (first, second)]
    assert by_gathered == [] and by_shards == [optimizer]
    assert owned == [list(map(id, layer.parameters())) for layer in module]


def test_a_plain_parameter_stands_for_itself():
    leaves = [nn.Parameter(torch.ones(3))]
    shards = Shards()
    assert shards.owned(leaves)[0] is leaves[0] and shards.owned(leaves) is leaves


def test_a_launch_with_gathered_parameters_knows_what_is_to_come_and_what_stands(mesh):
    module = sharded(mesh)
    optimizer = optim.AdamW(module.parameters())
    seen = gathered(module, torch.ones(2, WIDTH))
    optimizer.zero_grad()
    meter = Meter(CPU, Arguments.of(seen[0]), Run())
    first = meter.entry(seen[0])
    to_come = forecast(optimizer, CPU).state_to_come
    assert first.to_come == to_come > 0
    gathered(module, torch.ones(2, WIDTH))  # gradients stand now, of the shards
    gradients = local_bytes(parameter.grad for parameter in module.parameters())
    level = meter.entry(seen[0]).level  # no assertion has a gathered tensor in it: emptied as it is, it cannot be shown
    assert level - first.level == gradients > 0
    mine = local_bytes(parameter.grad for parameter in module[0].parameters())
    standing = bytes_standing(meter.parameters(seen[0]))
    assert 0 < standing == mine < gradients


@pytest.mark.slow
@pytest.mark.parametrize("as_view", [False, True])
def test_the_buckets_of_ddp_count(as_view, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        module, found = nn.Sequential(nn.Linear(WIDTH, 300), nn.Linear(300, WIDTH)), []
        gc.collect()
        before = allocated_bytes("cpu")
        # Without the first broadcast: of its flat copy nobody knows when gloo's thread lets go.
        options = {"gradient_as_bucket_view": as_view, "init_sync": False}
        made = peak_above_start(lambda: found.append(nn.parallel.DistributedDataParallel(module, **options)), "cpu")
        size = sum(p.nbytes for p in module.parameters())
        assert allocated_bytes("cpu") - before == size <= made < 1.1 * size
        found[0](torch.ones(2, WIDTH)).sum().backward()
        gc.collect()
        assert allocated_bytes("cpu") - before == (size if as_view else 2 * size)
        found.clear()
        gc.collect()
    finally:
        dist.destroy_process_group()


def test_sets_of_parameters_like_a_layers():
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
    head = nn.Linear(8, 20)
    optimizer = optim.AdamW([*layers.parameters(), *head.parameters()])
    assert sets_like(list(layers[1].parameters()), [optimizer]) == 4
    assert sets_like([*layers[0].parameters(), *layers[1].parameters()], [optimizer]) == 2
    assert sets_like([*layers[0].parameters(), *head.parameters()], [optimizer]) == 1
    assert sets_like([], [optimizer]) == sets_like(list(head.parameters()), []) == 1
