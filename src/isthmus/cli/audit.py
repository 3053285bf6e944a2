"""`isthmus audit`: looks through the logs of a hub and of those beside it, shows their end, and writes them out.

It reads the hub's own store and state folder, whether or not the hub runs, and writes nothing there.
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from isthmus.cli.audit_logs import Kept, Seated, logs_of, newest_of, rows_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import harmless, write, write_json
from isthmus.cli.sources import configuration_of
from isthmus.config.settings import Configuration
from isthmus.core.audit.chain import START, Broken, Point, Row, Verification
from isthmus.core.audit.ends import BEGUN, CALL_LOST, ENDED, Ends
from isthmus.storage.seals import SERVED, KeyDamaged, Keys, read_checkpoint, read_keys

FOLLOW_SECONDS = 0.5
"""How often it is looked whether there are new records."""

COLUMNS = (
    *("number", "at", "event", "caller", "tenant", "face", "kind", "name", "server", "outcome", "executed"),
    *("seconds", "arguments", "session", "id", "key", "other", "digest", "seat"),
)
"""Of an export as CSV; what else a record has is one cell."""

NAMED = {"tenant", "caller", "face", "name"}
"""What the record of a call has to have to be shown as one."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r")

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"([0-9]{1,6})([mhdw])")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of looking through a log."""

    seat: int
    count: int
    first: int
    last: Point
    key: str | None
    broken: Broken | None
    open: int = 0
    """Calls that began and have not ended."""
    lost: int = 0
    """Calls that began and of which nobody knows how they ended."""
    unsigned: int = 0
    """Records at its end for which no checkpoint vouches: anybody who can write to the store could have added them."""


# -- verify ----------------------------------------------------------------------------------------------------------


async def verify_log(file: Path | None, *, is_json: bool) -> Exit:
    """Look through all logs and say whether they are as they were written, or which record is not first.

    Raises:
        CommandFailed: one is not, or cannot be read.
    """
    configuration = configuration_of(file)
    try:
        verdicts = [await _look_through(Path(configuration.hub.state), kept) for kept in logs_of(configuration)]
    except OSError as error:
        raise _unreadable(error) from error
    broken = [_what_is_wrong(verdict) for verdict in verdicts if verdict.broken is not None]
    if is_json:
        write_json(msgspec.json.encode(_as_json(verdicts)))
        return Exit.CALL_FAILED if broken else Exit.WELL
    if broken:
        raise CommandFailed(Exit.CALL_FAILED, f"the audit log is not whole: {'; '.join(broken)}")
    write("\n".join(line for verdict in verdicts for line in _in_words(verdict)))
    return Exit.WELL


async def _look_through(state: Path, kept: Kept) -> Verdict:
    keys = _keys_of(state, kept.seat)
    if isinstance(keys, Broken):
        return Verdict(kept.seat, 0, 0, START, None, keys)
    # Before the records: a hub that runs writes these first.
    vouched = read_checkpoint(state, keys, kept.seat)
    ends = Ends()
    try:
        async with kept.reading() as log:
            verification = Verification(log.anchor, vouched, keys.is_signed)
            first = verification.head.number + 1
            async for row in log.rows():
                if verification.take(row) is not None:
                    break
                ends.take(row)
    except FileNotFoundError:
        if vouched is None:
            raise
        verification, first = Verification(None, vouched, keys.is_signed), 1
    broken = verification.end()
    head = verification.head
    unsigned = 0 if vouched is None else max(0, head.number - vouched.point.number)
    return Verdict(kept.seat, verification.count, first, head, keys.name, broken, len(ends.open), ends.lost, unsigned)


def _keys_of(state: Path, seat: int) -> Keys | Broken:
    try:
        return read_keys(state, seat)
    except FileNotFoundError:
        return Broken(0, f"its key is missing: there is none in {state}, so that nothing is vouched for")
    except KeyDamaged as error:
        return Broken(0, str(error))


def _what_is_wrong(verdict: Verdict) -> str:
    broken = verdict.broken
    assert broken is not None, "only these are told so"
    seat = f"seat {verdict.seat}, " if verdict.seat else ""
    return f"{seat}record {broken.number}: {broken.why}" if broken.number else f"{seat}{broken.why}"


def _as_json(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The log of the hub that serves, and beside it those on seats; all of them decide whether it is good."""
    served = [verdict for verdict in verdicts if not verdict.seat]
    told = _one_as_json(served[0] if served else Verdict(SERVED, 0, 1, START, verdicts[0].key, None))
    seats = [{"seat": verdict.seat, **_one_as_json(verdict)} for verdict in verdicts if verdict.seat]
    return {**told, "good": all(verdict.broken is None for verdict in verdicts), "seats": seats}


def _one_as_json(verdict: Verdict) -> dict[str, object]:
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


