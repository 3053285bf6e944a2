"""The frontend behind a listener: requests in, calls on a held link, answers and problems out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from isthmus.app.routes import is_rest
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import Limits
from isthmus.frontends.http import request_cycle
from isthmus.frontends.http.auth import Authenticator, Fields, OriginGuard
from isthmus.frontends.http.request_cycle import CROWDED_BYTES, PEER, Message
from isthmus.frontends.rest.http import RestExchange, RestHttp
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import LogLevel, LogMessage, Result
from isthmus.model.fault_table import TimedOut, UnknownTool
from isthmus.model.features import Prompt, Resource, Template
from isthmus.model.names import FeatureName, ServerName
from isthmus.wire.jsonrpc import Text
from tests.unit.core.doubles import ANYONE, DONE, PROGRESS, SERVER, Stage, raw, tool
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS, Answer, RawClient, connect_raw, opened, request
from tests.unit.frontends.mcp.doubles import Client

JSON = "Content-Type: application/json"
STREAM = "Accept: text/event-stream"
CALL = "/v1/tools/files.read"

CALLERS = {b"all": ANYONE, b"some": Caller("some", "default", Grants(("files.read",)))}


def identify(fields: Fields) -> Caller | None:
    return CALLERS.get(fields.get(b"x-api-key", b"all"))


class Hall:
    """A hub with one server, behind the frontend and a listener."""

    def __init__(self, stage: Stage, port: int) -> None:
        self.stage = stage
        self.port = port

    async def ask(self, path: str, *lines: str, method: str = "GET", body: bytes = b"") -> Answer:
        async with connect_raw(self.port) as raw_client:
            raw_client.say(request(path, body, *lines, method=method))
            if method != "HEAD":
                return await raw_client.receive()
            status, headers = await raw_client.receive_head()
            return Answer(status, headers, b"")

    async def post(self, path: str, body: bytes = b"{}", *lines: str) -> Answer:
        return await self.ask(path, *(lines or (JSON,)), method="POST", body=body)

    async def sent(self) -> None:
        """Wait until a call is on the link."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.stage.link.sent:  # noqa: ASYNC110 - it arrives over a socket
                await asyncio.sleep(0)


STANDING = ServerStatus(
    SERVER, "ready", is_settled=True, abilities=frozenset({"tools", "prompts", "resources", "completions"}),
    tools=(
        tool("read", inputSchema={"type": "object", "properties": {"path": {"type": "string"}}}),
        tool("a/b"), tool("write"),
    ),
    prompts=(Prompt.of(SERVER, FeatureName("ask"), {"name": raw("ask")}),),
    resources=(Resource.of(SERVER, FeatureName("file:///a b"), {"uri": raw("file:///a b")}),),
    templates=(Template.of(SERVER, FeatureName("file:///{x}"), {"uriTemplate": raw("file:///{x}")}),),
)  # fmt: skip


@asynccontextmanager
async def hall(*, is_taken: bool = True) -> AsyncIterator[Hall]:
    stage = Stage(limits=Limits(depth=8))
    stage.hub.publish(STANDING)
    stage.link.at_once = lambda inflight: inflight.finish(DONE)
    frontend = RestHttp(stage.hub, Authenticator(OriginGuard(bind_host="127.0.0.1"), identify))
    async with opened(frontend.serve) as (http_listener, port):
        if is_taken:
            http_listener.offer(frontend.take)
        yield Hall(stage, port)


def problem(answer: Answer) -> dict[str, Any]:
    assert answer.header(b"content-type") == b"application/problem+json"
    response: dict[str, Any] = json.loads(answer.body)
    assert response["status"] == answer.status
    return response


# -- what belongs here -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/tools", "/openapi.json"])
def test_paths_of_this_frontend(path: str) -> None:
    assert is_rest(path)


@pytest.mark.parametrize("path", ["/", "/v1tools", "/v2/tools", "/mcp", "/openapi.jsonx"])
def test_paths_of_others(path: str) -> None:
    assert not is_rest(path)


