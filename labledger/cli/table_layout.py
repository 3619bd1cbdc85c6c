"""The layout of tables: no name, number or time is broken across lines.

On a terminal, columns of text are wrapped. If they do not fit, the first column gets its own line
above the others. If that does not fit either, each row becomes a list of fields. Elsewhere, every
row is one line. Input is already escaped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WRAPPED_WIDTH = 16
"""The smallest width of a column that is wrapped, in cells."""
_LONGEST_WORD = 48
"""Longer words, such as JSON without spaces, are broken across lines."""
_LONGEST_NAME = 80
"""Names, run ids and digests up to this length are not broken."""
_NAME = re.compile(r"[\w.:/@+-]+")
_NARROW = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027]*")
"""Text in which each character takes one cell."""
_GAP = 2
_WIDE_GAP = 3
"""The gap between columns if there is enough room."""
_TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables that make rich treat other streams as terminals."""


@dataclass(frozen=True, slots=True)
class Content:
    """The text of a table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str]

    def without_first(self) -> Content:
        return Content(self.columns[1:], [row[1:] for row in self.rows], self.right)


def plain_text(content: Content) -> str | None:
    """Return the table as text without styles, each row on one line; None if rich must draw it.

    This avoids loading rich, which takes as long as a command that prints a small table.
    """
    natural = _natural_widths(content)
    if not all(natural) or any(name in os.environ for name in _TERMINAL_VARIABLES):
        return None
    return "".join(f"{line}\n" for line in _plain_lines(content, natural))


def draw(content: Content, console: Console) -> str:
    """Return the table as text for a console."""
    natural = _natural_widths(content)
    if not console.is_terminal:
        console.width = sum(natural) + 3 * len(natural)
    with console.capture() as drawing:
        for part in _parts(content, natural, console.width):
            console.print(part)
    return drawing.get()


def _plain_lines(content: Content, widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of `_plain_table`, exactly as rich writes them without styles."""
    for row in (content.columns, *content.rows):
        yield (" " * _WIDE_GAP).join(
            f"{' ' * (width - _width(text))}{text}"
            if name in content.right
            else f"{text}{' ' * (width - _width(text))}"
            for name, text, width in zip(content.columns, row, widths, strict=True)
        )
        if row is content.columns:
            yield "─" * (sum(widths) + _WIDE_GAP * (len(widths) - 1))


def _parts(content: Content, natural: Sequence[int], width: int) -> Iterator[RenderableType]:
    if sum(natural) + _WIDE_GAP * (len(natural) - 1) <= width:
        yield _plain_table(content, natural, gap=_WIDE_GAP)
    elif widths := _fitting_widths(content, width):
        yield _plain_table(content, widths, gap=_GAP)
    elif len(natural) > 1 and (widths := _fitting_widths(content.without_first(), width - _GAP)):
        yield from _under_first_column(content, widths)
    else:
        yield from _rows_as_lists(content)


def _fitting_widths(content: Content, width: int) -> list[int] | None:
    """Return column widths that fit into `width` together, or None if there are none."""
    columns = _texts_by_column(content)
    natural = [max(map(_width, texts)) for texts in columns]
    widths = [
        min(full, max(_longest_word(texts), _WRAPPED_WIDTH))
        for full, texts in zip(natural, columns, strict=True)
    ]
    spare = width - _GAP * (len(widths) - 1) - sum(widths)
    if spare < 0:
        return None
    # Columns that need least come first, so that the rest of their share goes to the others.
    by_need = sorted(range(len(widths)), key=lambda n: natural[n] - widths[n])
    for widened, column in enumerate(by_need):
        added = min(natural[column] - widths[column], spare // (len(widths) - widened))
        widths[column] += added
        spare -= added
    return widths


def _longest_word(texts: Iterable[str]) -> int:
    """Return the width of the longest word that must not be broken, in cells."""
    return max(
        (_width(word) for text in texts for word in text.split() if _is_unbroken(word)), default=1
    )


def _is_unbroken(word: str) -> bool:
    """Return whether a word stays on one line."""
    longest = _LONGEST_NAME if _NAME.fullmatch(word) else _LONGEST_WORD
    return _width(word) <= longest


def _natural_widths(content: Content) -> list[int]:
    return [max(map(_width, texts)) for texts in _texts_by_column(content)]


def _texts_by_column(content: Content) -> list[tuple[str, ...]]:
    return list(zip(content.columns, *content.rows, strict=True))


def _width(text: str) -> int:
    if text.isascii() or _NARROW.fullmatch(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _plain_table(content: Content, widths: Sequence[int], *, gap: int) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=gap < 3, expand=False
    )
    for name, width in zip(content.columns, widths, strict=True):
        drawn.add_column(
            Text(name), justify=_justification(content, name), overflow="fold", width=width
        )
    for row in content.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def _under_first_column(content: Content, widths: Sequence[int]) -> Iterator[RenderableType]:
    """Yield each row as the first column on one line, with the other columns below it."""
    from rich.rule import Rule
    from rich.text import Text

    rest = content.without_first()
    yield Text(content.columns[0], style="bold")
    yield _line(rest, rest.columns, widths, style="bold")
    yield Rule(style="none")
    for row in content.rows:
        yield Text(row[0], overflow="fold")
        yield _line(rest, row[1:], widths)


def _line(
    content: Content, row: Sequence[str], widths: Sequence[int], *, style: str = ""
) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, _GAP, 0, 0))
    for name, width in zip(content.columns, widths, strict=True):
        drawn.add_column(justify=_justification(content, name), overflow="fold", width=width)
    drawn.add_row(*(Text(text, style=style) for text in row))
    return Padding(drawn, (0, 0, 0, _GAP))


def _rows_as_lists(content: Content) -> Iterator[RenderableType]:
    """Yield each row as a list of its fields."""
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    for number, row in enumerate(content.rows, 1):
        drawn = Table.grid(padding=(0, _GAP, 0, 0))
        drawn.add_column(no_wrap=True)
        drawn.add_column(overflow="fold")
        for name, text in zip(content.columns, row, strict=True):
            drawn.add_row(Text(name, style="bold"), Text(text))
        yield Rule(Text(f"row {number}"), align="left", style="none")
        yield drawn
    if not content.rows:
        yield Text(", ".join(content.columns), style="bold")


def _justification(content: Content, name: str) -> Any:
    return "right" if name in content.right else "left"
