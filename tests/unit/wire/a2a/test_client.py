"""A2A towards agents."""

from __future__ import annotations

import json
from functools import partial
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.model.tasks import (
    ABSENT,
    Artifact,
    DataPart,
    FilePart,
    Message,
    Part,
    Task,
    TaskArtifactUpdate,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
    Update,
)
from isthmus.wire.a2a import rest, v0_3, v0_3_rest, v1_0
from isthmus.wire.a2a.client import (
    A2aClient,
    ClientBinding,
    ClientOperation,
    ClientV03,
    ClientV10,
    RestClientBinding,
    RestClientV03,
    RpcClientBinding,
    client_of,
    code_of,
    escape_segment,
    read_http_error,
    read_problem,
    read_sent,
)
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    GetTask,
    ProblemKind,
    SendMessage,
    SubscribeToTask,
)
from isthmus.wire.a2a.v1_0 import Dialect
from isthmus.wire.sse import SseEvent
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import ODD, ids, messages_of, metadata, parts_of, some_json, some_object, steady

GENERATIONS: dict[str, A2aClient] = {"sdk-1.3.0": ClientV10(), "sdk-0.3.26": ClientV03()}
SHARED = st.one_of(
    st.builds(GetTask, ids, st.none() | st.integers(0, 100)),
    st.builds(CancelTask, ids, metadata),
    st.builds(SubscribeToTask, ids),
)