# -- asking the hub --------------------------------------------------------------------------------------------


async def test_lists_and_entries_are_answered() -> None:
    async with hall() as here:
        response = json.loads((await here.ask("/v1/tools")).body)
        assert [entry["name"] for entry in response["tools"]] == ["files.read", "files.a/b", "files.write"]
        one = await here.ask("/v1/tools?server=files", "X-Api-Key: some")
        assert [entry["name"] for entry in json.loads(one.body)["tools"]] == ["files.read"]
        assert json.loads((await here.ask("/v1/tools/files.a%2Fb")).body)["name"] == "files.a/b"
        assert json.loads((await here.ask("/v1/tools/files.a/b")).body)["name"] == "files.a/b"
        assert json.loads((await here.ask("/v1/prompts/files.ask")).body) == {"name": "files.ask"}
        assert "openapi" in json.loads((await here.ask("/openapi.json")).body)


async def test_head_returns_the_length_alone() -> None:
    async with hall() as here:
        whole, head = await here.ask("/v1/tools"), await here.ask("/v1/tools", method="HEAD")
        assert head.status == 200
        assert head.header(b"content-length") == str(len(whole.body)).encode()


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/v1/tools/files.write", 404, "unknown_tool"),
        ("/v1/tools/no.such", 404, "unknown_tool"),
        ("/v1/prompts/no.such", 404, "unknown_prompt"),
        ("/v1/servers/no", 404, "unknown_server"),
        ("/v1/tools?server=no", 404, "unknown_server"),
        ("/v1/tools?sever=files", 400, "bad_request"),
        ("/v1/tools?server=files&server=files", 400, "bad_request"),
        ("/v1/tools?" + "&".join(f"a{at}=1" for at in range(20)), 400, "bad_request"),
        ("/v1/resources/read", 400, "bad_request"),
        ("/v1/resources/read?uri=", 400, "bad_request"),
        ("/v1/resources/read?uri=other:x&timeout=0", 400, "bad_request"),
        ("/v1/nothing", 404, "unknown_path"),
    ],
)
async def test_an_unreadable_request_is_a_problem(path: str, status: int, reason: str) -> None:
    async with hall() as here:
        answer = await here.ask(path, "X-Api-Key: some")
        assert (answer.status, problem(answer)["reason"]) == (status, reason)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/tools", b"GET, HEAD"),
        ("DELETE", CALL, b"GET, HEAD, POST"),
        ("GET", "/v1/completions", b"POST"),
        ("OPTIONS", "/v1/completions", b"POST"),
    ],
)
async def test_another_method_is_answered_with_the_allowed_ones(method: str, path: str, allow: bytes) -> None:
    async with hall() as here:
        answer = await here.ask(path, method=method)
        assert (answer.status, problem(answer)["reason"]) == (405, "method_not_allowed")
        assert answer.header(b"allow") == allow


