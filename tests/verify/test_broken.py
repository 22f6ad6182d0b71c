"""verify/rewrite.py names each way in which a graph can be broken (DESIGN section 7)."""

from __future__ import annotations

import operator
import re

import pytest
import torch

from memgraph.base.errors import VerifyError
from memgraph.verify.rewrite import verify_graph
from tests.support.splits import (
    Buffers,
    Split,
    X,
    after,
    calls,
    capture,
    graphsafe,
    output,
    recompute_mask,
    set_outputs,
    split_of,
)

aten = torch.ops.aten


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


def test_the_test_graphs_are_all_broken_by_something():
    assert {name.partition("@")[0] for name, _, _ in BREAKERS} >= {"mlp", "norm", "views", "buffers"}
