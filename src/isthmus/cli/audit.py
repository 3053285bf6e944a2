"""`isthmus audit`: verifies, shows and exports the audit logs of a hub.

It reads the hub's store and state folder, whether or not the hub runs, and writes nothing there. Besides the log of
the hub that serves there may be others, each in a numbered slot: commands and embedded hubs write these.
"""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from isthmus.app.audit_reader import (
    AuditStoredElsewhere,
    SlottedRow,
    audit_line,
    broken_words,
    logs_of,
    rows_of,
    verdict_document,
    verdict_lines,
    verify_logs,
)
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.options import CommandGroup, WholeNumber, with_config, with_json
from isthmus.cli.output import harmless, print_hanging, print_json, print_output
from isthmus.cli.run_command import run_command
from isthmus.core.audit import CALL_ENDED, CALL_LOST, CALL_STARTED, AuditRow, read_moment, record_members

FOLLOW_SECONDS = 0.5
"""Interval at which `tail --follow` looks for new records."""

COLUMNS = (
    *("number", "at", "event", "caller", "tenant", "frontend", "kind", "name", "server", "outcome", "executed"),
    *("seconds", "arguments", "session", "id", "key", "other", "digest", "slot"),
)
"""Columns of an export as CSV; all other members of a record are in `other`."""

NAMED = {"tenant", "caller", "frontend", "name"}
"""Members that the record of a call needs to be shown as one."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula."""


@click.group(cls=CommandGroup)
def audit() -> None:
    """Verify, show or export the audit log. No hub has to run."""


@audit.command("verify", short_help="Check that the log has not been altered.")
@with_config
@with_json
def audit_verify(config: Path | None, *, is_json: bool) -> int:
    """Check that the log has not been altered; if it has, name the first bad record and exit with 1."""
    return run_command(verify_log(config, is_json=is_json))


@audit.command("tail")
@click.option("-n", "count", type=WholeNumber(0, 100_000), default=20, show_default=True, help="How many records.")
@click.option("-f", "--follow", "follows", is_flag=True, help="Print each new record, until Ctrl-C.")
@with_config
@with_json
def audit_tail(count: int, config: Path | None, *, follows: bool, is_json: bool) -> int:
    """Print the last records."""
    try:
        return run_command(show_tail(config, count, follows=follows, is_json=is_json))
    except KeyboardInterrupt:
        return Exit.SUCCESS


@audit.command("export")
@click.option("--since", metavar="TIME", help="First time, such as 2026-11-16, 2026-11-16T09:30:00Z or 24h ago.")
@click.option("--until", metavar="TIME", help="End of the time, not included.")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@with_config
def audit_export(since: str | None, until: str | None, form: str, config: Path | None) -> int:
    """Print records, one per line, with the digests that chain them."""
    return run_command(export_log(config, since, until, form))


# -- verify ----------------------------------------------------------------------------------------------------------


async def verify_log(file: Path | None, *, is_json: bool) -> Exit:
    """Check that no log has been altered.

    Raises:
        CommandFailed: one has been altered, or cannot be read.
    """
    try:
        verdicts = await verify_logs(configuration_of(file), lambda _: None)
    except OSError as error:
        raise _unreadable(error) from error
    broken = broken_words(verdicts)
    if is_json:
        print_json(msgspec.json.encode(verdict_document(verdicts)))
        return Exit.CALL_FAILED if broken else Exit.SUCCESS
    if broken:
        is_empty = all(verdict.count == 0 and verdict.key is None for verdict in verdicts)
        advice = ["A hub that never ran has no log; --config names the configuration of another."] if is_empty else []
        raise CommandFailed(Exit.CALL_FAILED, f"the audit log failed verification: {'; '.join(broken)}", *advice)
    print_output("\n".join(line for verdict in verdicts for line in verdict_lines(verdict)))
    return Exit.SUCCESS


# -- tail and export -------------------------------------------------------------------------------------------------


