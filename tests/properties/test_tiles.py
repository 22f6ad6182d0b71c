"""Random programs of which each token minds its own: any number of shards computes the same; and of mixed ones less."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch.nn import functional as F

from memgraph.base import compat
from memgraph.facts.operators import short_name
from memgraph.facts.regions import module_path
from memgraph.facts.tokens.states import MixesTokens
from memgraph.verify.rewrite import snapshot
from tests.support.graphs import capture_module
from tests.support.lanes import examples
from tests.support.tiles import Joint

SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
WIDTH, MOST = 4, 64  # features of the input, and the most that a value may have


@dataclasses.dataclass(frozen=True)
class Program:
    """A chain of operations over (batch, length, features).  mix: one that mixes tokens, and after which of them."""

    ops: tuple[str, ...]
    batch: int
    length: int
    scalar: bool
    mix: tuple[str, int] | None = None

    def module(self) -> Chain:
        torch.manual_seed(0)
        return Chain(self).to(torch.float64)

    def inputs(self) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(1)
        shape = (self.batch, self.length)
        x = torch.randn(*shape, WIDTH, dtype=torch.float64, generator=draw).requires_grad_()
        return x, torch.randn(*shape, 1, dtype=torch.float64, generator=draw)


class Step(nn.Module):
    """One operation, with the weights that it may need.  width: of what it is given."""

    def __init__(self, program: Program, name: str, width: int) -> None:
        super().__init__()
        self.name, self.width, self.batch, self.length = name, width, program.batch, program.length
        self.wider, self.back = nn.Linear(width, 4 * width), nn.Linear(width, WIDTH, bias=False)
        self.norm, self.scale = nn.LayerNorm(width, bias=False), nn.Parameter(torch.randn(width))
        nn.init.normal_(self.norm.weight)  # all the same, it would make of a sum of features a constant
        self.mixing = nn.Parameter(torch.randn(program.length, program.length))
        self.register_buffer("places", torch.randperm(width))

    def forward(self, h: Tensor, scores: Tensor, before: Tensor) -> Tensor:
        return (TOKENWISE | MIXING)[self.name](self, h, scores, before)


class Chain(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.scalar, width, steps, self.fits = program.scalar, WIDTH, [], []
        widths = {"back": WIDTH}
        for n, name in enumerate(program.ops):
            if name in ("wider", "join") and 4 * width > MOST or name in ("half", "gate", "heads") and width < 4:
                name = "tanh"
            steps.append(Step(program, name, width))
            width = int(width * FACTORS.get(name, 1)) if name not in widths else widths[name]
            if program.mix and program.mix[1] % len(program.ops) == n:
                steps.append(Step(program, program.mix[0], width))
        self.steps = nn.ModuleList(steps)

    def forward(self, x: Tensor, scores: Tensor) -> tuple[Tensor]:
        h, last = x, {WIDTH: x}
        for step in self.steps:
            h = step(h, scores, last.get(step.width, h))
            last[step.width] = h if step.name not in FACTORS else last.get(step.width, h)
        return (h.logsumexp(-1).sum() if self.scalar else h,)


def _heads(m: Step, h: Tensor, scores: Tensor, before: Tensor) -> Tensor:
    parts = h.view(m.batch, m.length, 2, m.width // 2).permute(0, 2, 1, 3)
    return parts.softmax(-1).permute(0, 2, 1, 3).reshape(m.batch, m.length, m.width)


def _rows(m: Step, h: Tensor, scores: Tensor, before: Tensor) -> Tensor:
    return h.reshape(m.batch * m.length, m.width).sin().view(m.batch, m.length, m.width)


def _gate(m: Step, h: Tensor, scores: Tensor, before: Tensor) -> Tensor:
    left, right = h.split(m.width // 2, -1)
    return left * right.sigmoid()


def _sum(m: Step, h: Tensor, scores: Tensor, before: Tensor) -> Tensor:
    return h * h.sum(-1, keepdim=True).tanh().expand(m.batch, m.length, m.width)


# What a token does by itself.
FACTORS = {"wider": 4, "join": 2, "half": 0.5, "gate": 0.5, "back": 0}
TOKENWISE: dict[str, Callable[[Step, Tensor, Tensor, Tensor], Tensor]] = {
    "wider": lambda m, h, s, before: m.wider(h),
    "back": lambda m, h, s, before: m.back(h),
    "tanh": lambda m, h, s, before: h.tanh(),
    "relu": lambda m, h, s, before: h.relu(),
    "gelu": lambda m, h, s, before: F.gelu(h),
    "residual": lambda m, h, s, before: h + before,
    "norm": lambda m, h, s, before: m.norm(h),
    "softmax": lambda m, h, s, before: h.softmax(-1),
    "join": lambda m, h, s, before: torch.cat([h, h.sin()], -1),
    "half": lambda m, h, s, before: h[..., : m.width // 2] * 2,
    "gate": _gate,
    "gather": lambda m, h, s, before: h.gather(-1, m.places.expand(m.batch, m.length, m.width)),
    "heads": _heads,
    "rows": _rows,
    "sum": _sum,
    "by token": lambda m, h, s, before: h * s,
    "by feature": lambda m, h, s, before: h * m.scale,
}
# What needs other tokens, and the operators that do; a product may still be split by the rows of its other factor.
MIXING: dict[str, Callable[[Step, Tensor, Tensor, Tensor], Tensor]] = {
    "cumsum": lambda m, h, s, before: h.cumsum(1),
    "softmax of tokens": lambda m, h, s, before: h.softmax(1),
    "roll": lambda m, h, s, before: h.roll(1, 1),
    "product": lambda m, h, s, before: m.mixing @ h,
    "mean": lambda m, h, s, before: h - h.mean(1, keepdim=True),
    "mean of all": lambda m, h, s, before: h - h.mean((0, 1)),
}
MIXERS = frozenset(("cumsum", "amax", "index", "mean"))


def programs(mixing: bool = False) -> st.SearchStrategy[Program]:
    """Programs in which something is wide."""
    ops = st.lists(st.sampled_from(tuple(TOKENWISE)), min_size=1, max_size=8).map(lambda ops: ("wider", *ops))
    mix = st.tuples(st.sampled_from(tuple(MIXING)), st.integers(0, 8)) if mixing else st.none()
    length = st.integers(2 if mixing else 1, 7)
    return st.builds(Program, ops=ops, batch=st.integers(1, 3), length=length, scalar=st.booleans(), mix=mix)


def joint_of(program: Program) -> Joint:
    """The joint graph of a program after Inductor's passes."""
    captured = capture_module(program.module(), program.inputs())
    graph = snapshot(captured.before)
    fakes = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    with V.set_fake_mode(compat.fake_mode_of(fakes)):
        joint_graph_passes(graph)
    return Joint(graph, (*captured.primals, *captured.tangents))