def sends(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[ClientOperation]:
    modes = st.lists(ids, max_size=2).map(tuple)
    optional = st.none() | ids
    lengths = st.none() | st.integers(0, 100)
    messages = messages_of(parts)
    flags = st.booleans()
    return st.builds(SendMessage, messages, optional, optional, flags, flags, lengths, modes, st.none(), metadata)


def understood(client: A2aClient, dialect: Dialect, asked: ClientOperation) -> object:
    method, params = client.write(asked)
    return dialect.read(method, msgspec.json.decode(params, type=dict[str, Raw]))


@given(SHARED | sends(parts_of(some_json, has_types=True)))
@steady
def test_requests_of_1_0_are_read_back_unchanged(asked: ClientOperation) -> None:
    assert understood(ClientV10(), v1_0.DIALECT, asked) == asked


@given(SHARED | sends(parts_of(some_object, has_types=False)))
@steady
def test_requests_of_0_3_are_read_back_unchanged(asked: ClientOperation) -> None:
    assert understood(ClientV03(), v0_3.DIALECT, asked) == asked


@given(SHARED | sends(parts_of(some_json, has_types=True)))
@steady
def test_requests_over_plain_http_are_read_back_unchanged(asked: ClientOperation) -> None:
    client = ClientV10()
    verb, target, body = RestClientBinding(client).write(1, asked)
    path, _, query = target.partition("?")
    assert rest.read(verb, path, query, body or b"", client.version) == (rest.V1_0, asked)


@pytest.mark.parametrize("kind", sorted({*get_args(ProblemKind)} - {"not_json"}))
def test_a_problem_over_plain_http_is_read_as_it_was_written(kind: ProblemKind) -> None:
    status, body = rest.V1_0.write_problem(A2aProblem(kind, "words"))
    assert read_http_error(body) == A2aProblem(kind, "words", {"code": str(status)})


def test_an_error_over_plain_http_that_says_no_reason_is_internal() -> None:
    assert read_http_error(b'{"error":{"code":502,"message":"bad","details":[{"@type":"x"}]}}').kind == "internal"
    assert read_http_error(b"<html>").kind == "invalid_agent_response"


def test_optional_members_are_omitted() -> None:
    message = Message("m", "user", (TextPart("hi"),))
    method, params = ClientV10().write(SendMessage(message))
    assert (method, json.loads(params).keys()) == ("SendMessage", {"message"})
    method, params = ClientV03().write(SendMessage(message, is_stream=True))
    assert (method, json.loads(params)["configuration"]) == ("message/stream", {"blocking": True})


# -- what real servers answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", GENERATIONS)
def test_a_task_of_a_real_server_is_read(package: str) -> None:
    client = GENERATIONS[package]
    task = read_sent(client, captured.result(package, "send"))
    assert isinstance(task, Task)
    assert ({task.id, task.context}, task.status.state) == ({"id-0", "id-1"}, "completed")
    assert task.created == task.status.at > 0
    (artifact,) = task.artifacts
    assert (artifact.id, artifact.name) == ("a1", "art")
    text, data, inline, linked = artifact.parts
    assert isinstance(text, TextPart)
    assert isinstance(data, DataPart)
    assert json.loads(bytes(data.data)) == {"n": 1}
    assert inline == FilePart("dGNr", None, "o.txt", "text/plain")
    assert linked == FilePart(None, "https://example.com/x")
    again = client.read_task(captured.result(package, "get"))
    assert isinstance(again, Task)
    assert again.status == task.status


@pytest.mark.parametrize("package", GENERATIONS)
def test_a_message_of_a_real_server_is_read_with_its_context(package: str) -> None:
    message = read_sent(GENERATIONS[package], captured.result(package, "direct"))
    assert message == Message("r1", "agent", (TextPart("direct"),), context="id-0")


@pytest.mark.parametrize("package", GENERATIONS)
def test_a_question_of_a_real_server_is_read(package: str) -> None:
    task = read_sent(GENERATIONS[package], captured.result(package, "ask"))
    assert isinstance(task, Task)
    assert task.status.state == "input_required"
    assert task.status.message is not None
    assert task.status.message.parts == (TextPart("which?"),)


@pytest.mark.parametrize("package", GENERATIONS)
def test_a_stream_of_a_real_server_is_read(package: str) -> None:
    client = GENERATIONS[package]
    updates = [client.read_update(item) for item in captured.stream(package, "stream")]
    first, report, made, last = updates
    assert isinstance(first, Task if package == "sdk-1.3.0" else TaskStatusUpdate)
    assert isinstance(report, TaskStatusUpdate)
    assert report.status.message is not None
    assert (report.status.state, report.status.message.parts, report.is_last) == ("working", (TextPart("half"),), False)
    assert isinstance(made, TaskArtifactUpdate)
    assert (made.artifact.id, len(made.artifact.parts), made.is_more, made.is_complete) == ("a1", 4, False, True)
    assert isinstance(last, TaskStatusUpdate)
    assert (last.status.state, last.is_last) == ("completed", True)


@pytest.mark.parametrize("package", GENERATIONS)
def test_errors_of_real_servers_are_distinguished(package: str) -> None:
    kinds = []
    for name in ("none", "cancel_ended"):
        error = captured.error(package, name)
        kinds.append(read_problem(error.code, error.message, error.data).kind)
    assert kinds == ["task_not_found", "task_not_cancelable"]


def test_an_unknown_error_is_internal_and_keeps_its_text() -> None:
    problem = read_problem(-1, "", Raw(b'{"a":1}'))
    assert problem == A2aProblem("internal", "error -1", {"code": "-1", "data": '{"a":1}'})
    assert read_problem(-32001, "x" * 10_000, Raw(b"null")).details == {"code": "-32001"}


# -- what other servers answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", GENERATIONS.values(), ids=GENERATIONS)
@pytest.mark.parametrize("answer", [b"{}", b"[]", b"null", b'"\\ud800"', b'{"task":7}', b'{"kind":"x"}', b"7"])
def test_an_invalid_answer_is_the_agents_fault(client: A2aClient, answer: bytes) -> None:
    for read in (partial(read_sent, client), client.read_task, client.read_update):
        problem = read(answer)
        assert isinstance(problem, A2aProblem)
        assert problem.kind == "invalid_agent_response"


@pytest.mark.parametrize(
    ("client", "update"),
    [
        (
            ClientV10(),
            b'{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}',
        ),
        (
            ClientV03(),
            b'{"kind":"status-update","taskId":"t","contextId":"c","status":{"state":"working"},"final":false}',
        ),
    ],
)
def test_an_update_is_no_answer_to_a_message(client: A2aClient, update: bytes) -> None:
    assert isinstance(client.read_update(update), TaskStatusUpdate)
    assert isinstance(read_sent(client, update), A2aProblem)


@pytest.mark.parametrize(
    ("client", "task"),
    [
        (ClientV10(), b'{"id":"t","status":{"state":"TASK_STATE_NEW","timestamp":"then"},"metadata":null}'),
        (ClientV03(), b'{"kind":"task","id":"t","contextId":"","status":{"state":"unknown"},"artifacts":null}'),
    ],
)
def test_an_unknown_state_is_not_an_end(client: A2aClient, task: bytes) -> None:
    read = client.read_task(task)
    assert isinstance(read, Task)
    assert (read.status.state, read.status.at, read.context, read.metadata) == ("working", 0.0, "", ABSENT)


def test_data_of_an_agent_keeps_its_text() -> None:
    answer = b'{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"data":%b}]}}' % bytes(ODD)
    message = read_sent(ClientV10(), answer)
    assert isinstance(message, Message)
    assert message.parts == (DataPart(ODD),)


@pytest.mark.parametrize(
    ("version", "kind"),
    [("1.0", ClientV10), ("1.0.1", ClientV10), ("0.3.0", ClientV03), ("0.2.6", ClientV03)],
)
def test_there_is_a_client_for_each_version(version: str, kind: type) -> None:
    client = client_of(version)
    assert isinstance(client, kind)


@pytest.mark.parametrize(
    ("text", "step"), [("t-1", "t-1"), ("a/b", "a%2Fb"), ("..", "%252E%252E"), (".", "%252E"), ("..a", "..a")]
)
def test_an_agents_ids_are_one_path_segment(text: str, step: str) -> None:
    assert escape_segment(text) == step


def test_unknown_versions_have_no_client() -> None:
    assert [client_of(version) for version in ("2.0", "0.1", "", "1")] == [None] * 4


@given(some_json)
@steady
def test_nothing_that_an_agent_answers_makes_it_raise(answer: Raw) -> None:
    for client in GENERATIONS.values():
        read_sent(client, answer)
        client.read_task(answer)


SAY = SendMessage(Message("m", "user", (TextPart("hi"),)), is_stream=True)
TASK = b'{"id":"t","status":{"state":"TASK_STATE_WORKING"}}'
STATUS = b'{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'
RPC, PLAIN = RpcClientBinding(ClientV10()), RestClientBinding(ClientV10())
ALL: list[ClientBinding] = [RPC, PLAIN, RpcClientBinding(ClientV03()), RestClientBinding(RestClientV03())]


def envelope(result: bytes, id: int = 1) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (id, result)


def event(data: bytes, name: str = "message") -> SseEvent:
    return SseEvent(event=name, data=data)


def problem_of(answer: object) -> A2aProblem:
    assert isinstance(answer, A2aProblem), answer
    return answer


def test_json_rpc_posts_everything_to_one_place() -> None:
    verb, path, body = RPC.write(7, SAY)
    assert (verb, path) == ("POST", "")
    assert json.loads(body or b"")["method"] == "SendStreamingMessage"
    assert json.loads(body or b"")["id"] == 7


def test_plain_http_has_a_verb_and_a_path_for_each() -> None:
    assert PLAIN.write(7, SAY)[:2] == ("POST", "/message:stream")
    assert PLAIN.write(7, GetTask("t")) == ("GET", "/tasks/t", None)
    assert PLAIN.write(7, CancelTask("t"))[:2] == ("POST", "/tasks/t:cancel")


def test_a_tenant_is_named_with_every_request() -> None:
    body = RpcClientBinding(ClientV10(), 'a "b"').write(1, GetTask("t")).body
    assert json.loads(body or b"")["params"] == {"tenant": 'a "b"', "id": "t"}
    assert RestClientBinding(ClientV10(), "a/b").write(1, SAY).path == "/a%2Fb/message:stream"


def test_a_null_error_beside_a_result_is_ignored() -> None:
    body = envelope(TASK)[:-1] + b',"error":null}'
    assert isinstance(RPC.read(1, GetTask("t"), 200, body), Task)
    assert isinstance(RPC.read_event(1, event(envelope(STATUS)[:-1] + b',"error":null}')), TaskStatusUpdate)


def test_answers_are_read_by_their_request() -> None:
    assert isinstance(RPC.read(1, GetTask("t"), 200, envelope(TASK)), Task)
    assert isinstance(RPC.read(1, SAY, 200, envelope(b'{"task":%b}' % TASK)), Task)
    assert isinstance(PLAIN.read(1, GetTask("t"), 200, TASK), Task)
    assert isinstance(PLAIN.read(1, SAY, 200, b'{"task":%b}' % TASK), Task)
    assert isinstance(RPC.read_event(1, event(envelope(STATUS))), TaskStatusUpdate)
    assert isinstance(PLAIN.read_event(1, event(STATUS)), TaskStatusUpdate)


def test_a_refusal_has_the_agents_own_code() -> None:
    error = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"gone"}}'
    problem = problem_of(RPC.read(1, GetTask("t"), 404, error))
    assert (problem.kind, problem.message, code_of(problem)) == ("task_not_found", "gone", -32001)
    assert code_of(problem_of(RPC.read_event(1, event(error.replace(b'"id":1', b'"id":null'))))) == -32001


