"""What expressions of Inductor's wrapper may say: Python's operators and functions, and names that Inductor brings."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
BUILTINS: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "abs": abs,
    "int": int,
    "float": float,
    "bool": bool,
    "len": len,
    "device": torch.device,
}
TORCH_OPERATOR = re.compile(r"(torch\.ops|aten|inductor_ops|_quantized|extern_kernels)\.")
# These neither allocate nor return anything that does: streams, events, markers, hooks, checks of alignment.
INERT = re.compile(
    r"get_raw_stream|get_external_object_by_index|_get_stream_by_index|torch\.(cuda|xpu|accelerator)\.[\w.]+"
    r"|torch\.Event|\w+\.(record|synchronize|wait)|run_intermediate_hooks|assert_alignment|start_graph|end_graph|nvtx\.\w+"
)
EMPTY = re.compile(r"(?:tracked_)?empty_strided(?:_(cpu|cuda|xpu|mtia))?(?:_pinned)?")
