"""Facts become records, the chain shows every change, and calls without an end are found."""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import Any

import msgspec
import pytest

from isthmus.core.audit import (
    CALL_LOST,
    CUT,
    MEMBERS_MAX,
    START,
    AuditEvent,
    AuditRow,
    ChainBreak,
    EncodedRecord,
    Fact,
    Point,
    RecordBatch,
    RecordEncoder,
    Seal,
    SealKind,
    UnfinishedCalls,
    Verification,
    batch_of,
    follow,
    lost_call_record,
    signed_text,
)
from isthmus.model.calls import Call, Kind, Outcome, Result
from isthmus.model.fault_table import Lost, TimedOut, UnknownTool
from isthmus.model.names import ServerName
from tests.unit.core.doubles import ANYONE, DONE, SERVER, call

KEY = b"a key of this test"


def read(fact: Fact) -> dict[str, Any]:
    at, content = RecordEncoder(KEY).record(fact)
    record: dict[str, Any] = msgspec.json.decode(content)
    assert record["at"] == at
    return record


def ended(
    asked: Call,
    outcome: Outcome | None = DONE,
    *,
    was_sent: bool = True,
    server: ServerName | None = SERVER,
    id: str = "",
) -> dict[str, Any]:
    return read((12.3456789, asked, server, outcome, 0.25, was_sent, id))


def test_a_call_is_recorded_without_its_arguments() -> None:
    asked = msgspec.structs.replace(call(), arguments=msgspec.Raw(b'{"path":"/secret"}'), frontend="rest")
    assert ended(asked) == {
        "at": 12.345679,
        "event": "call",
        "caller": ANYONE.name,
        "tenant": ANYONE.tenant,
        "frontend": "rest",
        "kind": "tool",
        "name": asked.name,
        "arguments": blake2b(b'{"path":"/secret"}', key=KEY, digest_size=16).hexdigest(),
        "server": SERVER,
        "outcome": "result",
        "executed": "yes",
        "seconds": 0.25,
    }


def test_conversations_are_distinguished_without_their_ids() -> None:
    first, second = (msgspec.structs.replace(call(), session=name) for name in ("one", "two"))
    received = [ended(asked)["session"] for asked in (first, second, first)]
    assert received[0] == received[2] != received[1]
    assert "one" not in received[0]


def test_the_record_before_sending_has_no_outcome() -> None:
    begun = ended(call(), None, server=None, was_sent=False, id="run-1")
    assert begun["event"] == "call.begun"
    assert begun["id"] == "run-1"
    assert not begun.keys() & {"outcome", "executed", "seconds", "server"}


@pytest.mark.parametrize(
    ("outcome", "was_sent", "said"),
    [
        (DONE, True, ("result", "yes")),
        (DONE, False, ("result", "no")),
        (Result(msgspec.Raw(b"{}"), is_error=True), True, ("tool_error", "yes")),
        (Result(msgspec.Raw(b"{}"), asked_by=SERVER), True, ("asked", "unknown")),
        (UnknownTool("files.none"), False, ("unknown_tool", "no")),
        (TimedOut(SERVER, 1.0, executed="unknown"), True, ("timed_out", "unknown")),
        (Lost(SERVER, "it died", executed="unknown"), True, ("lost", "unknown")),
    ],
)
def test_how_it_ended_is_a_word_and_whether_it_ran(outcome: Outcome, was_sent: bool, said: tuple[str, str]) -> None:  # noqa: FBT001
    record = ended(call(), outcome, was_sent=was_sent)
    assert (record["outcome"], record["executed"]) == said


def test_a_denied_call_is_marked_and_a_missing_name_is_not() -> None:
    assert ended(call(), UnknownTool("files.x", is_denied=True), was_sent=False)["denied"] is True
    assert "denied" not in ended(call(), UnknownTool("files.x"), was_sent=False)


def test_long_names_and_odd_texts_cost_only_themselves() -> None:
    asked = msgspec.structs.replace(call(), name="\n" + "x" * 1_000_000)
    _, content = RecordEncoder(KEY).record((1.0, asked, None, DONE, 0.0, False, ""))
    assert len(content) < 1024
    assert b"\n" not in content
    odd = msgspec.structs.replace(call(), name="half \ud800")
    assert ended(odd) == {"at": 12.345679, "event": "audit.unwritable"}


@pytest.mark.parametrize("kind", ["resource", "uri_argument"])
@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://host/path?token=secret", "https://host/path"),
        ("https://host/path#token=secret", "https://host/path"),
        ("https://me:secret@host:1/path@2", "https://host:1/path@2"),
        ("postgres://me:se@cret@host", "postgres://host"),
        ("x:1", "x:1"),
        ("https://" + "u" * 300 + ":secret@host/" + "p" * 300, "https://host/" + "p" * 243),
    ],
)
def test_possibly_secret_parts_of_an_address_are_left_out(kind: Kind, address: str, kept: str) -> None:
    assert ended(msgspec.structs.replace(call(), name=address, kind=kind))["name"] == kept


