"""Objects of 0.3, there and back."""

from __future__ import annotations

import msgspec
from hypothesis import given

from isthmus.model.conversation import Task, Update
from isthmus.wire.a2a import shapes_v0_3 as shapes
from tests.unit.wire.a2a.samples import UPDATES, parts_of, some_json, some_object, steady, tasks_of

_UPDATE: msgspec.json.Decoder[shapes.WireUpdate] = msgspec.json.Decoder(shapes.WireUpdate)


def again(update: Update) -> Update:
    """An update written, and read as an agent's."""
    return shapes.update_of(_UPDATE.decode(msgspec.json.encode(shapes.wire_update(update))))


@given(tasks_of(parts_of(some_object, has_types=False)))
@steady
def test_a_task_is_read_as_it_was_written(task: Task) -> None:
    assert again(task) == task


@given(tasks_of(parts_of(some_json, has_types=False)))
@steady
def test_a_task_with_data_of_any_kind_can_be_written_and_read(task: Task) -> None:
    read = again(task)
    assert isinstance(read, Task)
    assert [len(artifact.parts) for artifact in read.artifacts] == [len(it.parts) for it in task.artifacts]


def test_updates_are_read_as_they_were_written() -> None:
    for update in UPDATES[1:]:
        read = again(update)
        assert type(read) is type(update)
        for field in ("task", "context", "is_last", "is_more", "is_complete", "metadata"):
            assert getattr(read, field, None) == getattr(update, field, None)


def test_who_says_nothing_of_chunks_sends_whole_artifacts() -> None:
    item = b'{"kind":"artifact-update","taskId":"t","contextId":"c","artifact":{"artifactId":"a","parts":[]}}'
    update = shapes.update_of(_UPDATE.decode(item))
    assert (getattr(update, "is_more", None), getattr(update, "is_complete", None)) == (False, True)
