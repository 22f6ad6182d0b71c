"""What may happen to a value or to a token region, who asks for it, and why a value can only be saved.

These are values: the planner, the passes and the report compare them. Their text is for readers alone, but for the
spelling of an action in the options, which `parse_action` reads.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import ClassVar


@dataclasses.dataclass(frozen=True)
class Save:
    """The value stays on the device until the backward has read it."""

    lever: ClassVar[str] = "save"

    def __str__(self) -> str:
        return self.lever


@dataclasses.dataclass(frozen=True)
class Recompute:
    """The value is dropped, and the backward computes it again."""

    lever: ClassVar[str] = "recompute"

    def __str__(self) -> str:
        return self.lever


@dataclasses.dataclass(frozen=True)
class Offload:
    """The value leaves the device in the forward and comes back in the backward."""

    tier: str
    """Where it lies meanwhile: "host" or "nvme"."""

    lever: ClassVar[str] = "offload"

    def __str__(self) -> str:
        return f"{self.lever}:{self.tier}"


@dataclasses.dataclass(frozen=True)
class Tile:
    """The region runs one shard of its tokens at a time."""

    shards: int | None = None
    """The number of shards. Only a rule may leave it open, as None: the planner chooses then."""

    lever: ClassVar[str] = "tile"

    def __str__(self) -> str:
        return self.lever if self.shards is None else f"{self.lever}:{self.shards}"


Action = Save | Recompute | Offload | Tile

LEVERS: dict[str, type[Action]] = {kind.lever: kind for kind in (Save, Recompute, Offload, Tile)}
SPELLINGS: dict[str, Action] = {
    str(action): action for action in (Save(), Recompute(), Offload("host"), Offload("nvme"), Tile())
}


def parse_action(text: object) -> Action | None:
    """The action that the options spell so (`"save"`, `"offload:host"`, `"tile:16"`); None for any other text."""
    if not isinstance(text, str):
        return None
    if text in SPELLINGS:
        return SPELLINGS[text]
    lever, _, shards = text.partition(":")
    counted = shards.isascii() and shards.isdecimal() and int(shards) > 1
    return Tile(int(shards)) if lever == Tile.lever and counted else None


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule of the options."""

    pattern: str
    """Which module paths it speaks of."""

    action: Action

    def __str__(self) -> str:
        return f"rule {self.pattern!r}"

    @property
    def spelling(self) -> str:
        """The rule with its action, as the options have it."""
        return f"{self}: {str(self.action)!r}"


@dataclasses.dataclass(frozen=True)
class CheckpointTag:
    """A tag of `torch.utils.checkpoint`, which is the user's."""

    def __str__(self) -> str:
        return "the user's checkpoint policy"


@dataclasses.dataclass(frozen=True)
class GraphItself:
    """The graph would compute something else if the value were computed twice."""

    def __str__(self) -> str:
        return "must not be computed twice"


@dataclasses.dataclass(frozen=True)
class RegionInput:
    """The value enters a module that is recomputed: it is held, as under `torch.utils.checkpoint`."""

    of: Origin
    """Who asks for the recomputation."""

    def __str__(self) -> str:
        return f"enters a region of {self.of}"


@dataclasses.dataclass(frozen=True)
class TileOption:
    """The option `tile` gives a number of shards to all regions of a kind."""

    kind: str
    """Of the regions: "mlp", "loss" or "attention"."""

    shards: int

    def __str__(self) -> str:
        return f"option 'tile': {{{self.kind!r}: {self.shards}}}"


Origin = Rule | CheckpointTag | GraphItself | RegionInput | TileOption


@dataclasses.dataclass(frozen=True)
class Pin:
    """A decision that the planner may not change."""

    action: Action
    origin: Origin


class FixedKind(enum.Enum):
    """What keeps an operator from running twice."""

    DRAWS = enum.auto()
    """It draws random numbers."""

    MUTATES = enum.auto()
    """It writes into its arguments."""

    HAS_EFFECTS = enum.auto()
    """It prints, calls an object's method, or steps a generator."""

    COMMUNICATES = enum.auto()
    """It is a collective."""

    SIZED_BY_DATA = enum.auto()
    """The size of its output depends on the data."""

    READS_OVERWRITTEN = enum.auto()
    """It reads an input of the graph that the forward overwrites."""

    UNDECLARED = enum.auto()
    """Nothing says what it does: neither its schema nor the option `repeatable`."""


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Why a value can only be saved."""

    kind: FixedKind

    text: str
    """The reason as a predicate, to read: "draws random numbers"."""

    @property
    def runs_unread(self) -> bool:
        """Whether the operator runs though nothing reads its output."""
        return self.kind in (FixedKind.MUTATES, FixedKind.HAS_EFFECTS)

    def __str__(self) -> str:
        return self.text
