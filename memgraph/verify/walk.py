"""Numbering one graph, or a forward and then its backward, as they run.

What is more than a function of its arguments is told apart:

- a random op also by which draw of its kind it is, counted over forward and backward together: a redraw
  gets a number that no other draw has, a replay of a saved generator state gets the number of its draw;
- a call of an operator that may run only once, by how often the graphs call it: its value has the number of any
  call of that kind, its runs are counted;
- a read of a storage that an op wrote to, by that write: `primals_1` before and after `copy_(primals_1, x)`;
- an effect by how often it happened.

Bodies that are only called (`invoke_subgraph`, `control_deps`) are numbered as if they stood in the caller.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from memgraph.verify.values import (
    CALLED,
    EFFECT,
    ONCE,
    PURE,
    RANDOM,
    SYMBOLIC,
    Schema,
    Table,
    draws,
    freeze,
    is_transfer,
    schema_of,
    target_name,
)

RNG_WRAPPERS = {"run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state"}


@dataclass(frozen=True)
class Event:
    """A draw, an effect, or a call of what may run only once: its number, its kind of call, the node that does it.

    side: where an effect is bound to.  what: the operator that may run only once.
    """

    number: int
    call: Hashable
    node: fx.Node
    side: str | None = None
    what: str = ""


@dataclass
class Run:
    """What happens while graphs run one after another: a forward, then its backward."""

    table: Table
    draws: list[Event] = field(default_factory=list)
    effects: list[Event] = field(default_factory=list)
    once: list[Event] = field(default_factory=list)
    again: set[Hashable] = field(default_factory=set)  # calls that a checkpoint of the user's own asks to repeat
    writes: dict[int, int] = field(default_factory=dict)  # storage -> the newest write to it
    forward_writes: dict[int, int] = field(default_factory=dict)  # the same, of the forward's effects only
    seen: Counter[Hashable] = field(default_factory=Counter)
    saved_draws: dict[int, tuple[int, Hashable]] = field(default_factory=dict)  # generator state -> its draw


class Numbered:
    """One graph, numbered while `run` goes on; `inputs` are the numbers of its placeholders, in order.

    claims: numbers of nodes, by name, that are given and not found.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        inputs: Sequence[int],
        run: Run,
        caller: fx.Node | None = None,
        claims: Mapping[str, int] | None = None,
    ):
        self.module, self.run, self.table = module, run, run.table
        self._caller = caller
        self._live: set[fx.Node] | None = None
        self.numbers: dict[fx.Node, int] = {}
        self.storages: dict[fx.Node, Hashable] = {}
        self.outputs: list[Any] = []
        self._shared: dict[fx.Node, list[Hashable]] = {}  # call of a body -> the storages of what it returns
        given = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                number = next(given, None)
                if number is None:  # the generator states that the partitioner threads into bodies later
                    number = self.table.number("unbound", node.name)
                self.numbers[node] = number
                self.storages[node] = ("value", self.table.root(number))
            elif node.op == "get_attr":
                self.numbers[node] = self.table.attribute(module, node.target)
                self.storages[node] = ("value", self.numbers[node])
            elif node.op == "output":
                returned = node.args[0]
                self.single = not isinstance(returned, (list, tuple))
                self.outputs = [returned] if self.single else list(returned)
            elif claims and node.name in claims:
                self.numbers[node] = claims[node.name]
                self.storages[node] = node
            else:
                self.numbers[node] = self._call(node)

    def output_numbers(self, writes: dict[int, int]) -> list[Hashable]:
        """The outputs as they are once `writes` are done; what is not a node stays a constant."""
        return [
            self.table.after(self.numbers[value], writes) if isinstance(value, fx.Node) else freeze(value, self.numbers)
            for value in self.outputs
        ]

    def _call(self, node: fx.Node) -> int:
        table, target = self.table, node.target
        self.storages[node] = node
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC):
            return table.number("symbolic", type(value), value.node.expr)
        if target is operator.getitem and isinstance(node.args[0], fx.Node):
            return self._element(node)
        name = target_name(target)
        if name in CALLED and isinstance(body := self._body(node), fx.GraphModule):
            operands = [self._operand(operand) for operand in node.args[CALLED[name] :]]
            if str(node.args[1]).startswith("tile_") and table.body_kinds[table.body(body)] == PURE:
                return table.number(name, table.body(body), *operands)  # large, and the same wherever it is called
            inner = Numbered(body, operands, self.run, self._caller or node)
            self._shared[node] = self._storages_of(node, body, inner)
            numbers = inner.output_numbers({})
            return numbers[0] if inner.single else self._tuple(numbers)
        if name in RNG_WRAPPERS:
            return self._rng_wrapper(name, node)
        if is_transfer(target):
            return self._transfer(node)
        schema = schema_of(target)
        arguments = self._read(node, schema)
        kind, once = table.kind_of(node)
        for operand in node.all_input_nodes:  # a body that the op runs in its own way, such as a score_mod
            if operand.op == "get_attr" and (of := table.body_kinds.get(self.numbers[operand], PURE)) != PURE:
                kind = of if kind in (PURE, ONCE) else kind
                once = once or table.body_once.get(self.numbers[operand], "")
        if kind == RANDOM:
            return self._draw(node, target, node.args, node.kwargs, arguments)
        if kind == EFFECT:
            return self._effect(node, schema, arguments)
        number = table.number(target, *arguments)
        if once:
            self._count(node, number, (target, arguments), once)
        for place, word in schema.views:
            base = node.args[place] if place < len(node.args) else node.kwargs.get(word)
            if isinstance(base, fx.Node):
                table.set_root(number, self.numbers[base])
                self.storages[node] = self.storages[base]
        return number

    def _count(self, node: fx.Node, number: int, call: Hashable, what: str) -> None:
        caller = self._caller or node
        self.run.once.append(Event(number, call, caller, what=what))
        if getattr(caller.meta.get("recompute"), "name", "") in ("MUST_RECOMPUTE", "PREFER_RECOMPUTE"):
            self.run.again.add(call)

    def _read(self, node: fx.Node, schema: Schema) -> tuple[Hashable, Hashable]:
        """The arguments as they are now; what is only viewed is not read."""
        if not (writes := self.run.writes):
            return freeze(node.args, self.numbers), freeze(node.kwargs, self.numbers)
        now = {operand: self.table.after(self.numbers[operand], writes) for operand in node.all_input_nodes}
        for place, word in schema.views:
            base = node.args[place] if place < len(node.args) else node.kwargs.get(word)
            if isinstance(base, fx.Node):
                before = self.table.overwritten.get(now[base], (self.numbers[base], 0))[0]
                now[base] = before
        return freeze(node.args, now), freeze(node.kwargs, now)

    def _element(self, node: fx.Node) -> int:
        whole, index = node.args
        number = self.numbers[whole]
        parts = self.table.parts.get(number)
        if parts is not None and isinstance(index, int):
            constant = not isinstance(parts[index], int)
            element = self.table.number("constant", parts[index]) if constant else parts[index]
        else:
            element = self.table.number(operator.getitem, number, freeze(index, self.numbers))
            if self.storages[whole] is not whole or self.table.root(number) != number:
                self.table.set_root(element, number)  # an element of `split` shares the storage of its base
        shared = self.table.root(element)
        if parts is None and shared != element:
            self.storages[node] = self.storages[whole]
        elif shared in self.table.inputs:
            self.storages[node] = ("value", shared)
        elif whole in self._shared and isinstance(index, int):
            self.storages[node] = self._shared[whole][index]
        return element

    def _storages_of(self, call: fx.Node, body: fx.GraphModule, inner: Numbered) -> list[Hashable]:
        """Of what a body returns: the caller's own where it is an operand, else one that only this call has."""
        operands = call.args[CALLED[target_name(call.target)] :]
        inputs = body.graph.find_nodes(op="placeholder")
        outside = {
            inner.storages[placeholder]: self.storages[operand]
            for placeholder, operand in zip(inputs, operands, strict=False)
            if isinstance(operand, fx.Node)
        }
        inside = [inner.storages[value] if isinstance(value, fx.Node) else None for value in inner.outputs]
        return [outside.get(storage, (call, storage)) for storage in inside]

    def _operand(self, operand: Any) -> int:
        if isinstance(operand, fx.Node):
            return self.numbers[operand]
        return self.table.number("operand", freeze(operand, self.numbers))

    def _tuple(self, numbers: Sequence[Hashable]) -> int:
        number = self.table.number("tuple", *numbers)
        self.table.parts[number] = tuple(numbers)
        return number

    def _body(self, node: fx.Node) -> Any:
        for argument in node.args[:2]:
            if isinstance(argument, fx.Node) and argument.op == "get_attr":
                return operator.attrgetter(argument.target)(self.module)
        return None

    def _draw(self, node: fx.Node, target: Any, args: Any, kwargs: Any, arguments: Hashable) -> int:
        call = (target, arguments)
        if isinstance(target, torch._ops.OpOverload) and not draws(target, args, kwargs):
            return self.table.number(target, *arguments)
        if self._is_dead(node):  # nothing reads it: it only moves the generator on
            return self.table.number("dead draw", call)
        number = self.table.number("draw", call, self.run.seen[call])
        self.run.seen[call] += 1
        self.run.draws.append(Event(number, call, self._caller or node))
        return number

    def _is_dead(self, node: fx.Node) -> bool:
        if self._live is None:
            self._live = set()
            for other in reversed(self.module.graph.nodes):
                bound = other.op == "output" or (other.op == "call_function" and schema_of(other.target).kind == EFFECT)
                if bound or any(user in self._live for user in other.users):
                    self._live.add(other)
        return node not in self._live

    def _effect(self, node: fx.Node, schema: Schema, arguments: Hashable) -> int:
        call = (node.target, arguments)
        number = self.table.number("effect", call, self.run.seen[call])
        self.run.seen[call] += 1
        side = _side(self._caller or node, mutable=bool(schema.writes))
        self.run.effects.append(Event(number, call, self._caller or node, side))
        result = number
        for place, word in schema.writes:
            written = node.args[place] if place < len(node.args) else node.kwargs.get(word)
            for operand in written if isinstance(written, (list, tuple)) else [written]:
                if not isinstance(operand, fx.Node):
                    continue
                before = self.table.overwritten.get(self.numbers[operand], (self.numbers[operand], 0))[0]
                self.run.writes[self.table.root(before)] = number
                if side != "backward":
                    self.run.forward_writes[self.table.root(before)] = number
                if schema.returns_written:
                    result, self.storages[node] = before, self.storages[operand]
        return result

    def _rng_wrapper(self, name: str, node: fx.Node) -> int:
        """The wrappers that draw and keep the generator's state, or draw again from a kept state."""
        kwargs = dict(node.kwargs)
        args = list(node.args)
        state = None
        if name == "run_with_rng_state":
            state = self.numbers[args.pop(0)]
        elif name == "graphsafe_run_with_rng_state":
            state = self.numbers[kwargs.pop("rng_state")]
        target, *rest = args
        arguments = (freeze(tuple(rest), self.numbers), freeze(kwargs, self.numbers))
        number, call = self.run.saved_draws.get(state, (None, None)) if state is not None else (None, None)
        if number is None or call != (target, arguments):
            number = self._draw(node, target, rest, kwargs, arguments)
            if state is not None:
                self.run.saved_draws.setdefault(state, (number, (target, arguments)))
        if name != "run_and_save_rng_state":
            return number
        state = self.table.number("generator state", number)
        self.run.saved_draws[state] = (number, (target, arguments))
        return self._tuple((state, number))

    def _transfer(self, node: fx.Node) -> int:
        """A copy to another tier or back. What comes back is the value that left, if the ends fit together."""
        what, numbers = node.target._schema.name.removeprefix("memgraph::"), self.numbers
        step = {"offload_start": 0, "offload_finish": 1, "reload_start": 2, "reload_finish": 3}[what]
        if what == "offload_start":
            value = self.table.after(numbers[node.args[0]], self.run.writes)
            stage = self.table.number("copy", node.args[1], value)
            self.table.copies[stage] = (step, stage, value)
            held = node.args[0].meta.get("val")
            self.table.layouts[stage] = (
                None if held is None else _layout(held.shape, held.stride(), held.dtype, held.device)
            )
            return stage
        begun, copy, value = self.table.copies.get(numbers[node.args[0]], (-1, None, None))
        fits = begun == step - 1
        if what.startswith("reload"):  # what is asked back must look like what has left
            fits &= _layout(*node.args[-5:-1]) == self.table.layouts.get(copy)
        if what == "offload_finish":
            fits &= value == numbers[node.args[1]]
        elif what == "reload_finish":
            fits &= copy == self.table.copies.get(numbers[node.args[1]], (-1, None, None))[1]
            fits &= tuple(node.args[2:]) == tuple(node.args[0].args[1:])
        if not fits:
            return self.table.number("misfit", what, freeze(node.args, numbers))
        if what == "reload_finish":
            return value
        number = self.table.number("copy", step, copy)
        self.table.copies[number] = (step, copy, value)
        return number


def _layout(size: Any, stride: Any, dtype: Any, device: Any) -> Hashable:
    known = lambda length: str(length.meta.get("val") if isinstance(length, fx.Node) else length)  # noqa: E731
    return (tuple(map(known, size)), tuple(map(known, stride)), dtype, torch.device(device))


def _side(node: fx.Node, *, mutable: bool) -> str | None:
    """Where AOTAutograd wants an effect: a tag says so, and a mutation without one belongs to the forward."""
    tag = node.meta.get("partitioner_tag")
    if tag in ("must_be_in_forward", "must_be_in_backward"):
        return tag.removeprefix("must_be_in_")
    if mutable:
        return "backward" if tag == "is_backward" else "forward"
    return None
