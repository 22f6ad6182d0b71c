"""Parts of a gradient of what was joined: known, written by themselves, and freed by themselves."""

import pytest
import torch
from torch import nn

import memgraph
from memgraph.backend.rewriting import check_split
from memgraph.base.errors import VerifyError
from memgraph.facts.parts import parts_of_gradients, whole_of
from memgraph.facts.views import is_view
from memgraph.passes.kernel_ends import kernel_ends
from memgraph.passes.settle import settle
from memgraph.planner.candidates import Candidates
from memgraph.planner.decisions import KernelEnd, Plan
from tests.support.graphs import capture_module
from tests.support.harness import Eager, gradients
from tests.support.models.unet import GROUPS, Block, UNet

aten = torch.ops.aten
END = torch.ops.memgraph.kernel_end.default
SIDE = 16


class Loss(nn.Module):
    """A U-Net of a few channels; both levels join what comes from below and what waited."""

    def __init__(self, width: int = 8, levels: int = 2) -> None:
        super().__init__()
        self.net = UNet(width, levels)

    def forward(self, image, noise):
        return (self.net(image, noise),)


def images(side=SIDE, batch=2):
    return torch.randn(batch, 4, side, side), torch.randn(batch, 4, side, side)


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    return capture_module(Loss(), images())


def parts_of(captured):
    return tuple(value.name for value in captured.facts.values if value.part)


def calls(graph, target):
    return graph.find_nodes(op="call_function", target=target)


def test_the_parts_of_each_join_are_known(captured):
    joins = [node for node in calls(captured.forward.graph, aten.cat.default) if node.meta["val"].dim() == 4]
    values = {value.name: value for value in captured.facts.values}
    nodes = {node.name: node for node in captured.joint.graph.nodes}
    found = parts_of(captured)
    assert len(joins) == 6 and len(found) == 2 * len(joins)
    for name in found:
        shown = nodes[name].meta["val"]
        assert nodes[name].target is aten.slice.Tensor and values[name].part == shown.numel() * shown.element_size()
    assert not any(value.part for value in captured.facts.interpreted.values)


def joined(read):
    """The widths of the parts in the backward of what `read` makes of two products and a parameter."""

    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.skip = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.free = nn.Parameter(torch.randn(4, 8))

        def forward(self, x):
            return (read(self.below(x), self.skip(x), self.free),)

    captured = capture_module(Joined(), (torch.randn(4, 8),))
    return {node.meta["val"].shape[-1] for node in parts_of_gradients(captured.backward.graph.nodes)}


def test_what_is_no_part_of_a_gradient_is_left():
    def joins(*parts):
        return torch.cat(parts, 1).square().sum()

    assert joined(lambda y, skip, free: joins(y, skip)) == {8}
    assert joined(lambda y, skip, free: joins(y, skip, skip)) == {8}  # two are added, the other is multiplied
    assert joined(lambda y, skip, free: joins(y, free.sin())) == {8}
    assert joined(lambda y, skip, free: joins(y, free)) == set()  # one is returned: it is a gradient
    assert joined(lambda y, skip, free: joins(y[:, :4], y[:, 4:])) == set()  # put together again at once
    assert joined(lambda y, skip, free: (y + skip).square().sum()) == set()
    assert joined(lambda y, skip, free: torch.cat([y, skip], 1).sum()) == set()  # one number, seen in a larger size


def test_each_is_written_from_a_whole_of_its_own_and_no_bit_changes(captured):
    plan = Plan((), (), settled=parts_of(captured))
    written = settle(captured.split, plan).graphs
    found = calls(written.backward.graph, torch.ops.memgraph.part.default)
    assert sorted(part.args[0].name for part in found) == sorted(plan.settled)
    for part in found:
        (shown,) = part.all_input_nodes
        assert list(shown.users) == [part] and part.users
        whole = shown.args[0]
        assert list(whole.users) == [shown]
        while is_view(whole):
            (whole,) = whole.all_input_nodes
        assert whole_of(whole) is shown.args[0]
    check_split(captured.before, ())(captured.split, written, "settle")
    stock = captured.run(captured.forward, captured.backward)
    ours = captured.run(written.forward, written.backward)
    assert all(torch.equal(one, other) for one, other in zip(stock, ours, strict=True) if one is not None)