@pytest.mark.parametrize(
    ("lines", "status", "reason"),
    [
        (("X-Api-Key: wrong",), 401, "unauthenticated"),
        (("Origin: http://evil.test",), 403, "forbidden"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/tools", CALL, "/v1/nothing", "/openapi.json"])
async def test_all_requests_pass_the_authenticator(path: str, lines: tuple[str, ...], status: int, reason: str) -> None:
    async with hall() as here:
        for answer in (await here.ask(path, *lines), await here.post(path, b"{}", JSON, *lines)):
            assert (answer.status, problem(answer)["reason"]) == (status, reason)
        assert here.stage.link.sent == []


# -- calling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_tool_is_called_with_the_body_as_it_came(*, is_taken: bool) -> None:
    async with hall(is_taken=is_taken) as here:
        answer = await here.post(f"{CALL}?timeout=2.5", b' {"path":"a", "n": 1.0}\n')
        assert (answer.status, answer.body) == (200, b'{"content":[]}')
        (inflight,) = here.stage.link.sent
        assert bytes(inflight.call.arguments) == b'{"path":"a", "n": 1.0}'
        assert (inflight.call.timeout, inflight.timeout) == (2.5, 2.5)
        assert (inflight.call.wants_progress, inflight.call.log_level) == (False, None)


async def test_no_body_stands_for_no_arguments() -> None:
    async with hall() as here:
        answer = await here.ask("/v1/tools/files.a%2Fb", method="POST")
        assert answer.status == 200
        assert bytes(here.stage.link.sent[0].call.arguments) == b"{}"


@pytest.mark.parametrize(
    ("path", "body", "kind", "name"),
    [
        ("/v1/prompts/files.ask", b"{}", "prompt", "ask"),
        (
            "/v1/completions",
            b'{"ref":{"type":"ref/prompt","name":"files.ask"},"argument":{"name":"a","value":""},"context":{}}',
            "prompt_argument",
            "ask",
        ),
        (
            "/v1/completions",
            b'{"ref":{"type":"ref/resource","uri":"file:///{x}"},"argument":{"name":"x","value":"a"}}',
            "uri_argument",
            "file:///{x}",
        ),
    ],
)
async def test_prompts_and_completions_are_calls(path: str, body: bytes, kind: str, name: str) -> None:
    async with hall() as here:
        assert (await here.post(path, body)).status == 200
        (inflight,) = here.stage.link.sent
        assert (inflight.call.kind, inflight.name) == (kind, name)
        assert ("context" in inflight.call.extra) == (b"context" in body)


async def test_a_resource_is_read_by_its_uri() -> None:
    async with hall() as here:
        answer = await here.ask(f"/v1/resources/read?uri={quote('file:///a b', safe='')}")
        assert answer.status == 200
        (inflight,) = here.stage.link.sent
        assert (inflight.call.kind, inflight.name) == ("resource", "file:///a b")


@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "bad_request"),
        (b"[]", "bad_request"),
        (b"null", "bad_request"),
        (b'{"a":1}{}', "bad_request"),
        (b'{"a":1,"a":2}', "bad_request"),
        (b'{"a":"\xff"}', "bad_request"),
        (b'{"a":' * 9 + b"1" + b"}" * 9, "bad_request"),
        (b"[" * 100_000, "bad_request"),
        (b'{"path":5}', "bad_arguments"),
    ],
)
async def test_a_body_that_is_no_arguments_is_refused(body: bytes, reason: str, *, is_taken: bool) -> None:
    async with hall(is_taken=is_taken) as here:
        answer = await here.post(CALL, body)
        received = problem(answer)
        assert (answer.status, received["reason"], received["executed"]) == (400, reason, "no")
        assert here.stage.link.sent == []


@pytest.mark.parametrize("query", ["timeout=0", "timeout=-1", "timeout=nan", "timeout=inf", "timeout=x", "log=loud"])
async def test_a_parameter_that_makes_no_sense_is_refused(query: str) -> None:
    async with hall() as here:
        assert problem(await here.post(f"{CALL}?{query}"))["reason"] == "bad_request"


@pytest.mark.parametrize("line", ["Content-Type: text/plain", "X-Nothing: x"])
async def test_a_body_must_be_said_to_be_json(line: str) -> None:
    async with hall() as here:
        assert problem(await here.post(CALL, b"{}", line))["reason"] == "not_json"
        assert here.stage.link.sent == []


async def test_hidden_tools_look_missing() -> None:
    async with hall() as here:
        denied = await here.post("/v1/tools/files.write", b"{}", JSON, "X-Api-Key: some")
        unknown = await here.post("/v1/tools/files.wrote", b"{}", JSON, "X-Api-Key: some")
        assert denied.body.replace(b"files.write", b"files.wrote") == unknown.body
        assert denied.status == 404


async def test_a_hub_that_goes_away_says_when_to_come_back() -> None:
    async with hall() as here:
        here.stage.hub.refuse_new_calls()
        answer = await here.post(CALL)
        assert (answer.status, problem(answer)["reason"], answer.header(b"retry-after")) == (503, "draining", b"1")


# -- streams, and going away -----------------------------------------------------------------------------------


