"""The audit log: facts, the records made from them, the hash chain over the records, and calls without an end.

A fact is created on the path of a call and costs next to nothing; `RecordEncoder` turns it into a record later.
Records say who called what, when, and how it ended. They contain neither arguments nor results, only a keyed digest of
the arguments: equal calls can be compared and a known argument can be proved, but nothing can be guessed without the
key.

The digest of each record covers the record before it, so that changing, removing, adding or moving one breaks all that
follow. A signed checkpoint outside of the log (`Seal`) says how far the chain reaches, because cutting off its end
leaves no trace. `storage` appends records, `isthmus audit verify` checks them, and `app` closes calls that a crash left
open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from typing import Any, Literal, TypeAlias, overload

import msgspec

from isthmus.model.calls import Call, Outcome
from isthmus.model.fault_table import Executed, Fault
from isthmus.model.names import ServerName

# -- facts and records -------------------------------------------------------------------------------------------------

TEXT_LENGTH_MAX = 256
"""Callers and servers choose their names; a record stays short."""

MEMBERS_MAX = 24

Value: TypeAlias = str | int | float | bool | None

CallFact: TypeAlias = tuple[float, Call, ServerName | None, Outcome | None, float, bool, str]
"""Time, call, server, outcome (None: the call is about to be sent), seconds, whether it was sent, and the id that the
call's records share if it has several. A bare tuple, because every call creates one."""


class AuditEvent(msgspec.Struct, frozen=True):
    """A fact that is not about a call: a key was revoked, a definition changed, a hub started."""

    at: float
    event: str
    about: Mapping[str, Value]


class EncodedRecord(msgspec.Struct, frozen=True, gc=False):
    """A fact that is already encoded, so that its call can be freed."""

    at: float
    content: bytes


Fact: TypeAlias = CallFact | AuditEvent | EncodedRecord

STARTED = "hub.started"
STOPPED = "hub.stopped"
UNCLEAN = "hub.unclean"
"""The previous hub did not stop cleanly: facts that it had not written are missing."""
UNSIGNED = "audit.unsigned"
"""Records at the end without a checkpoint although the previous hub stopped cleanly: the hub did not write them."""
REFUSED = "caller.refused"
"""Rejected requests, by frontend and count: no valid credential, or a forbidden origin."""
LOST = "audit.lost"
"""Records that could not be written, and their count."""
CUT = "audit.cut"
"""A starting hub found that the log ends before its checkpoint, or has none."""
CALL_STARTED = "call.begun"
CALL_ENDED = "call"
CALL_LOST = "call.lost"
"""A call that started and whose end is unknown, because its hub crashed."""

LOST_OUTCOME = "lost"


class CallRecord(msgspec.Struct, omit_defaults=True):
    """The record of a call."""

    at: float
    event: str
    caller: str
    tenant: str
    frontend: str
    kind: str
    name: str
    arguments: str
    server: str | None = None
    outcome: str = ""
    executed: str = ""
    seconds: float = -1.0
    session: str = ""
    id: str = ""
    key: str = ""
    """The id of the key that the caller used."""
    set: str = ""
    """The set in which the name was called."""
    tool: str = ""
    """The server's own name of the tool or prompt, where the set has another."""
    script: str = ""
    """The id of the script that made the call."""
    fleet: str = ""
    """The fleet that made the call at this member."""
    denied: bool = False
    """What was called exists, and the caller may not use it."""