def test_an_event_is_recorded_with_its_bounded_subject() -> None:
    received = read(AuditEvent(1.0, "key.revoked", {"caller": "x" * 1000, "at": 5, "event": "forged", "count": 3}))
    assert (received["at"], received["event"], received["count"], len(received["caller"])) == (
        1.0,
        "key.revoked",
        3,
        256,
    )
    many = read(AuditEvent(1.0, "some", {f"m{number}": number for number in range(100)}))
    assert len(many) == MEMBERS_MAX + 2


def test_an_encoded_record_stays_unchanged() -> None:
    assert RecordEncoder(KEY).record(EncodedRecord(2.0, b'{"at":2.0}')) == (2.0, b'{"at":2.0}')


CHAIN_KEY = b"k"


def is_signed(text: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(hmac.digest(CHAIN_KEY, text, "sha256"), signature)


def seal(point: Point, kind: SealKind = "checkpoint") -> Seal:
    return Seal(point, 1.5, hmac.digest(CHAIN_KEY, signed_text(kind, point, 1.5), "sha256"))


def chain(length: int, before: Point = START) -> list[AuditRow]:
    rows = []
    for number in range(before.number + 1, before.number + length + 1):
        content = b'{"at":%d.0,"event":"call"}' % number
        before = follow(before, content)
        rows.append(AuditRow(number, float(number), content, before.digest))
    return rows


def point(row: AuditRow) -> Point:
    return Point(row.number, row.digest)


def look(rows: list[AuditRow], checkpoint: Seal | None, anchor: Seal | None = None) -> ChainBreak | None:
    verification = Verification(anchor, checkpoint, is_signed)
    for row in rows:
        if verification.check_row(row) is not None:
            break
    return verification.end()


def number_of(broken: ChainBreak | None) -> int | None:
    return None if broken is None else broken.number


def rows_of(before: Point, batch: RecordBatch) -> list[AuditRow]:
    numbers = range(before.number + 1, before.number + len(batch) + 1)
    return [AuditRow(*row) for row in zip(numbers, batch.times, batch.contents, batch.digests, strict=True)]


def batch(length: int, before: Point = START, first: int = 1) -> RecordBatch:
    made = RecordBatch(before)
    for number in range(first, first + length):
        made.add(float(number), b'{"at":%d.0,"event":"call"}' % number)
    return made


def test_a_batch_has_the_digests_of_its_records_one_after_the_other() -> None:
    rows = chain(5)
    made = batch(5)
    assert rows_of(START, made) == rows
    assert made.head == point(rows[-1])
    assert list(made) == [EncodedRecord(row.at, row.content) for row in rows]
    assert made[1:3] == [made[1], made[2]]


def test_batches_are_joined_and_follow_the_end_of_the_log_wherever_that_is() -> None:
    rows, first = chain(9), batch(3)
    begin = point(rows[1])
    second, event = batch(3, first.head, 4), AuditEvent(7.0, "call", {})
    for before in (START, begin):  # the batches expect the first
        whole = batch_of(before, [first, second, (event,), batch(0)], RecordEncoder(KEY).record)
        assert [row.at for row in rows_of(before, whole)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        verification = Verification(None if before == START else seal(before, "anchor"), None, is_signed)
        assert all(verification.check_row(row) is None for row in rows_of(before, whole))
        assert whole.head == verification.head
        assert second.head.number == before.number + 6


def test_records_of_a_batch_can_be_replaced_before_it_is_written() -> None:
    made = batch(4)
    made.replace_first(2, EncodedRecord(9.0, b'{"at":9.0}'))
    made.extend(batch(1, batch(4).head, 5))
    assert made.times == [9.0, 3.0, 4.0, 5.0]
    made.follow(START)
    assert look(rows_of(START, made), seal(made.head)) is None


def test_an_untouched_chain_is_whole() -> None:
    rows = chain(5)
    assert look(rows, seal(point(rows[-1]))) is None
    assert look(rows, seal(point(rows[2]))) is None, "a hub that crashed may have been about to note its last records"
    assert look([], None) is None


def test_a_changed_record_is_named() -> None:
    rows = chain(5)
    rows[2] = msgspec.structs.replace(rows[2], content=rows[2].content.replace(b"call", b"fall"))
    assert number_of(look(rows, None)) == 3


def test_a_record_that_was_changed_with_its_digest_breaks_the_next_one() -> None:
    rows = chain(5)
    content = b'{"at":3.0,"event":"other"}'
    rows[2] = AuditRow(3, 3.0, content, follow(point(rows[1]), content).digest)
    assert number_of(look(rows, None)) == 4


def test_a_record_that_is_gone_is_named() -> None:
    rows = chain(5)
    assert number_of(look([*rows[:2], *rows[3:]], None)) == 3
    renumbered = [msgspec.structs.replace(row, number=row.number - 1) for row in rows[3:]]
    assert number_of(look([*rows[:2], *renumbered], None)) == 3


def test_records_in_another_order_are_found() -> None:
    rows = chain(5)
    rows[1], rows[2] = (
        msgspec.structs.replace(rows[2], number=2),
        msgspec.structs.replace(rows[1], number=3),
    )
    assert number_of(look(rows, None)) == 2


def test_missing_records_at_the_end_are_found_by_the_checkpoint() -> None:
    rows = chain(5)
    assert number_of(look(rows[:3], seal(point(rows[-1])))) == 4
    assert number_of(look([], seal(point(rows[-1])))) == 1


def test_a_chain_that_was_made_anew_is_not_the_one_that_was_sealed() -> None:
    rows = chain(5)
    content = b'{"at":1.0,"event":"other"}'
    forged = [AuditRow(1, 1.0, content, follow(START, content).digest)]
    forged += chain(4, point(forged[0]))
    assert number_of(look(forged, seal(point(rows[-1])))) == 5


def test_without_a_checkpoint_nothing_is_said_of_the_end() -> None:
    broken = look(chain(2), None)
    assert broken is not None
    assert "no checkpoint" in broken.why


def test_a_checkpoint_or_an_anchor_that_another_key_signed_counts_for_nothing() -> None:
    rows = chain(3)
    forged = Seal(point(rows[-1]), 1.5, b"no signature")
    assert look(rows, forged) == ChainBreak(0, "the checkpoint is not signed by the hub's key")
    broken = look(rows[1:], seal(point(rows[-1])), Seal(point(rows[0]), 1.5, b"no signature"))
    assert number_of(broken) == 2


def test_older_records_may_go_where_the_hub_signed_for_it() -> None:
    rows = chain(5)
    assert look(rows[2:], seal(point(rows[-1])), seal(point(rows[1]), "anchor")) is None
    assert number_of(look(rows[3:], seal(point(rows[-1])), seal(point(rows[1]), "anchor"))) == 3
    assert look(rows[2:], seal(point(rows[-1])), seal(point(rows[1]), "checkpoint")) is not None, "another purpose"


def test_the_time_that_a_record_is_found_by_is_its_own() -> None:
    rows = chain(3)
    rows[1] = msgspec.structs.replace(rows[1], at=0.0)
    assert number_of(look(rows, None)) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b'{"event":"call"}', b'{"at":"1"}', b'{"at":1.0,"event":"\xff"}'])
