"""Objects of 1.0, there and back."""

from __future__ import annotations

import msgspec
from hypothesis import given

from isthmus.model.conversation import Task, Update
from isthmus.wire.a2a import shapes_v1_0 as shapes
from tests.unit.wire.a2a.samples import UPDATES, parts_of, some_json, steady, tasks_of

_UPDATE = msgspec.json.Decoder(shapes.WireUpdate)


def again(update: Update) -> Update | None:
    """An update written, and read as an agent's."""
    return shapes.update_of(_UPDATE.decode(msgspec.json.encode(shapes.wire_update(update))))


@given(tasks_of(parts_of(some_json, has_types=True)))
@steady
def test_a_task_is_read_as_it_was_written(task: Task) -> None:
    assert again(task) == task


def test_updates_are_read_as_they_were_written() -> None:
    for update in UPDATES[1:]:
        read = again(update)
        assert type(read) is type(update)
        for field in ("task", "context", "is_last", "is_more", "is_complete", "metadata"):
            assert getattr(read, field, None) == getattr(update, field, None)


def test_agents_may_leave_out_parts_where_there_are_none_and_they_are_always_written() -> None:
    for body in (
        b'{"artifactUpdate":{"taskId":"t","contextId":"c","artifact":{"artifactId":"a"}}}',
        b'{"message":{"messageId":"m","role":"ROLE_AGENT"}}',
    ):
        update = shapes.update_of(_UPDATE.decode(body))
        assert update is not None
        assert b'"parts":[]' in msgspec.json.encode(shapes.wire_update(update))


def test_an_empty_item_is_none() -> None:
    assert shapes.update_of(shapes.WireUpdate()) is None
