"""Ends of kernels through Inductor: the CPU's functions end there, and what they held is free."""

import re

import pytest
import torch

import memgraph.runtime  # noqa: F401  registers the operator
from memgraph.lower.order import KeepOrder
from tests.support.inductor_hooks import compiled, square


def attention(x, w):
    """What the backward is to have of a softmax, and its weights, in the sizes of a product with a row of sinks."""
    scores = torch.cat([x @ w, w[:, :1]], -1)
    kept = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = kept / kept.sum(-1, keepdim=True)
    return weights[:, :-1] @ w, kept


def end_before_the_division(gm) -> None:
    (division,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.div.Tensor)
    with gm.graph.inserting_before(division):
        gm.graph.call_function(torch.ops.memgraph.kernel_end.default, (list(division.all_input_nodes),))


@pytest.mark.inductor
@pytest.mark.parametrize("ended", [False, True])
def test_scores_are_free_once_the_function_that_reads_them_has_ended(ended):
    rewrite = end_before_the_division if ended else lambda gm: None
    order = KeepOrder(lambda backward: True, "canary")
    with torch.no_grad():
        ((_, _, source),) = compiled(attention, square(), square(), order=order, rewrite=rewrite).wrappers
    code = source[source.index("def call") : source.index("def benchmark_compiled_module")]
    calls = re.findall(r"(extern_kernels\.mm|cpp_fused)\w*\(", code)
    assert calls == ["extern_kernels.mm", *["cpp_fused"] * (1 + ended), "extern_kernels.mm"]
    scores, _, weights = re.findall(r"(\w+) = empty_strided_cpu\(\(8, 9\)", code)
    assert (code.index(f"del {scores}\n") < code.index(f"{weights} = ")) == ended
    assert "kernel_end" not in code
