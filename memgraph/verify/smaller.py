"""Smaller sizes for graphs that are told their sizes: they compute the same function of less data.

    x[4096, 4096] @ W.T[4096, 131072]; slices of 512 rows        x[24, 5] @ W.T[5, 7]; slices of 3 rows

A size is known by its number alone: equal sizes stay equal. What else has to hold is read from the operators that are
told sizes: of a slice, of padding and of what is joined, the whole is the sum of its parts; a view keeps the product.
Numbers are searched for that satisfy all of these. Whether an operator of any other kind takes them is not known here:
whoever runs the graphs asks again with the sizes of the operator that does not, which then stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

# Sizes up to this stay: sequences, heads, picks of a router.
KEPT = 16
CANDIDATES = (3, 5, 4, 6, 7, 2, 8, 9, 10, 12, 14, 15, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256)
EVEN = (16, 32, 48, 64, 96, 128, 192, 256)  # products of some kinds take rows of whole 16 bytes alone
# Guesses until the sizes stay as they are.
GUESSES = 2000
# Arguments that are sizes, a list of them or one.
SIZES = {
    "aten::view": "size",
    "aten::_unsafe_view": "size",
    "aten::reshape": "shape",
    "aten::expand": "size",
    "aten::slice_backward": "input_sizes",
    "aten::select_backward": "input_sizes",
    "aten::split": "split_size",
    "aten::split_with_sizes": "split_sizes",
    "aten::arange": "end",
    "prims::iota": "length",
    "memgraph::shard_whole": "length",
} | {f"aten::{name}": "size" for name in "full empty zeros ones new_full new_empty new_zeros new_ones".split()}
VIEWS = frozenset(("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::as_strided"))
# Positions along the dimension `dim`, and the argument that has all of that dimension.
BOUNDS = {
    "aten::slice": (("start", "end"), "self"),
    "aten::slice_scatter": (("start", "end"), "self"),
    "aten::slice_backward": (("start", "end"), "input_sizes"),
    "memgraph::shard_put": (("start",), "whole"),
}
Equation = tuple[Counter, Counter]  # of factors, how often each occurs; or of one whole, and of its parts


def name_of(target: Any) -> str:
    """`aten::mm`; of what is no operator of torch's, ""."""
    return target._schema.name if isinstance(target, torch._ops.OpOverload) else ""


