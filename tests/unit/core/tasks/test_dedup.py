"""What counts as the same message said again, and for how long."""

from __future__ import annotations

import pytest
from msgspec import Raw

from isthmus.core.tasks.record import Owner, Record
from isthmus.core.tasks.repeats import KEPT_SECONDS, Keyed, digest_of, is_joined, read_key, task_of, write_key
from isthmus.model.conversation import Data, Message, TaskState
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.tasks.doubles import said

ME, YOU = Owner("tenant", "me"), Owner("tenant", "you")
FIRST = said("pay", "m1")
SAME = digest_of(FIRST)


def record(state: TaskState) -> Record:
    return Record("t1", ME, "talk", "1.0", state, 1.0, 2.0, said=(FIRST,))


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


def test_a_message_has_one_task_with_each_caller() -> None:
    assert task_of(ME, SAME) == task_of(ME, digest_of(said("pay", "m1")))
    others = [task_of(YOU, SAME), task_of(ME, digest_of(said("pay", "m2"))), task_of(ME, digest_of(FIRST, "talk"))]
    assert len({task_of(ME, SAME), *others}) == 4


def test_a_task_is_joined_until_ten_minutes_after_its_end() -> None:
    assert is_joined(record("working"), 1e9)
    assert is_joined(record("completed"), 2.0 + 599.9)
    assert not is_joined(record("completed"), 2.0 + 600.0)


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