def test_a_whole_that_is_written_itself_is_not_computed_twice(captured):
    some = parts_of(captured)[:2]
    slices = {node.name: node for node in captured.backward.graph.nodes if node.name in some}
    whole = slices[some[0]].args[0]
    while is_view(whole):
        (whole,) = whole.all_input_nodes
    count = len(calls(captured.backward.graph, whole.target))
    split = captured.split
    alone = settle(split, Plan((), (), settled=some)).graphs.backward.graph
    assert len(calls(alone, whole.target)) == count + 1
    behind = (KernelEnd("backward", some[0], (whole.name,)),)
    plan = Plan((), (), settled=(*some, whole.name), kernel_ends=behind)
    written = kernel_ends(settle(split, plan).graphs, plan).graphs
    graph = written.backward.graph
    assert len(calls(graph, whole.target)) == count
    (end,) = calls(graph, END)
    assert [node.name for node in end.args[0]] == [whole.name]
    assert all(end < part for part in calls(graph, torch.ops.memgraph.part.default))
    check_split(captured.before, ())(split, written, "kernel_ends")
    stock, ours = captured.run(split.forward, split.backward), captured.run(written.forward, written.backward)
    assert all(torch.equal(one, other) for one, other in zip(stock, ours, strict=True) if one is not None)


def test_a_part_that_shows_something_else_is_caught(captured):
    some = parts_of(captured)[:2]
    written = settle(captured.split, Plan((), (), settled=some)).graphs
    one, other = calls(written.backward.graph, torch.ops.memgraph.part.default)
    assert one.meta["val"].shape == other.meta["val"].shape
    one.args = other.args
    with pytest.raises(VerifyError):
        check_split(captured.before, ())(captured.split, written, "settle")


def test_kernels_end_at_the_part_and_not_at_the_whole(captured):
    name, *_ = parts_of(captured)
    written = settle(captured.split, Plan((), (), settled=(name,))).graphs
    (part,) = calls(written.backward.graph, torch.ops.memgraph.part.default)
    before = next(node.name for node in part.users if node.op == "call_function")
    plan = Plan((), (), settled=(name,), kernel_ends=(KernelEnd("backward", before, (name,)),))
    ended = kernel_ends(written, plan).graphs.backward.graph
    (end,) = calls(ended, END)
    (given,) = end.args[0]
    assert given.target is torch.ops.memgraph.part.default


def test_what_waits_is_its_own_part(captured):
    facts = captured.facts
    ours = Candidates(facts).of(facts.stock_saved)
    program, sweep = ours.schedule.backward, ours.backward
    held = {slot: facts.values[value] for slot, value in enumerate(program.values)}
    parts = {slot for slot in program.settled if held[slot].part}
    assert len(parts) == len(parts_of(captured)) and ours != Candidates(facts).stock
    for slot in parts:
        assert sweep.storage_of[slot] == slot and sweep.bytes[slot] == held[slot].part
        (whole,) = program.reads[slot]
        assert sweep.storage_of[whole] not in sweep.births  # inlined
    plain = Candidates(facts, fused=False).of(facts.stock_saved).schedule.backward
    assert not {plain.values[slot] for slot in plain.settled} & {program.values[slot] for slot in parts}


def test_a_planned_step_changes_no_bit():
    torch.manual_seed(0)
    module, batch = Loss(), images()
    loss = nn.Module()
    loss.inner, loss.forward = module, lambda *given: module(*given)[0]
    stock = gradients(loss, Eager(), *batch)
    backend = Eager(fraction=0.6)
    planned = gradients(loss, backend, *batch)
    (found,) = backend.planned
    assert not found.plan.stock and any(name.startswith("slice") for name in found.plan.settled)
    assert all(torch.equal(one, other) for one, other in zip(stock, planned, strict=True))


class Joined(nn.Module):
    """One join, as on the way up of a U-Net: the block that reads it adds a convolution of it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.start, self.below = nn.Conv2d(4, width, 3, padding=1), Block(width, width)
        self.up = Block(2 * width, width)
        self.end = nn.Sequential(nn.GroupNorm(GROUPS, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, image):
        x = self.start(image)
        return self.end(self.up(torch.cat([self.below(x), x], dim=1))).square().mean()


@pytest.mark.inductor
@pytest.mark.slow
@pytest.mark.parametrize("share", [0.75, 0.65])
def test_inductor_frees_them_one_by_one(share):
    torch.manual_seed(0)
    module, image = Joined(), torch.randn(1, 4, 64, 64)
    options = {"budget": share, "cache": False, "offload": False, "tile": False}
    swept = memgraph.plan(module, image, options=options)
    torch.compile(module, backend="memgraph", options=options)(image).backward()
    read = memgraph.report()
    assert read.source_of_peak == "inductor wrapper" and read.attempts == 1
    planned, lowered = swept.predicted_peak - swept.baseline, read.predicted_peak - read.baseline
    # 2.11's kernel of the first convolution in a backward takes more scratch, which the sweep does not know (0002).
    least = 0.95 if torch.__version__ < (2, 13) else 0.98
    assert least * lowered <= planned <= 1.02 * lowered
