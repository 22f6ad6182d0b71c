"""verify.py passes what is legal, and names each way in which a graph can be broken (DESIGN section 7)."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

import pytest
import torch
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memgraph.errors import VerifyError
from memgraph.verify import snapshot, verify_graph, verify_partition

aten = torch.ops.aten


# --- graphs to verify -----------------------------------------------------------------------------------


@dataclass
class Split:
    joint: fx.GraphModule
    forward: fx.GraphModule
    backward: fx.GraphModule
    count: int

    def copy(self) -> Split:
        return Split(self.joint, snapshot(self.forward), snapshot(self.backward), self.count)

    def verify(self) -> None:
        verify_partition(self.joint, self.forward, self.backward, num_fwd_outputs=self.count, pass_name="the pass")


def _split(joint: fx.GraphModule, inputs, *, num_fwd_outputs: int, **rest) -> Split:
    pristine = snapshot(joint)
    parts = min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest)
    return Split(pristine, *parts, num_fwd_outputs)


def _boxed(graph: fx.GraphModule, inputs):
    def run(inputs):
        return graph(*inputs)

    run._boxed_call = True
    return run


def capture(module, *args, dynamic: bool = False) -> Split:
    """The joint graph of AOTAutograd, without a decomposition, and the stock partition of it."""
    splits = []

    def partition(joint, inputs, **rest):
        splits.append(_split(joint, inputs, **rest))
        return splits[-1].forward, splits[-1].backward

    def backend(graph, inputs):
        return aot_module_simplified(
            graph,
            inputs,
            fw_compiler=_boxed,
            bw_compiler=_boxed,
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )

    torch._dynamo.reset()
    torch.compile(module, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
    return splits[-1]


class _Captured(Exception):
    pass


def capture_inductor(module, *args) -> Split:
    """The joint graph after Inductor's own passes: dropout is a function of a tensor of seeds."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    splits = []

    class Partitioner(CustomPartitionerFn):
        def __call__(self, joint, inputs, **rest):
            splits.append(_split(joint, inputs, **rest))
            raise _Captured

        def uuid(self):
            return None

    def backend(graph, inputs):
        return compile_fx(graph, inputs, config_patches={"custom_partitioner_fn": Partitioner()})

    torch._dynamo.reset()
    with pytest.raises(Exception, match="_Captured"):
        torch.compile(module, backend=backend, fullgraph=True)(*args)
    torch._dynamo.reset()
    return splits[-1]


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = F.dropout(torch.tanh(self.up(x)), 0.5)
        return F.dropout(torch.tanh(self.down(x)), 0.5)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).sum()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)

    def forward(self, ids):
        return F.cross_entropy((self.embed(ids) @ self.embed.weight.t()).view(-1, 10), ids.view(-1))


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        y = torch.tanh(x @ self.weight)
        return y.sum(), self.weight.view(64), y * 0.5


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(self.norm(x)).relu_().sum()


class Buffers(nn.Module):
    def __init__(self, reads: bool = False):
        super().__init__()
        self.linear, self.reads = nn.Linear(8, 8), reads
        self.register_buffer("steps", torch.ones(8))
        self.register_buffer("total", torch.ones(8))

    def forward(self, x):
        y = self.linear(x)
        if self.reads:
            y = y * (self.steps * 2)
        self.steps.add_(1)
        self.total.add_(y.detach().sum(0))
        return y.sin().sum()


class Checkpointed(Mlp):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False).sum()


class InPlaceInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x).clone()
        x.mul_(2).add_(1)
        x[:, :2] = 0
        return x.exp().sum()


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return (self.linear(x) * torch.tensor([1.0, 2.0] * 4)).exp().sum()


X = torch.randn(4, 8)
MODULES = {
    "mlp": (Mlp, X),
    "attention": (Attention, torch.randn(2, 4, 8)),
    "tied": (Tied, torch.randint(10, (2, 4))),
    "views": (Views, X),
    "norm": (Norm, X),
    "buffers": (Buffers, X),
    "checkpointed": (Checkpointed, X),
    "in-place": (InPlaceInput, X),
    "constant": (Constant, X),
}
_splits: dict[str, Split] = {}


def split_of(name: str) -> Split:
    """A fresh copy; names that end in `@inductor` and `@dynamic` are captured that way."""
    if name not in _splits:
        module, _, how = name.partition("@")
        make, x = MODULES[module]
        args = make(), x
        if how == "inductor":
            _splits[name] = capture_inductor(*args)
        else:
            _splits[name] = capture(*args, dynamic=how == "dynamic")
    return _splits[name].copy()


