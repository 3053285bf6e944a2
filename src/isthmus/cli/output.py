"""Prints to the terminal, to files and to pipes. Every command prints through here.

Servers write tool names, descriptions and results, and a server may be hostile: on a terminal, an escape sequence
could repaint the screen or set the clipboard, so these are escaped. Colors and widths are left to rich, which is
loaded only if there is a terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeAlias

from isthmus.cli.exits import CommandFailed, Exit, OutputClosed
from isthmus.model.hidden_characters import CONTROL, INVISIBLE, escaped, escaped_misjoined

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Row: TypeAlias = Sequence[str]
Group: TypeAlias = tuple[str, Sequence[Row]]
"""A heading, and the rows below it."""

LAST_WIDTH_WANTED = 20
"""Columns are folded until the last one has this width."""

COLUMN_WIDTH_MIN = 12
"""No column is folded below this width."""

_BREAKS = re.compile(r"(?:(?<=[-./ ])|(?<=\w{3}_))(?=[^-./ _])")
"""Where a name may be folded. The prefix of an id, such as `ap_`, stays with it."""

_ID_OR_TIME = re.compile(r"(?:[a-z]+_|k)[0-9a-f]{8,}|\d{4}-\d\d-\d\d[T ][\d:.+-]+Z?")
"""Columns with ids or times are folded only while the last column is narrower than `LAST_WIDTH_MIN`."""

LAST_WIDTH_MIN = 8

GAP = 2
"""Spaces between columns."""


def harmless(text: str, *, keep: str = "\n\t") -> str:
    """`text` with every character escaped that could control a terminal."""
    text = text.replace("\r\n", "\n") if "\n" in keep else text
    if text.isascii() and text.isprintable():
        return text
    text = escaped_misjoined(text)
    return "".join(
        escaped(character)
        if character not in keep and (character in "\n\t\r" or CONTROL.match(character) or INVISIBLE.match(character))
        else character
        for character in text
    )


def wants_color() -> bool:
    """Whether a terminal gets colors; see no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """The columns of the terminal; 80 if the output is not a terminal."""
    import shutil  # it loads compressors

    return shutil.get_terminal_size((80, 24)).columns


def first_line(text: str) -> str:
    """The first line that is not empty, escaped for a table cell."""
    lines = (line.strip() for line in text.splitlines())
    return harmless(next((line for line in lines if line), ""), keep="")


def print_output(text: str) -> None:
    """Print a command's output: unchanged to a pipe or file, escaped on a terminal."""
    text = harmless(text) if sys.stdout.isatty() else text
    write_output(text if text.endswith("\n") else text + "\n")