class RecordEncoder:
    """Encodes facts as records."""

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(key=key, digest_size=16)
        self._encoder = msgspec.json.Encoder()

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """The time of a fact and its record; a text that cannot be encoded only loses its own record."""
        content: CallRecord | dict[str, Value]
        if isinstance(fact, tuple):  # nearly all
            at = to_microsecond(fact[0])
            content = self._call_record(at, *fact[1:])
        elif isinstance(fact, EncodedRecord):
            return fact.at, fact.content
        else:
            at = to_microsecond(fact.at)
            content = {"at": at, "event": fact.event}
            for key, value in list(fact.about.items())[:MEMBERS_MAX]:
                content.setdefault(key, value[:TEXT_LENGTH_MAX] if isinstance(value, str) else value)
        try:
            return at, self._encoder.encode(content)
        except UnicodeError:
            return at, self._encoder.encode({"at": at, "event": "audit.unwritable"})

    def _call_record(
        self,
        at: float,
        call: Call,
        server: ServerName | None,
        outcome: Outcome | None,
        seconds: float,
        was_sent: bool,  # noqa: FBT001 - a member of the fact, which is a tuple
        id: str,
    ) -> CallRecord:
        caller = call.caller
        word, executed, denied = "", "", False
        if outcome is None:
            seconds = -1.0
        else:
            word, executed = outcome_word(outcome, was_sent=was_sent)
            seconds = to_microsecond(seconds)
            denied = isinstance(outcome, Fault) and outcome.is_denied
        return CallRecord(
            at,
            CALL_ENDED if outcome is not None else CALL_STARTED,
            caller.name[:TEXT_LENGTH_MAX],
            caller.tenant[:TEXT_LENGTH_MAX],
            call.frontend,
            call.kind,
            _audited_name(call),
            self.digest(call.arguments),
            server,
            word,
            executed,
            seconds,
            self.digest(call.session.encode(errors="replace"))[:16] if call.session else "",
            id[:TEXT_LENGTH_MAX],
            caller.key,
            (call.set or "")[:TEXT_LENGTH_MAX],
            call.tool[:TEXT_LENGTH_MAX],
            call.script,
            call.fleet,
            denied,
        )

    def digest(self, data: Any) -> str:
        """A keyed digest: equal data can be compared, and without the key it says nothing."""
        keyed = self._keyed.copy()
        keyed.update(data)
        return keyed.hexdigest()


def outcome_word(outcome: Outcome, *, was_sent: bool) -> tuple[str, Executed]:
    """How a call ended, in one word, and whether it ran."""
    if isinstance(outcome, Fault):
        return outcome.reason, outcome.executed
    if outcome.asked_by is not None:
        return "asked", "unknown"
    return ("tool_error" if outcome.is_error else "result"), ("yes" if was_sent else "no")


def _audited_name(call: Call) -> str:
    """The name that was called. The query and the user of a URI are removed: they may be secrets."""
    if call.kind not in ("resource", "uri_argument"):
        return call.name[:TEXT_LENGTH_MAX]
    address = call.name.partition("?")[0].partition("#")[0]
    scheme, slashes, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"[:TEXT_LENGTH_MAX]


def to_microsecond(seconds: float) -> float:
    """A time or a length of time in whole microseconds, which `RecordBatch.places` keeps without loss."""
    return int(seconds * 1e6 + 0.5) / 1e6


# -- the chain ---------------------------------------------------------------------------------------------------------

SealKind: TypeAlias = Literal["checkpoint", "anchor"]
"""A `checkpoint` vouches that the log reaches at least this far; an `anchor`, that the hub deleted what came before."""

VerifySignature: TypeAlias = Callable[[bytes, bytes], bool]
"""Whether the second argument is a valid signature of the first."""


NUMBER_MAX = 2**63 - 1
"""Above the number of any record, and as much as databases can hold."""


class Point(msgspec.Struct, frozen=True):
    """A place in the chain: the number of a record, the first being 1, and its digest."""

    number: int
    digest: bytes


START = Point(0, bytes(32))
"""The point before the first record."""


class AuditRow(msgspec.Struct, frozen=True):
    """A record as it is stored."""

    number: int
    at: float
    content: bytes
    digest: bytes


class Seal(msgspec.Struct, frozen=True):
    """A signed point."""

    point: Point
    at: float
    signature: bytes


class LogState(msgspec.Struct, frozen=True):
    """The state of a log: where it ends, its last record, and up to where older records were deleted."""

    head: Point
    last: bytes | None = None
    anchor: Seal | None = None


class ChainBreak(msgspec.Struct, frozen=True):
    """The first record that was altered or is missing; 0 if the checkpoint itself is wrong."""

    number: int
    why: str


def follow(before: Point, content: bytes) -> Point:
    """The point of the next record."""
    number = before.number + 1
    return Point(number, _next_digest(before.digest, number, content))


def _next_digest(before: bytes, number: int, content: bytes) -> bytes:
    return sha256(before + number.to_bytes(8, "big") + content).digest()


PLACE = b"%016d%08d"
"""A record's time in microseconds and its length in bytes."""