LEGAL = [*MODULES, "mlp@inductor", "attention@inductor", "norm@inductor", "views@inductor"]
LEGAL += ["mlp@dynamic", "attention@dynamic", "tied@dynamic"]


@pytest.mark.parametrize("name", LEGAL)
def test_the_stock_partition_is_legal(name):
    split_of(name).verify()


@pytest.mark.parametrize("name", LEGAL)
def test_a_copy_is_legal(name):
    split = split_of(name)
    for graph in (split.joint, split.forward, split.backward):
        verify_graph(graph, snapshot(graph), pass_name="copy")


def test_inductor_draws_seeds():
    assert any("inductor_seeds" in str(node.target) for node in split_of("mlp@inductor").joint.graph.nodes)


# --- legal rewrites -------------------------------------------------------------------------------------


def calls(graph: fx.GraphModule, target=None) -> list[fx.Node]:
    return [
        node
        for node in graph.graph.nodes
        if node.op == "call_function" and (target is None or str(node.target).startswith(target))
    ]


def output(graph: fx.GraphModule) -> fx.Node:
    return next(iter(graph.graph.find_nodes(op="output")))


def set_outputs(graph: fx.GraphModule, outputs) -> None:
    output(graph).args = (tuple(outputs),)


def after(node: fx.Node, target, *args, like: fx.Node | None = None) -> fx.Node:
    with node.graph.inserting_after(node):
        new = node.graph.call_function(target, args)
    new.meta = dict((like or node).meta)
    return new


def test_a_recompute_chain_in_copies_is_legal():
    split = split_of("attention")
    copied = 0
    for node in calls(split.backward):
        for user in list(node.users)[1:]:
            if user.op == "output":
                continue
            with split.backward.graph.inserting_before(user):
                twin = split.backward.graph.node_copy(node, lambda read: read)
            user.replace_input_with(node, twin)
            copied += 1
    assert copied
    split.verify()


def recompute_mask(split: Split, *, draw: bool) -> None:
    """The backward computes a saved mask again, from the saved seeds or from seeds that it draws."""
    outputs = list(output(split.forward).args[0])
    place = next(place for place, node in enumerate(outputs) if node.target is aten.gt.Scalar)
    given = split.backward.graph.find_nodes(op="placeholder")[place - split.count]
    users = list(given.users)
    mask = outputs[place]
    chain = [mask, mask.args[0], mask.args[0].args[1]]
    seeds = chain[-1].args[0]
    outputs[place] = seeds
    set_outputs(split.forward, outputs)
    given.meta = dict(seeds.meta)
    with split.backward.graph.inserting_before(users[0]):
        env = {seeds: split.backward.graph.node_copy(seeds) if draw else given}
        for node in reversed(chain):
            env[node] = split.backward.graph.node_copy(node, lambda read: env[read])
    for user in users:
        user.replace_input_with(given, env[mask])


def test_a_mask_recomputed_from_saved_seeds_is_legal():
    split = split_of("mlp@inductor")
    recompute_mask(split, draw=False)
    split.verify()


@pytest.mark.parametrize("name", ["mlp", "attention", "norm", "mlp@inductor"])
def test_another_order_is_legal(name):
    split = split_of(name)
    nodes = list(split.backward.graph.nodes)
    moved = 0
    for node in reversed([node for node in nodes if node.op == "call_function"]):
        first = min(node.users, key=list(split.backward.graph.nodes).index)
        if node.next is not first:
            first.prepend(node)
            moved += 1
    assert moved
    split.verify()
    verify_graph(split_of(name).backward, split.backward, pass_name="reorder")


def graphsafe(split: Split) -> None:
    """Replays as they are on CUDA: from generators that come as inputs, one to a draw."""
    wrapper = torch._prims.rng_prims.graphsafe_run_with_rng_state
    outputs = list(output(split.forward).args[0])
    drawn = calls(split.forward, "run_and_save_rng_state")
    for place, (first, second) in enumerate(zip(drawn, calls(split.backward, "run_with_rng_state"), strict=True)):
        state, value = sorted(first.users, key=lambda user: user.args[1])
        outputs.remove(state)
        pairs = [(split.forward, "fwd", value, first.args), (split.backward, "bwd", second, second.args[1:])]
        for graph, name, node, args in pairs:
            with graph.graph.inserting_after(graph.graph.find_nodes(op="placeholder")[-1]):
                given = graph.graph.placeholder(f"{name}_rng_state_{place}")
            with graph.graph.inserting_before(node):
                replay = graph.graph.call_function(wrapper, args, {"rng_state": given})
            replay.meta = dict(node.meta)
            node.replace_all_uses_with(replay)
        set_outputs(split.forward, outputs)
        for node in (state, value, first):
            split.forward.graph.erase_node(node)
        kept = second.args[0]
        for node in (second, kept):
            split.backward.graph.erase_node(node)