async def test_a_request_for_events_gets_a_stream() -> None:
    async with hall() as here:
        here.stage.link.at_once = None
        async with connect_raw(here.port) as raw_client:
            raw_client.say(request(f"{CALL}?log=debug", b"{}", JSON, f"{STREAM}, application/json"))
            status, headers = await raw_client.receive_head()
            assert (status, dict(headers)[b"content-type"]) == (200, b"text/event-stream")
            assert await raw_client.hear_chunk() == b": \n\n"
            (inflight,) = here.stage.link.sent
            assert (inflight.call.wants_progress, inflight.call.log_level) == (True, "debug")
            assert here.stage.hub.levels.lowest == "debug"
            inflight.finish(DONE)
            assert await raw_client.hear_chunk() == b'event: result\ndata: {"content":[]}\n\n'


@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize("line", ["Accept: */*", STREAM])
async def test_a_caller_that_leaves_cancels_the_call_at_the_server(line: str, *, is_taken: bool) -> None:
    async with hall(is_taken=is_taken) as here:
        here.stage.link.at_once = None
        async with connect_raw(here.port) as raw_client:
            raw_client.say(request(CALL, b"{}", JSON, line))
            await here.sent()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not here.stage.link.withdrawn:  # noqa: ASYNC110 - it is heard over a socket
                await asyncio.sleep(0)
        assert here.stage.link.withdrawn == [(here.stage.link.sent[0], "the caller closed the connection")]


async def test_a_caller_that_leaves_before_its_body_came_costs_nothing() -> None:
    async with hall() as here:
        async with connect_raw(here.port) as raw_client:
            raw_client.say(request(CALL, b"{}", JSON, "Expect: 100-continue")[:-2])
            await raw_client.receive_head()
        assert await _is_still_there(here)
        assert here.stage.link.sent == []


