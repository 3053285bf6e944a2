"""What a person sees: text made harmless for a terminal, lines for programs, tables for people.

Tool names, descriptions and results are written by servers, which nobody vouches for: on a terminal an escape
sequence could repaint the screen or set the clipboard. Every command prints through here. Colours and widths
are left to rich, which is loaded only when a terminal is there to show them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeAlias

from isthmus.model.characters import CONTROL, INVISIBLE, escaped, escaped_misjoined

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Row: TypeAlias = Sequence[str]
Group: TypeAlias = tuple[str, Sequence[Row]]
"""Rows, and what stands above them."""

GAP = 2
"""Blanks between columns."""


def harmless(text: str, *, keep: str = "\n\t") -> str:
    """Return `text` with everything that could drive a terminal written as an escape."""
    text = text.replace("\r\n", "\n") if "\n" in keep else text
    if text.isascii() and text.isprintable():
        return text
    text = escaped_misjoined(text)
    return "".join(escaped(character) if _is_harmful(character, keep) else character for character in text)


def _is_harmful(character: str, keep: str) -> bool:
    if character in keep:
        return False
    is_end = character in "\n\t\r"  # no control character elsewhere, but here it was not to be kept
    return is_end or CONTROL.match(character) is not None or INVISIBLE.match(character) is not None


def first_line(text: str) -> str:
    """Return the first line that says something, fit to stand in a table."""
    lines = (line.strip() for line in text.splitlines())
    return harmless(next((line for line in lines if line), ""), keep="")


def write(text: str) -> None:
    """Print what a command was asked for: as it is to a pipe or file, made harmless to a terminal."""
    text = harmless(text) if sys.stdout.isatty() else text
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def write_json(text: bytes) -> None:
    """Print JSON, laid out for reading; numbers keep their exact text."""
    import msgspec

    write(msgspec.json.format(text, indent=2).decode())


def say(text: str) -> None:
    """Print something beside the output: an error, advice, progress."""
    print(harmless(text), file=sys.stderr, flush=True)


def aligned(rows: Sequence[Row]) -> list[str]:
    """Return rows as lines whose columns begin at the same place; the last column is free."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return [
        (" " * GAP).join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


def show_table(stream: TextIO, groups: Sequence[Group], styles: Row) -> None:
    """Show rows under headings on a terminal, aligned over all groups; only the last column is cut to fit.

    `styles` has one of rich's styles for each column.
    """
    console = _console(stream)
    for part in _parts(groups, styles, console.width):
        console.print(part)


@contextmanager
def in_place(stream: TextIO) -> Iterator[Callable[[Sequence[Group], Row], None]]:
    """Show such rows on a terminal again and again, each time in the place of those before; the last ones stay."""
    from rich.console import Group as Together
    from rich.live import Live

    console = _console(stream)
    with Live(console=console, auto_refresh=False) as live:
        yield lambda groups, styles: live.update(Together(*_parts(groups, styles, console.width)), refresh=True)


def _parts(groups: Sequence[Group], styles: Row, width: int) -> Iterator[Text | Table]:
    from rich.text import Text

    widths = _widths([row for _, group in groups for row in group] or [("",) * len(styles)], width)
    for position, (heading, group) in enumerate(groups):
        if heading:
            space = "\n" if position else ""
            yield Text(f"{space}{harmless(heading, keep='')}", style="bold")
        if group:
            yield _table(group, widths, styles)


def _console(stream: TextIO) -> Console:
    """Return rich's view of a terminal, which takes our text as it is: no markup, no guessing at colours."""
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)


def _widths(rows: Sequence[Row], terminal: int) -> list[int]:
    """Return the width of each column: the last has what long names, folded, leave it."""
    from rich.cells import cell_len

    longest = [max(map(cell_len, column), default=0) for column in zip(*rows, strict=True)][:-1]
    widths = [min(width, terminal * 3 // 5) for width in longest]
    room = terminal - sum(widths) - GAP * len(widths)
    return [*widths, max(room, 1)]


def _table(rows: Sequence[Row], widths: Sequence[int], styles: Row) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, GAP, 0, 0))
    for style, width in zip(styles[:-1], widths, strict=False):
        table.add_column(style=style, width=width, overflow="fold")
    table.add_column(style=styles[-1], max_width=widths[-1], no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(harmless(cell, keep="")) for cell in row))
    return table