class RecordBatch(Sequence[EncodedRecord]):
    """Encoded records in order, with their digests.

    The event loop adds records a few at a time, and the journal's writer appends the batch as it is. Computing a
    thousand digests in the writer's thread would keep the interpreter's lock from the loop for a millisecond. If the
    log ends elsewhere than expected, for example after a failed write, the writer lets the batch `follow` its end.
    """

    def __init__(self, before: Point = START) -> None:
        self._reset(before)

    def _reset(self, before: Point) -> None:
        self._before: Point | None = before
        self._number = before.number
        self._digest = before.digest
        self.times: list[float] = []
        self.contents: list[bytes] = []
        self.digests: list[bytes] = []
        self.places: list[bytes] = []
        """Time and length of each record as text of a fixed width: SQLite cuts the joined contents by them."""

    @property
    def head(self) -> Point:
        """The last record."""
        return Point(self._number, self._digest)

    def __len__(self) -> int:
        return len(self.contents)

    @overload
    def __getitem__(self, at: int) -> EncodedRecord: ...
    @overload
    def __getitem__(self, at: slice) -> list[EncodedRecord]: ...
    def __getitem__(self, at: int | slice) -> EncodedRecord | list[EncodedRecord]:
        if isinstance(at, slice):
            return [EncodedRecord(*pair) for pair in zip(self.times[at], self.contents[at], strict=True)]
        return EncodedRecord(self.times[at], self.contents[at])

    def add(self, at: float, content: bytes) -> None:
        """Add a record."""
        self._number += 1
        self._digest = _next_digest(self._digest, self._number, content)
        self.times.append(at)
        self.contents.append(content)
        self.digests.append(self._digest)
        self.places.append(PLACE % (int(at * 1e6 + 0.5), len(content)))

    def follow(self, before: Point) -> None:
        """Number the records after this point, unless they follow it already."""
        if self._before == before:
            return
        records = zip(self.times, self.contents, strict=True)
        self._reset(before)
        for at, content in records:
            self.add(at, content)

    def extend(self, batch: RecordBatch) -> None:
        """Add the records of another batch; the digests are only right if it follows this one's head."""
        if batch._before != self.head:
            self._before = None
        self.times += batch.times
        self.contents += batch.contents
        self.digests += batch.digests
        self.places += batch.places
        self._number, self._digest = batch._number, batch._digest

    def replace_first(self, count: int, *records: EncodedRecord) -> None:
        """Put these records in the place of the first ones. The digests are wrong until the next `follow`."""
        self._before = None
        self.times[:count] = [record.at for record in records]
        self.contents[:count] = [record.content for record in records]
        self.digests[:count] = [b""] * len(records)
        self.places[:count] = [b""] * len(records)


def batch_of(
    before: Point, writes: Iterable[Sequence[Fact]], record: Callable[[Fact], tuple[float, bytes]]
) -> RecordBatch:
    """The facts of several writes as the records after this point."""
    whole = RecordBatch(before)
    for facts in writes:
        if isinstance(facts, RecordBatch):
            facts.follow(whole.head)
            whole.extend(facts)
        else:
            for fact in facts:
                whole.add(*record(fact))
    return whole


def signed_text(kind: SealKind, point: Point, at: float) -> bytes:
    """The text that is signed for a point."""
    return f"isthmus audit {kind} {point.number} {point.digest.hex()} {at!r}".encode()


class _ChainMembers(msgspec.Struct):
    """The members of a record that verification reads."""

    at: float | None = None
    event: str = ""
    why: str = ""


_CHAIN_MEMBERS = msgspec.json.Decoder(_ChainMembers)


