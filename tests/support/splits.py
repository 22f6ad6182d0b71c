"""Joint graphs and their splits for the tests of the verifier, and small edits that break or keep a split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memgraph.base import compat
from memgraph.verify.rewrite import snapshot, verify_partition

aten = torch.ops.aten


# --- graphs to verify -----------------------------------------------------------------------------------


@dataclass
class Split:
    joint: fx.GraphModule
    forward: fx.GraphModule
    backward: fx.GraphModule
    count: int
    inputs: tuple[torch.Tensor, ...] = ()  # of the captured function, parameters among them

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
    """The joint graph of AOTAutograd without decompositions, and its stock partition."""
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


def capture_inductor(module, *args, dynamic: bool | None = None) -> Split:
    """The joint graph after Inductor's own passes: dropout is a function of a tensor of seeds."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    splits, given = [], []

    class Partitioner(CustomPartitionerFn):
        def __call__(self, joint, inputs, **rest):
            splits.append(_split(joint, inputs, **rest))
            raise _Captured

        def uuid(self):
            return None

    def backend(graph, inputs):
        given[:] = inputs
        patches = {"custom_partitioner_fn": Partitioner(), "force_disable_caches": True}
        return compile_fx(graph, inputs, config_patches=patches)

    torch._dynamo.reset()
    # Else AOTAutograd, once it has traced the graph of a function with floats, has Dynamo begin once more without them.
    constants = torch._dynamo.config.patch(specialize_float=True)
    with constants, pytest.raises(Exception, match="_Captured"):
        torch.compile(module, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
    torch._dynamo.reset()
    sizes = (compat.size_hint(value) if isinstance(value, torch.SymInt) else value for value in given)
    return replace(splits[-1], inputs=tuple(sizes))


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
    """A fresh copy of the split of a module; `mlp@inductor` and `mlp@dynamic` name the two other ways of capture."""
    if name not in _splits:
        module, _, how = name.partition("@")
        make, x = MODULES[module]
        args = make(), x.clone()  # of a tensor that was compiled for any size torch goes on making symbols
        if how == "inductor":
            _splits[name] = capture_inductor(*args)
        else:
            _splits[name] = capture(*args, dynamic=how == "dynamic")
    return _splits[name].copy()


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


def graphsafe(split: Split) -> None:
    """Rewrite replays as CUDA has them: each draw reads a generator of its own, which is an input."""
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