def test_a_replay_from_generators_is_legal():
    split = split_of("checkpointed")
    graphsafe(split)
    assert calls(split.backward, "graphsafe_run_with_rng_state")
    split.verify()


def test_a_control_dependency_is_legal():
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
    from torch.utils._ordered_set import OrderedSet

    split = split_of("mlp")
    first, *_, last = [node for node in calls(split.backward) if isinstance(node.meta["val"], torch.Tensor)]
    preserve_node_ordering(split.backward.graph, {last: OrderedSet([first])})
    assert calls(split.backward, "control_deps")
    split.verify()


def test_a_new_value_that_is_read_nowhere_is_legal():
    split = split_of("mlp")
    node = calls(split.forward)[2]
    after(node, aten.clone.default, node)
    split.verify()


def test_names_do_not_count():
    split = split_of("mlp@inductor")
    for graph in (split.forward, split.backward):
        for place, node in enumerate(calls(graph)):
            node._rename(f"other_{place}")
    split.verify()


# --- breakers -------------------------------------------------------------------------------------------


def swap_saved(split: Split) -> None:
    outputs = list(output(split.forward).args[0])
    alike = [
        place
        for place in range(split.count, len(outputs))
        if outputs[place].meta["val"].shape == (4, 8) and outputs[place].meta["val"].dtype == torch.float32
    ]
    first, second = alike[:2]
    outputs[first], outputs[second] = outputs[second], outputs[first]
    set_outputs(split.forward, outputs)


def redraw(split: Split) -> None:
    """The backward draws the first dropout mask again, in place of the saved one."""
    draw = next(node for node in split.forward.graph.nodes if "native_dropout" in str(node.target))
    mask = next(user for user in draw.users if user.args[1] == 1)
    source = split.backward.graph.find_nodes(op="placeholder")
    given = next(node for node in source if node.name == mask.name)
    x = draw.args[0]
    outputs = list(output(split.forward).args[0])
    set_outputs(split.forward, [*outputs, x])
    last = [node for node in source if "tangents" not in node.name][-1]
    with split.backward.graph.inserting_after(last):
        again = split.backward.graph.placeholder("again")
    again.meta = dict(x.meta)
    with split.backward.graph.inserting_before(calls(split.backward)[0]):
        drawn = split.backward.graph.call_function(draw.target, (again, *draw.args[1:]))
        mask_again = split.backward.graph.call_function(operator.getitem, (drawn, 1))
    drawn.meta, mask_again.meta = dict(draw.meta), dict(mask.meta)
    given.replace_all_uses_with(mask_again)


def redraw_seeds(split: Split) -> None:
    recompute_mask(split, draw=True)


def unreplay(split: Split) -> None:
    """A checkpoint's replay of the generator's state becomes a plain draw."""
    for node in calls(split.backward, "run_with_rng_state"):
        node.target, node.args = node.args[1], node.args[2:]


def wrong_replay(split: Split) -> None:
    states = [node.args[0] for node in calls(split.backward, "run_with_rng_state")]
    for node in calls(split.backward, "run_with_rng_state"):
        node.args = (states[0], *node.args[1:])


def wrong_generator(split: Split) -> None:
    graphsafe(split)
    first, second = calls(split.backward, "graphsafe_run_with_rng_state")
    first.kwargs, second.kwargs = second.kwargs, first.kwargs


def drop_mutation(split: Split) -> None:
    split.forward.graph.erase_node(calls(split.forward, "aten.copy_")[0])


def double_mutation(split: Split) -> None:
    copy_ = calls(split.forward, "aten.copy_")[0]
    after(copy_, copy_.target, *copy_.args)


def reorder_mutations(split: Split) -> None:
    first, second = calls(split.forward, "aten.copy_")[:2]
    second.append(first)


