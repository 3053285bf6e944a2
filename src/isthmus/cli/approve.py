"""`isthmus approve`: what servers say of their tools that they did not say before, and the operator's consent.

It works on the file in the state folder, whether or not a hub runs; one that runs sees the consent within a second.
Everything that it shows was written by a server, so that nothing of it reaches the terminal unescaped.
"""

from __future__ import annotations

import difflib
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import aligned, harmless, say, write, write_json
from isthmus.cli.sources import configuration_of
from isthmus.storage.definitions import FILE, Change, Definitions, Seen, Waiting

CHANGES_SHOWN = 20
CONTEXT_LINES = 2


def approve(file: Path | None, names: Sequence[str], *, is_sure: bool, is_json: bool) -> Exit:
    """Show what waits; of what is named the difference, and approve of it once that is wanted.

    Raises:
        CommandFailed: there is no such file, or nothing of that name waits.
    """
    with _opened(file) as definitions:
        waiting = definitions.waiting()
        if not names:
            _list(waiting, is_json=is_json)
            return Exit.WELL
        chosen = [each for name in names for each in _named(name, waiting)]
        chosen = list(dict.fromkeys(chosen))
        if is_json:
            write_json(msgspec.json.encode([_as_json(each) for each in chosen]))
            if not is_sure:  # programs are not asked
                return Exit.WELL
        else:
            write("\n\n".join(_difference(_full_name(each), each.before, each.seen.definition) for each in chosen))
        if not is_sure and not _consents(len(chosen)):
            say("Nothing was approved.")
            return Exit.WELL
        return _approve(definitions, chosen)


def show_changes(file: Path | None, *, is_json: bool) -> Exit:
    """Print how definitions have changed lately, and whether somebody approved of it."""
    with _opened(file) as definitions:
        changes = definitions.changes(CHANGES_SHOWN)
    if is_json:
        write_json(msgspec.json.encode([_change_as_json(change) for change in changes]))
    elif not changes:
        say("No definition has changed since it was first seen.")
    else:
        write("\n\n".join(_told(change) for change in changes))
    return Exit.WELL


@contextmanager
def _opened(file: Path | None) -> Iterator[Definitions]:
    folder = Path(configuration_of(file).hub.state)
    if not (folder / FILE).exists():
        said = f"no hub has kept what tools look like in {folder}"
        raise CommandFailed(Exit.CONFIGURATION, said, "Run isthmus serve first, or name its file with --config.")
    try:
        with closing(_definitions(folder)) as definitions:
            yield definitions
    except sqlite3.Error as error:
        advice = "If it is damaged, move it away: then every tool is seen for the first time again."
        raise CommandFailed(Exit.CONFIGURATION, f"{folder / FILE} cannot be used: {error}", advice) from error


def _definitions(folder: Path) -> Definitions:
    try:
        return Definitions(folder)
    except OSError as error:
        raise CommandFailed(Exit.CONFIGURATION, f"{folder / FILE} cannot be used: {error}") from error


def _list(waiting: Sequence[Waiting], *, is_json: bool) -> None:
    if is_json:
        write_json(msgspec.json.encode([_as_json(each) for each in waiting]))
    elif not waiting:
        say("Nothing waits to be approved.")
    else:
        rows = [
            (_full_name(each), _when(each.seen.at), "new" if each.before is None else "changed") for each in waiting
        ]
        write("\n".join(aligned([tuple(harmless(cell, keep="") for cell in row) for row in rows])))
        say("isthmus approve NAME shows the difference and asks; a server's name stands for all its tools.")


def _named(name: str, waiting: Sequence[Waiting]) -> list[Waiting]:
    found = [each for each in waiting if name in _names(each.seen)]
    if not found:
        said = f"nothing waits that is called {harmless(name, keep='')!r}"
        raise CommandFailed(Exit.CALL_FAILED, said, "isthmus approve lists what does.")
    return found


def _names(seen: Seen) -> tuple[str, ...]:
    """What one may be called: as it is, or as it is shown where nobody could type it."""
    name = f"{seen.server}.{seen.tool}"
    return seen.server, name, harmless(name, keep="")


def _consents(count: int) -> bool:
    if not sys.stdin.isatty():
        raise CommandFailed(Exit.USAGE, "nobody can be asked here", "Read the difference, then give --yes.")
    what = "this definition" if count == 1 else f"these {count} definitions"
    sys.stderr.write(f"Approve of {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _approve(definitions: Definitions, chosen: Sequence[Waiting]) -> Exit:
    late = [each for each in chosen if not definitions.approve(each.seen, time.time())]
    for each in late:
        say(f"{_full_name(each)} has changed once more, and was not approved. Look again.")
    if len(chosen) > len(late):
        say(f"Approved: {len(chosen) - len(late)}. A hub that runs shows them within a second.")
    return Exit.CALL_FAILED if late else Exit.WELL


# -- showing -----------------------------------------------------------------------------------------------------------


def _full_name(each: Waiting) -> str:
    listed = f" (to who can be asked {each.seen.variant})" if each.seen.variant else ""
    return harmless(f"{each.seen.server}.{each.seen.tool}{listed}", keep="")


def _told(change: Change) -> str:
    name = harmless(f"{change.server}.{change.tool}", keep="")
    return _difference(f"{name}, {change.how} {_when(change.at)}", change.before, change.after)


def _difference(title: str, before: bytes | None, after: bytes) -> str:
    """What is otherwise, line by line; all of it where there was nothing before."""
    old = [] if before is None else list(_lines(before))
    lines = difflib.unified_diff(old, list(_lines(after)), "before", "now", lineterm="", n=CONTEXT_LINES)
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _lines(definition: bytes) -> Iterator[str]:
    """A definition as lines that can be compared: a text of several lines is shown as such."""
    # Not `splitlines`, which would take U+2028 and its like for ends of lines, and not show them.
    for line in _laid_out(definition).decode("utf-8", "replace").split("\n"):
        yield from (harmless(part, keep="") for part in line.replace("\\n", "\\n\n      ").split("\n"))


def _laid_out(definition: bytes) -> bytes:
    try:
        return msgspec.json.format(definition, indent=2)
    except msgspec.MsgspecError:
        return definition  # the file was changed by another than a hub; whoever approves sees what is there


def _when(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError):
        return "at no time"


def _in_json(definition: bytes | None) -> msgspec.Raw | str | None:
    if definition is None:
        return None
    try:
        msgspec.json.decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return definition.decode("utf-8", "replace")
    return msgspec.Raw(definition)


def _as_json(each: Waiting) -> dict[str, object]:
    seen = each.seen
    return {
        "server": seen.server,
        "tool": seen.tool,
        "listed_to": seen.variant or None,
        "fingerprint": seen.fingerprint.hex(),
        "seen": _when(seen.at),
        "before": _in_json(each.before),
        "now": _in_json(seen.definition),
    }


def _change_as_json(change: Change) -> dict[str, object]:
    return {
        "server": change.server,
        "tool": change.tool,
        "listed_to": change.variant or None,
        "how": change.how,
        "at": _when(change.at),
        "before": _in_json(change.before),
        "now": _in_json(change.after),
    }
