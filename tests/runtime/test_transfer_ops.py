import contextlib
import threading

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from memgraph import runtime
from memgraph.base.errors import OffloadError, OptionsError
from tests.support.lanes import examples
from tests.support.offloading import Cube, bring, drained, hold, like, live, ops, options, raw

TIERS = ["host", "nvme"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.float8_e4m3fn]


@pytest.fixture(scope="module")
def settings_json(tmp_path_factory):
    return options(tmp_path_factory.mktemp("scratch"), verify=True)


@pytest.fixture(autouse=True)
def nothing_leaks():
    assert drained()
    yield
    assert drained()


@st.composite
def tensors(draw):
    size = draw(st.lists(st.integers(0, 9), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    gaps = [draw(st.integers(1, 3)) for _ in size]
    count = 1
    for n, gap in zip(size, gaps, strict=True):
        count *= n * gap
    data = torch.randint(0, 256, (count * dtype.itemsize + 16,), dtype=torch.uint8)  # NaNs with payloads among them
    if dtype == torch.bool:
        data %= 2
    base = data[: count * dtype.itemsize].view(dtype)
    base = base.reshape([n * gap for n, gap in zip(size, gaps, strict=True)])
    base = base[tuple(slice(None, None, gap) for gap in gaps)]
    return base.permute(draw(st.permutations(range(len(size)))))


@pytest.mark.parametrize("tier", TIERS)
@settings(deadline=None, max_examples=examples(60))
@given(x=tensors())
def test_round_trip_keeps_every_bit_and_stride(tier, x, settings_json):
    y = bring(hold(x, tier, settings_json), x, tier)
    assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), x.dtype)
    assert torch.equal(raw(y), raw(x))
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() or not x.numel()


@pytest.mark.parametrize("tier", TIERS)
def test_large_values_of_odd_sizes(tier, settings_json):
    values = [torch.randn(3_000_001 + 77_777 * i) for i in range(3)]
    held = [hold(x, tier, settings_json, f"x{i}") for i, x in enumerate(values)]
    for x, h in zip(reversed(values), reversed(held), strict=True):
        assert torch.equal(bring(h, x, tier), x)


def test_schemas_tags_and_fakes(settings_json):
    x = torch.randn(4, 6).t()
    begun = ops.offload_start(x, "x", "host", settings_json)
    held = ops.offload_finish(begun, x, "host")
    back = ops.reload_start(held, *like(x, "host"))
    checks = ("test_schema", "test_faketensor")
    for op, arguments in [
        (ops.offload_start, (x, "x", "host", settings_json)),
        (ops.offload_finish, (begun, x, "host")),
        (ops.reload_start, (held, *like(x, "host"))),
        (ops.reload_finish, (back, held, *like(x, "host"))),
    ]:
        torch.library.opcheck(op.default, arguments, test_utils=checks)
        assert not op.default._schema.is_mutable
        assert torch.Tag.cudagraph_unsafe in op.default.tags and torch.Tag.needs_exact_strides in op.default.tags
    with torch._subclasses.FakeTensorMode():
        y = ops.reload_finish(torch.empty(1, dtype=torch.int64), torch.empty(1, dtype=torch.int64), *like(x, "host"))
        assert y.shape == x.shape and y.stride() == x.stride() and y.device == x.device


def test_held_is_a_small_tensor_of_the_host(settings_json):
    x = torch.randn(1000)
    for tensor in (ops.offload_start(x, "x", "nvme", settings_json), hold(x, "nvme", settings_json)):
        assert tensor.dtype == torch.int64 and tensor.shape == (1,) and tensor.device.type == "cpu"


def test_what_is_no_ticket_is_refused(settings_json):
    x = torch.randn(3)
    held = hold(x, "host", settings_json)
    with pytest.raises(OffloadError, match="no ticket of a Record"):
        bring(torch.tensor([held.item() + 10_000]), x, "host")
    with pytest.raises(OffloadError, match="no ticket of a Offload"):
        ops.offload_finish(held, x, "host")
    copy = held.clone()
    del held
    with pytest.raises(OffloadError, match="not any more"):
        bring(copy, x, "host")
    with pytest.raises(OffloadError, match="there is no tier 'moon'"):
        hold(x, "moon", settings_json)
    for wrong in ("{", '{"colour": 1}', "[]"):
        with pytest.raises(OptionsError):
            hold(x, "host", wrong)


