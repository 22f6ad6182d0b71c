"""An abstract interpreter for the Python wrapper that Inductor writes around its kernels.

It walks the wrapper's syntax tree with tensors that have a size, a stride and a storage, but no contents.
Nothing of the wrapper is executed. A storage is a Python object and the wrapper's variables are held in a
dict, so the interpreter's own reference counts free a storage exactly where those of the wrapper do: at the
`del` of its last name, when an argument list is cleared, when a tuple of outputs goes.

What it does not know it refuses with NotReadable: a statement that is skipped would be bytes missed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from memgraph.base.errors import MemgraphError
from memgraph.facts import kernel_scratch
from memgraph.lower.tensors import Opaque, Storage, Tensor, operator_outputs, resolve, span, view
from memgraph.runtime.nvme import destination


class NotReadable(MemgraphError, ValueError):
    """The wrapper has a statement that the interpreter does not understand.

    Attributes:
        line: its number in the source, 0 where there is none.  text: the statement.
    """

    def __init__(self, line: int, text: str, reason: str):
        self.line, self.text, self.reason = line, text, reason
        shown = "".join(text.splitlines()[:1])[:200]
        super().__init__(f"line {line} of Inductor's wrapper, `{shown}`: {reason}" if line else reason)

    def __reduce__(self):
        return type(self), (self.line, self.text, self.reason)


Log = Callable[[str, int], None]
Symbols = Mapping[str, int]

_OPERATORS: dict[type, Callable[..., Any]] = {
    getattr(ast, node): getattr(operator, function)
    for node, function in re.findall(
        r"(\w+):(\w+)",
        "Add:add Sub:sub Mult:mul Div:truediv FloorDiv:floordiv Mod:mod Pow:pow LShift:lshift RShift:rshift "
        "USub:neg UAdd:pos Not:not_ Eq:eq NotEq:ne Lt:lt LtE:le Gt:gt GtE:ge",
    )
}
_BUILTINS: dict[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (max, min, abs, int, float, bool, len)},
    "device": torch.device,
}
_OPS = re.compile(r"(torch\.ops|aten|inductor_ops|_quantized|extern_kernels)\.")
# What neither allocates nor returns anything that does: streams, events, markers, hooks, checks of alignment.
_INERT = re.compile(
    r"get_raw_stream|get_external_object_by_index|_get_stream_by_index|torch\.(cuda|xpu|accelerator)\.[\w.]+"
    r"|torch\.Event|\w+\.(record|synchronize|wait)|run_intermediate_hooks|assert_alignment|start_graph|end_graph|nvtx\.\w+"
)
CUDA_STATE = 16  # bytes of the state of a CUDA generator, which lies in the memory of the host
_EMPTY = re.compile(r"(?:tracked_)?empty_strided(?:_(cpu|cuda|xpu|mtia))?(?:_pinned)?")


class Interpreter:
    """Runs one wrapper source.  log: told of each allocation (+) and free (-) on `device`, in order."""

    def __init__(self, source: str, log: Log, prefix: str, symbols: Symbols, device: str, granularity: int):
        self._log, self._prefix, self._symbols = log, prefix, symbols
        self._device, self._granularity = device, granularity
        self._names: dict[str, int] = {}
        self._target = ""
        self._functions: dict[str, ast.FunctionDef] = {}
        self._globals: dict[str, Any] = {"inf": math.inf, "nan": math.nan}
        self._kernels: set[str] = set()
        self._partitions: list[str] = []
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

    # Storages

    def storage(self, nbytes: int, device: str) -> Storage:
        """A new storage, named after the variable that is being assigned."""
        self._names[self._target] = count = self._names.get(self._target, 0) + 1
        name = f"{self._prefix}.{self._target}" + (f"#{count}" if count > 1 else "")
        if torch.device(device).type != self._device:
            return Storage(name, nbytes, None)
        nbytes = -(-nbytes // self._granularity) * self._granularity
        self._log(name, nbytes)
        return Storage(name, nbytes, self._log)

    def _empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
        nbytes = span(size, stride) * dtype.itemsize
        return Tensor(self.storage(nbytes, device), tuple(size), tuple(stride), dtype, device)

    # Statements

    def call(self, function: str, args: list[Any]) -> Any:
        """Interpret a function of the wrapper; like the real one, it empties `args`."""
        definition = self._functions.get(function)
        if definition is None:
            raise NotReadable(0, function, f"Inductor's wrapper has no Python function {function!r}")
        frame = {definition.args.args[-1].arg: args}  # the last, because `call` may have a self before it
        del args
        if (returned := self._block(definition.body, frame)) is None:
            raise NotReadable(definition.lineno, function, "it returns nothing")
        return returned[0]

    def _block(self, body: list[ast.stmt], frame: dict[str, Any]) -> tuple[Any] | None:
        """Interpret statements, up to a return; its value in a tuple, None where there is none."""
        for statement in body:
            try:
                if isinstance(statement, ast.Return):
                    self._target = "return"
                    return (self._eval(statement.value, frame),)
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
        """Interpret one statement and return those within it that come next."""
        match statement:
            case ast.Assign(targets=[target], value=value):
                self._target = ast.unparse(target)
                self._bind(target, self._eval(value, frame), frame)
            case ast.Expr(value=value) | ast.Assert(test=value):
                self._target = "temporary"
                self._eval(value, frame)
            case ast.Delete(targets=targets):
                for target in targets:
                    del frame[ast.unparse(target)]
            case ast.With(items=items, body=body):  # a device or a stream is made current
                for item in items:
                    self._eval(item.context_expr, frame)
                return body
            case ast.If(test=test, body=body, orelse=other):
                return body if self._eval(test, frame) else other
            case _:
                raise _unknown(statement, "statement")
        return []

    def _bind(self, target: ast.expr, value: Any, frame: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                frame[name] = value
            case ast.Tuple(elts=elts):
                for element, item in zip(elts, value, strict=True):
                    self._bind(element, item, frame)
            case _:
                raise _unknown(target, "target")

    # Expressions

    def _eval(self, node: ast.expr | None, frame: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return frame[name] if name in frame else self._global(node)
            case ast.Tuple(elts=elts):
                return tuple([self._eval(element, frame) for element in elts])
            case ast.List(elts=elts):
                return [self._eval(element, frame) for element in elts]
            case ast.Subscript(value=value, slice=index):
                return self._eval(value, frame)[self._eval(index, frame)]
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return _OPERATORS[type(op)](self._eval(left, frame), self._eval(right, frame))
            case ast.UnaryOp(op=op, operand=operand):
                return _OPERATORS[type(op)](self._eval(operand, frame))
            case ast.BoolOp(op=op, values=values):
                return (all if isinstance(op, ast.And) else any)(self._eval(value, frame) for value in values)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._eval(body if self._eval(test, frame) else other, frame)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node, frame)
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
        if _OPS.match(path := ast.unparse(node)):
            return Opaque(path)
        raise _unknown(node, "attribute")

    def _call(self, node: ast.Call, frame: dict[str, Any]) -> Any:
        path = ast.unparse(node.func)
        if _INERT.fullmatch(path):
            return Opaque(path)
        symbol = self._symbols.get(self._target)
        if path.endswith(".item") and symbol is not None:  # its value depends on data; the caller gave a hint
            return symbol
        args = [self._eval(arg, frame) for arg in node.args]
        kwargs = {keyword.arg: self._eval(keyword.value, frame) for keyword in node.keywords}
        if empty := _EMPTY.fullmatch(path):
            return self._allocate(empty[1], *args, **kwargs)
        if path in self._functions:
            return self.call(path, args.pop())
        if path in _BUILTINS:
            return _BUILTINS[path](*args, **kwargs)
        if _OPS.match(path):
            return self._operator(path, args, kwargs)
        match node.func:
            case ast.Name(id="assert_size_stride" | "assert_tensor_metadata"):
                return self._check(*args)
            case ast.Name(id="assert_size_stride_grouped"):  # 2.15: several inputs in one call
                for one in zip(*args[:3], strict=True):
                    self._check(*one)
                return None
            case ast.Name(id="reinterpret_tensor"):
                return view(*args)
            case ast.Name(id="alloc_from_pool"):
                pool, _, dtype, size, stride = args
                return Tensor(pool.storage, size, stride, dtype, pool.device)
            case ast.Name(id="copy_if_misaligned"):  # what torch's allocators hand out is aligned
                return args[0]
            case ast.Name(id=name) if name in self._kernels:
                return None  # a compiled C++ kernel: it writes into its arguments
            case ast.Attribute(value=ast.Name(id=name), attr="run") if name in self._globals:
                return None  # a Triton kernel
            case ast.Attribute(value=ast.Name(id="math")):
                return self._eval(node.func, frame)(*args)
            case ast.Subscript(value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=index)):
                return self.call(self._partitions[index], args.pop())
            case ast.Attribute(value=value, attr=method):
                return self._method(node, self._eval(value, frame), method, args)
        raise _unknown(node, "call")

    def _method(self, node: ast.Call, value: Any, method: str, args: list[Any]) -> Any:
        match value, method:
            case list(), "clear":
                return value.clear()
            case Tensor(), "size" | "stride":
                return getattr(value, method)[args[0]] if args else getattr(value, method)
            case Tensor(), "as_strided":
                return view(value, *args)
            case Tensor(), "copy_" | "zero_" | "fill_":
                return value
            case int(), "__floordiv__":
                return value // args[0]
        raise _unknown(node, "method")

    def _allocate(self, device: str | None, size: Any, stride: Any, *rest: Any, **kwargs: Any) -> Tensor:
        dtype = kwargs.get("dtype") or rest[0]
        device = str(device or kwargs.get("device") or rest[1])
        return self._empty(size, stride, dtype, device)

    def _check(self, tensor: Any, size: Any, stride: Any, *rest: torch.dtype | str) -> None:
        """The wrapper checks its layouts at run time; they had better be the ones found here.

        rest: the type of the entries, where it is checked as well (2.15), and the operator's name.
        """
        if isinstance(tensor, Tensor):
            if any(isinstance(item, torch.dtype) and item != tensor.dtype for item in rest):
                raise ValueError(f"found entries of {tensor.dtype}")
            steps = zip(size, tensor.stride, stride, strict=True)
            if tensor.size != tuple(size) or any(n > 1 and mine != theirs for n, mine, theirs in steps):
                raise ValueError(f"found size {tensor.size} and stride {tensor.stride}")

    # Operators

    def _operator(self, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The outputs of an operator: allocated, unless they lie in the storage of an input."""
        namespace, name, *_ = path.removeprefix("torch.ops.").split(".")
        if "out" in kwargs:
            outputs = kwargs["out"]
        elif namespace == "memgraph" and name.startswith(("offload", "reload")):
            return self._transfer(name, args)
        elif namespace == "higher_order" and name in ("run_and_save_rng_state", "run_with_rng_state"):
            return self._replay(name == "run_and_save_rng_state", args, kwargs)
        else:
            outputs = operator_outputs(resolve(path), args, kwargs, self.storage)
        self._target = f"{name} scratch"
        self.storage(self._scratch(path, args, kwargs, outputs), self._device)  # gone again with this line
        return outputs

    def _replay(self, first: bool, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """An operator that draws: the first time it returns the state of its generator, later it begins with that."""
        operator, *args = args if first else args[1:]
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        on_cuda = any(torch.device(tensor.device).type == "cuda" for tensor in tensors)
        size = CUDA_STATE if on_cuda else torch.get_rng_state().numel()
        state = [self._empty((size,), (1,), torch.uint8, "cpu")] if first else []
        outputs = self._operator(operator.name, args, kwargs)
        return (*state, outputs) if first else outputs

    def _scratch(self, path: str, args: list[Any], kwargs: dict[str, Any], outputs: Any) -> int:
        try:
            op = resolve(path)
        except AttributeError:  # a helper of Inductor's, which is no operator
            op = path
        return kernel_scratch.of_operator(op, args, kwargs, outputs, self._device)

    def _transfer(self, name: str, args: list[Any]) -> Tensor:
        """A copy to another tier or back. Its ticket lies in memory of the runtime's own; what returns is allocated
        when its copy starts, and belongs to the ticket until the copy is finished."""
        if name == "reload_finish":
            return Tensor(args[0].storage.holds, tuple(args[2]), tuple(args[3]), args[4], str(args[5]))
        ticket = Storage(f"{self._prefix}.{self._target}", 0, None)
        if name == "reload_start":
            _, size, stride, dtype, device, tier = args
            nbytes = span(size, stride) * dtype.itemsize
            if tier == "nvme":
                nbytes = destination(nbytes, torch.device(device))
            ticket.holds = self.storage(nbytes, str(device))
        return Tensor(ticket, (1,), (1,), torch.int64)


def _unknown(node: ast.AST | None, kind: str) -> ValueError:
    return ValueError(f"`{ast.unparse(node) if node else None}` is no {kind} that memgraph knows")
