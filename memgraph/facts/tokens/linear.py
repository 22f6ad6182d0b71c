"""Whether an operator is linear in some of its inputs: then a gradient for a tangent of 1 may be scaled by the tangent.

A backward is linear in its tangent as autograd derives it, but a function of the user's own may clip a gradient.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from memgraph.facts.operators import described, family, short_name
from memgraph.facts.tokens.states import is_tensor

# Of one input and nothing else that is a number.
_ALONE = frozenset(
    "neg clone _to_copy sum mean constant_pad_nd cumsum flip index gather embedding slice_backward select_backward "
    "repeat prims::convert_element_type prims::rev".split()
)
_SUMS = frozenset(("add", "sub", "cat"))
_PRODUCTS = frozenset(("mul", "mm", "bmm", "_grouped_mm", "transformers::grouped_mm_fallback"))
_PARTS = frozenset(("slice_scatter", "select_scatter", "diagonal_scatter"))
_PUTS = frozenset(("index_put", "_unsafe_index_put"))
_SCATTERS = frozenset(("scatter", "scatter_add")) | _PARTS | _PUTS
_ZEROS = frozenset(("full", "zeros", "scalar_tensor"))


def linear(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    """Whether a node is linear in those of its inputs that depend on something, taken together."""
    name = short_name(node.target)
    reads = [read for read in node.all_input_nodes if is_tensor(read) or read in dependent]
    moving = [read for read in reads if read in dependent]
    if is_tensor(node) and not node.meta["val"].dtype.is_floating_point:
        return False  # rounded to whole numbers, or compared
    if family(node.target) == "getitem" or _views(node):
        return True
    if name in _ALONE:
        return reads[:1] == moving and not _numbers(node, name)
    if name in _SUMS:
        tensors = node.args[0] if name == "cat" else node.args[:2]
        return all(item in dependent or _zero(item) for item in tensors)
    if name in _PRODUCTS:
        factors = [item for item in node.args[:2] if item in moving]
        return len(factors) == 1 and len(moving) == 1
    if name == "div":
        return moving == [node.args[0]] and node.kwargs.get("rounding_mode") is None
    if name == "where":
        return node.args[0] not in dependent and all(item in dependent or _zero(item) for item in node.args[1:3])
    if name in ("prims::fma", "addmm"):
        one, other, added = node.args[:3] if name == "prims::fma" else (*node.args[1:3], node.args[0])
        return (one in dependent) != (other in dependent) and (added in dependent or _zero(added))
    if name == "glu_backward":
        return moving == [node.args[0]]
    if name == "copy":
        return node.args[1] in dependent or _zero(node.args[1])
    if name == "transformers::grouped_mm_fallback_backward":
        return moving == [node.args[3]]
    if name in _SCATTERS:
        source = node.args[1] if name in _PARTS else node.args[2] if name in _PUTS else node.args[3]
        base = node.args[0]
        return moving == [read for read in (base, source) if read in dependent] and all(
            item in dependent or _zero(item) for item in (base, source)
        )
    return False


def _numbers(node: fx.Node, name: str) -> bool:
    """Whether padding puts another number than 0 in."""
    return name == "constant_pad_nd" and len(node.args) > 2 and node.args[2] != 0


def _views(node: fx.Node) -> bool:
    """Whether a node only views its input: an operator that nobody described may give back anything in its storage."""
    return family(node.target) == "view" and described(node.target)


def _zero(item: object) -> bool:
    if not isinstance(item, fx.Node):
        return item == 0
    while item.op == "call_function" and _views(item):
        item = item.all_input_nodes[0]
    if item.op != "call_function" or short_name(item.target) not in _ZEROS:
        return False
    name = short_name(item.target)
    return name == "zeros" or item.args[1 if name == "full" else 0] == 0
