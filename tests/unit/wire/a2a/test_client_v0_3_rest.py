"""A2A 0.3 over plain HTTP towards agents: what the hub's own agent reads and writes is understood from this side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.model.conversation import (
    Artifact,
    ArtifactUpdate,
    Data,
    File,
    Message,
    Status,
    StatusUpdate,
    Task,
    Text,
    Update,
)
from isthmus.wire.a2a import rest, v0_3_rest
from isthmus.wire.a2a.client import Asked
from isthmus.wire.a2a.client_v0_3_rest import EarlierPlainClient
from isthmus.wire.a2a.operations import Problem, Send
from tests.unit.wire.a2a.samples import ids, messages_of, metadata, parts_of, some_json, some_object, steady
from tests.unit.wire.a2a.test_client import SHARED

CLIENT = EarlierPlainClient()
SAID = Message("m", "agent", (Text("hi"), Data(Raw(b'{"n":1.0}')), File("aGk=", name="f", media_type="a/b")))
MADE = Artifact("a", SAID.parts, "name", "words", Raw(b'{"x":1}'))


def sends() -> st.SearchStrategy[Asked]:
    messages = messages_of(parts_of(some_object, has_types=False))
    lengths = st.none() | st.integers(0, 100)
    modes = st.lists(ids, max_size=2).map(tuple)
    optional = st.none() | ids
    flags = st.booleans()
    return st.builds(Send, messages, optional, optional, flags, flags, lengths, modes, st.none(), metadata)


@given(SHARED | sends())
@steady
def test_what_is_asked_is_understood_as_it_was_meant(asked: Asked) -> None:
    verb, target = CLIENT.locate(asked)
    path, _, query = target.partition("?")
    body = CLIENT.write(asked)[1] if verb == "POST" else b""
    binding, understood = rest.read(verb, path, query, body, CLIENT.version)
    assert binding is rest.V0_3
    if isinstance(asked, Send):
        assert isinstance(understood, Send)
        assert understood.message.parts == asked.message.parts
        assert (understood.task, understood.context, understood.waits) == (asked.task, asked.context, asked.waits)
        assert (understood.history_length, understood.output_modes) == (asked.history_length, asked.output_modes)
        assert (understood.is_stream, understood.metadata) == (asked.is_stream, asked.metadata)
    else:
        assert type(understood) is type(asked)
        assert understood.task == asked.task


@pytest.mark.parametrize(
    "update",
    [
        Task("t", "c", Status("input_required", 1.5, SAID), 1.5, (MADE,), (SAID,), Raw(b'{"x":1.0}')),
        Message("m", "agent", SAID.parts, context="c"),
        StatusUpdate("t", "c", Status("canceled", 1.5), is_last=True),
        StatusUpdate("t", "c", Status("working", 1.5, SAID)),
        ArtifactUpdate("t", "c", MADE, is_more=True, is_complete=False),
    ],
)
def test_what_is_told_is_understood_as_it_was_meant(update: Update) -> None:
    assert CLIENT.read_update(v0_3_rest.write_update(update)) == update


def test_whole_answers_are_understood() -> None:
    task = Task("t", "c", Status("completed", 1.5), 1.5, (MADE,))
    assert CLIENT.read_task(v0_3_rest.write_task(task, None)) == task
    assert CLIENT.read_sent(v0_3_rest.write_sent(task, None)) == task


def test_members_may_be_spelt_as_the_protobuf_has_them() -> None:
    message = b'{"message_id":"m","role":"ROLE_AGENT","content":[{"text":"hi"}],"context_id":"c"}'
    assert CLIENT.read_update(b'{"msg":%b}' % message) == Message("m", "agent", (Text("hi"),), context="c")
    status = b'{"state":"TASK_STATE_CANCELED","update":%b}' % message
    update = CLIENT.read_update(b'{"status_update":{"task_id":"t","context_id":"c","status":%b}}' % status)
    assert isinstance(update, StatusUpdate)
    assert (update.task, update.status.state, update.is_last) == ("t", "canceled", True)
    artifact = b'{"artifact_id":"a","parts":[]}'
    piece = CLIENT.read_update(b'{"artifact_update":{"task_id":"t","last_chunk":true,"artifact":%b}}' % artifact)
    assert isinstance(piece, ArtifactUpdate)
    assert (piece.artifact.id, piece.is_complete) == ("a", True)


def test_a_state_that_nobody_knows_is_not_an_end() -> None:
    task = CLIENT.read_task(b'{"id":"t","status":{"state":"TASK_STATE_NEW"}}')
    assert isinstance(task, Task)
    assert task.status.state == "working"


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"7",
        b'{"task":7}',
        b'{"message":{"content":[{"text":1}]}}',
        b'{"artifactUpdate":{"artifact":{"parts":[{}]}}}',
        b'{"statusUpdate":{"status":{"message":{"metadata":7}}}}',
    ],
)
def test_an_answer_that_is_none_is_the_agents_fault(answer: bytes) -> None:
    for read in (CLIENT.read_sent, CLIENT.read_task, CLIENT.read_update):
        problem = read(answer)
        assert isinstance(problem, Problem)
        assert problem.kind == "invalid_agent_response"


def test_an_update_is_no_answer_to_a_message() -> None:
    update = v0_3_rest.write_update(StatusUpdate("t", "c", Status("working", 1.5)))
    assert isinstance(CLIENT.read_sent(update), Problem)


@given(some_json)
@steady
def test_nothing_that_an_agent_answers_makes_it_raise(answer: Raw) -> None:
    CLIENT.read_sent(answer)
    CLIENT.read_task(answer)