def test_an_invalid_record_is_named(content: bytes) -> None:
    row = AuditRow(1, 1.0, content, follow(START, content).digest)
    assert number_of(look([row], None)) == 1


def test_a_defect_found_at_the_start_of_a_hub_stays_visible() -> None:
    content = b'{"at":1.0,"event":"%b","why":"it ended too early"}' % CUT.encode()
    row = AuditRow(1, 1.0, content, follow(START, content).digest)
    broken = look([row], seal(point(row)))
    assert broken is not None
    assert (broken.number, "it ended too early" in broken.why) == (1, True)


SCRIBE = RecordEncoder(b"key")


def row(number: int, id: str, *, is_begun: bool) -> AuditRow:
    fact = (float(number), call("files.read"), SERVER, None if is_begun else DONE, 0.0, True, id)
    return AuditRow(*(number, *SCRIBE.record(fact), b""))


def record(content: bytes) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(content)
    return read


def test_an_ended_call_is_not_open_even_if_it_began_twice() -> None:
    ends = UnfinishedCalls()
    for number, (id, is_begun) in enumerate([("a", True), ("b", True), ("a", True), ("a", False), ("", False)]):
        ends.add_row(row(number, id, is_begun=is_begun))
    assert list(ends.open) == ["b"]
    ends.add_row(AuditRow(9, 9.0, b'{"at":9,"event":"call', b""))  # which the chain would not have
    ends.add_row(AuditRow(9, 9.0, b'{"at":9,"event":"hub.started"}', b""))
    assert (list(ends.open), ends.lost) == (["b"], 0)


def test_the_closing_record_of_a_lost_call_names_and_ends_it() -> None:
    ends = UnfinishedCalls()
    begun = row(1, "b", is_begun=True)
    ends.add_row(begun)
    closed = lost_call_record(begun, 7.0)
    assert closed is not None
    received, before = record(closed.content), record(begun.content)
    assert (received["event"], received["outcome"], received["executed"], received["at"]) == (
        CALL_LOST,
        "lost",
        "unknown",
        7.0,
    )
    for member in ("caller", "tenant", "name", "server", "arguments", "id", "kind"):
        assert received[member] == before[member]
    ends.add_row(AuditRow(2, 7.0, closed.content, b""))
    assert (ends.open, ends.lost) == ({}, 1)
    assert lost_call_record(AuditRow(1, 1.0, b"{}", b""), 7.0) is None


def test_a_call_that_an_earlier_version_began_is_closed() -> None:
    """Earlier versions wrote `face` for `frontend`."""
    begun = row(1, "b", is_begun=True)
    old = begun.content.replace(b'"frontend":""', b'"face":"rest"')
    assert old != begun.content
    closed = lost_call_record(AuditRow(1, 1.0, old, b""), 7.0)
    assert closed is not None
    received = record(closed.content)
    assert (received["event"], received["frontend"], "face" in received) == (CALL_LOST, "rest", False)