def test_another_layout_is_refused_and_names_the_value(settings_json):
    x = torch.randn(4, 6)
    with pytest.raises(OffloadError, match="value 'x'.*stored as") as caught:
        bring(hold(x, "host", settings_json), x.t(), "host")
    assert caught.value.value == "x" and caught.value.tier == "host"


@pytest.mark.parametrize("tier", TIERS)
def test_retained_graph_brings_it_back_twice(tier, settings_json):
    x = torch.randn(50_000, requires_grad=True)
    y = Cube.apply(x, tier, settings_json).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    assert live()
    (second,) = torch.autograd.grad(y, x)
    assert drained()
    assert torch.equal(first, second) and torch.equal(first, 3 * x.detach() ** 2)


@pytest.mark.parametrize("tier", TIERS)
def test_forward_without_backward_gives_the_slot_back(tier, settings_json):
    y = Cube.apply(torch.randn(50_000, requires_grad=True), tier, settings_json)
    assert live() >= 200_000
    del y
    assert drained()


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("tier", TIERS)
def test_exception_between_forward_and_backward(tier, failure, settings_json):
    def fail():
        raise failure

    def step():
        x = torch.randn(3_000_000, requires_grad=True)
        y = Cube.apply(x, tier, settings_json, "x")
        return Cube.apply(y, tier, settings_json, "y", fail)

    with pytest.raises(failure):
        step()
    assert drained()


@pytest.mark.parametrize("tier", TIERS)
def test_ticket_without_finish_gives_the_copy_up(tier, settings_json):
    x = torch.randn(5_000_000)
    with runtime.sanitized(0.01):
        ops.offload_start(x, "x", tier, settings_json)
    begun = ops.offload_start(x, "x", tier, settings_json)
    del begun
    held = hold(x, tier, settings_json)
    begun = ops.reload_start(held, *like(x, tier))
    del begun
    assert torch.equal(bring(held, x, tier), x)
    del held
    assert drained()


@pytest.mark.parametrize("tier", TIERS)
def test_two_forwards_before_a_backward_on_another_thread(tier, settings_json):
    x, y = (torch.randn(100_000, requires_grad=True) for _ in range(2))
    losses = [Cube.apply(t, tier, settings_json).sum() for t in (x, y)]
    thread = threading.Thread(target=lambda: [loss.backward() for loss in losses])
    thread.start()
    thread.join()
    for t in (x, y):
        assert torch.equal(t.grad, 3 * t.detach() ** 2)
    losses.clear()
    assert drained()


