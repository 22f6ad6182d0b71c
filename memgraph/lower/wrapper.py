"""An interpreter of the Python wrapper that Inductor writes around its kernels: which bytes it allocates and frees.

It walks the wrapper's syntax tree with tensors that have a size, a stride and a storage, but no contents
(`tensors.py`). Nothing of the wrapper is executed. A storage is a Python object, and the wrapper's variables stand in a
dict. So the interpreter's own reference counts free a storage exactly where those of the wrapper do: at the `del` of
its last name, when an argument list is cleared, when a tuple of outputs goes.

This file reads statements and expressions; `memory.py` allocates. What it does not know it refuses with NotReadable: a
statement that is skipped would be bytes missed.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memgraph.base.errors import MemgraphError
from memgraph.lower.memory import Memory
from memgraph.lower.tensors import Layout, Opaque, Shadow, part, reshaped, view
from memgraph.lower.words import BUILTINS, EMPTY, INERT, OPERATORS, TORCH_OPERATOR


class NotReadable(MemgraphError, ValueError):
    """The wrapper has a statement that the interpreter does not understand.

    Attributes:
        line: its number in the source, 0 where there is none.  text: the statement.  reason: what is not understood.
    """

    def __init__(self, line: int, text: str, reason: str):
        self.line, self.text, self.reason = line, text, reason
        shown = "".join(text.splitlines()[:1])[:200]
        super().__init__(f"line {line} of Inductor's wrapper, `{shown}`: {reason}" if line else reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.line, self.text, self.reason)


@dataclass(frozen=True)
class _Scope:
    """What the expressions of one statement see."""

    names: dict[str, Any]
    """The variables of the function."""
    target: str
    """What the statement assigns; storages that it allocates are named after it."""


class Interpreter:
    """Interprets the functions of one wrapper."""

    def __init__(self, source: str, memory: Memory, symbols: Mapping[str, int]):
        """memory: allocates.  symbols: values of sizes that depend on data, by variable."""
        self._memory, self._symbols = memory, symbols
        self._functions: dict[str, ast.FunctionDef] = {}
        self._globals: dict[str, Any] = {"inf": math.inf, "nan": math.nan}
        self._kernels: set[str] = set()
        self._partitions: list[str] = []
        self.launches: dict[str, tuple[Any, ...]] = {}
        """The arguments of each Triton kernel's first launch, by its name: a tensor as its `Layout`."""
        try:
            body = ast.parse(source).body
        except SyntaxError as error:  # C++ (cpp_wrapper), say
            raise NotReadable(error.lineno or 0, error.text or "", "it is not Python") from error
        for node in body:
            self._define(node)

    def _define(self, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef(name="Runner", body=body):
                for method in body:
                    if isinstance(method, ast.FunctionDef) and method.name == "call":
                        self._functions["call"] = method
            case ast.FunctionDef(name=name):
                self._functions[name] = node
            case ast.Assign(
                targets=[ast.Name(id="runner")], value=ast.Call(keywords=[ast.keyword(value=ast.List(elts))])
            ):
                self._partitions = [ast.unparse(element) for element in elts]
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._globals[name] = Opaque(name)
                match value:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile"))):
                        self._kernels.add(name)

    # Statements

    def call(self, function: str, args: list[Any]) -> Any:
        """Interpret a function of the wrapper. Like the real one, it empties `args`."""
        definition = self._functions.get(function)
        if definition is None:
            raise NotReadable(0, function, f"Inductor's wrapper has no Python function {function!r}")
        frame = {definition.args.args[-1].arg: args}  # the last, because `call` may have a self before it
        del args
        if (returned := self._block(definition.body, frame)) is None:
            raise NotReadable(definition.lineno, function, "it returns nothing")
        return returned[0]

    def _block(self, body: list[ast.stmt], frame: dict[str, Any]) -> tuple[Any] | None:
        """Interpret statements up to a return. Returns its value in a tuple, None if there was no return."""
        for statement in body:
            try:
                if isinstance(statement, ast.Return):
                    return (self._eval(statement.value, _Scope(frame, "return")),)
                inner = self._execute(statement, frame)
            except NotReadable:
                raise
            except Exception as error:  # whatever goes wrong, the bytes are not known
                reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
                raise NotReadable(statement.lineno, ast.unparse(statement), reason) from error
            if (returned := self._block(inner, frame)) is not None:
                return returned
        return None

    def _execute(self, statement: ast.stmt, frame: dict[str, Any]) -> list[ast.stmt]:
        """Interpret one statement. Returns the statements within it that come next."""
        match statement:
            case ast.Assign(targets=[target], value=value):
                self._bind(target, self._eval(value, _Scope(frame, ast.unparse(target))), frame)
            case ast.Expr(value=value) | ast.Assert(test=value):
                self._eval(value, _Scope(frame, "temporary"))
            case ast.Delete(targets=targets):
                for target in targets:
                    del frame[ast.unparse(target)]
            case ast.With(items=items, body=body):  # a device or a stream is made current
                for item in items:
                    self._eval(item.context_expr, _Scope(frame, "temporary"))
                return body
            case ast.If(test=test, body=body, orelse=other):
                return body if self._eval(test, _Scope(frame, "temporary")) else other
            case _:
                raise _unknown(statement, "statement")
        return []

    def _bind(self, target: ast.expr, value: Any, frame: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                frame[name] = value
                if isinstance(value, Shadow):
                    self._memory.held(value, name)
            case ast.Tuple(elts=elts):
                for element, item in zip(elts, value, strict=True):
                    self._bind(element, item, frame)
            case _:
                raise _unknown(target, "target")

    # Expressions

    def _eval(self, node: ast.expr | None, scope: _Scope) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return scope.names[name] if name in scope.names else self._global(node)
            case ast.Tuple(elts=elts):
                return tuple([self._eval(element, scope) for element in elts])
            case ast.List(elts=elts):
                return [self._eval(element, scope) for element in elts]
            case ast.Subscript(value=value, slice=ast.Slice(lower=first, upper=end, step=None)):
                return part(self._eval(value, scope), slice(self._eval(first, scope), self._eval(end, scope)))
            case ast.Subscript(value=value, slice=index):
                return self._eval(value, scope)[self._eval(index, scope)]
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return OPERATORS[type(op)](self._eval(left, scope), self._eval(right, scope))
            case ast.UnaryOp(op=op, operand=operand):
                return OPERATORS[type(op)](self._eval(operand, scope))
            case ast.BoolOp(op=op, values=values):
                return (all if isinstance(op, ast.And) else any)(self._eval(value, scope) for value in values)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._eval(body if self._eval(test, scope) else other, scope)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node, scope)
        raise _unknown(node, "expression")

    def _global(self, node: ast.Name) -> Any:
        if node.id in self._globals:
            return self._globals[node.id]
        raise _unknown(node, "name")

    def _attribute(self, node: ast.Attribute) -> Any:
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr=attr):  # torch.float32, torch.strided
                return getattr(torch, attr)
            case ast.Attribute(value=ast.Name(id="math"), attr=attr):
                return getattr(math, attr)
        if TORCH_OPERATOR.match(path := ast.unparse(node)):
            return Opaque(path)
        raise _unknown(node, "attribute")

    # Calls

    def _call(self, node: ast.Call, scope: _Scope) -> Any:
        path = ast.unparse(node.func)
        if INERT.fullmatch(path):
            return Opaque(path)
        symbol = self._symbols.get(scope.target)
        if path.endswith(".item") and symbol is not None:  # its value depends on data; the caller gave a hint
            return symbol
        args = [self._eval(arg, scope) for arg in node.args]
        kwargs = {str(keyword.arg): self._eval(keyword.value, scope) for keyword in node.keywords}
        if empty := EMPTY.fullmatch(path):
            return self._allocate(scope.target, empty[1], *args, **kwargs)
        if path in self._functions:
            return self.call(path, args.pop())
        if path in BUILTINS:
            return BUILTINS[path](*args, **kwargs)
        if TORCH_OPERATOR.match(path):
            return self._memory.operator(scope.target, path, args, kwargs)
        return self._helper(node, args, scope)

    def _helper(self, node: ast.Call, args: list[Any], scope: _Scope) -> Any:
        """A call of a function that Inductor brings, of a kernel, or of a method."""
        match node.func:
            case ast.Name(id="assert_size_stride" | "assert_tensor_metadata"):
                return _check(*args)
            case ast.Name(id="assert_size_stride_grouped"):  # 2.15: several inputs in one call
                for one in zip(*args[:3], strict=True):
                    _check(*one)
                return None
            case ast.Name(id="reinterpret_tensor"):
                return view(*args)
            case ast.Name(id="alloc_from_pool"):
                pool, _, dtype, size, stride = args
                return Shadow(pool.storage, size, stride, dtype, pool.device)
            case ast.Name(id="copy_if_misaligned"):  # torch's allocators return aligned memory
                return args[0]
            case ast.Name(id=name) if name in self._kernels:
                return None  # a compiled C++ kernel: it writes into its arguments
            case ast.Attribute(value=ast.Name(id=name), attr="run") if name in self._globals:
                self.launches.setdefault(name, tuple(map(_without_storage, args)))
                return None  # a Triton kernel
            case ast.Attribute(value=ast.Name(id="math")):
                return self._eval(node.func, scope)(*args)
            case ast.Subscript(value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(index))):
                return self.call(self._partitions[index], args.pop())
            case ast.Attribute(value=value, attr=method):
                return self._method(node, self._eval(value, scope), method, args, scope)
        raise _unknown(node, "call")

    def _method(self, node: ast.Call, value: Any, method: str, args: list[Any], scope: _Scope) -> Any:
        match value, method:
            case Shadow(), "view":
                return reshaped(value, args[0] if isinstance(args[0], list) else args)
            case Shadow(), "to":
                same = value.dtype == args[0]
                return (
                    value if same else self._memory.empty(scope.target, value.size, value.stride, args[0], value.device)
                )
            case Shadow(), "sum" | "amax" | "amin" if ast.unparse(node).endswith(f".{method}(dim=0)"):
                overload = "sum.dim_IntList" if method == "sum" else f"{method}.default"
                return self._memory.operator(scope.target, f"torch.ops.aten.{overload}", [value, [0]], {})
            case list(), "clear":
                return value.clear()
            case Shadow(), "size" | "stride":
                return getattr(value, method)[args[0]] if args else getattr(value, method)
            case Shadow(), "as_strided":
                return view(value, *args)
            case Shadow(), "copy_" | "zero_" | "fill_":
                return value
            case int(), "__floordiv__":
                return value // args[0]
        raise _unknown(node, "method")

    def _allocate(self, target: str, device: str | None, size: Any, stride: Any, *rest: Any, **kwargs: Any) -> Shadow:
        dtype = kwargs.get("dtype") or rest[0]
        device = str(device or kwargs.get("device") or rest[1])
        return self._memory.empty(target, size, stride, dtype, device)


def _without_storage(argument: Any) -> Any:
    """An argument of a kernel, a tensor as its layout: what is kept of it keeps no storage alive."""
    if not isinstance(argument, Shadow):
        return argument
    return Layout(argument.size, argument.stride, argument.dtype)


def _check(tensor: Any, size: Any, stride: Any, *rest: torch.dtype | str) -> None:
    """Compare a layout that the wrapper asserts at run time with the one found here.

    rest: the type of the entries, where it is asserted as well (2.15), and the operator's name.  Raises ValueError
    where they differ.
    """
    if not isinstance(tensor, Shadow):
        return
    if any(isinstance(item, torch.dtype) and item != tensor.dtype for item in rest):
        raise ValueError(f"found entries of {tensor.dtype}")
    steps = zip(size, tensor.stride, stride, strict=True)
    if tensor.size != tuple(size) or any(n > 1 and mine != theirs for n, mine, theirs in steps):
        raise ValueError(f"found size {tensor.size} and stride {tensor.stride}")


def _unknown(node: ast.AST | None, kind: str) -> ValueError:
    return ValueError(f"`{ast.unparse(node) if node else None}` is no {kind} that memgraph knows")