def move_mutation(split: Split) -> None:
    copy_ = calls(split.forward, "aten.copy_")[0]
    outputs, reads = list(output(split.forward).args[0]), copy_.args
    set_outputs(split.forward, [*outputs, *reads])
    last = [n for n in split.backward.graph.find_nodes(op="placeholder") if "tangents" not in n.name][-1]
    given = []
    for read in reads:
        with split.backward.graph.inserting_after(last):
            last = split.backward.graph.placeholder(f"moved_{read.name}")
        last.meta = dict(read.meta)
        given.append(last)
    with split.backward.graph.inserting_before(output(split.backward)):
        moved = split.backward.graph.call_function(copy_.target, tuple(given))
    moved.meta = dict(copy_.meta)
    split.forward.graph.erase_node(copy_)


def early_mutation(split: Split) -> None:
    """A buffer is overwritten before it is read."""
    add = next(node for node in calls(split.forward, "aten.add.Tensor") if node.args[1] == 1)
    copy_ = next(node for node in calls(split.forward, "aten.copy_") if node.args[1] is add)
    add.append(copy_)
    read = after(copy_, aten.mul.Tensor, add.args[0], 1.0, like=add)
    set_outputs(split.forward, [read, *output(split.forward).args[0][1:]])


def wrong_shape(split: Split) -> None:
    node = calls(split.backward, "aten.mm")[0]
    node.meta["val"] = node.meta["val"].new_empty(3, 5)


def wrong_dtype(split: Split) -> None:
    node = calls(split.backward, "aten.mm")[0]
    node.meta["val"] = node.meta["val"].to(torch.float64)


def wrong_stride(split: Split) -> None:
    node = calls(split.forward, "aten.addmm")[0]
    node.meta["val"] = node.meta["val"].new_empty_strided((4, 8), (1, 4))


def wrong_new_shape(split: Split) -> None:
    node = calls(split.forward, "aten.addmm")[0]
    new = after(node, aten.clone.default, node)
    new.meta["val"] = node.meta["val"].new_empty(3, 5)


def impossible(split: Split) -> None:
    node = calls(split.forward, "aten.addmm")[0]
    after(node, aten.view.default, node, [3, 5])


def missing_meta(split: Split) -> None:
    del calls(split.backward, "aten.mm")[0].meta["val"]


def missing_new_meta(split: Split) -> None:
    node = calls(split.forward, "aten.addmm")[0]
    after(node, aten.clone.default, node).meta.clear()


def use_before_definition(split: Split) -> None:
    node = calls(split.backward, "aten.mm")[0]
    next(iter(node.users)).append(node)


def foreign_node(split: Split) -> None:
    node = calls(split.backward, "aten.mm")[0]
    node.args = (split.forward.graph.find_nodes(op="placeholder")[0], node.args[1])


def two_outputs(split: Split) -> None:
    split.forward.graph.output((calls(split.forward)[0],))


def lost_user(split: Split) -> None:
    node = calls(split.backward, "aten.mm")[0]
    node.users.clear()


def other_input(split: Split) -> None:
    """`mul` reads another value of the same shape."""
    mul = next(n for n in calls(split.backward, "aten.tanh_backward"))
    mul.args = (mul.args[0], mul.args[0])


def other_constant(split: Split) -> None:
    mul = next(node for node in calls(split.forward, "aten.mul") if node.args[1] == 0.5)
    mul.args = (mul.args[0], 0.25)


def other_tensor_constant(split: Split) -> None:
    node = split.forward.graph.find_nodes(op="get_attr")[0]
    split.forward.other = getattr(split.forward, node.target) + 1
    node.target = "other"


def other_type(split: Split) -> None:
    norm = calls(split.forward, "aten._native_batch_norm")[0]
    norm.args = (*norm.args[:-1], 1e-4)


def fewer_outputs(split: Split) -> None:
    set_outputs(split.backward, output(split.backward).args[0][:-1])


def no_forward_outputs(split: Split) -> None:
    set_outputs(split.forward, output(split.forward).args[0][: split.count - 1])


def clone_of_output(split: Split) -> None:
    outputs = list(output(split.forward).args[0])
    place = next(place for place, node in enumerate(outputs) if "aten.view" in str(node.target))
    outputs[place] = after(outputs[place], aten.clone.default, outputs[place])
    set_outputs(split.forward, outputs)


def saved_tuple(split: Split) -> None:
    outputs = list(output(split.forward).args[0])
    outputs[split.count] = (outputs[split.count], outputs[-1])
    set_outputs(split.forward, outputs)


