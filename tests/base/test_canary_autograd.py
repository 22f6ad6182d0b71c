"""The canary, of autograd: when tangents go, who holds a gradient, and how the end of a backward is known."""

import contextlib
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from memgraph.base import compat
from tests.support.inductor_hooks import products, square


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("holder", ["nobody", "a sum", "the user", "a hook", "a larger storage", "another device"])
def test_gradients_that_a_node_holds_alone_are_told_from_others(holder):
    """A round's plans count them at the backward they are given to; what others hold as well does not go with it."""
    compat.holders_alone()
    x, kept, found = torch.ones(1000, requires_grad=True), [], []
    first = Doubled.apply(x)
    second = Doubled.apply(first)
    device = torch.device("meta" if holder == "another device" else "cpu")
    for output in (first, second):
        output.grad_fn.register_prehook(lambda gradients: found.append(compat.given_away(gradients, device)))
    if holder == "a sum":
        (first + second).square().sum().backward()
    elif holder == "the user":
        second.backward(torch.ones(1000))
    elif holder == "a larger storage":
        torch.cat([second, second.detach()]).square().sum().backward()
    else:
        if holder == "a hook":
            second.register_hook(kept.append)
        second.square().sum().backward()
    assert found == [4000 if holder == "nobody" else 0, 0 if holder == "another device" else 4000]


def counted(gradients):
    assert compat.given_away(gradients, torch.device("cpu"))


HOOKS = {
    "none": lambda node: None,
    "before": lambda node: node.register_prehook(counted),
    "next": lambda node: compat.on_next(node, lambda: None),
    "end": lambda node: compat.on_end(node, lambda: None),
}


def test_gradients_without_a_storage_are_none_that_a_node_gives_away():
    compat.holders_alone()
    x, found = torch.eye(4).requires_grad_(), []
    output = Doubled.apply(x)
    output.grad_fn.register_prehook(lambda gradients: found.append(compat.given_away(gradients, torch.device("cpu"))))
    output.backward(torch.eye(4).to_sparse())
    assert found == [0] and torch.equal(x.grad.to_dense(), 2 * torch.eye(4))
    assert compat.given_away((None,), torch.device("cpu")) == 0


@pytest.mark.parametrize("hook", HOOKS)
def test_tangents_are_given_away_or_held(hook):
    """Whether the engine keeps its reference while a compiled backward runs, which decides when their bytes go.

    A hook behind the node has it keep them: on a step of several graphs that took a tangent more than its plans.
    """
    compat.holders_alone()
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    gone = []

    def backward_compiler(gm, inputs):
        def run(args):
            results = gm.forward(*args)
            tangent = weakref.ref(args[-1])
            args.clear()
            gone.append(tangent() is None)
            return results

        run._boxed_call = True
        return run

    backend = aot_autograd(fw_compiler=lambda gm, _: make_boxed_func(gm.forward), bw_compiler=backward_compiler)
    torch._dynamo.reset()
    output = torch.compile(products, backend=backend)(square(), square(), square())
    HOOKS[hook](output.grad_fn)
    output.sin().sum().backward()
    assert gone == [compat.tangents_are_given_away() and hook != "end"]


@pytest.mark.parametrize("watch", [compat.on_next, compat.on_end])
def test_the_end_of_a_node_is_told_before_anything_else_runs(watch):
    told = []

    def tell(what):
        return lambda *_: told.append(what)

    x = torch.ones(4, requires_grad=True)
    first = Doubled.apply(x)
    second = Doubled.apply(first)
    first.grad_fn.register_prehook(tell("the next one"))
    handles = watch(second.grad_fn, tell("it has ended"))
    second.grad_fn.register_prehook(lambda _: compat.after_backward(tell("all of it has ended")))
    second.sum().backward(retain_graph=True)
    # Hooks before one node run in the order in which they were made: who has others there asks for the end by itself.
    assert sorted(told[:2]) == ["it has ended", "the next one"] and told[2:] == ["all of it has ended"]
    handles.remove()
    told.clear()
    second.sum().backward()
    assert "it has ended" not in told


def test_counting_holders_saves_nothing():
    """It may come within a forward that torch.utils.checkpoint counts the saved tensors of."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda found: found):
        compat.holders_alone.__wrapped__()
    assert not saved


@pytest.mark.parametrize("around", ["nothing", "a reentrant one", "other hooks"])
def test_outside_of_a_checkpoint_there_is_none(around):
    found = []

    def inside(x):
        found.append(compat.checkpoint_around())
        return x * 2

    x = torch.ones(1, requires_grad=True)
    if around == "a reentrant one":
        checkpoint(inside, x, use_reentrant=True).sum().backward()
        assert found == [None, None]
    else:
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
        with hooks if around == "other hooks" else contextlib.nullcontext():
            inside(x)
        assert found == [None]


def test_the_innermost_checkpoint_and_its_backward_are_told():
    found = []

    def inside(x):
        found.append(compat.checkpoint_around())
        return x.sin().cos()

    def outside(x):
        found.append(compat.checkpoint_around())
        return checkpoint(inside, x, use_reentrant=False).exp()

    y = checkpoint(outside, torch.ones(1, requires_grad=True), use_reentrant=False)
    (outer, inner), found[:] = found[:], []
    assert outer.frame is not inner.frame and outer.again is None and inner.again is None
    y.sum().backward(retain_graph=True)
    first = next(each for each in found if each.frame is outer.frame)
    assert first.again is not None and any(each.frame is inner.frame and each.again is not None for each in found)
    found.clear()
    y.sum().backward()
    assert next(each for each in found if each.frame is outer.frame).again != first.again