def test_a_refusal_over_plain_http_has_the_code_of_its_reason() -> None:
    detail = b'{"@type":"x","reason":"TASK_NOT_FOUND"}'
    error = b'{"error":{"code":404,"message":"gone","details":[%b]}}' % detail
    for problem in (PLAIN.read(1, GetTask("t"), 404, error), PLAIN.read_event(1, event(error, "error"))):
        assert code_of(problem_of(problem)) == -32001
    earlier = PLAIN.read(1, GetTask("t"), 404, b'{"error":"TaskNotFoundError","code":-32001,"message":"gone"}')
    assert code_of(problem_of(earlier)) == -32001
    worded = problem_of(PLAIN.read(1, GetTask("t"), 404, b'{"message":"gone"}'))
    assert (worded.kind, worded.message, code_of(worded)) == ("internal", "gone", -32603)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (RPC.read(1, SAY, 502, b"<html>"), "HTTP 502 without a usable JSON-RPC answer"),
        (RPC.read(1, SAY, 200, envelope(TASK, id=2)), "the id of another request"),
        (RPC.read(1, SAY, 200, envelope(b"7")), "an unexpected response"),
        (RPC.read_event(1, event(b'{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"x"}}')), "without a usable"),
        (PLAIN.read(1, SAY, 502, b"<html>"), "HTTP 502 without a usable answer"),
        (PLAIN.read(1, SAY, 502, b"{}"), "HTTP 502 without a usable answer"),
        (PLAIN.read(1, SAY, 200, b"<html>"), "not one JSON value"),
        (PLAIN.read(1, SAY, 200, b"7"), "must be an object"),
        (PLAIN.read_event(1, event(b"{}")), "it is empty"),
        (PLAIN.read_event(1, event(b"[" * 100 + b"]" * 100)), "must be an object"),
    ],
)
def test_an_unreadable_answer_has_no_code(answer: object, words: str) -> None:
    problem = problem_of(answer)
    assert words in problem.message
    assert code_of(problem) is None


