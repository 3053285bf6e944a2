"""`isthmus approve`: shows tools whose definition changed, and lets the operator approve them.

It reads and writes the file in the state folder, or the database of a cluster, so it works without a running hub;
running hubs see an approval within a second. All texts that it prints come from servers and are escaped for the
terminal.
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

import click
import msgspec

from isthmus.app.definition_pins import definition_store
from isthmus.app.shared_state import is_shared
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import with_config, with_json
from isthmus.cli.output import harmless, print_error, print_json, print_output, print_table
from isthmus.cli.run_command import quiet_logs
from isthmus.config.findings import ConfigError
from isthmus.storage.definition_store import FILE, AnyDefinitions, DefinitionStore, PendingDefinition

CHANGES_SHOWN = 20
CONTEXT_LINES = 2


@click.command("approve")
@click.argument("names", nargs=-1, metavar="[SERVER | SERVER.TOOL]...")
@click.option("--yes", "is_sure", is_flag=True, help="Approve without asking.")
@click.option("--changes", "lists_changes", is_flag=True, help="Show the latest changes of definitions instead.")
@with_config
@with_json
def approve_command(
    names: tuple[str, ...], config: Path | None, *, is_sure: bool, lists_changes: bool, is_json: bool
) -> int:
    """Review tools that are withheld because their definition changed.

    Without names it lists them; with names it shows the differences and asks. It works on the state folder of a hub
    on this machine, or on the database of a cluster for all its nodes, whether or not a hub runs.
    """
    if lists_changes:
        return show_changes(config, is_json=is_json)
    return approve(config, names, is_sure=is_sure, is_json=is_json)


def approve(file: Path | None, names: Sequence[str], *, is_sure: bool, is_json: bool) -> Exit:
    """List pending definitions, or show the differences of the named ones and approve them.

    Raises:
        CommandFailed: there are no stored definitions, or none of that name is pending.
    """
    with _open_store(file) as definitions:
        pending = definitions.waiting()
        if not names:
            _list(pending, is_json=is_json)
            return Exit.SUCCESS
        chosen = list(dict.fromkeys(each for name in names for each in _find(name, pending)))
        if is_json:
            print_json(msgspec.json.encode([_as_json(each) for each in chosen]))
            if not is_sure:  # programs cannot be asked
                return Exit.SUCCESS
        else:
            texts = (_difference(_full_name(each), each.before, each.seen.definition) for each in chosen)
            print_output("\n\n".join(texts))
        if not is_sure and not _ask(len(chosen)):
            print_error("Nothing was approved.")
            return Exit.SUCCESS
        late = [each for each in chosen if not definitions.approve(each.seen, time.time())]
    for each in late:
        print_error(f"{_full_name(each)} has changed again and was not approved. Review it again.")
    if len(chosen) > len(late):
        print_error(f"Approved: {len(chosen) - len(late)}. A running hub shows them within a second.")
    return Exit.CALL_FAILED if late else Exit.SUCCESS


def show_changes(file: Path | None, *, is_json: bool) -> Exit:
    """Print the latest changes of definitions, and whether they were approved."""
    with _open_store(file) as definitions:
        changes = definitions.changes(CHANGES_SHOWN)
    if is_json:
        listed = [
            {
                "server": change.server,
                "tool": change.tool,
                "listed_to": change.variant or None,
                "how": change.how,
                "at": _when(change.at),
                "before": _in_json(change.before),
                "now": _in_json(change.after),
            }
            for change in changes
        ]
        print_json(msgspec.json.encode(listed))
    elif not changes:
        print_error("No definition has changed since it was first seen.")
    else:
        texts = []
        for change in changes:
            name = harmless(f"{change.server}.{change.tool}", keep="")
            texts.append(_difference(f"{name}, {change.how} {_when(change.at)}", change.before, change.after))
        print_output("\n\n".join(texts))
    return Exit.SUCCESS


@contextmanager
def _open_store(file: Path | None) -> Iterator[AnyDefinitions]:
    configuration = configuration_of(file)
    folder = Path(configuration.hub.state)
    if is_shared(configuration):
        quiet_logs()
        try:
            yield definition_store(configuration)
        except ConfigError as error:
            raise refused(error) from error
        except OSError as error:
            raise CommandFailed(Exit.CONFIGURATION, str(error), "Run it again when the database is back.") from error
        return
    if not (folder / FILE).exists():
        text = f"no hub has stored tool definitions in {folder}"
        raise CommandFailed(Exit.CONFIGURATION, text, "Run isthmus serve first, or name its file with --config.")
    try:
        definitions = DefinitionStore(folder)
    except OSError as error:
        raise CommandFailed(Exit.CONFIGURATION, f"{folder / FILE} cannot be used: {error}") from error
    except sqlite3.Error as error:
        raise _damaged(folder, error) from error
    try:
        with closing(definitions):
            yield definitions
    except sqlite3.Error as error:
        raise _damaged(folder, error) from error


def _damaged(folder: Path, error: sqlite3.Error) -> CommandFailed:
    advice = "If it is damaged, move it away: every tool is then seen for the first time again."
    return CommandFailed(Exit.CONFIGURATION, f"{folder / FILE} cannot be used: {error}", advice)


def _list(pending: Sequence[PendingDefinition], *, is_json: bool) -> None:
    if is_json:
        print_json(msgspec.json.encode([_as_json(each) for each in pending]))
    elif not pending:
        print_error("No tools are waiting for approval.")
    else:
        rows = [
            (_full_name(each), _when(each.seen.at), "new" if each.before is None else "changed") for each in pending
        ]
        shown = [tuple(harmless(cell, keep="") for cell in row) for row in rows]
        print_table(("TOOL", "SEEN", "DEFINITION"), shown, ("cyan", "", ""))
        print_error("isthmus approve NAME shows the difference and asks; a server's name stands for all its tools.")


def _find(name: str, pending: Sequence[PendingDefinition]) -> list[PendingDefinition]:
    found = []
    for each in pending:
        full_name = f"{each.seen.server}.{each.seen.tool}"
        # Escaped too: a name with control characters can only be typed as it is shown.
        if name in (each.seen.server, full_name, harmless(full_name, keep="")):
            found.append(each)
    if not found:
        text = f"no pending tool or server is called {harmless(name, keep='')!r}"
        raise CommandFailed(Exit.CALL_FAILED, text, "isthmus approve lists the pending tools.")
    return found


def _ask(count: int) -> bool:
    if not sys.stdin.isatty():
        raise CommandFailed(Exit.USAGE, "cannot ask without a terminal", "Read the difference, then give --yes.")
    what = "this definition" if count == 1 else f"these {count} definitions"
    sys.stderr.write(f"Approve {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# -- printing --------------------------------------------------------------------------------------------------------


def _full_name(each: PendingDefinition) -> str:
    listed = f" (for clients with {each.seen.variant})" if each.seen.variant else ""
    return harmless(f"{each.seen.server}.{each.seen.tool}{listed}", keep="")


def _difference(title: str, before: bytes | None, after: bytes) -> str:
    """The differences line by line; the whole definition if there was none before."""
    old = [] if before is None else list(_lines(before))
    lines = difflib.unified_diff(old, list(_lines(after)), "before", "now", lineterm="", n=CONTEXT_LINES)
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _lines(definition: bytes) -> Iterator[str]:
    """A definition as lines to compare; a text of several lines is shown as such."""
    try:
        text = msgspec.json.format(definition, indent=2)
    except msgspec.MsgspecError:
        text = definition  # another program changed the file; the operator sees its content
    # Not `splitlines`, which also splits at U+2028 and its like, and so would hide them.
    for line in text.decode("utf-8", "replace").split("\n"):
        yield from (harmless(part, keep="") for part in line.replace("\\n", "\\n\n      ").split("\n"))


def _when(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError):
        return "at an unknown time"


def _in_json(definition: bytes | None) -> msgspec.Raw | str | None:
    if definition is None:
        return None
    try:
        msgspec.json.decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return definition.decode("utf-8", "replace")
    return msgspec.Raw(definition)


def _as_json(each: PendingDefinition) -> dict[str, object]:
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
