"""What a plan has written to memory.

Products that a sum adds to what comes later: known, kept in their place, hidden from what Inductor looks for.
Labels that a loss compares with every word.
"""

import pytest
import torch
from torch import nn

import memgraph
from memgraph.backend.rewriting import check_split
from memgraph.base.errors import VerifyError
from memgraph.machine.measure import peak_above_start
from memgraph.passes.settle import settle
from memgraph.planner.copies import Copies
from memgraph.planner.decisions import Plan
from memgraph.planner.schedule import make_schedule
from tests.support.graphs import capture_module
from tests.support.harness import Eager, gradients

WIDTH, TOKENS, WORDS = 16, 64, 96


class Tied(nn.Module):
    """An embedding and a head, with one weight or with two, and a layer in between."""

    linear = False

    def __init__(self, tied=True, words=WORDS, width=WIDTH, layers=1):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh()) for _ in range(layers)))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = self.embed if tied else nn.Embedding(words, width)

    def forward(self, ids):
        x = self.embed(ids)
        for up, down in zip(self.layers, self.down, strict=True):
            x = x + down(up(x))
        # Either way the weight's gradient is a product: of the first only once Inductor's own passes have run.
        weight = self.head.weight
        return (
            nn.functional.cross_entropy(nn.functional.linear(x, weight) if self.linear else (weight @ x.t()).t(), ids),
        )


def ids(tokens=TOKENS, words=WORDS):
    return torch.arange(tokens) % words


def early(module):
    return [value.name for value in capture_module(module, (ids(),)).facts.values if value.early]


def test_a_product_whose_sum_waits_for_the_embedding_is_known():
    captured = capture_module(Tied(), (ids(),))
    (name,) = (value.name for value in captured.facts.values if value.early)
    node = next(node for node in captured.joint.graph.nodes if node.name == name)
    assert node.target is torch.ops.aten.mm.default and node.meta["val"].shape == (WORDS, WIDTH)
    assert not early(Tied(tied=False))


def test_inductors_own_choice_computes_it_with_the_sum_and_a_plan_in_its_place():
    facts = capture_module(Tied(), (ids(),)).facts
    (product,) = (i for i, value in enumerate(facts.values) if value.early)
    (total,) = (i for i in facts.backward if product in facts.values[i].inputs)

    def steps(**how):
        schedule = make_schedule(facts, facts.stock_saved, Copies.OF_HELD, **how)
        found = [i for i, _ in schedule.backward_steps if i in facts.backward]
        assert sorted(found) == sorted(facts.backward)
        return found.index(product), found.index(total), schedule.settled()

    at, after, settled = steps(settle=False)
    assert after == at + 1 and not settled
    at, after, settled = steps()
    assert after > at + 1 and settled == ((product, 0),)
    at, after, settled = steps(settle=False, fused=False)  # the FX interpreter makes no addmm
    assert after > at + 1 and not settled


def test_the_pass_hides_it_and_computes_the_same():
    captured = capture_module(Tied(), (ids(),))
    (name,) = (value.name for value in captured.facts.values if value.early)
    hidden = settle(captured.split, Plan((), (), settled=(name,))).graphs
    added = [node for node in hidden.backward.graph.nodes if node.target is torch.ops.aten.detach.default]
    (detach,) = added
    assert detach.args[0].name == name and list(detach.args[0].users) == [detach]
    assert {user.target for user in detach.users} == {torch.ops.aten.add.Tensor}
    check = check_split(captured.before, ())
    check(captured.split, hidden, "settle")
    other = next(node for node in hidden.backward.graph.nodes if node.target is torch.ops.aten.mm.default)
    detach.args = (other if other is not detach.args[0] else detach.args[0].args[0],)
    with pytest.raises(VerifyError):
        check(captured.split, hidden, "settle")


def test_a_plan_settles_it_and_no_bit_changes():
    torch.manual_seed(0)
    module = Tied(layers=3)
    loss = nn.Module()
    loss.inner, loss.forward = module, lambda x: module(x)[0]
    stock = gradients(loss, Eager(), ids())
    backend = Eager(fraction=0.7)
    planned = gradients(loss, backend, ids())
    (found,) = backend.planned
    assert not found.plan.stock and any(name.startswith("mm") for name in found.plan.settled)
    assert all(torch.equal(one, other) for one, other in zip(stock, planned, strict=True))


class Shifted(nn.Module):
    """A head whose loss compares labels, made of the tokens as transformers makes them, with every word."""

    def __init__(self, words):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, words)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, 4096), nn.Tanh(), nn.Linear(4096, WIDTH)) for _ in range(4))
        )

    def forward(self, ids):
        labels = nn.functional.pad(ids, (0, 1), value=-100)[..., 1:].contiguous().view(-1, 1)
        chances = self.head(self.layers(self.embed(ids))).log_softmax(-1).view(ids.numel(), -1)
        return (-torch.where(labels == torch.arange(chances.shape[-1]), chances, 0.0).mean(),)


@pytest.mark.parametrize(("words", "written"), [(1 << 14, {"clone"}), (1 << 12, set())])
def test_labels_that_are_made_anew_are_written_for_many_words(words, written):
    facts = capture_module(Shifted(words), (ids().view(2, -1),)).facts
    schedule = make_schedule(facts, facts.stock_saved, Copies.OF_HELD)
    assert {facts.values[i].name for i, _ in schedule.settled()} == written


def test_written_labels_change_no_bit():
    torch.manual_seed(0)
    module, batch = Shifted(1 << 14), ids().view(2, -1)
    loss = nn.Module()
    loss.inner, loss.forward = module, lambda x: module(x)[0]
    stock = gradients(loss, Eager(), batch)
    backend = Eager(fraction=0.8)
    planned = gradients(loss, backend, batch)
    (found,) = backend.planned
    assert not found.plan.stock and "clone" in found.plan.settled
    assert all(torch.equal(one, other) for one, other in zip(stock, planned, strict=True))


@pytest.mark.inductor
@pytest.mark.slow
def test_the_smallest_budget_that_is_predicted_is_kept():
    """With an addmm at the end of the backward the gradient of the logits, 3 MiB, would stand beside all of it."""
    torch.manual_seed(0)
    module, batch = Tied(words=1024, width=64, layers=4), ids(768, 1024)
    module.linear = True
    found = memgraph.frontier(lambda x: module(x)[0], batch, points=2)
    budget = int(1.05 * found.smallest)
    assert budget < found.smallest + 1024 * 768 * 4
    compiled = torch.compile(module, backend="memgraph", options={"budget": budget, "cache": False})
    compiled(batch)[0].backward()
    module.zero_grad(set_to_none=True)
    baseline = memgraph.report().baseline
    assert baseline + peak_above_start(lambda: compiled(batch)[0].backward()) <= budget