def argument(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """An argument by its name in the operator's schema."""
    for place, known in enumerate(target._schema.arguments):
        if known.name == name:
            if place < len(args):
                return args[place]
            return kwargs.get(name, known.default_value if known.has_default_value() else None)
    return None


def shapes(value: Any) -> list[tuple[int, ...]]:
    """The shapes of the tensors in what a node holds."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [tuple(item.shape) for item in values if isinstance(item, torch.Tensor)]


class Relations:
    """What has to hold between the sizes of some graphs."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()
        self.cuts: dict[int, set[int]] = {}  # of a length, where it is cut
        self.parts: set[tuple[int, int, int]] = set()  # (length, from, to): a part that is a size itself
        self.products: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        self.fixed: set[int] = set()

    def read(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            for shape in shapes(node.meta.get("val")):
                self.sizes.update(shape)
            if node.op == "call_function" and name_of(node.target):
                self._relate(node)

    def _relate(self, node: fx.Node) -> None:
        name, told = name_of(node.target), _Told(node)
        if name in VIEWS:
            old, new = told.shape("self"), tuple(node.meta["val"].shape)
            self.products |= {(one, other) for one, other in _blocks(old, new) if one != other}
        elif name in BOUNDS:
            self._bounds(node, told)
        elif name == "memgraph::shard_whole":
            self._cut(told["length"], [0, told.shape("first")[told["dim"]]])
        elif name in ("aten::cat", "aten::split", "aten::split_with_sizes", "aten::split_copy"):
            whole = node.meta["val"] if name == "aten::cat" else told["self"].meta["val"]
            pieces = [item.meta["val"] for item in told["tensors"]] if name == "aten::cat" else node.meta["val"]
            if whole.dim() and all(piece.dim() == whole.dim() for piece in pieces):
                dim = told["dim"] % whole.dim()
                lengths = [piece.shape[dim] for piece in pieces]
                self._cut(whole.shape[dim], [0, *itertools.accumulate(lengths)])
        elif name in ("aten::glu", "aten::glu_backward"):
            whole = told.shape("self")[told["dim"]]
            self._cut(whole, [0, whole // 2, whole])
        elif name == "aten::constant_pad_nd":
            self._pads(node, told)

    def _bounds(self, node: fx.Node, told: _Told) -> None:
        names, of = BOUNDS[name_of(node.target)]
        shape = told[of] if of == "input_sizes" else told.shape(of)
        whole = shape[told["dim"]]
        if told["step"] not in (None, 1):
            self.fixed.add(whole)
        start = place_in(whole, told["start"] or 0)
        end = start + told.shape("part")[told["dim"]] if names == ("start",) else place_in(whole, told["end"])
        self._cut(whole, [start, max(start, end)])

    def _pads(self, node: fx.Node, told: _Told) -> None:
        old, pads = told.shape("self"), told["pad"]
        for n in range(len(pads) // 2):
            size, (low, high) = old[-1 - n], pads[2 * n : 2 * n + 2]
            if low >= 0 and high >= 0:
                self._cut(size + low + high, [0, low, low + size, size + low + high])
            elif low <= 0 and high <= 0:
                self._cut(size, [0, -low, size + high, size])
            else:
                self.fixed.add(size)

    def _cut(self, whole: int, places: Sequence[int]) -> None:
        """A length, and where some of its parts begin and end."""
        if not 0 <= min(places) <= max(places) <= whole:
            return  # no graph that runs; whoever runs it sees that
        self.cuts.setdefault(whole, {0, whole}).update(places)
        self.parts |= {(whole, start, end) for start, end in itertools.pairwise(places)}

    def smaller(self, even: Collection[int] = (), kept: Collection[int] = ()) -> Sizes:
        """The smallest sizes that were found, where some are multiples of 16 at least and some stay as they are."""
        pieces = {whole: [b - a for a, b in itertools.pairwise(sorted(cuts))] for whole, cuts in self.cuts.items()}
        equations: list[tuple[str, Equation]] = []
        for whole, lengths in pieces.items():
            equations.append(("sum", (Counter([whole]), Counter(lengths))))
        for whole, start, end in self.parts:
            cuts = sorted(cut for cut in self.cuts[whole] if start <= cut <= end)
            lengths = Counter(b - a for a, b in itertools.pairwise(cuts))
            if end - start and lengths != Counter([end - start]):
                equations.append(("sum", (Counter([end - start]), lengths)))
        for left, right in self.products:
            equations.append(("product", (Counter(left), Counter(right))))
        equations = [item for n, item in enumerate(equations) if item[1][0] != item[1][1] and item not in equations[:n]]
        names = self.sizes.union(*pieces.values(), *map(itertools.chain.from_iterable, self.products))
        found = {size: size for size in names if size <= KEPT or size in kept or size in self.fixed}
        candidates = {size: EVEN if size in even else CANDIDATES for size in names}
        solved = _search(equations, candidates, found, [GUESSES])
        return Sizes(solved or {size: size for size in names}, self.cuts)


class Sizes:
    """Sizes by what they were."""

    def __init__(self, found: Mapping[int, int], cuts: Mapping[int, Collection[int]]) -> None:
        self._found, self._places = found, {}
        for whole, places in cuts.items():
            order = sorted(places)
            ends = itertools.accumulate((found[b - a] for a, b in itertools.pairwise(order)), initial=0)
            self._places[whole] = dict(zip(order, ends, strict=True))

    def __getitem__(self, size: int) -> int:
        return self._found.get(size, size)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(self[size] for size in shape)

    def stride(self, shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
        """Strides in the order of those of a shape, without gaps; 0 where they are."""
        made, step = [0] * len(shape), 1
        for dim in sorted(range(len(shape)), key=lambda dim: (stride[dim], -dim)):
            if stride[dim] or shape[dim] <= 1:
                made[dim], step = step, step * max(1, self[shape[dim]])
        return tuple(made)

    def told(self, node: fx.Node, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments of a node's operator with its sizes and positions replaced."""
        name, told, new = name_of(node.target), _Told(node), {}
        if name in SIZES and not (name == "aten::arange" and len(node.args) != 1):
            given = told[SIZES[name]]
            new[SIZES[name]] = [self[size] for size in given] if isinstance(given, (list, tuple)) else self[given]
        if name in BOUNDS:
            names, of = BOUNDS[name]
            whole = (told[of] if of == "input_sizes" else told.shape(of))[told["dim"]]
            for bound in names:
                place = place_in(whole, told[bound] or 0) if bound == "start" else place_in(whole, told[bound])
                new[bound] = self._places.get(whole, {}).get(place, place)
        elif name == "aten::constant_pad_nd":
            new["pad"] = [int(math.copysign(self[abs(pad)], pad)) for pad in told["pad"]]
        elif name == "aten::as_strided" and self.shape(told["size"]) != tuple(told["size"]):
            new |= {"size": list(self.shape(told["size"])), "stride": list(self.stride(told["size"], told["stride"]))}
        return _replaced(node.target, args, kwargs, new)


class _Told:
    """What a node's operator is told, by the names of its schema."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def __getitem__(self, name: str) -> Any:
        return argument(self.node.target, self.node.args, self.node.kwargs, name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self[name].meta["val"].shape)


def place_in(whole: int, place: int | None) -> int:
    """A bound of a slice, from 0 to the whole."""
    if place is None:
        return whole
    return min(whole, max(0, place + whole if place < 0 else place))


def _replaced(target: Any, args: tuple, kwargs: dict, new: Mapping[str, Any]) -> tuple[tuple, dict]:
    args, kwargs = list(args), dict(kwargs)
    for place, known in enumerate(target._schema.arguments if new else ()):
        if known.name in new:
            if place < len(args):
                args[place] = new[known.name]
            else:
                kwargs[known.name] = new[known.name]
    return tuple(args), kwargs


def _blocks(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shortest runs of sizes of two shapes that have the same product, in order, without those of size 1."""
    old, new = [size for size in old if size != 1], [size for size in new if size != 1]
    if math.prod(old) != math.prod(new) or not math.prod(old):
        return
    i = j = 0
    while i < len(old) and j < len(new):
        first, other, one, two = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while one != two:
            if one < two:
                one, i = one * old[i], i + 1
            else:
                two, j = two * new[j], j + 1
        yield tuple(old[first:i]), tuple(new[other:j])


def _search(
    equations: Sequence[tuple[str, Equation]],
    candidates: Mapping[int, Sequence[int]],
    found: dict[int, int],
    left: list[int],
) -> dict[int, int] | None:
    """The first numbers, small ones first, that satisfy all equations; None where there are none, or too many guesses.

    candidates: by size, what it may become.  found: what is known.  left: guesses that are left.
    """
    found = dict(found)
    if not _settle(equations, candidates, found):
        return None
    unknown = [size for size in sorted(candidates) if size not in found]
    if not unknown:
        return found
    bound = {size for _, sides in equations for side in sides for size in side}
    size = next((size for size in unknown if size in bound), unknown[0])
    used = set(found.values())
    for candidate in sorted((c for c in candidates[size] if c < size), key=lambda c: c in used):
        left[0] -= 1
        if left[0] < 0:
            return None
        if solved := _search(equations, candidates, found | {size: candidate}, left):
            return solved
    return _search(equations, candidates, found | {size: size}, left)


def _settle(
    equations: Sequence[tuple[str, Equation]], candidates: Mapping[int, Sequence[int]], found: dict[int, int]
) -> bool:
    """Put in what follows from what is known.  False where that cannot be."""
    more = True
    while more:
        more = False
        for kind, (left, right) in equations:
            unknown = {size for size in (*left, *right) if size not in found}
            if len(unknown) > 1:
                continue
            if not unknown:
                if _side(kind, left, found) != _side(kind, right, found):
                    return False
                continue
            size = unknown.pop()
            value = _solve(kind, left, right, size, found)
            if value is None or value < min(2, size):
                return False
            if candidates.get(size) is EVEN and value % EVEN[0] and value != size:
                return False
            found[size], more = value, True
    return True


def _side(kind: str, side: Counter, found: Mapping[int, int]) -> int:
    if kind == "sum":
        return sum(found[size] * times for size, times in side.items())
    return math.prod(found[size] ** times for size, times in side.items())


def _solve(kind: str, left: Counter, right: Counter, size: int, found: Mapping[int, int]) -> int | None:
    """The one unknown size of an equation; None where no whole number satisfies it."""
    times = left[size] - right[size]
    if times < 0:
        left, right, times = right, left, -times
    rest = [Counter({name: n for name, n in side.items() if name != size}) for side in (left, right)]
    one, other = (_side(kind, side, found) for side in rest)
    if not times:
        return size if one == other else None
    value, remainder = divmod(other - one, times) if kind == "sum" else divmod(other, one)
    return value if not remainder and (kind == "sum" or times == 1) else None
