"""Which messages count as repeats, and for how long."""

from __future__ import annotations

import pytest
from msgspec import Raw

from isthmus.core.tasks.record import KEY_SECONDS, TaskOwner, TaskRecord
from isthmus.frontends.a2a.caller_messages import message_digest, task_id_for
from isthmus.frontends.a2a.service import IdempotencyKey, is_joined, key_document, read_key
from isthmus.model.tasks import DataPart, Message, TaskState
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.tasks.doubles import user_message

ME, YOU = TaskOwner("tenant", "me"), TaskOwner("tenant", "you")
FIRST = user_message("pay", "m1")
SAME = message_digest(FIRST)


def record(state: TaskState) -> TaskRecord:
    return TaskRecord("t1", ME, "talk", "1.0", state, 1.0, 2.0, said=(FIRST,))


def data(text: bytes) -> Message:
    return Message("m1", "user", (DataPart(Raw(text)),), metadata=Raw(text))


@pytest.mark.parametrize("other", [b'{"b":{"d":1,"c":[2]},"a":1}', b' { "a" : 1,\n"b":{"c":[2], "d":1} }'])
def test_the_order_of_members_and_the_space_between_them_say_nothing(other: bytes) -> None:
    assert message_digest(data(other)) == message_digest(data(b'{"a":1,"b":{"c":[2],"d":1}}'))


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("text", [b"1e400", DEEP], ids=["too large", "too deep"])
def test_values_that_python_cannot_hold_equal_only_themselves(text: bytes) -> None:
    assert message_digest(data(text)) == message_digest(data(text))
    assert message_digest(data(text)) != message_digest(data(b"1"))


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
def test_messages_that_differ_in_value_or_type_are_no_repeats(one: bytes, other: bytes) -> None:
    assert message_digest(data(one)) != message_digest(data(other))


def test_a_message_has_one_task_with_each_caller() -> None:
    assert task_id_for(ME, SAME) == task_id_for(ME, message_digest(user_message("pay", "m1")))
    others = [
        task_id_for(YOU, SAME),
        task_id_for(ME, message_digest(user_message("pay", "m2"))),
        task_id_for(ME, message_digest(FIRST, "talk")),
    ]
    assert len({task_id_for(ME, SAME), *others}) == 4


def test_a_task_is_joined_until_ten_minutes_after_its_end() -> None:
    assert is_joined(record("working"), 1e9)
    assert is_joined(record("completed"), 2.0 + 599.9)
    assert not is_joined(record("completed"), 2.0 + 600.0)


async def test_a_key_is_stored_with_its_message_and_can_be_reused() -> None:
    journal = MemoryJournal()
    assert await read_key(journal, ME, "k") is None
    journal._write([key_document(ME, "k", "d1", "t1", 5.0, None)])
    used = await read_key(journal, ME, "k")
    assert used == IdempotencyKey("d1", "t1", 1, 5.0)
    assert used.is_valid(5.0)
    assert used.is_valid(4.9 + KEY_SECONDS)
    assert not used.is_valid(5.0 + KEY_SECONDS)
    assert await read_key(journal, YOU, "k") is None
    assert journal._write([key_document(ME, "k", "d2", "t2", 9.0, None)]) == "conflict"
    assert journal._write([key_document(ME, "k", "d2", "t2", 9.0, used)]) == "kept"
    assert await read_key(journal, ME, "k") == IdempotencyKey("d2", "t2", 2, 9.0)