@given(st.binary(max_size=200), st.integers(100, 599))
@steady
def test_no_bytes_make_it_raise(body: bytes, status: int) -> None:
    for binding in ALL:
        binding.read(1, SAY, status, body)
        binding.read(1, GetTask("t"), status, body)
        binding.read_event(1, event(body))
        binding.read_event(1, event(body, "error"))


REST_CLIENT = RestClientV03()
SAID = Message(
    "m", "agent", (TextPart("hi"), DataPart(Raw(b'{"n":1.0}')), FilePart("aGk=", name="f", media_type="a/b"))
)
MADE = Artifact("a", SAID.parts, "name", "words", Raw(b'{"x":1}'))


def rest_sends() -> st.SearchStrategy[ClientOperation]:
    messages = messages_of(parts_of(some_object, has_types=False))
    lengths = st.none() | st.integers(0, 100)
    modes = st.lists(ids, max_size=2).map(tuple)
    optional = st.none() | ids
    flags = st.booleans()
    return st.builds(SendMessage, messages, optional, optional, flags, flags, lengths, modes, st.none(), metadata)


@given(SHARED | rest_sends())
@steady
def test_requests_are_read_back_unchanged(asked: ClientOperation) -> None:
    verb, target, body = RestClientBinding(REST_CLIENT).write(1, asked)
    path, _, query = target.partition("?")
    binding, understood = rest.read(verb, path, query, body or b"", REST_CLIENT.version)
    assert binding is rest.V0_3
    if isinstance(asked, SendMessage):
        assert isinstance(understood, SendMessage)
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
        Task("t", "c", TaskStatus("input_required", 1.5, SAID), 1.5, (MADE,), (SAID,), Raw(b'{"x":1.0}')),
        Message("m", "agent", SAID.parts, context="c"),
        TaskStatusUpdate("t", "c", TaskStatus("canceled", 1.5), is_last=True),
        TaskStatusUpdate("t", "c", TaskStatus("working", 1.5, SAID)),
        TaskArtifactUpdate("t", "c", MADE, is_more=True, is_complete=False),
    ],
)
def test_updates_are_read_as_they_were_written(update: Update) -> None:
    assert REST_CLIENT.read_update(v0_3_rest.DIALECT.write_update(update)) == update


