"""`isthmus audit`: looks through the log of a hub, shows its end, and writes it out.

It reads the hub's own store and state folder, whether or not the hub runs, and writes nothing there.
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import harmless, write, write_json
from isthmus.cli.sources import configuration_of
from isthmus.config.settings import Configuration
from isthmus.core.audit.chain import START, Broken, Point, Row, Seal, Verification
from isthmus.storage import log_sqlite
from isthmus.storage.seals import KeyDamaged, Keys, read_checkpoint, read_keys
from isthmus.storage.sqlite import FILE

FOLLOW_SECONDS = 0.5
"""How often it is looked whether there are new records."""

COLUMNS = (
    *("number", "at", "event", "caller", "tenant", "face", "kind", "name", "server", "outcome", "executed"),
    *("seconds", "arguments", "session", "id", "key", "other", "digest"),
)
"""Of an export as CSV; what else a record has is one cell."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r")

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"([0-9]{1,6})([mhdw])")


class Log(Protocol):
    """A log to be read, as it stands at one moment."""

    anchor: Seal | None

    def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[Row]:
        """The records of a time, the oldest first."""

    async def newest(self, limit: int) -> list[Row]:
        """The last records, the oldest first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of looking through a log."""

    count: int
    first: int
    last: Point
    key: str | None
    broken: Broken | None


# -- verify ----------------------------------------------------------------------------------------------------------


async def verify_log(file: Path | None, *, is_json: bool) -> Exit:
    """Look through the whole log and say whether it is as it was written, or which record is not first.

    Raises:
        CommandFailed: it is not, or cannot be read.
    """
    configuration = configuration_of(file)
    try:
        verdict = await _look_through(configuration)
    except OSError as error:
        raise _unreadable(error) from error
    if is_json:
        write_json(msgspec.json.encode(_as_json(verdict)))
        return Exit.WELL if verdict.broken is None else Exit.CALL_FAILED
    if verdict.broken is not None:
        which = f"record {verdict.broken.number}: " if verdict.broken.number else ""
        raise CommandFailed(Exit.CALL_FAILED, f"the audit log is not whole: {which}{verdict.broken.why}")
    write(_in_words(verdict))
    return Exit.WELL


async def _look_through(configuration: Configuration) -> Verdict:
    state = Path(configuration.hub.state)
    keys = _keys_of(state)
    if isinstance(keys, Broken):
        return Verdict(0, 0, START, None, keys)
    # Before the records: a hub that runs writes these first.
    vouched = read_checkpoint(state, keys)
    try:
        async with reading(configuration) as log:
            verification = Verification(log.anchor, vouched, keys.is_signed)
            first = verification.head.number + 1
            async for row in log.rows():
                if verification.take(row) is not None:
                    break
    except FileNotFoundError:
        if vouched is None:
            raise
        verification, first = Verification(None, vouched, keys.is_signed), 1
    broken = verification.end()
    return Verdict(verification.count, first, verification.head, keys.name, broken)


def _keys_of(state: Path) -> Keys | Broken:
    try:
        return read_keys(state)
    except FileNotFoundError:
        return Broken(0, f"its key is missing: there is none in {state}, so that nothing is vouched for")
    except KeyDamaged as error:
        return Broken(0, str(error))


def _as_json(verdict: Verdict) -> dict[str, object]:
    broken = verdict.broken
    return {
        "good": broken is None,
        "records": verdict.count,
        "first": verdict.first,
        "last": verdict.last.number,
        "digest": verdict.last.digest.hex(),
        "key": verdict.key,
        "bad": None if broken is None else {"record": broken.number or None, "why": broken.why},
    }


def _in_words(verdict: Verdict) -> str:
    if not verdict.count:
        return "The audit log is whole, and has no records."
    span = f"{verdict.first} to {verdict.last.number}"
    return (
        f"The audit log is whole: {verdict.count} records, {span}.\n"
        f"last digest  {verdict.last.digest.hex()}\nsigned by    {verdict.key}"
    )


# -- tail and export -------------------------------------------------------------------------------------------------


async def show_tail(file: Path | None, count: int, *, follows: bool, is_json: bool) -> Exit:
    """Print the last records, and with `follows` each that comes.

    Raises:
        CommandFailed: the log cannot be read.
    """
    configuration = configuration_of(file)
    try:
        async with reading(configuration) as log:
            rows = await log.newest(max(1, count))
        last = rows[-1].number if rows else 0
        _print(rows[-count:] if count else [], is_json=is_json)
        while follows:
            await asyncio.sleep(FOLLOW_SECONDS)
            rows = await _after(configuration, last)
            last = rows[-1].number if rows else last
            _print(rows, is_json=is_json)
    except OSError as error:
        raise _unreadable(error) from error
    return Exit.WELL