def write_output(text: str) -> None:
    """Write to standard output as it is.

    Raises:
        OutputClosed: the reader has closed it.
        CommandFailed: it cannot be written.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # The rest goes nowhere; otherwise Python complains again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosed from None
        text = f"cannot write the output: {error.strerror or error}"
        raise CommandFailed(Exit.CALL_FAILED, text, "Make room, or write it elsewhere.") from None


def print_json(text: bytes) -> None:
    """Print indented JSON; numbers keep their exact text."""
    import msgspec

    print_output(msgspec.json.format(text, indent=2).decode())


def print_hanging(text: str, indent: str) -> None:
    """Print a paragraph; on a terminal its further lines are indented, elsewhere it is one line."""
    print_output(_hanging(text, indent) if sys.stdout.isatty() else text)


def print_error(text: str, *, is_wrapped: bool = True) -> None:
    """Print an error, advice or a note to standard error; on a terminal, long lines break between words."""
    text = harmless(text)
    if is_wrapped and sys.stderr.isatty():
        # A command on a line of its own stays one line, so that it can be copied.
        text = "\n".join(
            line if line.startswith("  isthmus ") else _hanging(line, line[: len(line) - len(line.lstrip())] + "  ")
            for line in text.split("\n")
        )
    print(text, file=sys.stderr, flush=True)


def _hanging(text: str, indent: str) -> str:
    if len(text) <= (width := terminal_width()):
        return text
    import textwrap

    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def aligned(rows: Sequence[Row]) -> list[str]:
    """Rows as lines with aligned columns; the last column has any width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return [
        (" " * GAP).join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


def size_text(size: float) -> str:
    """A number of bytes as people read it."""
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def caller_text(caller: str, tenant: str) -> str:
    """A caller for people: with its tenant, unless it has the usual one, or is the local user."""
    return caller if tenant == "default" or caller == tenant == "local" else f"{caller} ({tenant})"


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as "1 tool" or "3 tools"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def show_table(
    stream: TextIO,
    groups: Sequence[Group],
    styles: Row,
    head: Row = (),
    *,
    is_wrapped: bool = False,
    below: Sequence[str] = (),
) -> None:
    """Print rows under headings on a terminal, aligned across groups, with a `head` that names the columns.

    Only the last column is cut to fit, visibly, or wrapped. `styles` has one rich style per column. `below` has a text
    for each row, which is cut to fit, too.
    """
    console = _console(stream)
    for part in _parts(groups, styles, console.width, head, is_wrapped=is_wrapped, below=below):
        console.print(part)


def print_table(
    head: Row, rows: Sequence[Row], styles: Row, *, is_wrapped: bool = False, is_last_below: bool = False
) -> None:
    """Print rows: on a terminal a table with its head, elsewhere a line for each row, for grep and awk.

    If the last column `is_last_below`, a terminal shows each of its cells in a line below its row.
    """
    if sys.stdout.isatty():
        below = [row[-1] for row in rows] if is_last_below else ()
        if is_last_below:
            head, rows, styles = head[:-1], [row[:-1] for row in rows], styles[:-1]
        show_table(sys.stdout, [("", rows)], styles, head, is_wrapped=is_wrapped, below=below)
    else:
        print_output("\n".join(aligned(rows)))


@contextmanager
def in_place(stream: TextIO, head: Row = ()) -> Iterator[Callable[[Sequence[Group], Row], None]]:
    """Draw such tables on a terminal, each in the place of the one before; the last one stays."""
    from rich.console import Group as Together
    from rich.live import Live

    console = _console(stream)
    with _without_echo(), Live(console=console, auto_refresh=False) as live:
        yield lambda groups, styles: live.update(Together(*_parts(groups, styles, console.width, head)), refresh=True)


@contextmanager
def _without_echo() -> Iterator[None]:
    """Do not show what is typed: a `^C` after a full line would begin another, and the table be drawn in its place."""
    if os.name == "nt" or not sys.stdin.isatty():
        yield
        return
    import termios

    keys = sys.stdin.fileno()
    saved, quiet = termios.tcgetattr(keys), termios.tcgetattr(keys)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(keys, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, saved)


def _parts(
    groups: Sequence[Group],
    styles: Row,
    width: int,
    head: Row = (),
    *,
    is_wrapped: bool = False,
    below: Sequence[str] = (),
) -> Iterator[Text | Table]:
    from rich.table import Table
    from rich.text import Text

    rows = [row for _, group in groups for row in group]
    widths = _widths([*([head] if head else []), *rows] or [("",) * len(styles)], width)

    def table_of(some: Sequence[Row], styles: Row) -> Table:
        table = Table.grid(padding=(0, GAP, 0, 0))
        for style, column_width in zip(styles[:-1], widths, strict=False):
            table.add_column(style=style, width=column_width, overflow="fold")
        if is_wrapped:
            table.add_column(style=styles[-1], max_width=widths[-1], overflow="fold")
        else:
            table.add_column(style=styles[-1], max_width=widths[-1], no_wrap=True, overflow="ellipsis")
        for row in some:
            cells = zip((harmless(cell, keep="") for cell in row), widths, strict=True)
            table.add_row(*(Text(_broken(cell, room)) for cell, room in cells))
        return table

    def line_of(text: str) -> Text:
        line = Text(f"  {harmless(text, keep='')}", style="dim")
        line.truncate(width, overflow="ellipsis")
        return line

    if head and rows:
        yield table_of([head], ("dim",) * len(head))
    texts = iter(below)
    for position, (heading, group) in enumerate(groups):
        if heading:
            space = "\n" if position else ""
            yield Text(f"{space}{harmless(heading, keep='')}", style="bold")
        if below:
            for row in group:
                yield table_of([row], styles)
                yield line_of(next(texts))
        elif group:
            yield table_of(group, styles)


def _console(stream: TextIO) -> Console:
    """A rich console that prints text unchanged: no markup, no automatic colors."""
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)


def _widths(rows: Sequence[Row], terminal: int) -> list[int]:
    """The width of each column. Long names are folded; the last column has the rest of the line."""
    from rich.cells import cell_len

    *longest, last = (max(map(cell_len, column), default=0) for column in zip(*rows, strict=True))
    widths = [min(width, terminal * 3 // 5) for width in longest]
    room = terminal - sum(widths) - GAP * len(widths)
    longest_parts = [
        max(cell_len(part) for cell in column for part in _BREAKS.split(cell)) for column in zip(*rows, strict=True)
    ]
    has_ids = [any(map(_ID_OR_TIME.fullmatch, column)) for column in zip(*rows, strict=True)]
    while room < min(LAST_WIDTH_WANTED, terminal * 3 // 10, last):
        wide = [column for column, width in enumerate(widths) if width > COLUMN_WIDTH_MIN]
        without_ids = [column for column in wide if not has_ids[column]]
        candidates = without_ids if without_ids or room >= LAST_WIDTH_MIN else wide
        if not candidates:
            break
        # First those that can be folded between words.
        foldable = [column for column in candidates if widths[column] > longest_parts[column]] or candidates
        widths[max(foldable, key=lambda column: widths[column])] -= 1
        room += 1
    return [*widths, max(room, 1)]


def _broken(cell: str, width: int) -> str:
    """A cell with line breaks in names that are wider than its column, between the words of a name if possible."""
    lines: list[str] = []
    for word in cell.split(" "):
        line, parts = "", []
        for part in _BREAKS.split(word):
            if line and len(line) + len(part) > width:
                parts.append(line)
                line = ""
            line += part
        lines.append("\n".join([*parts, line]))
    return " ".join(lines)