async def show_tail(file: Path | None, count: int, *, follows: bool, is_json: bool) -> Exit:
    """Print the last records of all logs, and with `follows` each new one.

    Raises:
        CommandFailed: a log cannot be read.
    """
    configuration = configuration_of(file)
    try:
        found: list[SlottedRow] = []
        for source in await logs_of(configuration):
            async with source.reading() as log:
                found += [(source.slot, row) for row in await log.newest(max(1, count))]
        found.sort(key=lambda slotted: slotted[1].at)
        last = {slot: row.number for slot, row in sorted(found, key=lambda slotted: slotted[1].number)}
        _print(found[-count:] if count else [], is_json=is_json)
        while follows:
            await asyncio.sleep(FOLLOW_SECONDS)
            found = []
            for source in await logs_of(configuration):  # a new log is printed whole
                async with source.reading() as log:
                    found += [(source.slot, row) async for row in log.rows(after=last.get(source.slot, 0))]
            last |= {slot: row.number for slot, row in found}
            _print(sorted(found, key=lambda slotted: slotted[1].at), is_json=is_json)
    except OSError as error:
        raise _unreadable(error) from error
    return Exit.SUCCESS


def _print(found: Sequence[SlottedRow], *, is_json: bool) -> None:
    for slot, row in found:
        if is_json:
            print_output(_exported(slot, row))
        else:
            print_hanging(_line(slot, row), " " * 9)


async def export_log(file: Path | None, since: str | None, until: str | None, form: str) -> Exit:
    """Print the records of a period from all logs, one line each.

    Raises:
        CommandFailed: a log cannot be read, or a time is malformed.
    """
    begin = _moment("--since", since, 0.0)
    end = _moment("--until", until, float("inf"))
    try:
        async with rows_of(await logs_of(configuration_of(file)), begin, end) as rows:
            if form == "csv":
                print_output(_csv_line(COLUMNS))
            async for slot, row in rows:
                print_output(_exported(slot, row) if form == "jsonl" else _csv_line(_columns(slot, row)))
    except OSError as error:
        raise _unreadable(error) from error
    return Exit.SUCCESS


def _moment(option: str, text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    try:
        return read_moment(text, time.time())
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"{option} {error}") from None


def _exported(slot: int, row: AuditRow) -> str:
    return msgspec.json.encode(audit_line(slot, row)).decode()


def _line(slot: int, row: AuditRow) -> str:
    """A record for a person to read."""
    record = record_members(row.content)
    number = f"{slot}/{row.number}" if slot else str(row.number)
    head = f"{number:>7}  {_iso_time(row.at)}  "
    if record.get("event") not in (CALL_STARTED, CALL_ENDED, CALL_LOST) or not record.keys() >= NAMED:
        about = " ".join(f"{key}={value}" for key, value in record.items() if key not in ("at", "event"))
        return head + harmless(f"{record.get('event')}  {about}", keep="")
    named = f"{record['tenant']}/{record['caller']} by {record['frontend'] or 'the hub'}  {record['name']}"
    if "script" in record:
        named += f" (script {record['script']})"
    if "set" in record:
        named += f" (set {record['set']}{', ' + str(record['tool']) if 'tool' in record else ''})"
    outcome = f"{record.get('outcome', 'begins')}"
    if "executed" in record:
        outcome += f", executed: {record['executed']}"
    if "seconds" in record:
        outcome += f", {record['seconds']} s"
    return head + harmless(f"{named}  {outcome}", keep="")


def _iso_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _columns(slot: int, row: AuditRow) -> list[str]:
    record = record_members(row.content)
    other = {key: value for key, value in record.items() if key not in COLUMNS}
    record |= {"number": row.number, "at": _iso_time(row.at), "digest": row.digest.hex(), "slot": slot or None}
    record["other"] = msgspec.json.encode(other).decode() if other else ""
    return ["" if (value := record.get(column)) is None else str(value) for column in COLUMNS]


def _csv_line(values: Sequence[str]) -> str:
    """A line of CSV. A quote before a cell keeps a spreadsheet from running it as a formula."""
    line = io.StringIO()
    csv.writer(line).writerow([f"'{value}" if value.startswith(FORMULAS) else value for value in values])
    return line.getvalue().rstrip("\r\n")


def _unreadable(error: OSError) -> CommandFailed:
    if isinstance(error, AuditStoredElsewhere):
        return CommandFailed(Exit.CONFIGURATION, str(error), error.advice)
    advice = "Name the hub's configuration with --config, and run this as the user that runs the hub."
    return CommandFailed(Exit.CALL_FAILED, str(error), advice)