class Verification:
    """Checks the rows of a log one by one and reports the first break."""

    def __init__(self, anchor: Seal | None, checkpoint: Seal | None, check: VerifySignature) -> None:
        self._before = START if anchor is None else anchor.point
        self._checkpoint = checkpoint
        self.count = 0
        self.broken: ChainBreak | None = None
        if anchor is not None and not check(signed_text("anchor", anchor.point, anchor.at), anchor.signature):
            why = "the deletion of older records is not signed by the hub's key"
            self.broken = ChainBreak(anchor.point.number + 1, why)
        elif checkpoint is not None and not check(
            signed_text("checkpoint", checkpoint.point, checkpoint.at), checkpoint.signature
        ):
            self.broken = ChainBreak(0, "the checkpoint is not signed by the hub's key")

    @property
    def head(self) -> Point:
        """The last valid record."""
        return self._before

    def check_row(self, row: AuditRow) -> ChainBreak | None:
        """Check the next row; None if it is valid."""
        if self.broken is None:
            self.broken = self._break_at(row)
        if self.broken is None:
            self.count += 1
            self._before = Point(row.number, row.digest)
        return self.broken

    def _break_at(self, row: AuditRow) -> ChainBreak | None:
        expected = self._before.number + 1
        if row.number != expected:
            return ChainBreak(expected, f"it is missing: record {row.number} comes in its place")
        if follow(self._before, row.content).digest != row.digest:
            return ChainBreak(row.number, "it was changed, or does not follow the record before it")
        try:
            members = _CHAIN_MEMBERS.decode(row.content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            members = _ChainMembers()
        if members.at is None or members.at != row.at:
            return ChainBreak(row.number, "the time it is indexed by differs from the time in the record")
        if members.event == CUT:  # records that the hub appended afterwards must not hide it
            return ChainBreak(row.number, f"the hub recorded here at its start that {members.why}")
        sealed = None if self._checkpoint is None else self._checkpoint.point
        if sealed is not None and sealed.number == row.number and sealed.digest != row.digest:
            return ChainBreak(row.number, "it differs from the record that the checkpoint vouches for")
        return None

    def end(self) -> ChainBreak | None:
        """Check, after the last row, that no rows are missing at the end."""
        if self.broken is None and self._checkpoint is None and self._before is not START:
            self.broken = ChainBreak(0, "there is no checkpoint: records may be missing at the end")
        if self.broken is None and self._checkpoint is not None:
            number = self._checkpoint.point.number
            if self._before.number < number:
                missing = self._before.number + 1
                why = f"it is missing at the end: the checkpoint vouches for {number} records"
                self.broken = ChainBreak(missing, why)
        return self.broken


# -- calls without an end ----------------------------------------------------------------------------------------------


class _CallMembers(msgspec.Struct):
    """The members of a record that tell which call starts or ends."""

    event: str = ""
    id: str = ""


_CALL_MEMBERS = msgspec.json.Decoder(_CallMembers)
_CALL_MARK = b'"event":"call'
"""In every record of a call and in hardly any other: most records are skipped without decoding them."""


class UnfinishedCalls:
    """Reads records in order and knows which calls have started and not ended.

    Only calls that are written before they are sent can be seen to lack an end: those of `strict`, and tasks.
    """

    def __init__(self) -> None:
        self.open: dict[str, AuditRow] = {}
        """The start records of open calls, by the id that a call's records share."""
        self.lost = 0
        """Calls that the log records as lost."""

    def add_row(self, row: AuditRow) -> None:
        """Read the next record."""
        if _CALL_MARK not in row.content:
            return
        try:
            members = _CALL_MEMBERS.decode(row.content)
        except msgspec.MsgspecError:
            return  # `Verification` reports it
        if members.event == CALL_STARTED:
            self.open[members.id] = row
        elif members.event in (CALL_ENDED, CALL_LOST):
            self.open.pop(members.id, None)
            self.lost += members.event == CALL_LOST


def record_members(content: bytes) -> dict[str, object]:
    """The members of a stored record. Earlier versions wrote `frontend` as `face`.

    Raises:
        msgspec.MsgspecError: it is not a record.
    """
    members = msgspec.json.decode(content, type=dict[str, object])
    return {"frontend" if name == "face" else name: value for name, value in members.items()}


def lost_call_record(begun: AuditRow, at: float) -> EncodedRecord | None:
    """The record that closes a lost call; None if its start record cannot be decoded."""
    try:
        record = msgspec.convert(record_members(begun.content), CallRecord)
    except msgspec.MsgspecError:
        return None
    at = to_microsecond(at)
    lost = msgspec.structs.replace(record, at=at, event=CALL_LOST, outcome=LOST_OUTCOME, executed="unknown")
    return EncodedRecord(at, msgspec.json.encode(lost))


# -- times of records --------------------------------------------------------------------------------------------------

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"([0-9]{1,6})([mhdw])")


def read_moment(text: str, now: float) -> float:
    """A time in seconds since the epoch, from a date, a date and time, or how long ago.

    Raises:
        ValueError: the text has another form; the message begins with "must".
    """
    if (ago := _AGO.fullmatch(text.strip().lower())) is not None:
        return now - int(ago[1]) * _UNITS[ago[2]]
    try:
        read = datetime.fromisoformat(text.strip())
        return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"must be a time like 2026-11-16, 2026-11-16T09:30:00Z or 24h, got {text!r}") from None
