"""`isthmus audit`: verifies, shows and exports the audit logs of a hub.

It reads the hub's store and state folder, whether or not the hub runs, and writes nothing there. Besides the log of
the hub that serves there may be others, each in a numbered slot: commands and embedded hubs write these.
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import click
import msgspec

from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.options import CommandGroup, WholeNumber, with_config, with_json
from isthmus.cli.output import harmless, print_hanging, print_json, print_output
from isthmus.cli.running import run_command
from isthmus.config.settings import Configuration
from isthmus.core.audit import (
    CALL_ENDED,
    CALL_LOST,
    CALL_STARTED,
    START,
    AuditRow,
    ChainBreak,
    Point,
    Seal,
    UnfinishedCalls,
    Verification,
    record_members,
)
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_signatures import (
    MAIN_LOG,
    AuditKeyDamaged,
    checkpoint_path,
    read_checkpoint,
    read_keys,
)
from isthmus.storage.audit_slots import list_slots, slot_file
from isthmus.storage.sqlite import FILE

SlottedRow: TypeAlias = tuple[int, AuditRow]
"""A record, and the slot of its log."""

UNREADABLE = b'{"event":"cannot be read"}'
"""Stands for content that is no record. Its digest never matches, so `verify` names it."""

TIME_MAX = 253_402_300_800.0
"""The year 10000, which Python's dates cannot hold."""

FOLLOW_SECONDS = 0.5
"""Interval at which `tail --follow` looks for new records."""

COLUMNS = (
    *("number", "at", "event", "caller", "tenant", "frontend", "kind", "name", "server", "outcome", "executed"),
    *("seconds", "arguments", "session", "id", "key", "other", "digest", "seat"),
)
"""Columns of an export as CSV; all other members of a record are in `other`."""

NAMED = {"tenant", "caller", "frontend", "name"}
"""Members that the record of a call needs to be shown as one."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula."""

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"([0-9]{1,6})([mhdw])")


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


# -- reading logs ----------------------------------------------------------------------------------------------------


class ReadableLog(Protocol):
    """A log as it is at one moment."""

    anchor: Seal | None

    def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records of a period, the oldest first."""

    async def newest(self, limit: int) -> list[AuditRow]:
        """The last records, the oldest first."""


class SanitizedLog:
    """A log that may have been altered: every value has its type, and content that is no record says so.

    An intruder may have put text in place of bytes, a number, or anything else into the database. That must not crash
    the command whose purpose is to find it.
    """

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self.anchor = None
        if (seal := log.anchor) is not None:
            self.anchor = Seal(Point(seal.point.number, _bytes(seal.point.digest)), seal.at, _bytes(seal.signature))

    async def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """See `ReadableLog`."""
        async for row in self._log.rows(after=after, since=since, until=until):
            yield sanitized_row(row)

    async def newest(self, limit: int) -> list[AuditRow]:
        """See `ReadableLog`."""
        return [sanitized_row(row) for row in await self._log.newest(limit)]


def sanitized_row(row: AuditRow) -> AuditRow:
    """The row, with every value that no record can have replaced."""
    at: object = row.at
    is_time = isinstance(at, int | float) and 0.0 <= at < TIME_MAX
    content = _bytes(row.content)
    try:
        msgspec.json.decode(content, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        content = UNREADABLE
    return AuditRow(row.number, float(row.at) if is_time else 0.0, content, _bytes(row.digest))


def _bytes(value: object) -> bytes:
    """SQLite returns text where text was written in place of bytes."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class AuditLogSource:
    """A log to open."""

    slot: int
    """0 for the log of the hub that serves."""
    open: Callable[[], AbstractAsyncContextManager[ReadableLog]]

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[ReadableLog]:
        """Open the log, and close it at the end."""
        async with self.open() as log:
            yield SanitizedLog(log)


def logs_of(configuration: Configuration) -> list[AuditLogSource]:
    """All logs, that of the serving hub first. It is left out if it does not exist and others do.

    Raises:
        CommandFailed: an extension stores the only log.
    """
    state, storage = Path(configuration.hub.state), configuration.storage
    others = [
        AuditLogSource(slot, partial(audit_sqlite.open_reader, slot_file(state, slot))) for slot in list_slots(state)
    ]
    # The checkpoint too: if the log was deleted, the checkpoint shows that there was one.
    has_served = storage.url is not None or (state / FILE).exists() or checkpoint_path(state).exists()
    if others and (storage.is_foreign or not has_served):
        return others
    return [AuditLogSource(MAIN_LOG, partial(_open_main, configuration)), *others]