def saved_multi_output(split: Split) -> None:
    outputs = list(output(split.forward).args[0])
    outputs[split.count] = calls(split.forward, "aten.native_dropout")[0]
    set_outputs(split.forward, outputs)


def saved_none(split: Split) -> None:
    outputs = list(output(split.forward).args[0])
    outputs[split.count] = None
    set_outputs(split.forward, outputs)


def extra_saved(split: Split) -> None:
    outputs = output(split.forward).args[0]
    set_outputs(split.forward, [*outputs, outputs[-1]])


def swap_gradients(split: Split) -> None:
    outputs = list(output(split.backward).args[0])
    alike = [place for place, node in enumerate(outputs) if node and node.meta["val"].shape == (8,)]
    first, second = alike[:2]
    outputs[first], outputs[second] = outputs[second], outputs[first]
    set_outputs(split.backward, outputs)


def no_gradient(split: Split) -> None:
    set_outputs(split.backward, [None, *output(split.backward).args[0][1:]])


def swap_inputs(split: Split) -> None:
    first, second = split.forward.graph.find_nodes(op="placeholder")[:2]
    second.append(first)


def wrong_input(split: Split) -> None:
    given = split.backward.graph.find_nodes(op="placeholder")[0]
    given.meta["val"] = given.meta["val"].new_empty(3, 5)


def draw_more(split: Split) -> None:
    outputs = list(output(split.forward).args[0])
    outputs[0] = after(outputs[0], aten.bernoulli.default, outputs[0])
    set_outputs(split.forward, outputs)


BREAKERS = [
    ("mlp", swap_saved, r"gradient \d+ .* is not the value"),
    ("mlp@inductor", swap_saved, r"gradient \d+ .* is not the value"),
    ("mlp", redraw, "drawn again in the backward"),
    ("mlp@inductor", redraw_seeds, "drawn again in the backward"),
    ("checkpointed", unreplay, "drawn again in the backward"),
    ("checkpointed", wrong_replay, "drawn again in the backward"),
    ("checkpointed", wrong_generator, "drawn again in the backward"),
    ("mlp", draw_more, "drawn, but not in the graph before, in the forward"),
    ("norm", drop_mutation, r"an effect is missing: copy_"),
    ("norm", double_mutation, r"an effect in the forward is repeated or new: copy_"),
    ("norm", reorder_mutations, r"an effect in the forward is out of order"),
    ("buffers", reorder_mutations, r"an effect in the forward is out of order"),
    ("norm", move_mutation, "an effect moved from the forward to the backward"),
    ("buffers", early_mutation, "forward output 0 .* is not the value"),
    ("mlp", wrong_shape, r"the backward's mm\w* is said to be float32\[3, 5\]"),
    ("mlp", wrong_dtype, r"the backward's mm\w* is said to be float64"),
    ("mlp", wrong_stride, r"is said to be .* stride \[1, 4\].* but is .*stride \[8, 1\]"),
    ("mlp", wrong_new_shape, r"forward's clone\w* is said to be float32\[3, 5\].* but is float32\[4, 8\]"),
    ("mlp", impossible, "cannot be run on fake tensors"),
    ("mlp", missing_meta, r"the backward's mm\w* has no metadata"),
    ("mlp", missing_new_meta, r"the forward's clone\w* has no metadata"),
    ("mlp", use_before_definition, "before it is defined"),
    ("mlp", foreign_node, "which is not in the graph"),
    ("mlp", two_outputs, "2 output nodes"),
    ("mlp", lost_user, "is not among its users"),
    ("mlp", other_input, "the first value on the way that is not there is tanh_backward"),
    ("views", other_constant, r"forward output \d+ .* is not the value .*mul.*0\.5.*0\.25"),
    ("constant", other_tensor_constant, "is not the value"),
    ("norm", other_type, "is not the value"),
    ("mlp", fewer_outputs, r"there are \d+ gradients, not \d+"),
    ("mlp", no_forward_outputs, "the forward returns 0 outputs, not 1"),
    ("views", clone_of_output, r"shares its storage with no input.*not with input primals_"),
    ("mlp", saved_tuple, "only tensors and symbolic ints may cross"),
    ("mlp", saved_multi_output, "is a tuple: only tensors"),
    ("mlp", saved_none, "is None: only tensors"),
    ("mlp", extra_saved, r"the backward has \d+ inputs, not"),
    ("mlp", swap_gradients, r"gradient \d+ .* it is the value"),
    ("mlp", no_gradient, "gradient 0 .* it is a constant"),
    ("mlp", swap_inputs, "forward input|is not the value"),
    ("mlp", wrong_input, r"backward input \w+ is float32\[3, 5\]"),
]


