"""Graphs that the FX interpreter runs, with a wrapper in Inductor's words that says what it allocates.

Everything but the lowering is real: Dynamo, AOTAutograd, the plan, the passes, the verifier, the plans on entry. No C++
compiler starts, so that hundreds of programs can be tried.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from memgraph.backend.compilation import Compilation
from memgraph.backend.options import parse_options
from memgraph.base import compat
from memgraph.base.errors import MemgraphError

# They return a view of their first argument, and no schema says so.
SILENT_VIEWS = (torch.ops.aten._unsafe_view.default,)


def backend(**options: Any) -> Callable[..., Any]:
    """memgraph for `torch.compile(backend=...)`, its graphs run by the FX interpreter."""
    parsed = parse_options({"cache": False, **options})

    def compiled(gm: fx.GraphModule, inputs: Any) -> Any:
        compilation = Compilation(gm, inputs, parsed)
        compilation.job = dataclasses.replace(compilation.job, compile_one=lambda: Interpreted)
        try:
            return compilation.run()
        except MemgraphError as error:  # as the registered backend does
            raise compat.through_dynamo(error) from error.__cause__

    return compiled


class Interpreted:
    """One graph: called with a list of arguments, which it empties."""

    def __init__(self, gm: fx.GraphModule, inputs: Any, **_: Any) -> None:
        self._boxed_call = True  # of the instance: torch looks into its dictionary
        self.graph = gm
        self.source_code = wrapper(gm)

    def __call__(self, args: list[Any]) -> Any:
        return fx.Interpreter(self.graph).boxed_run(args)  # a used one keeps what it returned

    def post_compile(self, *_: Any) -> None:
        """Inductor's compiled graphs have it."""

    def set_triton_bundle(self, _: Any) -> None:
        """Inductor's compiled graphs have it."""


def wrapper(gm: fx.GraphModule) -> str:
    """What the interpreter allocates and frees, node by node."""
    last: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        for given in node.all_input_nodes:
            last[given] = node
    taken = gm.graph.find_nodes(op="placeholder")
    lines = ["def call(args):"]
    if taken:
        lines += [f"    {''.join(f'{node.name}, ' for node in taken)} = args", "    args.clear()"]
    lines += [f"    {value.node.expr} = {node.name}" for node in taken if _symbol(value := node.meta["val"])]
    lines += [f"    del {node.name}" for node in taken if node not in last]
    for node in gm.graph.nodes:
        if node.op == "output":
            returned = "".join(f"{getattr(value, 'name', None)}, " for value in node.args[0])
            lines.append(f"    return ({returned})")
        elif node.op == "call_function":
            lines += [f"    {line}" for line in _made(node)]
            freed = (given for given in dict.fromkeys(node.all_input_nodes) if given.op != "get_attr")
            lines += [f"    del {given.name}" for given in freed if last[given] is node]
            if node not in last:
                lines.append(f"    del {node.name}")
    return "\n".join(lines) + "\n"


def _called(node: fx.Node) -> list[str]:
    """The statements of a call of a body: what it makes on its way beyond what it returns stands until then."""
    body = getattr(node.graph.owning_module, node.args[0].target)
    inside = wrapper(body).splitlines()
    started = next((n for n, line in enumerate(inside) if "args.clear()" in line), 0) + 1
    own = {each.name for each in body.graph.nodes}
    given = dict(zip((each.name for each in body.graph.find_nodes(op="placeholder")), node.args[2:], strict=True))
    lines = []
    for line in inside[started:]:
        statement = line.strip()
        if statement.startswith("del ") and statement[4:] in given:
            continue  # the caller has it still
        named = re.sub(r"[A-Za-z_][A-Za-z_0-9]*", lambda word: _renamed(word[0], node, own, given), statement)
        lines.append(f"{node.name} = {named[len('return ') :]}" if statement.startswith("return ") else named)
        if statement.startswith("return "):
            returned = {each.name for each in body.graph.output_node().all_input_nodes}
            lines += [f"del {node.name}_in_{name}" for name in sorted(returned)]
    return lines


def _renamed(word: str, node: fx.Node, own: set[str], given: Mapping[str, Any]) -> str:
    """A word of a body's statements, as the caller's."""
    if word in given:
        return getattr(given[word], "name", str(given[word]))
    return f"{node.name}_in_{word}" if word in own else word


def _symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and value.node.expr.is_Symbol


def _made(node: fx.Node) -> list[str]:
    """The statements that make a node's value."""
    if node.target is compat.invoke_subgraph():
        return _called(node)
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        return [f"{node.name} = ({''.join(f'{_new(each)}, ' for each in value)})"]
    if not isinstance(value, torch.Tensor):
        return [f"{node.name} = {value}"]
    if node.target.__name__ == "getitem":
        return [f"{node.name} = {node.args[0].name}[{node.args[1]}]"]
    if _views(node):
        place = f"{_shape(value.size())}, {_shape(value.stride())}, {value.storage_offset()}"
        return [f"{node.name} = reinterpret_tensor({node.args[0].name}, {place})"]
    return [f"{node.name} = {_new(value)}"]


def _views(node: fx.Node) -> bool:
    schema: Mapping[str, Any] = getattr(node.target, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return node.target in SILENT_VIEWS or any(each.alias_info is not None for each in returns)


def _new(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"empty_strided_cpu({_shape(value.size())}, {_shape(value.stride())}, {value.dtype})"


def _shape(sizes: Any) -> str:
    return "(" + "".join(f"{size}, " for size in sizes) + ")"
