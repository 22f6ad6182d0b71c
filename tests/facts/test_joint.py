"""What the joint graph says in numbers: regions, operators, storages, costs."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn

from memgraph.facts import costs, regions
from memgraph.facts.liveness import sweep
from memgraph.facts.operators import draws, family
from memgraph.machine.hardware import built_in
from memgraph.planner.schedule import forward_program
from tests.support.graphs import HARDWARE, capture_module, why_fixed

aten, prims = torch.ops.aten, torch.ops.prims


# --- regions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelled, path",
    [
        ("L['self'].model.layers.3.mlp", "model.layers.3.mlp"),
        ("L['self'].layers[3].mlp", "layers.3.mlp"),
        ("L['self']._modules['layers']._modules['3'].mlp", "layers.3.mlp"),
        ("L['self'].__dict__['_modules']['layers'].slice(0, 2)[1]", "layers.1"),
        ("G['net'].head", "head"),
        ("L['self']", ""),
    ],
)
def test_module_paths_are_cleaned_of_dynamos_spelling(spelled, path):
    assert regions.module_path({"outer": ("L['self']", nn.Module), "inner": (spelled, nn.Module)}) == path


def test_no_stack_no_path():
    assert regions.module_path(None) == regions.module_path({}) == ""


@pytest.mark.parametrize(
    "path, element",
    [
        ("model.layers.3.mlp.up_proj", "model.layers.3"),
        ("layers.3.experts.7.up", "layers.3"),
        ("layers.12", "layers.12"),
        ("model.norm", ""),
        ("layer3.mlp", ""),
        ("", ""),
    ],
)
def test_element_of(path, element):
    assert regions.element_of(path) == element


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).tanh()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return (self.blocks(x).sum(),)


def traced(*nodes_with_paths: tuple[str, tuple[int, ...]]) -> tuple[list[fx.Node], list[str]]:
    """A chain of tanh nodes, each with a module path and a shape."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    nodes = []
    for _, shape in nodes_with_paths:
        node = graph.call_function(aten.tanh.default, (node,))
        node.meta["val"] = torch.empty(shape, device="meta")
        nodes.append(node)
    return nodes, [path for path, _ in nodes_with_paths]


def test_elements_and_stretches_between_them():
    nodes, paths = traced(
        *[(path, (2,)) for path in ("embed", "h.0.mlp", "", "h.0.attn", "h.1.mlp", "norm", "head", "")]
    )
    assigned, found = regions.forward_regions(nodes, paths)
    names = [region.name for region in found]
    assert names == ["between 1", "h.0", "h.1", "between 2"]
    assert assigned == [0, 1, 1, 1, 2, 3, 3, 3]


def test_a_module_that_runs_twice_has_a_region_for_each_run():
    nodes, paths = traced(*[(path, (2,)) for path in ("h.0", "h.1", "h.0", "", "h.1", "norm", "h.0")])
    assigned, found = regions.forward_regions(nodes, paths)
    names = [region.name for region in found]
    assert names == ["h.0", "h.1", "h.0", "h.1", "between 1", "h.0"]
    assert assigned == [0, 1, 2, 2, 3, 4, 5]


def test_names_of_modules_may_be_anything():
    nodes, paths = traced(*[(path, (2,)) for path in ("between.0", "norm", "a,b.1", "", "head")])
    assigned, found = regions.forward_regions(nodes, paths)
    assert [region.element for region in found] == ["between.0", "", "a,b.1", ""]
    assert assigned == [0, 1, 2, 2, 3]


def test_without_modules_the_forward_is_cut_into_even_parts():
    nodes, paths = traced(*[("", (2,))] * 144)
    assigned, found = regions.forward_regions(nodes, paths)
    names = [region.name for region in found]
    assert assigned == sorted(assigned) and len(names) == assigned[-1] + 1 == 24
    assert {assigned.count(region) for region in set(assigned)} == {6}


def test_a_long_run_is_cut_where_the_fewest_bytes_cross():
    """Cells of eight operators, of which one is small: a region ends with each."""
    nodes, paths = traced(*[("cell", (2,) if n % 8 == 5 else (64,)) for n in range(8 * 12)])
    nodes, paths = nodes[:-4], paths[:-4]
    assigned, found = regions.forward_regions(nodes, paths)
    names = [region.name for region in found]
    last = [n for n in range(len(nodes) - 1) if assigned[n] != assigned[n + 1]]
    assert set(range(5, len(nodes) - 1, 8)) <= set(last)
    assert names[:2] == ["between 1, part 1", "between 1, part 2"]


