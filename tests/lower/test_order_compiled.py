"""The order of a plan through Inductor: what its wrapper allocates."""

import re

import pytest
import torch

from memgraph.lower.order import KeepOrder
from tests.support.inductor_hooks import compiled, square


def call_of(fn, *args) -> str:
    """The code of a planned graph's wrapper."""
    with torch.no_grad():
        ((_, _, source),) = compiled(fn, *args, order=KeepOrder(lambda backward: True, "canary")).wrappers
    return source[source.index("def call") : source.index("def benchmark_compiled_module")]


@pytest.mark.inductor
def test_random_numbers_are_drawn_in_the_kernel_that_reads_them():
    """Where they stand, a product comes between them and their reader: they would be written and read again."""

    def dropped(x, w):
        kept = torch.rand_like(x) > 0.5
        return torch.where(kept, x @ w, 0.0)

    code = call_of(dropped, square(), square())
    assert re.findall(r"(extern_kernels\.mm|cpp_fused)\w*\(", code) == ["extern_kernels.mm", "cpp_fused"]


@pytest.mark.inductor
def test_numbers_that_two_kernels_read_are_drawn_for_the_first():
    """A product stands between both: the second kernel reads what the first has drawn."""

    def dropped(x, w):
        numbers = torch.rand_like(x)
        once = torch.where(numbers > 0.5, x @ w, 0.0)
        return torch.where(numbers > 0.2, once @ w, 0.0)

    code = call_of(dropped, square(), square())
    kinds = re.findall(r"(extern_kernels\.mm|cpp_fused)\w*\(", code)
    assert kinds == ["extern_kernels.mm", "cpp_fused", "extern_kernels.mm", "cpp_fused"]
    assert len(re.findall(r"cpp_fused\w*rand_like\w*\(", code)) == 1


@pytest.mark.inductor
def test_numbers_that_nobody_reads_here_stay_where_they_are():
    """They are saved: only the graph's end reads them."""

    def drawn(x, w):
        numbers = torch.rand_like(x)
        return numbers, x @ w

    code = call_of(drawn, square(), square())
    kinds = re.findall(r"(extern_kernels\.mm|cpp_fused)\w*\(", code)
    assert sorted(kinds) == ["cpp_fused", "extern_kernels.mm"] and "rand_like" in code
