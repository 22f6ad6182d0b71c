"""Smaller sizes for graphs that have sizes among their constants: they compute the same function of less data.

    x[4096, 4096] @ W.T[4096, 131072]; slices of 512 rows        x[24, 5] @ W.T[5, 7]; slices of 3 rows

A size is known by its number alone: equal sizes stay equal. All other relations are read from the operators that get
sizes: of a slice, of padding and of a concatenation, the whole is the sum of its parts; a view keeps the product. The
search is for numbers that satisfy all of these (`equations.py`). Whether an operator of another kind accepts them is
not known here: if one does not, the trial asks again, for multiples of 16 in place of that operator's sizes; if it
accepts those neither, its sizes stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import fx

from memgraph.verify.arguments import Arguments, name_of, replaced, shapes
from memgraph.verify.equations import Choice, Combine, Equation, search

# Sizes up to this one stay: numbers of sequences, heads, picks of a router.
KEPT = 16
ANY = Choice((3, 5, 4, 6, 7, 2, 8, 9, 10, 12, 14, 15, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256))
# Products of some kinds take only rows of whole 16 bytes.
EVEN = Choice((16, 32, 48, 64, 96, 128, 192, 256), multiple_of=16)
# After so many guesses the sizes stay as they are.
GUESSES = 2000
# By operator, the argument that is a size or a list of sizes.
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
    "memgraph::shard_keys": "length",
    "memgraph::shard_total": "length",
} | {f"aten::{name}": "size" for name in "full empty zeros ones new_full new_empty new_zeros new_ones".split()}
VIEWS = frozenset(("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::as_strided"))
# These fill a number for each query up to whole blocks.
SUMS_IN_BLOCKS = frozenset(f"aten::_scaled_dot_product_efficient_attention{side}" for side in ("", "_backward"))
# By operator, the arguments that are positions along the dimension `dim`, and the argument with the whole dimension.
BOUNDS = {
    "aten::slice": (("start", "end"), "self"),
    "aten::slice_scatter": (("start", "end"), "self"),
    "aten::slice_backward": (("start", "end"), "input_sizes"),
    "memgraph::shard_keys": (("start",), "whole"),
    "memgraph::shard_total": (("start",), "length"),
    "memgraph::shard_put": (("start",), "whole"),
    "memgraph::shard_sum": (("start",), "total"),
}


class Relations:
    """The equations between the sizes of some graphs."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()
        self.cuts: dict[int, set[int]] = {}  # by length, the positions at which it is cut
        self.parts: set[tuple[int, int, int]] = set()  # (length, start, end): a part that is a size itself
        self.products: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()  # two lists of factors
        self.fixed: set[int] = set()

    def read(self, graph: fx.Graph) -> None:
        """Add the relations of one graph."""
        for node in graph.nodes:
            for shape in shapes(node.meta.get("val")):
                self.sizes.update(shape)
            if node.op == "call_function" and name_of(node.target):
                self._relate(node)

    def _relate(self, node: fx.Node) -> None:
        name, given = name_of(node.target), Arguments(node)
        if name in VIEWS:
            old, new = given.shape("self"), tuple(node.meta["val"].shape)
            self.products |= {(one, other) for one, other in _blocks(old, new) if one != other}
        elif name in BOUNDS:
            self._bounds(node, given)
        elif name == "memgraph::shard_whole":
            self._cut(given["length"], [0, given.shape("first")[given["dim"]]])
        elif name in ("aten::cat", "aten::split", "aten::split_with_sizes", "aten::split_copy"):
            whole = node.meta["val"] if name == "aten::cat" else given["self"].meta["val"]
            pieces = [item.meta["val"] for item in given["tensors"]] if name == "aten::cat" else node.meta["val"]
            if whole.dim() and all(piece.dim() == whole.dim() for piece in pieces):
                dim = given["dim"] % whole.dim()
                lengths = [piece.shape[dim] for piece in pieces]
                self._cut(whole.shape[dim], [0, *itertools.accumulate(lengths)])
        elif name in ("aten::glu", "aten::glu_backward"):
            whole = given.shape("self")[given["dim"]]
            self._cut(whole, [0, whole // 2, whole])
        elif name == "aten::constant_pad_nd":
            self._pads(node, given)
        elif name == "aten::embedding" and given["indices"].op != "placeholder":
            self.fixed.add(given.shape("weight")[0])  # the places that are computed reach the last row
        elif name in SUMS_IN_BLOCKS:
            sums = node.meta["val"][1].shape if given["logsumexp"] is None else given.shape("logsumexp")
            self._cut(sums[2], [0, given.shape("query")[2]])

    def _bounds(self, node: fx.Node, given: Arguments) -> None:
        name = name_of(node.target)
        names, _ = BOUNDS[name]
        whole = _bounded(name, given)
        if given["step"] not in (None, 1):
            self.fixed.add(whole)
        start = place_in(whole, given["start"] or 0)
        end = place_in(whole, given["end"]) if "end" in names else start + _length(name, given)
        self._cut(whole, [start, max(start, end)])

    def _pads(self, node: fx.Node, given: Arguments) -> None:
        old, pads = given.shape("self"), given["pad"]
        for n in range(len(pads) // 2):
            size, (low, high) = old[-1 - n], pads[2 * n : 2 * n + 2]
            if low >= 0 and high >= 0:
                self._cut(size + low + high, [low, low + size])
            elif low <= 0 and high <= 0:
                self._cut(size, [-low, size + high])
            else:
                self.fixed.add(size)

    def _cut(self, whole: int, places: Sequence[int]) -> None:
        """Note a length and the positions at which some of its parts begin and end."""
        if not 0 <= min(places) <= max(places) <= whole:
            return  # such a graph does not run, which its trial will say
        self.cuts.setdefault(whole, {0, whole}).update(places)
        self.parts |= {(whole, start, end) for start, end in itertools.pairwise(places)}

    def smaller(self, even: Collection[int] = (), kept: Collection[int] = ()) -> Sizes:
        """The smallest sizes that were found.

        even: sizes that become multiples of 16.  kept: sizes that do not change.
        """
        pieces = {whole: [b - a for a, b in itertools.pairwise(sorted(cuts))] for whole, cuts in self.cuts.items()}
        names = self.sizes.union(*pieces.values(), *map(itertools.chain.from_iterable, self.products))
        found = {size: size for size in names if size <= KEPT or size in kept or size in self.fixed}
        choices = {size: EVEN if size in even else ANY for size in names}
        solved = search(self._equations(pieces), choices, found, GUESSES)
        return Sizes(solved or {size: size for size in names}, self.cuts)

    def _equations(self, pieces: Mapping[int, Sequence[int]]) -> list[Equation]:
        """pieces: by length, the lengths between its cuts."""
        found = [Equation(Combine.SUM, Counter([whole]), Counter(lengths)) for whole, lengths in pieces.items()]
        for whole, start, end in self.parts:
            cuts = sorted(cut for cut in self.cuts[whole] if start <= cut <= end)
            lengths = Counter(b - a for a, b in itertools.pairwise(cuts))
            if end - start and lengths != Counter([end - start]):
                found.append(Equation(Combine.SUM, Counter([end - start]), lengths))
        for left, right in self.products:
            found.append(Equation(Combine.PRODUCT, Counter(left), Counter(right)))
        return [item for n, item in enumerate(found) if item.left != item.right and item not in found[:n]]


class Sizes:
    """The small size of each size."""

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
        """Strides of the small shape in the order of the old ones, without gaps. A stride of 0 stays."""
        made, step = [0] * len(shape), 1
        for dim in sorted(range(len(shape)), key=lambda dim: (stride[dim], -dim)):
            if stride[dim] or shape[dim] <= 1:
                made[dim], step = step, step * max(1, self[shape[dim]])
        return tuple(made)

    def arguments(self, node: fx.Node, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments of a node's operator with small sizes and positions in place of the old ones."""
        name, given, new = name_of(node.target), Arguments(node), {}
        if name in SIZES and not (name == "aten::arange" and len(node.args) != 1):
            size = given[SIZES[name]]
            new[SIZES[name]] = [self[n] for n in size] if isinstance(size, (list, tuple)) else self[size]
        if name in BOUNDS:
            names, _ = BOUNDS[name]
            whole = _bounded(name, given)
            for bound in names:
                place = place_in(whole, given[bound] or 0) if bound == "start" else place_in(whole, given[bound])
                new[bound] = self._places.get(whole, {}).get(place, place)
        elif name == "aten::constant_pad_nd":
            new["pad"] = self._pads(given.shape("self"), given["pad"])
        elif name == "aten::as_strided" and self.shape(given["size"]) != tuple(given["size"]):
            new |= {
                "size": list(self.shape(given["size"])),
                "stride": list(self.stride(given["size"], given["stride"])),
            }
        return replaced(node.target, args, kwargs, new)

    def _pads(self, shape: Sequence[int], pads: Sequence[int]) -> list[int]:
        """How far small dimensions are padded; below 0: cut.  shape: before, for the old sizes."""
        found = []
        for n in range(len(pads) // 2):
            size, (low, high) = shape[-1 - n], pads[2 * n : 2 * n + 2]
            if low * high < 0:
                found += [low, high]
                continue
            whole = max(size, size + low + high)
            cuts, sign = self._places.get(whole, {}), -1 if low + high < 0 else 1
            end = whole - abs(high)
            found += [sign * cuts.get(abs(low), abs(low)), sign * (self[whole] - cuts.get(end, end))]
        return found

    def sampled(self, whole: int) -> torch.Tensor:
        """For each place along a small dimension, a place along the old one: of each part the ends are among them."""
        cuts = sorted(self._places.get(whole, {0: 0, whole: self[whole]}).items())
        steps = ((a, b - 1, y - x) for (a, x), (b, y) in itertools.pairwise(cuts))
        parts = [torch.linspace(*step, dtype=torch.float64).round().long() for step in steps]
        return torch.cat(parts) if parts else torch.arange(whole)


def _bounded(name: str, given: Arguments) -> int:
    """The length of which an operator of BOUNDS is told positions."""
    of = BOUNDS[name][1]
    if of == "length":
        return given[of]
    return (given[of] if of == "input_sizes" else given.shape(of))[given["dim"]]


def _length(name: str, given: Arguments) -> int:
    """How long the part is that begins at the start which an operator is told."""
    if name == "memgraph::shard_keys":
        return given["length"]
    return given.shape("first" if name == "memgraph::shard_total" else "part")[given["dim"]]


def place_in(whole: int, place: int | None) -> int:
    """A bound of a slice as a position from 0 to the whole."""
    if place is None:
        return whole
    return min(whole, max(0, place + whole if place < 0 else place))


def _blocks(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shortest runs of two shapes that have the same product, in order. Sizes of 1 are left out."""
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
