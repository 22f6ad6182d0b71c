"""Run passes in order: verify the graphs after each pass that changed something, and show them to those who ask.

TORCH_LOGS="+memgraph"    prints every graph before and after each of these passes
TORCH_TRACE=folder        puts the same graphs into torch's structured trace, as artifacts (read it with tlparse);
                          reports go there as well (reporting/log.py)
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import fx

from memgraph.base import compat
from memgraph.base.errors import VerifyError
from memgraph.passes.graphs import Captured, Graphs, Joint, Pass, Rewritten, Split, TilePlan
from memgraph.planner.decisions import Refusal
from memgraph.verify.apart import verify_apart
from memgraph.verify.checks import structure
from memgraph.verify.masks import verify_masks
from memgraph.verify.rewrite import NumberedJoint, verify_graph
from memgraph.verify.tiles import verify_tiles

Check: TypeAlias = Callable[[Any, Any, str], None]
"""(graphs before a pass, graphs after it, name of the pass); raises VerifyError unless the rewrite is legal."""

_logger = logging.getLogger(__name__)


def rewrite(graphs: Graphs, passes: Sequence[Pass], plan: Any, check: Check | None) -> Rewritten[Graphs]:
    """The graphs after all passes.  check: None where the options switch verification off."""
    modified = False
    notes: list[str] = []
    refusals: list[Refusal] = []
    for pass_ in passes:
        found: Rewritten[Graphs] = pass_(graphs, plan)
        notes += found.notes
        refusals += found.refusals
        if not found.modified:
            _logger.debug("%s changes nothing", pass_.__name__)
            continue
        show(graphs, f"before {pass_.__name__}")
        show(found.graphs, f"after {pass_.__name__}")
        if check is not None:
            check(graphs, found.graphs, pass_.__name__)
        graphs, modified = found.graphs, True
    return Rewritten(graphs, modified, tuple(notes), tuple(refusals))


def show(graphs: Captured | Joint | Split, when: str) -> None:
    """Write graphs into the log and into torch's structured trace, where these are switched on."""
    for name, gm in graphs.by_name().items():
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug("%s, %s:\n%s", name, when, printed(gm))
        compat.trace_artifact(f"memgraph {name} {when}".replace(" ", "_"), functools.partial(printed, gm))


def printed(gm: fx.GraphModule) -> str:
    """A graph as Python code with shapes, and the graphs that it calls."""
    return gm.print_readable(print_output=False, include_stride=True, include_device=True)


def check_captured(before: Captured, after: Captured, pass_name: str) -> None:
    """Checks that a Dynamo graph is well formed, and that attention without its mask computes what it did with it.

    These passes are meant to change other values, so those are not compared. Raises VerifyError, and MaskError for a
    mask that cannot be tried.
    """
    if breaches := structure("graph", after.module):
        raise VerifyError(pass_name, breaches)
    verify_masks(before.module, after.module)


def check_joint(before: Joint, after: Joint, pass_name: str) -> None:
    """Holds a joint graph against the one before, value for value.  Raises VerifyError where they differ."""
    verify_graph(before.module, after.module, pass_name=pass_name)


def check_tiles(plan: TilePlan, tried: set[str]) -> Check:
    """Holds a tiled joint graph against the one before; tiles are run on small data.

    tried: what was run before, and is not run again; what is run is added.  The check raises TileError, with its
    region, where a tile computes something else.
    """

    def check(before: Joint, after: Joint, pass_name: str) -> None:
        shards = [(t.region, t.shards) for t in plan.tiles]
        verify_tiles(before.module, after.module, shards, tried, assumed=dict(plan.assumed))

    return check


def check_apart(plan: TilePlan) -> Check:
    """Holds a joint graph in which the plan's gradients of tables are made part by part against the one before."""

    def check(before: Joint, after: Joint, pass_name: str) -> None:
        verify_apart(before.module, after.module, [gradient.put for gradient in plan.apart], pass_name)

    return check


def check_split(joint: fx.GraphModule, repeatable: Sequence[str]) -> Check:
    """Holds a forward and a backward against a joint graph as it was before anything was cut.

    joint: it is numbered at the first check, once for all of them, and must not be rewritten from then on.
    repeatable: patterns of the operators that the user has declared repeatable.
    """

    numbered = functools.cache(lambda: NumberedJoint(joint, repeatable))

    def check(before: Split, after: Split, pass_name: str) -> None:
        count = after.joint.num_fwd_outputs
        numbered().verify(after.forward, after.backward, num_fwd_outputs=count, pass_name=pass_name)

    return check
