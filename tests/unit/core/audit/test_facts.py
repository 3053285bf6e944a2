"""What a record says of a call, and what it does not."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
import pytest

from isthmus.core.audit.facts import MEMBERS_MAX, Fact, Happening, Scribe, Written
from isthmus.model.calls import Call, Kind
from isthmus.model.faults import Lost, TimedOut, UnknownTool
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from tests.unit.core.doubles import ANYONE, DONE, SERVER, call

KEY = b"a key of this test"


def read(fact: Fact) -> dict[str, Any]:
    at, content = Scribe(KEY).record(fact)
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


def test_a_call_is_told_without_its_arguments() -> None:
    asked = msgspec.structs.replace(call(), arguments=msgspec.Raw(b'{"path":"/secret"}'), face="rest")
    assert ended(asked) == {
        "at": 12.3456789,
        "event": "call",
        "caller": ANYONE.name,
        "tenant": ANYONE.tenant,
        "face": "rest",
        "kind": "tool",
        "name": asked.name,
        "arguments": blake2b(b'{"path":"/secret"}', key=KEY, digest_size=16).hexdigest(),
        "server": SERVER,
        "outcome": "result",
        "executed": "yes",
        "seconds": 0.25,
    }


def test_a_conversation_is_told_from_others_without_its_id() -> None:
    first, second = (msgspec.structs.replace(call(), session=name) for name in ("one", "two"))
    told = [ended(asked)["session"] for asked in (first, second, first)]
    assert told[0] == told[2] != told[1]
    assert "one" not in told[0]


def test_what_is_about_to_be_sent_has_no_outcome() -> None:
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


def test_long_names_and_odd_texts_cost_only_themselves() -> None:
    asked = msgspec.structs.replace(call(), name="\n" + "x" * 1_000_000)
    _, content = Scribe(KEY).record((1.0, asked, None, DONE, 0.0, False, ""))
    assert len(content) < 1024
    assert b"\n" not in content
    odd = msgspec.structs.replace(call(), name="half \ud800")
    assert ended(odd) == {"at": 12.3456789, "event": "audit.unwritable"}


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
def test_what_may_be_secret_in_an_address_is_left_out(kind: Kind, address: str, kept: str) -> None:
    assert ended(msgspec.structs.replace(call(), name=address, kind=kind))["name"] == kept


def test_an_event_is_told_with_what_it_is_about_in_bounds() -> None:
    told = read(Happening(1.0, "key.revoked", {"caller": "x" * 1000, "at": 5, "event": "forged", "count": 3}))
    assert (told["at"], told["event"], told["count"], len(told["caller"])) == (1.0, "key.revoked", 3, 256)
    many = read(Happening(1.0, "some", {f"m{number}": number for number in range(100)}))
    assert len(many) == MEMBERS_MAX + 2


def test_what_is_a_record_already_stays_as_it_is() -> None:
    assert Scribe(KEY).record(Written(2.0, b'{"at":2.0}')) == (2.0, b'{"at":2.0}')