def test_two_models_interleaved_on_threads(settings_json):
    wrong = []

    def train(tier, seed):
        torch.manual_seed(seed)
        for _ in range(15):
            x = torch.randn(200_000 + seed, requires_grad=True)
            Cube.apply(Cube.apply(x, tier, settings_json, "a"), tier, settings_json, "b").sum().backward()
            cube = x.detach() ** 3
            if not torch.equal(x.grad, 3 * x.detach() ** 2 * (3 * cube**2)):
                wrong.append((tier, seed))

    threads = [threading.Thread(target=train, args=(tier, seed)) for seed in (1, 2) for tier in TIERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and drained()


def step(tier, settings_json, layers=4):
    torch.manual_seed(0)
    x = start = torch.randn(5_000, requires_grad=True)  # copies below what OpenMP is started for
    for i in range(layers):
        x = Cube.apply(x, tier, settings_json, f"x{i}") * 0.5 + x
    x.mean().backward()
    return start.grad


@pytest.mark.parametrize("tier", TIERS)
def test_sanitizer_changes_no_bit(tier, settings_json):
    expected = step(tier, settings_json)
    with runtime.sanitized(0.002):
        for _ in range(2):
            assert torch.equal(step(tier, settings_json), expected)


@pytest.mark.parametrize("tier", TIERS)
def test_sanitizer_sees_what_is_read_too_early_or_kept_too_long(tier, settings_json):
    x = torch.ones(1_000_000)
    with runtime.sanitized():
        begun = ops.offload_start(x, "x", tier, settings_json)
        x.fill_(2)  # a graph that reused the buffer before the finish
        held = ops.offload_finish(begun, x, tier)
        assert bring(held, x, tier).unique().tolist() == [2]
        back = ops.reload_start(held, *like(x, tier))
        from memgraph.runtime.records import Reload
        from memgraph.runtime.tickets import content

        assert content(back, Reload).tensor.isnan().all()
        del back, begun


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
def test_200_steps_are_flat(tier, settings_json):
    sizes = set()
    for i in range(200):
        step(tier, settings_json)
        now = runtime.statistics()
        if i:
            sizes.add((now.host_live, now.nvme_live, now.host_pool, now.nvme_file))
    assert len(sizes) == 1


@pytest.mark.parametrize("sanitizing", [False, True])
@pytest.mark.parametrize("tier", TIERS)
def test_loads_of_the_graph_before_begin_within_the_window(tier, sanitizing, tmp_path):
    from memgraph.runtime.records import Record
    from memgraph.runtime.tickets import content

    kib = 1024
    held = {}
    values = {}
    for layer in range(3):
        for name in ("a", "b", "c"):
            values[layer, name] = torch.randn(256 * kib // 4)
            held[layer, name] = hold(values[layer, name], tier, options(tmp_path, window=512 * kib), name)

    def early():
        return [key for key, h in held.items() if content(h, Record).early is not None]

    with runtime.sanitized() if sanitizing else contextlib.nullcontext():
        assert torch.equal(bring(held[2, "c"], values[2, "c"], tier), values[2, "c"])
        assert early() == [(1, "b"), (1, "c")]
        bring(held[2, "b"], values[2, "b"], tier)
        assert early() == [(1, "b"), (1, "c")]
        assert torch.equal(bring(held[1, "c"], values[1, "c"], tier), values[1, "c"])
        assert early() == [(0, "b"), (0, "c"), (1, "b")]
        assert torch.equal(bring(held[1, "b"], values[1, "b"], tier), values[1, "b"])
        assert torch.equal(bring(held[1, "b"], values[1, "b"], tier), values[1, "b"])
    held.clear()
    assert drained()


def test_reservations_add_up_and_go_back(tmp_path):
    settings_json = options(tmp_path)
    runtime.release()
    first = runtime.prepare("cpu", settings_json, host_bytes=1 << 20, nvme_bytes=1 << 20)
    second = runtime.prepare("cpu", settings_json, host_bytes=2 << 20, nvme_bytes=3 << 20)
    now = runtime.statistics("cpu")
    assert now.host_pool == 3 << 20 and now.nvme_file >= 4 << 20
    second.close()
    second.close()
    assert runtime.statistics("cpu").host_pool == 1 << 20
    held = hold(torch.randn(10), "nvme", settings_json)
    del first
    assert runtime.statistics("cpu").host_pool == 0
    assert runtime.statistics("cpu").nvme_live
    del held
    assert drained()
    runtime.release()
    assert runtime.statistics("cpu").nvme_file == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("sanitizing", [False, True])
@pytest.mark.parametrize("tier", TIERS)
def test_cuda_round_trips_under_load(tier, sanitizing, settings_json):
    with runtime.sanitized() if sanitizing else contextlib.nullcontext():
        for _ in range(5):
            values = [torch.randn(4 << 20, device="cuda") for _ in range(4)]
            held = [hold(x, tier, settings_json, f"x{i}") for i, x in enumerate(values)]
            copies = [x.clone() for x in values]
            for x in values:
                x.fill_(0)
            for x, h in zip(reversed(copies), reversed(held), strict=True):
                assert torch.equal(bring(h, x, tier), x)


@pytest.mark.parametrize("tier", TIERS)
def test_a_value_comes_back_to_where_it_was(tier, settings_json):
    """Whatever device the graph says: an operator's fake may name another one than its kernel leaves the value on."""
    x = torch.tensor(7)
    held = ops.offload_finish(ops.offload_start(x, "x", tier, settings_json), x, tier)
    elsewhere = ([], [], x.dtype, torch.device("meta"), tier)
    back = ops.reload_finish(ops.reload_start(held, *elsewhere), held, *elsewhere)
    assert back.device.type == "cpu" and torch.equal(back, x)