@pytest.mark.parametrize(("name", "break_it", "message"), BREAKERS, ids=[f"{b.__name__}-{n}" for n, b, _ in BREAKERS])
def test_a_broken_split_is_caught(name, break_it, message):
    split = split_of(name)
    break_it(split)
    with pytest.raises(VerifyError, match="after pass 'the pass'") as caught:
        split.verify()
    error = caught.value
    assert error.pass_name == "the pass"
    assert any(re.search(message, breach) for breach in error.breaches), error


@pytest.mark.parametrize(
    ("name", "break_it"), [(n, b) for n, b, _ in BREAKERS if b in (drop_mutation, other_constant, draw_more)]
)
def test_a_broken_rewrite_of_one_graph_is_caught(name, break_it):
    split = split_of(name)
    break_it(split)
    with pytest.raises(VerifyError):
        verify_graph(split_of(name).forward, split.forward, pass_name="the pass")


def test_all_breaches_are_told_at_once():
    split = split_of("norm")
    drop_mutation(split)
    missing_meta(split)
    with pytest.raises(VerifyError) as caught:
        split.verify()
    assert len(caught.value.breaches) == 2


def test_a_buffer_that_was_overwritten_is_not_read_again():
    """The stock partition (torch 2.13) recomputes `buffer * 2` from the buffer as the forward leaves it."""
    module = Buffers(reads=True)
    split = capture(module, X)
    saved = output(split.forward).args[0][split.count :]
    inputs = [node for node in saved if node.op == "placeholder"]
    stale = [node for node in inputs if any("copy_" in user.name for user in node.users)]
    if not stale:
        pytest.skip("this torch saves the value that was read")
    with pytest.raises(VerifyError, match="is read after an op has overwritten it"):
        split.verify()


# --- bodies ---------------------------------------------------------------------------------------------


@torch.compiler.nested_compile_region
def region(linear, x):
    return torch.tanh(linear(x))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for linear in self.layers:
            x = region(linear, x)
        return x.sum()


def outlined(graph: fx.GraphModule, target, *, returns_input: bool) -> fx.GraphModule:
    """The calls of an op of one argument moved into a body."""
    body = fx.Graph()
    x = body.placeholder("x")
    node = calls(graph, target)[0]
    inner = body.call_function(node.target, (x, *node.args[1:]))
    inner.meta = dict(node.meta)
    body.output((inner, x) if returns_input else (inner,))
    graph.body = fx.GraphModule(torch.nn.Module(), body)
    for node in calls(graph, target):
        with graph.graph.inserting_before(node):
            attribute = graph.graph.get_attr("body")
            call = graph.graph.call_function(torch.ops.higher_order.invoke_subgraph, (attribute, "body", node.args[0]))
            element = graph.graph.call_function(operator.getitem, (call, 0))
        call.meta["val"] = (node.meta["val"],) * (2 if returns_input else 1)
        element.meta = dict(node.meta)
        node.replace_all_uses_with(element)
        graph.graph.erase_node(node)
    return graph


def test_what_was_outlined_is_legal():
    split = split_of("mlp")
    outlined(split.forward, "aten.tanh", returns_input=False)
    split.verify()


def test_a_body_that_returns_its_input_is_caught():
    split = split_of("mlp")
    outlined(split.forward, "aten.tanh", returns_input=True)
    with pytest.raises(VerifyError, match="body body returns its own input x"):
        split.verify()


def test_a_body_that_computes_another_value_is_caught():
    split = split_of("mlp")
    outlined(split.forward, "aten.tanh", returns_input=False)
    calls(split.forward.body)[0].target = aten.sin.default
    with pytest.raises(VerifyError, match="is not the value"):
        split.verify()


def test_nested_regions_are_numbered_through():
    split = capture(Nested(), X)
    assert calls(split.joint, "invoke_subgraph")
    try:
        split.verify()
    except VerifyError as error:  # torch's own bodies may return their inputs; nothing else may be wrong
        assert all("returns its own input" in breach for breach in error.breaches)


def test_the_test_graphs_are_all_broken_by_something():
    assert {name.partition("@")[0] for name, _, _ in BREAKERS} >= {"mlp", "norm", "views", "buffers"}