def check(joint: Joint, shards: int) -> None:
    """All regions in shards compute the same; one that does not come out as it was, each of the others."""
    event(f"regions: {len(joint.regions)}")
    for regions in (joint.regions, *([region] for region in joint.regions)):
        try:
            assert joint.error(shards, list(regions), floor=1.0) < 1e-10
            if regions is joint.regions:
                return
        except MixesTokens as problem:  # a part of a wide value leaves with the strides of the whole
            assert "comes out with strides" in problem.reason


@settings(SETTINGS, max_examples=examples(80))
@given(programs(), st.integers(2, 9))
def test_any_number_of_shards_computes_the_same(program, shards):
    joint = joint_of(program)
    assert not joint.refused
    check(joint, shards)


@settings(SETTINGS, max_examples=examples(60))
@given(programs(mixing=True), st.integers(2, 9))
def test_what_mixes_tokens_is_in_no_region(program, shards):
    joint = joint_of(program)
    check(joint, shards)
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    mixing = {f"steps.{n}" for n, step in enumerate(program.module().steps) if step.name in MIXING}
    for name in {name for region in joint.regions for name in region.forward}:
        inside = module_path(nodes[name].meta.get("nn_module_stack")) in mixing
        assert not (inside and short_name(nodes[name].target) in MIXERS)
