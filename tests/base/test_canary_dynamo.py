"""The canary, Dynamo's part: names, errors, what it remembers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memgraph.base import compat
from tests.support.inductor_hooks import products, square


def test_errors_come_through():
    def backend(gm, inputs):
        raise compat.through_dynamo(KeyError("mine"))

    torch._dynamo.reset()
    with pytest.raises(KeyError) as raised:
        torch.compile(products, backend=backend)(square(), square(), square())
    assert str(raised.value) == "'mine'"


def test_graphs_have_numbers_and_reasons():
    numbers, reasons = [], []

    def backend(gm, inputs):
        numbers.append(compat.compile_id())
        reasons.append(compat.graph_break_reason(gm))
        return gm.forward

    def broken(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    torch._dynamo.reset()
    torch.compile(broken, backend=backend)(square(False))
    assert numbers == ["0/0", "1/0"] or numbers == ["[0/0]", "[1/0]"]
    assert "graph_break" in reasons[0] and reasons[1] == ""
    assert compat.compile_id() == ""


def test_a_dry_run_leaves_no_sizes_behind():
    def dynamic(*rows: int) -> bool:
        symbols = []

        def backend(gm, inputs):
            symbols.append(any(isinstance(size, torch.SymInt) for size in inputs))
            return gm.forward

        call = torch.compile(lambda x: x.sin(), backend=backend)
        for n in rows:
            call(torch.randn(n, 2))
        return symbols[-1]

    torch._dynamo.reset()
    assert dynamic(3, 5), "Dynamo makes a size that changes dynamic"
    torch._dynamo.reset()
    with compat.only_tracing():
        assert not dynamic(3, 5)


def test_a_compiled_function_is_unwrapped():
    module = nn.Linear(2, 2)
    assert compat.uncompiled(torch.compile(module)) is module
    assert compat.uncompiled(torch.compile(products)) is products


def test_a_compiled_module_is_told():
    """A model is compiled in place once, and not where torch.compile has wrapped it."""
    module = nn.Linear(2, 2)
    assert compat.compiled_form(module) is None
    wrapped = torch.compile(module, backend="eager")
    assert compat.compiled_form(wrapped) is wrapped and compat.compiled_form(module) is None
    module.compile(backend="eager")
    assert compat.compiled_form(module) is not None