def test_whole_answers_are_understood() -> None:
    task = Task("t", "c", TaskStatus("completed", 1.5), 1.5, (MADE,))
    assert REST_CLIENT.read_task(v0_3_rest.DIALECT.write_task(task, None)) == task
    assert read_sent(REST_CLIENT, v0_3_rest.DIALECT.write_sent(task, None)) == task


def test_members_may_be_spelt_as_the_protobuf_has_them() -> None:
    message = b'{"message_id":"m","role":"ROLE_AGENT","content":[{"text":"hi"}],"context_id":"c"}'
    assert REST_CLIENT.read_update(b'{"msg":%b}' % message) == Message("m", "agent", (TextPart("hi"),), context="c")
    status = b'{"state":"TASK_STATE_CANCELED","update":%b}' % message
    update = REST_CLIENT.read_update(b'{"status_update":{"task_id":"t","context_id":"c","status":%b}}' % status)
    assert isinstance(update, TaskStatusUpdate)
    assert (update.task, update.status.state, update.is_last) == ("t", "canceled", True)
    artifact = b'{"artifact_id":"a","parts":[]}'
    piece = REST_CLIENT.read_update(b'{"artifact_update":{"task_id":"t","last_chunk":true,"artifact":%b}}' % artifact)
    assert isinstance(piece, TaskArtifactUpdate)
    assert (piece.artifact.id, piece.is_complete) == ("a", True)


def test_an_unknown_state_is_not_an_end_over_rest() -> None:
    task = REST_CLIENT.read_task(b'{"id":"t","status":{"state":"TASK_STATE_NEW"}}')
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
def test_an_invalid_answer_over_rest_is_the_agents_fault(answer: bytes) -> None:
    for read in (partial(read_sent, REST_CLIENT), REST_CLIENT.read_task, REST_CLIENT.read_update):
        problem = read(answer)
        assert isinstance(problem, A2aProblem)
        assert problem.kind == "invalid_agent_response"


def test_an_update_is_no_answer_to_a_message_over_rest() -> None:
    update = v0_3_rest.DIALECT.write_update(TaskStatusUpdate("t", "c", TaskStatus("working", 1.5)))
    assert isinstance(read_sent(REST_CLIENT, update), A2aProblem)


@given(some_json)
@steady
def test_nothing_that_an_agent_answers_makes_it_raise_over_rest(answer: Raw) -> None:
    read_sent(REST_CLIENT, answer)
    REST_CLIENT.read_task(answer)
