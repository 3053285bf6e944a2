"""A2A towards agents."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.model.conversation import ABSENT, ArtifactUpdate, Data, File, Message, Part, StatusUpdate, Task, Text
from isthmus.wire.a2a import rest, v0_3, v1_0
from isthmus.wire.a2a.client import (
    Asked,
    Client,
    EarlierClient,
    LatestClient,
    client_of,
    read_problem,
    read_status,
    segment_of,
)
from isthmus.wire.a2a.operations import Cancel, Dialect, Get, Problem, ProblemKind, Send, Subscribe
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import ODD, ids, messages_of, metadata, parts_of, some_json, some_object, steady

GENERATIONS: dict[str, Client] = {"sdk-1.3.0": LatestClient(), "sdk-0.3.26": EarlierClient()}
SHARED = st.one_of(
    st.builds(Get, ids, st.none() | st.integers(0, 100)),
    st.builds(Cancel, ids, metadata),
    st.builds(Subscribe, ids),
)


def sends(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Asked]:
    modes = st.lists(ids, max_size=2).map(tuple)
    optional = st.none() | ids
    lengths = st.none() | st.integers(0, 100)
    messages = messages_of(parts)
    flags = st.booleans()
    return st.builds(Send, messages, optional, optional, flags, flags, lengths, modes, st.none(), metadata)


def understood(client: Client, dialect: Dialect, asked: Asked) -> object:
    method, params = client.write(asked)
    return dialect.read(method, msgspec.json.decode(params, type=dict[str, Raw]))


@given(SHARED | sends(parts_of(some_json, has_types=True)))
@steady
def test_what_is_asked_in_1_0_is_understood_as_it_was_meant(asked: Asked) -> None:
    assert understood(LatestClient(), v1_0, asked) == asked


@given(SHARED | sends(parts_of(some_object, has_types=False)))
@steady
def test_what_is_asked_in_0_3_is_understood_as_it_was_meant(asked: Asked) -> None:
    assert understood(EarlierClient(), v0_3, asked) == asked


@given(SHARED | sends(parts_of(some_json, has_types=True)))
@steady
def test_what_is_asked_over_plain_http_is_understood_as_it_was_meant(asked: Asked) -> None:
    client = LatestClient()
    verb, target = client.locate(asked)
    path, _, query = target.partition("?")
    body = client.write(asked)[1] if verb == "POST" else b""
    assert rest.read(verb, path, query, body, client.version) == (rest.V1_0, asked)


@pytest.mark.parametrize("kind", sorted({*get_args(ProblemKind)} - {"not_json"}))
def test_a_problem_over_plain_http_is_read_as_it_was_written(kind: ProblemKind) -> None:
    status, body = rest.V1_0.write_problem(Problem(kind, "words"))
    assert read_status(body) == Problem(kind, "words", {"code": str(status)})


def test_an_error_over_plain_http_that_says_no_reason_is_internal() -> None:
    assert read_status(b'{"error":{"code":502,"message":"bad","details":[{"@type":"x"}]}}').kind == "internal"
    assert read_status(b"<html>").kind == "invalid_agent_response"


def test_what_need_not_be_said_is_not_said() -> None:
    message = Message("m", "user", (Text("hi"),))
    method, params = LatestClient().write(Send(message))
    assert (method, json.loads(params).keys()) == ("SendMessage", {"message"})
    method, params = EarlierClient().write(Send(message, is_stream=True))
    assert (method, json.loads(params)["configuration"]) == ("message/stream", {"blocking": True})


# -- what real servers answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", GENERATIONS)
def test_a_task_of_a_real_server_is_read(package: str) -> None:
    client = GENERATIONS[package]
    task = client.read_sent(captured.result(package, "send"))
    assert isinstance(task, Task)
    assert ({task.id, task.context}, task.status.state) == ({"id-0", "id-1"}, "completed")
    assert task.created == task.status.at > 0
    (artifact,) = task.artifacts
    assert (artifact.id, artifact.name) == ("a1", "art")
    text, data, inline, linked = artifact.parts
    assert isinstance(text, Text)
    assert isinstance(data, Data)
    assert json.loads(bytes(data.data)) == {"n": 1}
    assert inline == File("dGNr", None, "o.txt", "text/plain")
    assert linked == File(None, "https://example.com/x")
    again = client.read_task(captured.result(package, "get"))
    assert isinstance(again, Task)
    assert again.status == task.status


@pytest.mark.parametrize("package", GENERATIONS)
def test_a_message_of_a_real_server_is_read_with_its_context(package: str) -> None:
    message = GENERATIONS[package].read_sent(captured.result(package, "direct"))
    assert message == Message("r1", "agent", (Text("direct"),), context="id-0")


@pytest.mark.parametrize("package", GENERATIONS)
def test_a_question_of_a_real_server_is_read(package: str) -> None:
    task = GENERATIONS[package].read_sent(captured.result(package, "ask"))
    assert isinstance(task, Task)
    assert task.status.state == "input_required"
    assert task.status.message is not None
    assert task.status.message.parts == (Text("which?"),)


@pytest.mark.parametrize("package", GENERATIONS)
def test_a_stream_of_a_real_server_is_read(package: str) -> None:
    client = GENERATIONS[package]
    updates = [client.read_update(item) for item in captured.stream(package, "stream")]
    first, report, made, last = updates
    assert isinstance(first, Task if package == "sdk-1.3.0" else StatusUpdate)
    assert isinstance(report, StatusUpdate)
    assert report.status.message is not None
    assert (report.status.state, report.status.message.parts, report.is_last) == ("working", (Text("half"),), False)
    assert isinstance(made, ArtifactUpdate)
    assert (made.artifact.id, len(made.artifact.parts), made.is_more, made.is_complete) == ("a1", 4, False, True)
    assert isinstance(last, StatusUpdate)
    assert (last.status.state, last.is_last) == ("completed", True)


@pytest.mark.parametrize("package", GENERATIONS)
def test_errors_of_real_servers_are_told_apart(package: str) -> None:
    kinds = []
    for name in ("none", "cancel_ended"):
        error = captured.error(package, name)
        kinds.append(read_problem(error.code, error.message, error.data).kind)
    assert kinds == ["task_not_found", "task_not_cancelable"]


def test_an_error_that_nobody_knows_is_internal_and_keeps_what_it_said() -> None:
    problem = read_problem(-1, "", Raw(b'{"a":1}'))
    assert problem == Problem("internal", "error -1", {"code": "-1", "data": '{"a":1}'})
    assert read_problem(-32001, "x" * 10_000, Raw(b"null")).details == {"code": "-32001"}


# -- what other servers answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", GENERATIONS.values(), ids=GENERATIONS)
@pytest.mark.parametrize("answer", [b"{}", b"[]", b"null", b'"\\ud800"', b'{"task":7}', b'{"kind":"x"}', b"7"])
def test_an_answer_that_is_none_is_the_agents_fault(client: Client, answer: bytes) -> None:
    for read in (client.read_sent, client.read_task, client.read_update):
        problem = read(answer)
        assert isinstance(problem, Problem)
        assert problem.kind == "invalid_agent_response"


@pytest.mark.parametrize(
    ("client", "update"),
    [
        (
            LatestClient(),
            b'{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}',
        ),
        (
            EarlierClient(),
            b'{"kind":"status-update","taskId":"t","contextId":"c","status":{"state":"working"},"final":false}',
        ),
    ],
)
def test_an_update_is_no_answer_to_a_message(client: Client, update: bytes) -> None:
    assert isinstance(client.read_update(update), StatusUpdate)
    assert isinstance(client.read_sent(update), Problem)


@pytest.mark.parametrize(
    ("client", "task"),
    [
        (LatestClient(), b'{"id":"t","status":{"state":"TASK_STATE_NEW","timestamp":"then"},"metadata":null}'),
        (EarlierClient(), b'{"kind":"task","id":"t","contextId":"","status":{"state":"unknown"},"artifacts":null}'),
    ],
)
def test_a_state_that_nobody_knows_is_not_an_end(client: Client, task: bytes) -> None:
    read = client.read_task(task)
    assert isinstance(read, Task)
    assert (read.status.state, read.status.at, read.context, read.metadata) == ("working", 0.0, "", ABSENT)


def test_data_of_an_agent_keeps_its_text() -> None:
    answer = b'{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"data":%b}]}}' % bytes(ODD)
    message = LatestClient().read_sent(answer)
    assert isinstance(message, Message)
    assert message.parts == (Data(ODD),)


@pytest.mark.parametrize(
    ("version", "kind"),
    [("1.0", LatestClient), ("1.0.1", LatestClient), ("0.3.0", EarlierClient), ("0.2.6", EarlierClient)],
)
def test_there_is_a_client_for_each_version(version: str, kind: type) -> None:
    client = client_of(version)
    assert isinstance(client, kind)


@pytest.mark.parametrize(
    ("text", "step"), [("t-1", "t-1"), ("a/b", "a%2Fb"), ("..", "%252E%252E"), (".", "%252E"), ("..a", "..a")]
)
def test_what_an_agent_calls_its_things_is_one_step_of_a_path(text: str, step: str) -> None:
    assert segment_of(text) == step


def test_there_is_none_for_others() -> None:
    assert [client_of(version) for version in ("2.0", "0.1", "", "1")] == [None] * 4


@given(some_json)
@steady
def test_nothing_that_an_agent_answers_makes_it_raise(answer: Raw) -> None:
    for client in GENERATIONS.values():
        client.read_sent(answer)
        client.read_task(answer)
