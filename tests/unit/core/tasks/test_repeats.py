"""What counts as the same message said again, and for how long."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.tasks import repeats
from isthmus.core.tasks.record import Owner, Phase, Record
from isthmus.core.tasks.repeats import KEPT_SECONDS, Keyed, Repeats, digest_of, read_key, untold_of, write_key
from isthmus.model.conversation import Data, Message, TaskState
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.tasks.doubles import said

ME, YOU = Owner("tenant", "me"), Owner("tenant", "you")
FIRST = said("pay", "m1")
SAME = digest_of(FIRST)


def record(state: TaskState, id: str = "t1", phase: Phase = "idle") -> Record:
    return Record(id, ME, "talk", "1.0", state, 1.0, 2.0, said=(FIRST,), phase=phase)


async def test_the_same_message_under_its_id_is_found_and_nothing_else() -> None:
    known = Repeats()
    first = known.add(ME, FIRST, SAME)
    assert known.find(ME, said("pay", "m1"), digest_of(said("pay", "m1"))) is first
    assert known.find(ME, said("pay more", "m1"), digest_of(said("pay more", "m1"))) is None
    assert known.find(ME, said("pay", "m2"), digest_of(said("pay", "m2"))) is None
    assert known.find(YOU, FIRST, SAME) is None


def data(text: bytes) -> Message:
    return Message("m1", "user", (Data(Raw(text)),), metadata=Raw(text))


@pytest.mark.parametrize("other", [b'{"b":{"d":1,"c":[2]},"a":1}', b' { "a" : 1,\n"b":{"c":[2], "d":1} }'])
def test_the_order_of_members_and_the_space_between_them_say_nothing(other: bytes) -> None:
    assert digest_of(data(other)) == digest_of(data(b'{"a":1,"b":{"c":[2],"d":1}}'))


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("text", [b"1e400", DEEP], ids=["too large", "too deep"])
def test_what_python_cannot_hold_is_the_same_as_itself_alone(text: bytes) -> None:
    assert digest_of(data(text)) == digest_of(data(text))
    assert digest_of(data(text)) != digest_of(data(b"1"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1180591620717411303424", b"1180591620717411303425"),
        (b"9007199254740992", b"9007199254740993"),
        (b"1", b"1.0"),
        (b"1", b"true"),
        (b"[1,2]", b"[2,1]"),
        (b"1e400", b"1e401"),
    ],
)
def test_what_differs_in_value_or_type_is_not_the_same(one: bytes, other: bytes) -> None:
    assert digest_of(data(one)) != digest_of(data(other))


async def test_once_its_end_was_delivered_the_message_is_new_again() -> None:
    known = Repeats()
    known.add(ME, FIRST, SAME).begin("t1")
    known.delivered(record("working"))
    first = known.find(ME, FIRST, SAME)
    assert first is not None
    assert first.is_delivered
    known.delivered(record("completed", "another task"))
    assert known.find(ME, FIRST, SAME) is first
    known.delivered(record("completed"))
    assert known.find(ME, FIRST, SAME) is None
    known.delivered(record("completed"))


async def test_only_the_one_that_is_meant_is_forgotten() -> None:
    known = Repeats()
    old = known.add(ME, FIRST, SAME)
    new = known.add(ME, FIRST, SAME)
    known.forget(ME, FIRST, old)
    assert known.find(ME, FIRST, SAME) is new
    known.forget(ME, FIRST, new)
    assert known.find(ME, FIRST, SAME) is None


async def test_what_was_lost_by_a_crash_was_not_delivered() -> None:
    known = Repeats()
    nameless = Record("t2", ME, "talk", "0.1", "working", 1.0, 2.0, said=(said("pay", ""),))
    known.untold(untold_of(each) for each in (record("working"), nameless, replace(nameless, said=())))
    first = known.find(ME, FIRST, SAME)
    assert first is not None
    assert (first.task, first.is_delivered, first.begun.done()) == ("t1", False, True)
    assert known.find(ME, nameless.said[0], digest_of(nameless.said[0])) is None


async def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "REMEMBERED_MAX", 2)
    known = Repeats()
    messages = [said("pay", f"m{number}") for number in range(3)]
    for message in messages:
        known.add(ME, message, digest_of(message))
    found = [known.find(ME, message, digest_of(message)) is not None for message in messages]
    assert found == [False, True, True]


async def test_what_others_say_makes_nobody_s_message_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "REMEMBERED_MAX", 2)
    known = Repeats()
    first = known.add(ME, FIRST, SAME)
    for number in range(5):
        known.add(YOU, said("pay", f"m{number}"), SAME)
    assert known.find(ME, FIRST, SAME) is first


async def test_of_too_many_those_go_first_that_wait_for_a_caller_who_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "REMEMBERED_MAX", 2)
    known = Repeats()
    running = known.add(ME, FIRST, SAME)
    running.begin("t1")
    known.delivered(record("working", phase="sent"))
    waits = replace(record("input_required", "t2"), said=(said("hm", "m2"),))
    known.add(ME, waits.said[0], SAME).begin("t2")
    known.delivered(waits)
    known.add(ME, said("pay", "m3"), SAME)
    assert known.find(ME, FIRST, SAME) is running
    assert known.find(ME, said("hm", "m2"), SAME) is None
    # One that has a question of its tool's is still under way.
    asks = replace(record("input_required", "t3", phase="sent"), said=(said("pay", "m3"),))
    known.delivered(asks)
    known.add(ME, said("pay", "m4"), SAME)
    assert known.find(ME, FIRST, SAME) is None


async def test_one_that_goes_on_after_it_waited_is_not_the_first_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "REMEMBERED_MAX", 1)
    known = Repeats()
    first = known.add(ME, FIRST, SAME)
    first.begin("t1")
    known.delivered(record("input_required"))
    known.delivered(record("working", phase="sent"))
    monkeypatch.setattr(repeats, "REMEMBERED_MAX", 2)
    known.add(ME, said("pay", "m2"), SAME).begin("t2")
    known.delivered(replace(record("input_required", "t2"), said=(said("pay", "m2"),)))
    known.add(ME, said("pay", "m3"), SAME)
    assert known.find(ME, FIRST, SAME) is first


async def test_nothing_is_remembered_of_who_has_nothing_to_come_again() -> None:
    known = Repeats()
    known.add(ME, FIRST, SAME).begin("t1")
    known.delivered(record("completed"))
    known.forget(YOU, FIRST, known.add(YOU, FIRST, SAME))
    assert known._firsts == {}


async def test_a_key_is_kept_with_what_it_was_used_for_and_can_be_used_anew() -> None:
    journal = MemoryJournal()
    assert await read_key(journal, ME, "k") is None
    journal._write([write_key(ME, "k", "d1", "t1", 5.0, None)])
    used = await read_key(journal, ME, "k")
    assert used == Keyed("d1", "t1", 1, 5.0)
    assert used.holds(5.0)
    assert used.holds(4.9 + KEPT_SECONDS)
    assert not used.holds(5.0 + KEPT_SECONDS)
    assert await read_key(journal, YOU, "k") is None
    assert journal._write([write_key(ME, "k", "d2", "t2", 9.0, None)]) == "conflict"
    assert journal._write([write_key(ME, "k", "d2", "t2", 9.0, used)]) == "kept"
    assert await read_key(journal, ME, "k") == Keyed("d2", "t2", 2, 9.0)