def _open_main(configuration: Configuration) -> AbstractAsyncContextManager[ReadableLog]:
    if configuration.storage.url is None:
        return audit_sqlite.open_reader(Path(configuration.hub.state) / FILE)
    if configuration.storage.is_foreign:
        text = f"the extension {configuration.storage.scheme} stores the audit log"
        raise CommandFailed(Exit.CONFIGURATION, text, "Use the tools of that extension to read it.")
    try:
        from isthmus.storage import audit_postgres
    except ImportError:
        text = "the audit log is in PostgreSQL, and its library is not installed"
        raise CommandFailed(Exit.CONFIGURATION, text, "Install it with: pip install 'isthmus[postgres]'") from None
    return audit_postgres.open_reader(configuration.storage)


@asynccontextmanager
async def rows_of(
    sources: Sequence[AuditLogSource], since: float, until: float
) -> AsyncIterator[AsyncIterator[SlottedRow]]:
    """The records of a period from all logs, ordered by time."""
    async with AsyncExitStack() as stack:
        logs = [(source.slot, await stack.enter_async_context(source.reading())) for source in sources]
        yield _merged([(slot, log.rows(since=since, until=until)) for slot, log in logs])


async def _merged(logs: Sequence[tuple[int, AsyncIterator[AuditRow]]]) -> AsyncIterator[SlottedRow]:
    """Always the oldest of the next records. Each log keeps its own order, even if its clock jumped."""
    ahead: dict[int, tuple[AuditRow, AsyncIterator[AuditRow]]] = {}
    for slot, rows in logs:
        if (row := await anext(rows, None)) is not None:
            ahead[slot] = (row, rows)
    while ahead:
        slot = min(ahead, key=lambda each: ahead[each][0].at)
        row, rows = ahead[slot]
        yield slot, row
        following = await anext(rows, None)
        if following is None:
            del ahead[slot]
        else:
            ahead[slot] = (following, rows)


# -- verify ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The result of verifying one log."""

    slot: int
    count: int
    first: int
    last: Point
    key: str | None
    broken: ChainBreak | None
    open: int = 0
    """Calls that started and have not ended."""
    lost: int = 0
    """Calls that started and whose end is unknown."""
    unsigned: int = 0
    """Records after the last checkpoint. Anybody who can write to the store could have added them."""


async def verify_log(file: Path | None, *, is_json: bool) -> Exit:
    """Check that no log has been altered.

    Raises:
        CommandFailed: one has been altered, or cannot be read.
    """
    configuration = configuration_of(file)
    try:
        verdicts = [await _verify(Path(configuration.hub.state), source) for source in logs_of(configuration)]
    except OSError as error:
        raise _unreadable(error) from error
    broken = []
    for verdict in verdicts:
        if (found := verdict.broken) is not None:
            where = f"slot {verdict.slot}, " if verdict.slot else ""
            broken.append(f"{where}record {found.number}: {found.why}" if found.number else f"{where}{found.why}")
    if is_json:
        # The main log at the top level, those in slots below; `good` is about all of them.
        main = next((each for each in verdicts if not each.slot), None)
        main = main or AuditVerdict(MAIN_LOG, 0, 1, START, verdicts[0].key, None)
        slots = [{"seat": verdict.slot, **_as_json(verdict)} for verdict in verdicts if verdict.slot]
        print_json(msgspec.json.encode({**_as_json(main), "good": not broken, "seats": slots}))
        return Exit.CALL_FAILED if broken else Exit.SUCCESS
    if broken:
        raise CommandFailed(Exit.CALL_FAILED, f"the audit log failed verification: {'; '.join(broken)}")
    print_output("\n".join(line for verdict in verdicts for line in _verdict_lines(verdict)))
    return Exit.SUCCESS


async def _verify(state: Path, source: AuditLogSource) -> AuditVerdict:
    try:
        keys = read_keys(state, source.slot)
    except FileNotFoundError:
        missing = ChainBreak(0, f"its key is missing from {state}, so nothing can be verified")
        return AuditVerdict(source.slot, 0, 0, START, None, missing)
    except AuditKeyDamaged as error:
        return AuditVerdict(source.slot, 0, 0, START, None, ChainBreak(0, str(error)))
    # Before the records: a running hub writes records first.
    checkpoint = read_checkpoint(state, keys, source.slot)
    calls = UnfinishedCalls()
    try:
        async with source.reading() as log:
            verification = Verification(log.anchor, checkpoint, keys.is_signed)
            first = verification.head.number + 1
            async for row in log.rows():
                if verification.take(row) is not None:
                    break
                calls.take(row)
    except FileNotFoundError:
        if checkpoint is None:
            raise
        verification, first = Verification(None, checkpoint, keys.is_signed), 1
    broken = verification.end()
    head = verification.head
    unsigned = 0 if checkpoint is None else max(0, head.number - checkpoint.point.number)
    return AuditVerdict(
        source.slot, verification.count, first, head, keys.name, broken, len(calls.open), calls.lost, unsigned
    )