def _in_words(verdict: Verdict) -> Iterator[str]:
    name = f"The audit log on seat {verdict.seat}" if verdict.seat else "The audit log"
    if not verdict.count:
        yield f"{name} is whole, and has no records."
        return
    yield f"{name} is whole: {verdict.count} records, {verdict.first} to {verdict.last.number}."
    if verdict.open:
        yield f"{verdict.open} calls have begun in it and not ended: they are on their way, or their hub was killed"
    if verdict.lost:
        yield f"{verdict.lost} calls in it were lost: their hub was killed, and nobody knows how they ended"
    if verdict.unsigned:
        yield f"the last {verdict.unsigned} are not signed: their hub is about to, or was killed, or did not write them"
    yield f"last digest  {verdict.last.digest.hex()}"
    yield f"signed by    {verdict.key}"


# -- tail and export -------------------------------------------------------------------------------------------------


async def show_tail(file: Path | None, count: int, *, follows: bool, is_json: bool) -> Exit:
    """Print the last records of all logs, and with `follows` each that comes.

    Raises:
        CommandFailed: a log cannot be read.
    """
    configuration = configuration_of(file)
    try:
        found = await newest_of(logs_of(configuration), max(1, count))
        last = {seat: row.number for seat, row in sorted(found, key=lambda seated: seated[1].number)}
        _print(found[-count:] if count else [], is_json=is_json)
        while follows:
            await asyncio.sleep(FOLLOW_SECONDS)
            _print(await _after(configuration, last), is_json=is_json)
    except OSError as error:
        raise _unreadable(error) from error
    return Exit.WELL


def _print(found: Sequence[Seated], *, is_json: bool) -> None:
    for seat, row in found:
        write(_exported(seat, row) if is_json else _line(seat, row))


async def _after(configuration: Configuration, last: dict[int, int]) -> list[Seated]:
    """What came since the last numbers, which become those of now; a log that is new is shown whole."""
    found: list[Seated] = []
    for kept in logs_of(configuration):
        async with kept.reading() as log:
            found += [(kept.seat, row) async for row in log.rows(after=last.get(kept.seat, 0))]
    for seat, row in found:
        last[seat] = row.number
    return sorted(found, key=lambda seated: seated[1].at)


async def export_log(file: Path | None, since: str | None, until: str | None, form: str) -> Exit:
    """Print the records of a time from all logs, one line each.

    Raises:
        CommandFailed: a log cannot be read, or a time is none.
    """
    begin = _moment("--since", since, 0.0)
    end = _moment("--until", until, float("inf"))
    try:
        async with rows_of(logs_of(configuration_of(file)), begin, end) as rows:
            if form == "csv":
                write(_cells(COLUMNS))
            async for seat, row in rows:
                write(_exported(seat, row) if form == "jsonl" else _cells(_columns(seat, row)))
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


class _Line(msgspec.Struct, omit_defaults=True, kw_only=True):
    seat: int = SERVED
    number: int
    digest: str
    record: msgspec.Raw


def _exported(seat: int, row: Row) -> str:
    """A record as it is kept, so that whoever has the export can follow each seat's chain without the hub."""
    line = _Line(seat=seat, number=row.number, digest=row.digest.hex(), record=msgspec.Raw(row.content))
    return msgspec.json.encode(line).decode()


def _record(row: Row) -> dict[str, object]:
    read: dict[str, object] = msgspec.json.decode(row.content)
    return read


def _line(seat: int, row: Row) -> str:
    """A record for a person to read."""
    record = _record(row)
    number = f"{seat}/{row.number}" if seat else str(row.number)
    head = f"{number:>7}  {_shown_time(row.at)}  "
    if record.get("event") not in (BEGUN, ENDED, CALL_LOST) or not record.keys() >= NAMED:
        about = " ".join(f"{key}={value}" for key, value in record.items() if key not in ("at", "event"))
        return head + harmless(f"{record.get('event')}  {about}", keep="")
    named = f"{record['tenant']}/{record['caller']} by {record['face'] or 'the hub'}  {record['name']}"
    ended = f"{record.get('outcome', 'begins')}"
    if "executed" in record:
        ended += f", executed: {record['executed']}"
    if "seconds" in record:
        ended += f", {record['seconds']} s"
    return head + harmless(f"{named}  {ended}", keep="")


def _shown_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _columns(seat: int, row: Row) -> list[str]:
    record = _record(row)
    other = {key: value for key, value in record.items() if key not in COLUMNS}
    record |= {"number": row.number, "at": _shown_time(row.at), "digest": row.digest.hex(), "seat": seat or None}
    record["other"] = msgspec.json.encode(other).decode() if other else ""
    return ["" if (value := record.get(column)) is None else str(value) for column in COLUMNS]


def _cells(values: Sequence[str]) -> str:
    """A line of CSV; a cell that a spreadsheet would take for a formula begins with a quote."""
    line = io.StringIO()
    csv.writer(line).writerow([f"'{value}" if value.startswith(FORMULAS) else value for value in values])
    return line.getvalue().rstrip("\r\n")


def _unreadable(error: OSError) -> CommandFailed:
    advice = "Name the hub's configuration with --config, and run this as the user that the hub runs as."
    return CommandFailed(Exit.CALL_FAILED, str(error), advice)
