"""Calls that began and have not ended: which they are, and the record that closes them."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.core.audit.chain import Row
from isthmus.core.audit.ends import CALL_LOST, Ends, closing
from isthmus.core.audit.facts import Scribe
from tests.unit.core.doubles import DONE, SERVER, call

SCRIBE = Scribe(b"key")


def row(number: int, id: str, *, is_begun: bool) -> Row:
    fact = (float(number), call("files.read"), SERVER, None if is_begun else DONE, 0.0, True, id)
    return Row(*(number, *SCRIBE.record(fact), b""))


def record(content: bytes) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(content)
    return read


def test_what_ended_is_not_open_however_often_it_began() -> None:
    ends = Ends()
    for number, (id, is_begun) in enumerate([("a", True), ("b", True), ("a", True), ("a", False), ("", False)]):
        ends.take(row(number, id, is_begun=is_begun))
    assert list(ends.open) == ["b"]
    ends.take(Row(9, 9.0, b'{"at":9,"event":"call', b""))  # which the chain would not have
    ends.take(Row(9, 9.0, b'{"at":9,"event":"hub.started"}', b""))
    assert (list(ends.open), ends.lost) == (["b"], 0)


def test_what_closes_a_call_names_it_and_is_its_end() -> None:
    ends = Ends()
    begun = row(1, "b", is_begun=True)
    ends.take(begun)
    closed = closing(begun, 7.0)
    assert closed is not None
    told, before = record(closed.content), record(begun.content)
    assert (told["event"], told["outcome"], told["executed"], told["at"]) == (CALL_LOST, "lost", "unknown", 7.0)
    for member in ("caller", "tenant", "name", "server", "arguments", "id", "kind"):
        assert told[member] == before[member]
    ends.take(Row(2, 7.0, closed.content, b""))
    assert (ends.open, ends.lost) == ({}, 1)
    assert closing(Row(1, 1.0, b"{}", b""), 7.0) is None