def _as_json(verdict: AuditVerdict) -> dict[str, object]:
    broken = verdict.broken
    return {
        "good": broken is None,
        "records": verdict.count,
        "first": verdict.first,
        "last": verdict.last.number,
        "digest": verdict.last.digest.hex(),
        "key": verdict.key,
        "open": verdict.open,
        "lost": verdict.lost,
        "unsigned": verdict.unsigned,
        "bad": None if broken is None else {"record": broken.number or None, "why": broken.why},
    }


def _verdict_lines(verdict: AuditVerdict) -> Iterator[str]:
    name = f"The audit log in slot {verdict.slot}" if verdict.slot else "The audit log"
    if not verdict.count:
        yield f"{name} is intact and has no records."
        return
    yield f"{name} is intact: {verdict.count} records, {verdict.first} to {verdict.last.number}."
    if verdict.open:
        yield f"unfinished calls: {verdict.open} (still running, or the hub was killed)"
    if verdict.lost:
        yield f"lost calls: {verdict.lost} (the hub was killed; how they ended is unknown)"
    if verdict.unsigned:
        yield f"unsigned records at the end: {verdict.unsigned} (not signed yet, or not written by the hub)"
    yield f"last digest  {verdict.last.digest.hex()}"
    yield f"signed by    {verdict.key}"


# -- tail and export -------------------------------------------------------------------------------------------------


async def show_tail(file: Path | None, count: int, *, follows: bool, is_json: bool) -> Exit:
    """Print the last records of all logs, and with `follows` each new one.

    Raises:
        CommandFailed: a log cannot be read.
    """
    configuration = configuration_of(file)
    try:
        found: list[SlottedRow] = []
        for source in logs_of(configuration):
            async with source.reading() as log:
                found += [(source.slot, row) for row in await log.newest(max(1, count))]
        found.sort(key=lambda slotted: slotted[1].at)
        last = {slot: row.number for slot, row in sorted(found, key=lambda slotted: slotted[1].number)}
        _print(found[-count:] if count else [], is_json=is_json)
        while follows:
            await asyncio.sleep(FOLLOW_SECONDS)
            found = []
            for source in logs_of(configuration):  # a new log is printed whole
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
        async with rows_of(logs_of(configuration_of(file)), begin, end) as rows:
            if form == "csv":
                print_output(_csv_line(COLUMNS))
            async for slot, row in rows:
                print_output(_exported(slot, row) if form == "jsonl" else _csv_line(_columns(slot, row)))
    except OSError as error:
        raise _unreadable(error) from error
    return Exit.SUCCESS


def _moment(option: str, text: str | None, otherwise: float) -> float:
    """A time: a date, a date and time, or how long ago."""
    if text is None:
        return otherwise
    if (ago := _AGO.fullmatch(text.strip().lower())) is not None:
        return time.time() - int(ago[1]) * _UNITS[ago[2]]
    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError:
        wrong = f"{option} must be a time like 2026-11-16, 2026-11-16T09:30:00Z or 24h, got {text!r}"
        raise CommandFailed(Exit.USAGE, wrong) from None
    return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()


class _ExportLine(msgspec.Struct, omit_defaults=True, kw_only=True):
    seat: int = MAIN_LOG
    number: int
    digest: str
    record: msgspec.Raw


def _exported(slot: int, row: AuditRow) -> str:
    """A record exactly as it is stored, so that the chain of an export can be verified without the hub."""
    line = _ExportLine(seat=slot, number=row.number, digest=row.digest.hex(), record=msgspec.Raw(row.content))
    return msgspec.json.encode(line).decode()


def _line(slot: int, row: AuditRow) -> str:
    """A record for a person to read."""
    record = record_members(row.content)
    number = f"{slot}/{row.number}" if slot else str(row.number)
    head = f"{number:>7}  {_iso_time(row.at)}  "
    if record.get("event") not in (CALL_STARTED, CALL_ENDED, CALL_LOST) or not record.keys() >= NAMED:
        about = " ".join(f"{key}={value}" for key, value in record.items() if key not in ("at", "event"))
        return head + harmless(f"{record.get('event')}  {about}", keep="")
    named = f"{record['tenant']}/{record['caller']} by {record['frontend'] or 'the hub'}  {record['name']}"
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
    record |= {"number": row.number, "at": _iso_time(row.at), "digest": row.digest.hex(), "seat": slot or None}
    record["other"] = msgspec.json.encode(other).decode() if other else ""
    return ["" if (value := record.get(column)) is None else str(value) for column in COLUMNS]


def _csv_line(values: Sequence[str]) -> str:
    """A line of CSV. A quote before a cell keeps a spreadsheet from running it as a formula."""
    line = io.StringIO()
    csv.writer(line).writerow([f"'{value}" if value.startswith(FORMULAS) else value for value in values])
    return line.getvalue().rstrip("\r\n")


def _unreadable(error: OSError) -> CommandFailed:
    advice = "Name the hub's configuration with --config, and run this as the user that runs the hub."
    return CommandFailed(Exit.CALL_FAILED, str(error), advice)
