"""What a chain of records shows of itself: each kind of tampering is named by the first record that it touches."""

from __future__ import annotations

import hmac

import msgspec
import pytest

from isthmus.core.audit.chain import CUT, START, Broken, Kind, Point, Row, Seal, Verification, follow, signed_text

KEY = b"k"


def is_signed(text: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(hmac.digest(KEY, text, "sha256"), signature)


def seal(point: Point, kind: Kind = "checkpoint") -> Seal:
    return Seal(point, 1.5, hmac.digest(KEY, signed_text(kind, point, 1.5), "sha256"))


def chain(length: int, before: Point = START) -> list[Row]:
    rows = []
    for number in range(before.number + 1, before.number + length + 1):
        content = b'{"at":%d.0,"event":"call"}' % number
        before = follow(before, content)
        rows.append(Row(number, float(number), content, before.digest))
    return rows


def point(row: Row) -> Point:
    return Point(row.number, row.digest)


def look(rows: list[Row], checkpoint: Seal | None, anchor: Seal | None = None) -> Broken | None:
    verification = Verification(anchor, checkpoint, is_signed)
    for row in rows:
        if verification.take(row) is not None:
            break
    return verification.end()


def number_of(broken: Broken | None) -> int | None:
    return None if broken is None else broken.number


def test_a_chain_that_nobody_touched_is_whole() -> None:
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
    rows[2] = Row(3, 3.0, content, follow(point(rows[1]), content).digest)
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


def test_what_is_missing_at_the_end_is_found_by_the_checkpoint() -> None:
    rows = chain(5)
    assert number_of(look(rows[:3], seal(point(rows[-1])))) == 4
    assert number_of(look([], seal(point(rows[-1])))) == 1


def test_a_chain_that_was_made_anew_is_not_the_one_that_was_sealed() -> None:
    rows = chain(5)
    content = b'{"at":1.0,"event":"other"}'
    forged = [Row(1, 1.0, content, follow(START, content).digest)]
    forged += chain(4, point(forged[0]))
    assert number_of(look(forged, seal(point(rows[-1])))) == 5


def test_without_a_checkpoint_nothing_is_said_of_the_end() -> None:
    broken = look(chain(2), None)
    assert broken is not None
    assert "no checkpoint" in broken.why


def test_a_checkpoint_or_an_anchor_that_another_key_signed_counts_for_nothing() -> None:
    rows = chain(3)
    forged = Seal(point(rows[-1]), 1.5, b"no signature")
    assert look(rows, forged) == Broken(0, "the checkpoint was not signed by the hub's key")
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
def test_what_is_no_record_is_named(content: bytes) -> None:
    row = Row(1, 1.0, content, follow(START, content).digest)
    assert number_of(look([row], None)) == 1


def test_what_a_hub_found_wrong_when_it_started_stays_to_be_seen() -> None:
    content = b'{"at":1.0,"event":"%b","why":"it ended too early"}' % CUT.encode()
    row = Row(1, 1.0, content, follow(START, content).digest)
    broken = look([row], seal(point(row)))
    assert broken is not None
    assert (broken.number, "it ended too early" in broken.why) == (1, True)