async def test_a_caller_that_leaves_while_a_server_starts_has_nothing_run() -> None:
    stage, client = Stage(), Client(b"{}")
    starting = ServerName("starting")
    stage.hub.publish(STANDING)
    server_queue = ServerQueue(starting, stage.hub.limits)
    stage.hub.open_server_queue(server_queue, ServerStatus(starting))
    frontend = RestHttp(stage.hub, Authenticator(OriginGuard(bind_host="127.0.0.1"), identify))
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    path = "/v1/tools/starting.read"
    scope = {"method": "POST", "path": path, "query_string": b"", "headers": headers, "extensions": {PEER: client}}
    asking = asyncio.ensure_future(frontend.serve(scope, _nothing, _nowhere))
    await asyncio.sleep(0)
    client.leave()
    server_queue.attach(stage.link)
    read = tool(server=starting)
    stage.hub.publish(ServerStatus(starting, "ready", is_settled=True, tools=(read,)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asking
    assert stage.link.sent == []


async def _nothing() -> Message:
    raise AssertionError("the body was here already")


async def _nowhere(_message: Message) -> None:
    raise AssertionError("the frontend answers through its peer")


async def _is_still_there(here: Hall) -> bool:
    return (await here.ask("/v1/servers")).status == 200


async def test_requests_on_one_connection_follow_one_another() -> None:
    async with hall() as here, connect_raw(here.port) as raw_client:
        for _ in range(3):
            assert await _called(raw_client) == b'{"content":[]}'


async def _called(raw_client: RawClient) -> bytes:
    raw_client.say(request(CALL, b"{}", JSON))
    return (await raw_client.receive()).body


class RecordingPeer:
    """A peer that remembers what it was sent."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, bytes]] = []
        self.begun: list[bytes] = []
        self.pushed: list[bytes] = []
        self.ended: list[bytes] = []
        self.unsent_bytes = 0
        self.has_news = asyncio.Event()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    def take_body(self) -> bytes | None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        self.answers.append((status, lines, body if isinstance(body, bytes) else b"".join(body)))

    def begin(self, status: int, lines: bytes) -> None:
        assert status == 200
        self.begun.append(lines)

    def push(self, chunk: bytes) -> None:
        self.pushed.append(chunk)
        self.has_news.set()

    def end(self, chunk: bytes) -> None:
        self.ended.append(chunk)

    def buffered_bytes(self) -> int:
        return self.unsent_bytes

    @property
    def events(self) -> list[str]:
        """The names of all events, to the last."""
        lines = b"".join([*self.pushed, *self.ended]).decode().split("\n")
        return [line[7:] for line in lines if line.startswith("event: ")]


def exchange(client: RecordingPeer, level: LogLevel | None = None) -> RestExchange:
    return RestExchange(client, level, asyncio.get_running_loop())


def line(level: LogLevel) -> LogMessage:
    return LogMessage(level, {"level": raw(level), "data": raw("x")})


async def test_a_result_is_the_servers_own_words() -> None:
    client, ended = RecordingPeer(), list[str]()
    made = exchange(client)
    made.on_end = lambda: ended.append("told")
    made.open()
    made.emit(PROGRESS)
    made.end(Result(msgspec.Raw(b'{"content": [ ],\n"x": 1.0}')))
    assert [(status, body) for status, _, body in client.answers] == [(200, b'{"content": [ ],\n"x": 1.0}')]
    assert (client.begun, client.events, ended) == ([], [], ["told"])


async def test_a_fault_has_its_status() -> None:
    client = RecordingPeer()
    exchange(client).end(UnknownTool("x"))
    ((status, lines, body),) = client.answers
    assert (status, json.loads(body)["reason"]) == (404, "unknown_tool")
    assert b"application/problem+json" in lines


async def test_a_stream_ends_with_the_result() -> None:
    client = RecordingPeer()
    made = exchange(client, "info")
    made.open()
    made.emit(PROGRESS)
    made.emit(line("warning"))
    made.end(Result(msgspec.Raw(b'{"content":\n[]}')))
    assert client.events == ["progress", "log", "result"]
    assert client.pushed[1] == b'event: progress\ndata: {"progress":1}\n\n'
    assert client.ended == [b'event: result\ndata: {"content":[]}\n\n']
    assert len(client.begun) == 1
    assert client.answers == []


async def test_a_stream_ends_with_the_error_once_it_has_begun() -> None:
    client = RecordingPeer()
    made = exchange(client, "info")
    made.open()
    made.end(TimedOut(SERVER, 1.0, executed="unknown"))
    assert client.events == ["error"]
    assert json.loads(client.ended[0].partition(b"data: ")[2])["status"] == 504


async def test_an_immediate_failure_begins_no_stream() -> None:
    client = RecordingPeer()
    exchange(client, "info").end(UnknownTool("x"))
    assert ([status for status, _, _ in client.answers], client.begun) == ([404], [])


async def test_a_result_that_comes_at_once_is_a_stream_all_the_same() -> None:
    client = RecordingPeer()
    exchange(client, "info").end(DONE)
    assert (client.events, len(client.begun), client.answers) == (["result"], 1, [])


async def test_only_lines_of_the_level_and_above_are_streamed() -> None:
    client = RecordingPeer()
    made = exchange(client, "error")
    for level in ("debug", "warning", "error", "alert"):
        made.emit(line(level))
    assert client.events == ["log", "log"]
    made.end(DONE)


async def test_events_are_skipped_while_the_caller_does_not_read() -> None:
    client = RecordingPeer()
    made = exchange(client, "info")
    made.emit(PROGRESS)
    client.unsent_bytes = CROWDED_BYTES + 1
    made.emit(PROGRESS)
    made.end(DONE)
    assert client.events == ["progress", "result"]


async def test_an_open_stream_is_kept_alive_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_cycle, "KEEP_ALIVE_SECONDS", 0.001)
    client = RecordingPeer()
    made = exchange(client, "info")
    made.open()
    client.has_news.clear()
    async with asyncio.timeout(30):
        await client.has_news.wait()
    made.end(DONE)
    said = len(client.pushed)
    await asyncio.sleep(0.01)
    assert len(client.pushed) == said
