"""Have some values of the backward written to memory, so that what they are made of can be freed.

Sums of a gradient, one by one:

    before:  s1 = m0 + m1; s2 = s1 + m2; ...; dW = sn      one kernel of all additions: m0 to mn are live until it runs
    after:   s1* = m0 + m1; s2* = s1* + m2; ...            * written: m0, m1 and s1 are freed as soon as they are added

The plan names the additions (`Plan.settled`): they sum the gradient of a value with many readers, such as a weight of
a cell that is unrolled over time. No operator is added, and the order of additions stays. Inductor would fuse the
additions again; `KeepOrder` makes each matrix product wait for the sums before it, so that they cannot be fused.

Masks of random numbers that the backward computes again for several readers:

    before:  r = random(); kept = (r > p) * x; ...; dx = (r > p) * dy     r is written, four bytes an entry
    after:   m* = random() > p; kept = m * x; ...; dx = m * dy            one byte an entry

or for one, whose result several read (the backward of a softmax behind dropout): that result is written instead,

    before:  g = (random() > p) * dy; dx = (g - sum(g * y)) * y           r is written, within one kernel of two loops
    after:   g* = (random() > p) * dy; dx = (g - sum(g * y)) * y          over dy, where it can be

Values that an operator reads in a larger size, such as the causal mask that all heads of attention share:

    before:  attention(q, k, v, expand(where(...), [1, heads, ...]))      a mask is written for every head
    after:   m* = where(...); attention(q, k, v, expand(m, [1, heads, ...]))

or the labels that a loss compares with every word:

    before:  dlogits = ... (pad(ids)[:, None] == words) ...         made within the kernel of all words
    after:   l* = pad(ids); dlogits = ... (l[:, None] == words) ...

Gradients that convolutions read channels last, through a view:

    before:  d = sum(...) [1, 8, 4, 256]; conv_backward(view(d, [1, 32, 16, 16]), ...)      d, and a copy channels last
    after:   d* = sum(...); conv_backward(view(d*, ...), ...)      in memory as the convolution before it left its input

Parts of a gradient, where the forward joined a skip to what comes from below:

    before:  d = ...; conv_backward(slice(d, 0, 64), ...); ...; skip + slice(d, 64, 128)      d is written, and waits
    after:   p* = slice(d, 0, 64); q* = slice(d', 64, 128); conv_backward(p*, ...); ...; skip + q*      q* alone waits

(d' computes what d does. Neither is written, unless the plan settles d too: then p and q are cut out of it, and on the
CPU the plan has kernels end before the first, `Plan.kernel_ends`.)

Products that a sum adds to what is computed later, such as the head's part of the gradient of weights that it
shares with the embedding:

    before:  p = dlogits.T @ h; ...; dE = p + scatter(...)          one addmm: dlogits is live until it runs
    after:   p = dlogits.T @ h; d = detach(p); ...; dE = d + ...    Inductor looks for a product and finds none
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import torch
from torch import fx

import memgraph.runtime  # noqa: F401  registers the operator
from memgraph.base import compat
from memgraph.facts.parts import SLICE
from memgraph.facts.views import is_view
from memgraph.passes.graphs import Rewritten, Split
from memgraph.planner.decisions import Plan


def settle(split: Split, plan: Plan) -> Rewritten[Split]:
    """Mark the values that the plan has written to memory.  Raises ValueError where the backward does not hold one."""
    missing = set(plan.settled)
    if plan.stock or not missing:
        return Rewritten(split, modified=False)
    backward = compat.copy_graph(split.backward)
    for node in list(backward.graph.nodes):
        if node.name in missing:
            if node.target is torch.ops.aten.mm.default:
                _hide(node)
            elif node.target is SLICE:
                _write_alone(node, plan.settled)
            else:
                compat.write_to_memory(node)
            missing.discard(node.name)
    if missing:
        raise ValueError(f"the plan writes {', '.join(sorted(missing)[:5])}, which the backward does not hold")
    return Rewritten(dataclasses.replace(split, backward=backward), modified=True)


def _write_alone(part: fx.Node, settled: Collection[str]) -> None:
    """Have a part of a gradient written by itself, from a whole of its own unless that is written."""
    graph, whole = part.graph, [part.args[0]]
    while is_view(whole[-1]):
        whole.append(whole[-1].all_input_nodes[0])
    # A whole with several readers Inductor may write for them, all of it.
    if whole[-1].name not in settled and len(whole[0].users) > 1:
        own: dict[fx.Node, fx.Node] = {}
        with graph.inserting_before(part):
            for node in reversed(whole):
                own[node] = graph.node_copy(node, lambda read: own.get(read, read))
        part.update_arg(0, own[whole[0]])
    with graph.inserting_after(part):
        written = graph.call_function(torch.ops.memgraph.part.default, (part,))
    written.meta = dict(part.meta)
    part.replace_all_uses_with(written, delete_user_cb=lambda reader: reader is not written)


def _hide(product: fx.Node) -> None:
    """Let no reader of a product see that it is one: Inductor looks for patterns, then lowers `detach` to nothing."""
    with product.graph.inserting_after(product):
        hidden = product.graph.call_function(torch.ops.aten.detach.default, (product,))
    hidden.meta = dict(product.meta)
    product.replace_all_uses_with(hidden, delete_user_cb=lambda reader: reader is not hidden)