def test_gradients_that_need_no_tangent_are_in_the_region_of_their_operator():
    """1 - tanh(x)^2 stands at the end of the forward, and the backward of its own block reads it."""
    facts = capture_module(Net(), (torch.ones(2, 4, requires_grad=True),)).facts
    ours = set(facts.forward)
    read = {i for b in facts.backward for i in facts.values[b].inputs if i in ours}
    slopes = [facts.values[i] for i in sorted(read) if facts.values[i].name.startswith("sub")]
    assert sorted(facts.region_names[value.region] for value in slopes) == ["blocks.0", "blocks.1"]


class Often(nn.Module):
    """One weight, read `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.weight, self.times = nn.Parameter(torch.ones(4, 4)), times

    def forward(self, x):
        for _ in range(self.times):
            x = (x @ self.weight).sin()
        return (x.sum(),)


@pytest.mark.parametrize("times, sums", [(2, 0), (3, 0), (4, 3), (6, 5)])
def test_sums_of_a_gradient_are_known_from_three_on(times, sums):
    facts = capture_module(Often(times), (torch.ones(2, 4, requires_grad=True),)).facts
    found = [value for value in facts.values if value.accumulates]
    assert len(found) == sums
    assert all(value.kind == "pointwise" and value.bytes == 64 for value in found)


def test_a_backward_node_has_the_region_of_what_it_differentiates():
    captured = capture_module(Net(), (torch.ones(2, 4, requires_grad=True),))
    facts = captured.facts
    products = [facts.values[i] for i in facts.backward if ".mm." in _target(captured, facts.values[i].name)]
    assert [facts.region_names[value.region] for value in products] == ["blocks.1"] * 2 + ["blocks.0"] * 2


def _target(captured, name: str) -> str:
    return str(next(node.target for node in captured.joint.graph.nodes if node.name == name))


# --- operators ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target, expected",
    [
        (aten.view.default, "view"),
        (aten.permute.default, "view"),
        (aten.expand.default, "view"),
        (aten.slice.Tensor, "view"),
        (aten.split.Tensor, "view"),
        (aten.unbind.int, "view"),
        (aten.detach.default, "view"),
        (aten.alias.default, "view"),
        (aten._unsafe_view.default, "view"),
        (aten.add.Tensor, "pointwise"),
        (aten.gelu.default, "pointwise"),
        (aten.where.self, "pointwise"),
        (aten.clone.default, "pointwise"),
        (aten.embedding.default, "pointwise"),
        (prims.convert_element_type.default, "pointwise"),
        (prims.fma.default, "pointwise"),
        (aten.sum.dim_IntList, "reduction"),
        (aten._softmax.default, "reduction"),
        (aten.var_mean.correction, "reduction"),
        (aten.index_put.default, "reduction"),
        (aten.mm.default, "extern"),
        (aten.addmm.default, "extern"),
        (aten.convolution.default, "extern"),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, "extern"),
        (operator.getitem, "getitem"),
        (operator.mul, "symbol"),
        (aten.sym_size.int, "symbol"),
    ],
)
def test_family(target, expected):
    assert family(target) == expected


@pytest.mark.parametrize(
    "target, args, drawing, reason",
    [
        (aten.rand.default, ([2],), True, "draws random numbers"),
        (aten.bernoulli.p, (None, 0.5), True, "draws random numbers"),
        (aten.native_dropout.default, (None, 0.5, True), True, "draws random numbers"),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (None, None, None), False, ""),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (None, None, None, 0.1), True, "draws"),
        (aten.copy_.default, (None, None), False, "mutates its arguments"),
        (aten.nonzero.default, (None,), False, "size depends on data"),
        (aten.mm.default, (None, None), False, ""),
        (operator.getitem, (None, 0), False, ""),
    ],
)
def test_what_must_not_run_twice(target, args, drawing, reason):
    node = fx.Graph().call_function(target, args)
    assert draws(node) is drawing
    assert reason in why_fixed(node) and bool(reason) == bool(why_fixed(node))


# --- storages -------------------------------------------------------------------------------------------


class Views(nn.Module):
    def forward(self, x, w):
        y = x @ w
        left, right = y.transpose(0, 1).chunk(2)
        mean = torch.native_layer_norm(right.tanh(), (4,), None, None, 1e-5)
        return left.exp().sum() + mean[0].sum() + y.unsqueeze(0).sin().sum(), x.t()


def test_views_share_and_tuples_own():
    inputs = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)
    captured = capture_module(Views(), inputs, decompose=False)
    values = captured.facts.values
    at = {value.name: i for i, value in enumerate(values)}
    for name in ("transpose", "split", "getitem", "getitem_1", "unsqueeze"):
        assert values[at[name]].storage == at["mm"] and values[at[name]].bytes == 0, name
    assert values[at["mm"]].bytes == 64
    layer_norm = values[at["native_layer_norm"]]
    assert layer_norm.kind == "tuple" and not layer_norm.savable
    assert layer_norm.bytes == 2 * 16 + 2 * 8  # the normal [2, 4], a mean and a deviation for each row
    assert values[at["getitem_2"]].storage == at["getitem_2"] and values[at["getitem_2"]].bytes == 32


def test_all_outputs_of_an_operator_are_born_with_it():
    inputs = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)
    facts = capture_module(Views(), inputs, decompose=False).facts
    program = forward_program(facts, ())
    swept = sweep(facts.values, program, fused=False)
    slot = {facts.values[value].name: slot for slot, value in enumerate(program.values)}
    made, taken = slot["native_layer_norm"], slot["getitem_2"]
    assert swept.births[taken] == made
    assert swept.bytes[made] == 16 and swept.deaths[made] == made  # mean and deviation, which nothing reads
    assert swept.usage[made] - swept.usage[taken] >= 16


def test_an_input_that_the_forward_overwrites_is_read_once():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.ones(()))

        def forward(self, x):
            scaled = x * self.count.exp()
            self.count.add_(1.0)
            return (scaled.sum(),)

    facts = capture_module(Counts(), (torch.ones(2, requires_grad=True),)).facts
    fixed = {value.name: value.fixed.text for value in facts.values if value.fixed}
    assert fixed["exp"] == "reads an input that the forward overwrites"
    assert fixed["copy_"] == "mutates its arguments"
    assert "mul" not in fixed


# --- costs ----------------------------------------------------------------------------------------------


def call(target, *shapes: tuple[int, ...], output: tuple[int, ...]) -> fx.Node:
    graph = fx.Graph()
    inputs = []
    for n, shape in enumerate(shapes):
        inputs.append(graph.placeholder(f"x{n}"))
        inputs[-1].meta["val"] = torch.empty(shape, device="meta")
    node = graph.call_function(target, tuple(inputs))
    node.meta["val"] = torch.empty(output, device="meta")
    return node


def test_flops():
    assert costs.flops(call(aten.mm.default, (3, 5), (5, 7), output=(3, 7))) == 2 * 3 * 5 * 7
    assert costs.flops(call(aten.bmm.default, (2, 3, 5), (2, 5, 7), output=(2, 3, 7))) == 2 * 2 * 3 * 5 * 7
    assert costs.flops(call(aten.add.Tensor, (3,), (3,), output=(3,))) == 0
    heads = (2, 4, 16, 8)
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert costs.flops(call(flash, heads, heads, heads, output=heads)) == 2 * 2 * (2 * 4 * 16 * 16 * 8)
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert costs.flops(call(back, *[heads] * 4, output=heads)) == 5 * 2 * (2 * 4 * 16 * 16 * 8)


def test_seconds():
    product = call(aten.mm.default, (100, 100), (100, 100), output=(100, 100))
    assert costs.seconds(product, HARDWARE) == pytest.approx(2e6 / 1e9 + 1e-6)
    assert costs.seconds(call(aten.view.default, (4,), output=(2, 2)), HARDWARE) == 0
    plain = costs.seconds(call(aten.add.Tensor, (250,), (250,), output=(250,)), HARDWARE)
    assert plain == pytest.approx(1000 / 1e9)
    exp = costs.seconds(call(aten.exp.default, (250,), output=(250,)), HARDWARE)
    assert exp == pytest.approx(plain + 250 / 1e8)
    total = costs.seconds(call(aten.sum.default, (250,), output=()), HARDWARE)
    assert total == pytest.approx(1004 / 1e9)


@pytest.mark.parametrize("device, dtype", [("cpu", "float32"), ("cuda", "bfloat16")])
def test_a_product_of_shards_takes_the_time_of_its_factors(device, dtype):
    """Summed up in float32 they are on both, but only the CPU converts the factors first."""
    size = 1 << 14
    node = call(torch.ops.memgraph.shard_add.default, (size, size), (size, size), (size, size), output=(size, size))
    for factor in node.args[1:]:
        factor.meta["val"] = factor.meta["val"].to(torch.bfloat16)
    hardware = built_in(device)
    want = 2 * size**3 / hardware.rate(dtype) + hardware.kernel_overhead
    assert costs.seconds(node, hardware) == pytest.approx(want)


def test_storage_span():
    assert costs.storage_span(torch.empty(2, 3)) == 24
    assert costs.storage_span(torch.empty(4, 4)[:2, :2]) == 4 * (4 + 1 + 1)
    assert costs.storage_span(torch.empty(1).expand(8)) == 4
    assert costs.storage_span(torch.empty(0, 3)) == 0
    assert costs.storage_span(torch.empty((), dtype=torch.bfloat16)) == 2
