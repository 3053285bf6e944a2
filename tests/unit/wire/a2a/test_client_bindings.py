"""Requests to agents over HTTP, and their answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.model.conversation import Message, StatusUpdate, Task, Text
from isthmus.wire.a2a.client import EarlierClient, LatestClient
from isthmus.wire.a2a.client_bindings import ClientBinding, PlainBinding, RpcBinding, code_of
from isthmus.wire.a2a.client_v0_3_rest import EarlierPlainClient
from isthmus.wire.a2a.operations import Cancel, Get, Problem, Send
from isthmus.wire.sse import SseEvent
from tests.unit.wire.a2a.samples import steady

SAY = Send(Message("m", "user", (Text("hi"),)), is_stream=True)
TASK = b'{"id":"t","status":{"state":"TASK_STATE_WORKING"}}'
STATUS = b'{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'
RPC, PLAIN = RpcBinding(LatestClient()), PlainBinding(LatestClient())
ALL: list[ClientBinding] = [RPC, PLAIN, RpcBinding(EarlierClient()), PlainBinding(EarlierPlainClient())]


def envelope(result: bytes, id: int = 1) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (id, result)


def event(data: bytes, name: str = "message") -> SseEvent:
    return SseEvent(event=name, data=data)


def problem_of(answer: object) -> Problem:
    assert isinstance(answer, Problem), answer
    return answer


def test_json_rpc_posts_everything_to_one_place() -> None:
    verb, path, body = RPC.write(7, SAY)
    assert (verb, path) == ("POST", "")
    assert json.loads(body or b"")["method"] == "SendStreamingMessage"
    assert json.loads(body or b"")["id"] == 7


def test_plain_http_has_a_verb_and_a_path_for_each() -> None:
    assert PLAIN.write(7, SAY)[:2] == ("POST", "/message:stream")
    assert PLAIN.write(7, Get("t")) == ("GET", "/tasks/t", None)
    assert PLAIN.write(7, Cancel("t"))[:2] == ("POST", "/tasks/t:cancel")


def test_a_tenant_is_named_with_every_request() -> None:
    body = RpcBinding(LatestClient(), 'a "b"').write(1, Get("t")).body
    assert json.loads(body or b"")["params"] == {"tenant": 'a "b"', "id": "t"}
    assert PlainBinding(LatestClient(), "a/b").write(1, SAY).path == "/a%2Fb/message:stream"


def test_an_error_that_is_null_beside_a_result_is_none() -> None:
    body = envelope(TASK)[:-1] + b',"error":null}'
    assert isinstance(RPC.read(1, Get("t"), 200, body), Task)
    assert isinstance(RPC.read_event(1, event(envelope(STATUS)[:-1] + b',"error":null}')), StatusUpdate)


def test_answers_are_read_by_what_was_asked() -> None:
    assert isinstance(RPC.read(1, Get("t"), 200, envelope(TASK)), Task)
    assert isinstance(RPC.read(1, SAY, 200, envelope(b'{"task":%b}' % TASK)), Task)
    assert isinstance(PLAIN.read(1, Get("t"), 200, TASK), Task)
    assert isinstance(PLAIN.read(1, SAY, 200, b'{"task":%b}' % TASK), Task)
    assert isinstance(RPC.read_event(1, event(envelope(STATUS))), StatusUpdate)
    assert isinstance(PLAIN.read_event(1, event(STATUS)), StatusUpdate)


def test_a_refusal_has_the_agents_own_code() -> None:
    error = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"gone"}}'
    problem = problem_of(RPC.read(1, Get("t"), 404, error))
    assert (problem.kind, problem.message, code_of(problem)) == ("task_not_found", "gone", -32001)
    assert code_of(problem_of(RPC.read_event(1, event(error.replace(b'"id":1', b'"id":null'))))) == -32001


def test_a_refusal_over_plain_http_has_the_code_of_its_reason() -> None:
    detail = b'{"@type":"x","reason":"TASK_NOT_FOUND"}'
    error = b'{"error":{"code":404,"message":"gone","details":[%b]}}' % detail
    for problem in (PLAIN.read(1, Get("t"), 404, error), PLAIN.read_event(1, event(error, "error"))):
        assert code_of(problem_of(problem)) == -32001
    earlier = PLAIN.read(1, Get("t"), 404, b'{"error":"TaskNotFoundError","code":-32001,"message":"gone"}')
    assert code_of(problem_of(earlier)) == -32001
    worded = problem_of(PLAIN.read(1, Get("t"), 404, b'{"message":"gone"}'))
    assert (worded.kind, worded.message, code_of(worded)) == ("internal", "gone", -32603)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (RPC.read(1, SAY, 502, b"<html>"), "HTTP 502 without a usable JSON-RPC answer"),
        (RPC.read(1, SAY, 200, envelope(TASK, id=2)), "the answer to another request"),
        (RPC.read(1, SAY, 200, envelope(b"7")), "something else"),
        (RPC.read_event(1, event(b'{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"x"}}')), "without a usable"),
        (PLAIN.read(1, SAY, 502, b"<html>"), "HTTP 502 without a usable answer"),
        (PLAIN.read(1, SAY, 502, b"{}"), "HTTP 502 without a usable answer"),
        (PLAIN.read(1, SAY, 200, b"<html>"), "not one JSON value"),
        (PLAIN.read(1, SAY, 200, b"7"), "must be an object"),
        (PLAIN.read_event(1, event(b"{}")), "it holds nothing"),
        (PLAIN.read_event(1, event(b"[" * 100 + b"]" * 100)), "must be an object"),
    ],
)
def test_what_cannot_be_read_has_no_code(answer: object, words: str) -> None:
    problem = problem_of(answer)
    assert words in problem.message
    assert code_of(problem) is None


@given(st.binary(max_size=200), st.integers(100, 599))
@steady
def test_no_bytes_make_it_raise(body: bytes, status: int) -> None:
    for binding in ALL:
        binding.read(1, SAY, status, body)
        binding.read(1, Get("t"), status, body)
        binding.read_event(1, event(body))
        binding.read_event(1, event(body, "error"))
