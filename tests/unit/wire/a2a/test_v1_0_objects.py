"""Objects of 1.0 and 0.3, written and read again."""

from __future__ import annotations

import msgspec
from hypothesis import given

from isthmus.model.tasks import Task, Update
from isthmus.wire.a2a import v0_3, v1_0
from tests.unit.wire.a2a.samples import UPDATES, parts_of, some_json, some_object, steady, tasks_of

UPDATE_V03: msgspec.json.Decoder[v0_3.UpdateV03] = msgspec.json.Decoder(v0_3.UpdateV03)
UPDATE_V10 = msgspec.json.Decoder(v1_0.UpdateV10)


def again_0_3(update: Update) -> Update | None:
    """An update written, and read as an agent's."""
    return v0_3.DIALECT.read_update(UPDATE_V03.decode(v0_3.DIALECT.write_update(update)))


def again_1_0(update: Update) -> Update | None:
    """An update written, and read as an agent's."""
    return v1_0.DIALECT.read_update(UPDATE_V10.decode(v1_0.DIALECT.write_update(update)))


@given(tasks_of(parts_of(some_object, has_types=False)))
@steady
def test_a_task_of_0_3_is_read_as_it_was_written(task: Task) -> None:
    assert again_0_3(task) == task


@given(tasks_of(parts_of(some_json, has_types=True)))
@steady
def test_a_task_of_1_0_is_read_as_it_was_written(task: Task) -> None:
    assert again_1_0(task) == task


@given(tasks_of(parts_of(some_json, has_types=False)))
@steady
def test_a_task_with_data_of_any_kind_can_be_written_and_read(task: Task) -> None:
    read = again_0_3(task)
    assert isinstance(read, Task)
    assert [len(artifact.parts) for artifact in read.artifacts] == [len(it.parts) for it in task.artifacts]


def test_updates_are_read_as_they_were_written() -> None:
    for again in (again_0_3, again_1_0):
        for update in UPDATES[1:]:
            read = again(update)
            assert type(read) is type(update)
            for field in ("task", "context", "is_last", "is_more", "is_complete", "metadata"):
                assert getattr(read, field, None) == getattr(update, field, None)


def test_agents_of_0_3_that_leave_out_last_chunk_send_whole_artifacts() -> None:
    item = b'{"kind":"artifact-update","taskId":"t","contextId":"c","artifact":{"artifactId":"a","parts":[]}}'
    update = v0_3.DIALECT.read_update(UPDATE_V03.decode(item))
    assert (getattr(update, "is_more", None), getattr(update, "is_complete", None)) == (False, True)


def test_agents_of_1_0_may_leave_out_empty_parts_which_the_hub_always_writes() -> None:
    for body in (
        b'{"artifactUpdate":{"taskId":"t","contextId":"c","artifact":{"artifactId":"a"}}}',
        b'{"message":{"messageId":"m","role":"ROLE_AGENT"}}',
    ):
        update = v1_0.DIALECT.read_update(UPDATE_V10.decode(body))
        assert update is not None
        assert b'"parts":[]' in bytes(v1_0.DIALECT.write_update(update))


def test_an_empty_event_is_ignored() -> None:
    assert v1_0.DIALECT.read_update(v1_0.UpdateV10()) is None
