"""Tables of plain text: how wide they have to be, and how rich lays them out."""

from __future__ import annotations

import dataclasses
import enum
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable

WIDTH = 110  # columns of a page as text, unless a name of the model needs more
SENTENCE = 40  # columns at the least for sentences, where there is room
Row = tuple[str, ...]


class Kind(enum.Enum):
    """How the cells of a column may be broken, where there is no room for them."""

    NAME = enum.auto()
    """Only where the table does not fit otherwise."""

    PLACE = enum.auto()
    """Never."""

    NUMBER = enum.auto()
    """Never; aligned to the right."""

    SENTENCE = enum.auto()
    """Between words."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column; without a name it has no header."""

    name: str = ""
    kind: Kind = Kind.NAME

    def width(self, cells: Iterable[str]) -> int:
        """Columns of text in which no word of these cells has to be broken."""
        if self.kind is not Kind.SENTENCE:
            return max(map(len, (self.name, *cells)))
        return max([len(self.name), *(max(min(len(cell), SENTENCE), *map(len, cell.split()), 0) for cell in cells)])


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under named columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def width(self) -> int:
        """Columns of text in which the table has to break no word."""
        cells = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        widths = [column.width(found) for column, found in zip(self.columns, cells, strict=True)]
        return sum(widths) + 3 * len(widths)  # what rich puts beside and between the columns

    def within(self, width: int) -> Table:
        """The table without its last columns, where that keeps the words of the first ones whole."""
        shorter = self
        while shorter.width > width and len(shorter.columns) > 1:
            shorter = Table(self.title, shorter.columns[:-1], tuple(row[:-1] for row in shorter.rows))
        return shorter if shorter.width <= width else self

    def render(self, width: int) -> RichTable:
        """The table for rich, for so many columns of text."""
        from rich.box import Box
        from rich.table import Table as RichTable
        from rich.text import Text

        fits = self.width <= width
        # A rule under the header and nothing else, in ASCII: a report is also printed where there is no UTF-8.
        box = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
        headed = any(column.name for column in self.columns)
        table = RichTable(box=box, show_header=headed, show_edge=False, collapse_padding=True)
        for column in self.columns:
            whole = column.kind in (Kind.NUMBER, Kind.PLACE) or (fits and column.kind is Kind.NAME)
            side: Literal["left", "right"] = "right" if column.kind is Kind.NUMBER else "left"
            table.add_column(column.name, justify=side, no_wrap=whole, overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))  # as it is: a name such as `[bold]` is no markup
        return table


def page(title: str, answer: str, tables: Sequence[Table], width: int) -> Group:
    """A title, the answer to a reader's first question, and tables; words are broken only where `width` needs it."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(title), Text(answer, style="bold")]
    for table in tables:
        if table.title:
            parts.append(Text(f"\n{table.title}", style="bold"))
        parts.append(table.render(width))
    return Group(*parts)


def height(renderable: Any, width: int) -> int:
    """Lines that something takes in so many columns."""
    return len(plain(renderable, 0, width).splitlines())


def plain(renderable: Any, needed: int, width: int = WIDTH) -> str:
    """What rich would print, as text for logs.  needed: columns in which no name has to be broken.  width: at least."""
    from rich.console import Console

    file = io.StringIO()
    # Nothing is asked of the surroundings, so that a log and a notebook show the same text.
    console = Console(file=file, width=max(width, needed), color_system=None, force_terminal=False, force_jupyter=False)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).rstrip()