def _print(rows: Sequence[Row], *, is_json: bool) -> None:
    for row in rows:
        write(_exported(row) if is_json else _line(row))


async def _after(configuration: Configuration, number: int) -> list[Row]:
    async with reading(configuration) as log:
        return [row async for row in log.rows(after=number)]


async def export_log(file: Path | None, since: str | None, until: str | None, form: str) -> Exit:
    """Print the records of a time, one line each.

    Raises:
        CommandFailed: the log cannot be read, or a time is none.
    """
    begin = _moment("--since", since, 0.0)
    end = _moment("--until", until, float("inf"))
    try:
        async with reading(configuration_of(file)) as log:
            if form == "csv":
                write(_cells(COLUMNS))
            async for row in log.rows(since=begin, until=end):
                write(_exported(row) if form == "jsonl" else _cells(_columns(row)))
    except OSError as error:
        raise _unreadable(error) from error
    return Exit.WELL


def _moment(option: str, text: str | None, otherwise: float) -> float:
    """A time, as a date, a date and time, or how long ago."""
    if text is None:
        return otherwise
    if (ago := _AGO.fullmatch(text.strip().lower())) is not None:
        return time.time() - int(ago[1]) * _UNITS[ago[2]]
    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError:
        said = f"{option} must be a time like 2026-11-16, 2026-11-16T09:30:00Z or 24h, not {text!r}"
        raise CommandFailed(Exit.USAGE, said) from None
    return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()


class _Line(msgspec.Struct):
    number: int
    digest: str
    record: msgspec.Raw


def _exported(row: Row) -> str:
    """A record as it is kept, so that whoever has the export can follow the chain without the hub."""
    return msgspec.json.encode(_Line(row.number, row.digest.hex(), msgspec.Raw(row.content))).decode()


def _record(row: Row) -> dict[str, object]:
    read: dict[str, object] = msgspec.json.decode(row.content)
    return read


def _line(row: Row) -> str:
    """A record for a person to read."""
    record = _record(row)
    head = f"{row.number:>7}  {_shown_time(row.at)}  "
    if record.get("event") not in ("call", "call.begun"):
        about = " ".join(f"{key}={value}" for key, value in record.items() if key not in ("at", "event"))
        return head + harmless(f"{record.get('event')}  {about}", keep="")
    named = f"{record['tenant']}/{record['caller']} by {record['face'] or 'the hub'}  {record['name']}"
    ended = f"{record.get('outcome', 'begins')}"
    if "executed" in record:
        ended += f", executed: {record['executed']}, {record.get('seconds')} s"
    return head + harmless(f"{named}  {ended}", keep="")


def _shown_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _columns(row: Row) -> list[str]:
    record = _record(row)
    other = {key: value for key, value in record.items() if key not in COLUMNS}
    record |= {"number": row.number, "at": _shown_time(row.at), "digest": row.digest.hex()}
    record["other"] = msgspec.json.encode(other).decode() if other else ""
    return ["" if (value := record.get(column)) is None else str(value) for column in COLUMNS]


def _cells(values: Sequence[str]) -> str:
    """A line of CSV; a cell that a spreadsheet would take for a formula begins with a quote."""
    line = io.StringIO()
    csv.writer(line).writerow([f"'{value}" if value.startswith(FORMULAS) else value for value in values])
    return line.getvalue().rstrip("\r\n")


# -- where it is -----------------------------------------------------------------------------------------------------


def reading(configuration: Configuration) -> AbstractAsyncContextManager[Log]:
    """The log of the hub that has this configuration."""
    if configuration.storage.url is None:
        return log_sqlite.reading(Path(configuration.hub.state) / FILE)
    if configuration.storage.is_foreign:
        said = f"what the hub keeps is kept by the extension {configuration.storage.scheme}, and so is its audit log"
        raise CommandFailed(Exit.CONFIGURATION, said, "Only what that extension brings can read it.")
    try:
        from isthmus.storage import log_postgres
    except ImportError:
        said = "the audit log is in a database, and the library that reads it is not installed"
        raise CommandFailed(Exit.CONFIGURATION, said, "Get it with: pip install 'isthmus[postgres]'") from None
    return log_postgres.reading(configuration.storage)


def _unreadable(error: OSError) -> CommandFailed:
    advice = "Name the hub's configuration with --config, and run this as the user that the hub runs as."
    return CommandFailed(Exit.CALL_FAILED, str(error), advice)
