"""MCP over Streamable HTTP, request by request: sessions, every method of both eras, and the streams of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import Limits
from isthmus.credentials.sealing import ProcessSealer
from isthmus.frontends.http.auth import Authenticator, Fields, OriginGuard
from isthmus.frontends.http.request_cycle import PEER, Message
from isthmus.frontends.mcp import http as exchanges
from isthmus.frontends.mcp import http as module
from isthmus.frontends.mcp import http_streams
from isthmus.frontends.mcp.http import McpHttp
from isthmus.frontends.mcp.input_required import ModernClientInput
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, LOG_LEVELS, LogMessage, Question, Reply, Surface
from isthmus.model.fault_table import Cancelled, ServerError
from isthmus.model.names import ServerName
from isthmus.wire.sse import SseDecoder
from tests.unit.core.doubles import ANYONE, DONE, SERVER, prompt, raw, ready, tool
from tests.unit.core.doubles import PROGRESS as PROGRESSED
from tests.unit.frontends.mcp.doubles import (
    LOG_KEY,
    META,
    MODERN,
    NOTES,
    OFFER,
    SUBSCRIPTION_KEY,
    TREE,
    Client,
    Hosted,
    outcome,
)

SLOW = ServerName("slow")
OTHER = Caller("other", "default", Grants(("*",)))
ANYBODY = Caller("anybody", ANYONE.tenant, ANYONE.grants, is_anyone=True)
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
ARGUMENT = {"name": "path", "value": "/"}
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class HttpFrontend:
    """The frontend over HTTP, called without a socket."""

    def __init__(self, server_status: ServerStatus = OFFER) -> None:
        self.hosted = Hosted(server_status)
        self.hub = self.hosted.hub
        self.http = McpHttp(self.hosted.mcp_methods, Authenticator(OriginGuard(bind_host="127.0.0.1"), self._identify))

    @staticmethod
    def _identify(fields: Fields) -> Caller | None:
        return {b"other": OTHER, b"anybody": ANYBODY, b"nobody": None}.get(fields.get(b"x-api-key", b""), ANYONE)

    def scope(self, client: Client, method: str, headers: Mapping[str, str]) -> Message:
        base = {"host": "localhost", "content-type": "application/json"}
        pairs = [(key.encode(), value.encode()) for key, value in {**base, **headers}.items()]
        client.scope = {"method": method, "headers": pairs, "path": "/mcp", "extensions": {PEER: client}}
        return client.scope

    async def http_request(
        self,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "POST",
        surface: Surface = EVERYTHING,
        client: Client | None = None,
    ) -> Client:
        """Send a request and wait for its end; a call that nobody answers never ends."""
        client = client or Client()
        client.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        scope = self.scope(client, method, headers or {})
        async with asyncio.timeout(30):
            if not self.http.take(surface, client):
                await self.http.serve(surface, scope, _nothing, _nowhere)
        return client

    async def open(self, **headers: str) -> str:
        """A session's id."""
        client = await self.http_request(request("initialize", HELLO), headers)
        (line,) = [line for line in client.lines[0].split(b"\r\n") if line.startswith(b"mcp-session-id: ")]
        return line.partition(b": ")[2].decode()

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, session: str | None = None) -> Any:
        """Ask in the earlier era; returns the result, or the error's code."""
        return outcome((await self.http_request(request(method, params), of(session))).json)

    async def ask_modern(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Ask in the modern era; returns the result, or the error's code."""
        return outcome((await self.http_request(*modern(method, params))).json)

    @asynccontextmanager
    async def streaming(self, *http_request: Any, **how: Any) -> AsyncIterator[Client]:
        """A stream of changes that has begun; leaving the block leaves it."""
        client = Client()
        task = asyncio.ensure_future(self.http_request(*http_request, client=client, **how))
        try:
            await client.until(lambda: bool(client.pushed))
            yield client
        finally:
            client.leave()
            async with asyncio.timeout(30):
                await task


async def _nothing() -> Message:
    raise AssertionError("the body was here already")


async def _nowhere(_message: Message) -> None:
    raise AssertionError("the frontend answers through its peer")


def request(method: str, params: Mapping[str, Any] | None = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": dict(params or {})}


def modern(method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A modern request and its headers."""
    received = {**(params or {}), "_meta": {**META, **meta}}
    name = {"mcp-name": received[NAMED[method]]} if method in NAMED and NAMED[method] in received else {}
    return request(method, received), {"mcp-protocol-version": MODERN, "mcp-method": method, **name}


def of(session: str | None) -> dict[str, str]:
    return {} if session is None else {"mcp-session-id": session}


# -- lists, capabilities and calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "member", "named"),
    [
        ("tools/list", "tools", ["files.read"]),
        ("prompts/list", "prompts", ["files.ask"]),
        ("resources/list", "resources", [NOTES]),
        ("resources/templates/list", "resourceTemplates", [TREE]),
    ],
)
async def test_every_list_is_returned_in_both_eras_and_names_the_missing_servers(
    method: str, member: str, named: list[str]
) -> None:
    frontend = HttpFrontend()
    frontend.hub.open_server_queue(
        ServerQueue(SLOW, frontend.hub.limits), ServerStatus(SLOW, "retrying", "gone", is_settled=True)
    )
    for received in (await frontend.ask(method), await frontend.ask_modern(method)):
        assert [entry["name"] for entry in received[member]] == named
        assert list(received["_meta"]["isthmus/missing"]) == ["slow"]


async def test_a_caller_gets_the_real_capabilities_of_the_servers() -> None:
    for server_status, capabilities in (
        (OFFER, {"tools", "prompts", "resources", "completions", "logging"}),
        (ready(tool(), abilities=frozenset({"tools", "logging"})), {"tools", "logging"}),
    ):
        frontend = HttpFrontend(server_status)
        assert (await frontend.ask("initialize", HELLO))["capabilities"].keys() == capabilities
        assert (await frontend.ask_modern("server/discover"))["capabilities"].keys() == capabilities


CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("tools/call", {"name": "files.read", "arguments": {}}, "read"),
    ("prompts/get", {"name": "files.ask"}, "ask"),
    ("resources/read", {"uri": NOTES}, NOTES),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "files.ask"}, "argument": ARGUMENT}, "ask"),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": TREE}, "argument": ARGUMENT}, TREE),
]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("method", "params", "own"), CALLS)
async def test_every_call_is_taken_at_once_reaches_its_server_and_comes_back(
    era: str, method: str, params: dict[str, Any], own: str
) -> None:
    frontend, client = HttpFrontend(), Client()
    body, headers = modern(method, params) if era == "modern" else (request(method, params), {})
    client.body = json.dumps(body).encode()
    frontend.scope(client, "POST", headers)
    assert frontend.http.take(EVERYTHING, client)
    assert frontend.hosted.last_call.name == own
    frontend.hosted.answer(ok=1)
    assert (client.status, client.json["result"]["ok"]) == (200, 1)
    assert ("resultType" in client.json["result"]) == (era == "modern")


async def test_unknown_names_have_the_code_and_status_of_their_era() -> None:
    frontend = HttpFrontend(ready(abilities=frozenset({"tools"})))
    earlier = await frontend.http_request(request("resources/read", {"uri": "x:y"}))
    assert (earlier.status, outcome(earlier.json)) == (200, -32002)
    later = await frontend.http_request(*modern("resources/read", {"uri": "x:y"}))
    assert (later.status, outcome(later.json)) == (400, -32602)


@pytest.mark.parametrize("name", ["mcp-name", "mcp-method"])
async def test_a_header_that_names_another_thing_than_the_body_is_refused(name: str) -> None:
    frontend = HttpFrontend()
    body, headers = modern("resources/read", {"uri": NOTES})
    client = await frontend.http_request(body, {**headers, name: "another"})
    assert (client.status, outcome(client.json)) == (400, -32020)
    assert frontend.hosted.stage.link.sent == []


def starting(frontend: HttpFrontend) -> ServerQueue:
    """A server that was never seen and whose first attempt runs."""
    server_queue = ServerQueue(SLOW, frontend.hub.limits)
    frontend.hub.open_server_queue(server_queue, ServerStatus(SLOW))
    return server_queue


def is_there(frontend: HttpFrontend, server_queue: ServerQueue) -> None:
    """It has answered."""
    server_queue.attach(frontend.hosted.stage.link)
    frontend.hub.publish(ready(tool(server=SLOW), server=SLOW))


async def test_a_call_of_a_server_that_is_there_waits_for_no_other() -> None:
    frontend = HttpFrontend()
    starting(frontend)
    asking = asyncio.ensure_future(
        frontend.http_request(request("tools/call", {"name": "files.read"}), client=Client())
    )
    await until(lambda: bool(frontend.hosted.stage.link.sent))
    frontend.hosted.answer(content=[])
    await asking


async def test_a_call_waits_for_servers_that_only_start_and_can_be_withdrawn_meanwhile() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    slow = starting(frontend)
    client = Client()
    asking = asyncio.ensure_future(
        frontend.http_request(request("tools/call", {"name": "slow.read"}, id=5), of(session), client=client)
    )
    await asyncio.sleep(0)
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    assert (await frontend.http_request(cancelled, of(session))).status == 202
    is_there(frontend, slow)
    await asking
    assert outcome(client.json) == -32012
    assert frontend.hosted.stage.link.sent == []


def cancelling(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


@pytest.mark.parametrize("arguments", [{}, {"x": "x" * 100_000}], ids=["short", "long"])
async def test_a_call_that_is_read_after_its_cancellation_does_not_run(arguments: dict[str, Any]) -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    assert (await frontend.http_request(cancelling(5), of(session))).status == 202
    overtaken = request("tools/call", {"name": "files.read", "arguments": arguments}, id=5)
    client = await frontend.http_request(overtaken, of(session))
    assert (outcome(client.json), client.json["error"]["data"]["executed"]) == (-32012, "no")
    assert frontend.hosted.stage.link.sent == []


async def test_a_cancellation_is_about_calls_with_its_id_that_are_read_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    for id in (5, "x" * http_streams.CANCELLED_ID_BYTES_MAX):
        await frontend.http_request(cancelling(id), of(session))
    for number, id in enumerate(("5", "x" * http_streams.CANCELLED_ID_BYTES_MAX), start=1):
        await frontend.http_request(request("tools/call", {"name": "files.read"}, id=id), of(session))
        assert len(frontend.hosted.stage.link.sent) == number
    monkeypatch.setattr(http_streams, "OVERTAKEN_SECONDS", 0.0)
    await frontend.http_request(request("tools/call", {"name": "files.read"}, id=5), of(session))
    assert len(frontend.hosted.stage.link.sent) == 3


async def test_only_the_last_cancellations_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_streams, "CANCELLED_MAX", 2)
    frontend = HttpFrontend()
    session = await frontend.open()
    for id in (1, 2, 1, 3):
        await frontend.http_request(cancelling(id), of(session))
    await frontend.http_request(request("tools/call", {"name": "files.read"}, id=2), of(session))
    assert len(frontend.hosted.stage.link.sent) == 1
    for id in (1, 3):
        client = await frontend.http_request(request("tools/call", {"name": "files.read"}, id=id), of(session))
        assert outcome(client.json) == -32012


async def test_a_modern_caller_that_leaves_while_a_server_starts_has_nothing_run() -> None:
    frontend = HttpFrontend()
    slow = starting(frontend)
    client = Client()
    asking = asyncio.ensure_future(frontend.http_request(*modern("tools/call", {"name": "slow.read"}), client=client))
    await asyncio.sleep(0)
    client.leave()
    is_there(frontend, slow)
    await asking
    assert frontend.hosted.stage.link.sent == []


async def test_an_earlier_caller_that_leaves_while_a_server_starts_has_withdrawn_nothing() -> None:
    frontend = HttpFrontend()
    slow = starting(frontend)
    client = Client()
    asking = asyncio.ensure_future(frontend.http_request(request("tools/call", {"name": "slow.read"}), client=client))
    await asyncio.sleep(0)
    client.leave()
    is_there(frontend, slow)
    await until(lambda: bool(frontend.hosted.stage.link.sent))
    frontend.hosted.answer(content=[])
    await asking


@pytest.mark.parametrize(("key", "is_known"), [("other", True), ("anybody", False)])
async def test_a_task_belongs_to_its_session_where_callers_cannot_be_distinguished(key: str, *, is_known: bool) -> None:
    frontend = HttpFrontend(ready(tool(), abilities=frozenset({"tools", "tasks"})))
    session = await frontend.open(**{"x-api-key": key})
    asked = request("tools/call", {"name": "files.read", "task": {}})
    asking = asyncio.ensure_future(frontend.http_request(asked, {**of(session), "x-api-key": key}))
    await until(lambda: bool(frontend.hosted.stage.link.sent))
    assert frontend.hosted.last_call.call.session == ("" if is_known else session)
    frontend.hosted.answer(content=[])
    await asking


# -- what a session wants ------------------------------------------------------------------------------------------


async def hear_all(frontend: HttpFrontend, body: Any, headers: Mapping[str, str]) -> list[str]:
    """The levels that a caller hears of a call during which its server logs at every level."""
    client = await frontend.http_request(body, headers)
    for level in LOG_LEVELS:
        frontend.hosted.last_call.emit(LogMessage(level, {"level": raw(level), "data": raw("x")}))
    frontend.hosted.answer()
    return [
        received["params"]["level"] for received in client.events if received.get("method") == "notifications/message"
    ]


async def test_a_session_gets_its_level_and_servers_are_asked_for_it() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    assert await frontend.ask("logging/setLevel", {"level": "error"}, session) == {}
    assert frontend.hosted.level() == "error"
    another = await frontend.open()
    assert frontend.hosted.level() == "debug"  # it never chose, and must miss nothing
    call = request("tools/call", {"name": "files.read"})
    assert await hear_all(frontend, call, of(session)) == ["error", "critical", "alert", "emergency"]
    assert await hear_all(frontend, call, of(another)) == list(LOG_LEVELS)
    assert await hear_all(frontend, call, {**of(another), "accept": "application/json"}) == []
    await frontend.http_request(headers=of(another), method="DELETE")
    assert frontend.hosted.level() == "error"


async def test_a_modern_caller_gets_the_level_of_each_call() -> None:
    frontend = HttpFrontend()
    assert await hear_all(frontend, *modern("tools/call", {"name": "files.read"})) == []
    asked = modern("tools/call", {"name": "files.read"}, **{LOG_KEY: "alert"})
    assert await hear_all(frontend, *asked) == ["alert", "emergency"]


async def test_a_session_follows_resources_and_gets_updates_on_its_stream() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    assert await frontend.ask("resources/subscribe", {"uri": NOTES}, session) == {}
    frontend.hub.subscriptions.updated(SERVER, NOTES)
    async with frontend.streaming(None, of(session), method="GET") as stream:
        await stream.until(lambda: len(stream.events) == 1)  # what was missed while nobody listened
        frontend.hub.subscriptions.updated(SERVER, NOTES)
        await stream.until(lambda: len(stream.events) == 2)
    update = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": NOTES}}
    assert stream.events == [update, update]
    assert await frontend.ask("resources/unsubscribe", {"uri": NOTES}, session) == {}
    assert frontend.hosted.announcer.asked == [f"+{NOTES}", f"-{NOTES}"]


async def test_missed_updates_of_an_unfollowed_resource_are_not_sent() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    assert await frontend.ask("resources/subscribe", {"uri": NOTES}, session) == {}
    frontend.hub.subscriptions.updated(SERVER, NOTES)
    assert await frontend.ask("resources/unsubscribe", {"uri": NOTES}, session) == {}
    async with frontend.streaming(None, of(session), method="GET") as stream:
        frontend.hub.publish(ready(tool("new")))
        await stream.until(lambda: bool(stream.events))
    assert {received["method"].rpartition("/")[2] for received in stream.events} == {"list_changed"}


async def test_a_session_is_the_subscriber_and_a_modern_caller_has_none() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    assert await frontend.ask("resources/subscribe", {"uri": NOTES}, session) == {}
    can: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}
    asked = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": [NOTES]}}, **can)
    async with frontend.streaming(*asked):
        followers = list(frontend.hub.subscriptions.followers(SERVER))
    assert [(follower.session, follower.client_caps) for follower in followers] == [
        (session, frozenset()),
        ("", frozenset({"roots"})),
    ]


async def test_a_session_gets_no_updates_of_anothers_subscriptions() -> None:
    frontend = HttpFrontend()
    session, another = await frontend.open(), await frontend.open()
    await frontend.ask("resources/subscribe", {"uri": NOTES}, session)
    async with frontend.streaming(None, of(another), method="GET") as stream:
        frontend.hub.subscriptions.updated(SERVER, NOTES)
        frontend.hub.publish(ready(tool("new")))
        await stream.until(lambda: len(stream.events) == 3)
    assert {received["method"].rpartition("/")[2] for received in stream.events} == {"list_changed"}


@pytest.mark.parametrize(
    ("params", "refusal", "code"),
    [
        ({"uri": 7}, None, -32602),
        ({"uri": NOTES}, ServerError(SERVER, -32000, "no"), -32000),
    ],
)
async def test_an_impossible_subscription_is_refused(
    params: dict[str, Any], refusal: ServerError | None, code: int
) -> None:
    frontend = HttpFrontend()
    frontend.hosted.announcer.refusal = refusal
    assert await frontend.ask("resources/subscribe", params, await frontend.open()) == code


@pytest.mark.parametrize("method", ["logging/setLevel", "resources/subscribe", "resources/unsubscribe"])
async def test_a_caller_without_a_session_can_subscribe_to_nothing_beyond_a_request(method: str) -> None:
    frontend = HttpFrontend()
    params = {"level": "debug", "uri": NOTES}
    assert await frontend.ask(method, params) == -32601
    assert await frontend.ask_modern(method, params) == -32601
    assert frontend.hosted.is_forgotten()


async def test_another_callers_session_looks_unknown() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    stolen = {**of(session), "x-api-key": "other"}
    for body in (request("resources/subscribe", {"uri": NOTES}), request("tools/call", {"name": "files.read"})):
        assert (await frontend.http_request(body, stolen)).status == 404
    assert (await frontend.http_request(headers=stolen, method="DELETE")).status == 404
    assert (await frontend.http_request(headers=stolen, method="GET")).status == 404
    assert frontend.hosted.stage.link.sent == []


async def test_an_ended_session_drops_its_subscriptions_and_calls() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    await frontend.ask("resources/subscribe", {"uri": NOTES}, session)
    await frontend.http_request(request("tools/call", {"name": "files.read"}), of(session))
    assert (await frontend.http_request(headers=of(session), method="DELETE")).status == 204
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)
    assert frontend.hosted.is_forgotten()
    assert (await frontend.http_request(headers=of(session), method="DELETE")).status == 404


async def test_a_removed_caller_loses_sessions_and_streams() -> None:
    frontend = HttpFrontend()
    mine, theirs = await frontend.open(), await frontend.open(**{"x-api-key": "other"})
    await frontend.ask("resources/subscribe", {"uri": NOTES}, mine)
    client = Client()
    listening = asyncio.ensure_future(frontend.http_request(headers=of(mine), method="GET", client=client))
    await client.until(lambda: bool(client.pushed))
    frontend.http.retain({OTHER})
    async with asyncio.timeout(30):
        await listening
    assert client.ended == [b""]
    assert await frontend.ask("ping", session=mine) == -32600
    assert outcome((await frontend.http_request(request("ping"), {**of(theirs), "x-api-key": "other"})).json) == {}
    assert frontend.hosted.announcer.asked == [f"+{NOTES}", f"-{NOTES}"]
    assert (len(frontend.http.sessions), len(frontend.http.streams)) == (1, 0)


# -- streams of changes --------------------------------------------------------------------------------------------


async def test_a_session_is_notified_at_once_of_every_list_that_changed_since_it_saw_it() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    for method in ("tools/list", "prompts/list", "resources/templates/list"):
        await frontend.ask(method, session=session)
    frontend.hub.publish(ready(tool(), prompts=[prompt("new")]))
    async with frontend.streaming(None, of(session), method="GET") as stream:
        await stream.until(lambda: len(stream.events) == 2)
    changed = [received["method"] for received in stream.events]
    assert changed == ["notifications/prompts/list_changed", "notifications/resources/list_changed"]


async def test_a_subscription_is_acknowledged_and_everything_on_it_is_marked() -> None:
    frontend = HttpFrontend()
    wanted = {"promptsListChanged": True, "resourceSubscriptions": [NOTES]}
    async with frontend.streaming(*modern("subscriptions/listen", {"notifications": wanted})) as stream:
        assert stream.events[0]["params"]["notifications"] == wanted
        frontend.hub.publish(ready(tool("new"), prompts=[prompt("new")]))
        frontend.hub.subscriptions.updated(SERVER, NOTES)
        await stream.until(lambda: len(stream.events) == 3)
    assert [received["method"] for received in stream.events[1:3]] == [
        "notifications/prompts/list_changed",
        "notifications/resources/updated",
    ]
    assert {received["params"]["_meta"][SUBSCRIPTION_KEY] for received in stream.events[:3]} == {1}
    assert frontend.hosted.is_forgotten()
    assert frontend.hosted.announcer.asked == [f"+{NOTES}", f"-{NOTES}"]


async def test_a_subscription_ends_with_its_answer_when_the_hub_goes() -> None:
    frontend = HttpFrontend()
    async with frontend.streaming(*modern("subscriptions/listen", {"notifications": {}})) as stream:
        frontend.http.end_streams()
        await stream.until(lambda: bool(stream.ended))
    assert stream.events[-1]["result"]["resultType"] == "complete"
    assert not len(frontend.http.streams)


async def test_a_subscriber_that_leaves_before_it_is_acknowledged_leaves_nothing() -> None:
    frontend, client = HttpFrontend(), Client()
    frontend.hosted.announcer.opened.clear()
    body, headers = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": [NOTES]}})
    task = asyncio.ensure_future(frontend.http_request(body, headers, client=client))
    async with asyncio.timeout(30):
        while not frontend.hosted.announcer.asked:  # noqa: ASYNC110 - the announcer has no notification
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert frontend.hosted.is_forgotten()


@pytest.mark.parametrize(
    ("params", "headers", "status"),
    [({"notifications": 7}, {}, 400), ({"notifications": {}}, {"accept": "application/json"}, 406)],
)
async def test_a_subscription_that_cannot_be_given_is_refused(
    params: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    body, own = modern("subscriptions/listen", params)
    assert (await HttpFrontend().http_request(body, {**own, **headers})).status == status


# -- listeners and manners -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"x-api-key": "nobody"}, 401),
        ("POST", {"content-type": "text/plain"}, 415),
        ("POST", {"accept": "text/html"}, 406),
        ("GET", {"accept": "application/json"}, 406),
        ("GET", {"mcp-protocol-version": MODERN}, 405),
        ("GET", {"mcp-session-id": "none"}, 404),
        ("DELETE", {}, 404),
        ("PUT", {}, 405),
    ],
)
async def test_unserved_requests_are_refused_with_their_status(
    method: str, headers: dict[str, str], status: int
) -> None:
    assert (await HttpFrontend().http_request(request("ping"), headers, method=method)).status == status


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"[1]", 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, 202, None),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}, 202, None),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, 202, None),
    ],
)
async def test_messages_that_are_no_requests_are_acknowledged_or_refused(
    body: Any, status: int, code: int | None
) -> None:
    client = await HttpFrontend().http_request(body)
    assert client.status == status
    assert code is None or outcome(client.json) == code


async def test_a_notification_to_an_unknown_session_gets_an_error() -> None:
    client = await HttpFrontend().http_request({"jsonrpc": "2.0", "method": "notifications/cancelled"}, of("none"))
    assert client.status == 404


async def test_a_notification_cancels_the_call_that_it_names_and_no_other() -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    await frontend.http_request(request("tools/call", {"name": "files.read"}, id=5), of(session))
    for params in ({}, {"requestId": 6}):
        await frontend.http_request(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, of(session)
        )
    assert frontend.hub.running() == 1
    await frontend.http_request(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}, of(session)
    )
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)


async def test_a_duplicate_header_is_refused_where_a_proxy_may_route_on_it() -> None:
    frontend, client = HttpFrontend(), Client()
    body, headers = modern("tools/list")
    client.body = json.dumps(body).encode()
    scope = frontend.scope(client, "POST", headers)
    scope["headers"] += [(b"x-other", b"1"), (b"x-other", b"2")]
    await frontend.http.serve(EVERYTHING, scope, _nothing, _nowhere)
    scope["headers"].append((b"mcp-method", b"tools/list"))
    await frontend.http.serve(EVERYTHING, scope, _nothing, _nowhere)
    assert [status for status, _ in client.answers] == [200, 400]
    assert "mcp-method is given twice" in json.loads(client.answers[1][1])["error"]["message"]


@pytest.mark.parametrize("stays", [True, False])
async def test_a_body_is_read_as_it_arrives_and_nothing_runs_for_a_client_that_leaves_meanwhile(*, stays: bool) -> None:
    class Slow(Client):
        def take_body(self) -> bytes | None:
            return None

    frontend, client = HttpFrontend(), Slow()
    text = json.dumps(request("ping")).encode()
    last: Message = {"type": "http.request", "body": text[5:]} if stays else {"type": "http.disconnect"}
    parts = iter([{"type": "http.request", "body": text[:5], "more_body": True}, last])

    async def receive() -> Message:
        return next(parts)

    await frontend.http.serve(EVERYTHING, frontend.scope(client, "POST", {}), receive, _nowhere)
    assert [status for status, _ in client.answers] == ([200] if stays else [])


@pytest.mark.parametrize(
    ("params", "headers"),
    [({}, {}), ({"name": "files.read"}, of("none")), ({"name": "files.read"}, {"mcp-protocol-version": "1"})],
)
async def test_a_call_that_is_refused_after_waiting_for_servers_is_answered_too(
    params: dict[str, Any], headers: dict[str, str]
) -> None:
    frontend = HttpFrontend()
    frontend.hub.open_server_queue(ServerQueue(SLOW, frontend.hub.limits), ServerStatus(SLOW))
    client = Client()
    asking = asyncio.ensure_future(frontend.http_request(request("tools/call", params), headers, client=client))
    await asyncio.sleep(0)
    frontend.hub.publish(ready(server=SLOW))
    await asking
    assert "error" in client.json
    assert frontend.hosted.stage.link.sent == []


@pytest.mark.parametrize("accept", ["Application/JSON;q=0.5", "text/*", "application/*, text/html"])
async def test_every_spelling_of_the_accept_header_is_read(accept: str) -> None:
    assert (await HttpFrontend().http_request(request("ping"), {"accept": accept})).status == 200


async def test_a_server_that_the_caller_may_not_see_has_no_path() -> None:
    frontend = HttpFrontend()
    for server in (SERVER, SLOW):
        status = (await frontend.http_request(request("tools/list"), surface=Surface("own", server))).status
        assert status == (200 if server == SERVER else 404)


async def test_a_caller_of_the_earlier_era_that_loses_its_connection_may_come_back_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frontend = HttpFrontend()
    (await frontend.http_request(request("resources/read", {"uri": NOTES}))).leave()
    assert frontend.hub.running() == 1
    frontend.hosted.last_call.finish(DONE)
    monkeypatch.setattr(exchanges, "RESUME_SECONDS", 0.0)
    client = await frontend.http_request(request("prompts/get", {"name": "files.ask"}))
    client.leave()
    await client.until(lambda: bool(client.answers))
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)


async def test_a_modern_caller_that_closes_its_connection_withdraws_its_call() -> None:
    frontend = HttpFrontend()
    (await frontend.http_request(*modern("resources/read", {"uri": NOTES}))).leave()
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)


ASKS: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
FORM = Question("elicitation/create", raw({"message": "who?"}))


def asking(gather_seconds: float) -> HttpFrontend:
    """A frontend whose modern callers can be asked."""
    frontend = HttpFrontend()
    frontend.hosted.mcp_methods.client_input = ModernClientInput(
        ProcessSealer(), Limits(), gather_seconds=gather_seconds
    )
    return frontend


async def test_a_modern_caller_that_leaves_before_it_is_asked_withdraws_its_call() -> None:
    frontend = asking(gather_seconds=3600)
    client = await frontend.http_request(*modern("tools/call", {"name": "files.read"}, **ASKS))
    frontend.hosted.last_call.ask(FORM, list[Reply]().append)
    client.leave()
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)


async def test_a_modern_caller_that_was_asked_may_leave_and_come_back() -> None:
    frontend = asking(gather_seconds=0)
    client = await frontend.http_request(*modern("tools/call", {"name": "files.read"}, **ASKS))
    frontend.hosted.last_call.ask(FORM, list[Reply]().append)
    client.leave()
    assert (client.json["result"]["resultType"], frontend.hosted.last_call.outcome) == ("input_required", None)


async def test_the_suspended_calls_of_a_removed_caller_are_cancelled() -> None:
    frontend = asking(gather_seconds=0)
    await frontend.http_request(*modern("tools/call", {"name": "files.read"}, **ASKS))
    frontend.hosted.last_call.ask(FORM, list[Reply]().append)
    frontend.http.retain({OTHER})
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)


# -- streams that can be come back to ------------------------------------------------------------------------------

STREAMS_FIRST = {"accept": "text/event-stream, application/json"}
READ = {"name": "files.read", "_meta": {"progressToken": 7}}


@pytest.fixture(autouse=True)
def calls_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this process stands still: a test that wants a slow one says so."""
    monkeypatch.setattr(exchanges, "PLAIN_SECONDS", 600.0)


async def polling(frontend: HttpFrontend, version: str = "2025-11-25") -> dict[str, str]:
    """The headers of a session of a caller that speaks this version."""
    client = await frontend.http_request(request("initialize", {**HELLO, "protocolVersion": version}))
    (line,) = [line for line in client.lines[0].split(b"\r\n") if line.startswith(b"mcp-session-id: ")]
    return of(line.partition(b": ")[2].decode())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.001)


def last_id(client: Client) -> dict[str, str]:
    """The header with which a client says what it heard last."""
    decoder = SseDecoder()
    decoder.feed(b"".join(client.pushed + client.ended))
    assert decoder.last_event_id is not None
    return {"last-event-id": decoder.last_event_id}


async def test_a_quick_call_is_answered_by_plain_json_and_a_slow_one_by_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frontend = HttpFrontend()
    session = await polling(frontend)
    quick = await frontend.http_request(request("tools/call", READ), session)
    frontend.hosted.answer(content=[])
    assert (quick.status, quick.begun) == (200, [])
    monkeypatch.setattr(exchanges, "PLAIN_SECONDS", 0.0)
    slow = await frontend.http_request(request("tools/call", READ), session)
    await slow.until(lambda: bool(slow.pushed))
    frontend.hosted.answer(content=[])
    assert slow.pushed[0].startswith(b"id: ")
    assert b"\ndata: \n\n" in slow.pushed[0]
    assert [event["id"] for event in slow.events] == [1]


@pytest.mark.parametrize(
    ("version", "accept"), [("2025-06-18", "*/*"), ("2025-11-25", "application/json"), (None, "*/*")]
)
async def test_a_client_that_cannot_resume_waits_for_plain_json_however_long(
    monkeypatch: pytest.MonkeyPatch, version: str | None, accept: str
) -> None:
    monkeypatch.setattr(exchanges, "PLAIN_SECONDS", 0.0)
    frontend = HttpFrontend()
    session = {} if version is None else await polling(frontend, version)
    client = await frontend.http_request(request("tools/call", READ), {**session, "accept": accept})
    await asyncio.sleep(0.11)  # two turns of the wheel
    frontend.hosted.answer(content=[])
    assert (client.status, client.begun) == (200, [])


async def test_a_client_that_prefers_streams_is_answered_by_streams() -> None:
    frontend = HttpFrontend()
    session = {**await polling(frontend), **STREAMS_FIRST}
    listed = await frontend.http_request(request("tools/list"), session)
    called = await frontend.http_request(request("tools/call", READ), session)
    frontend.hosted.answer(content=[])
    for client in (listed, called):
        assert (client.answers, [event["id"] for event in client.events]) == ([], [1])
    assert called.pushed[0].startswith(b"id: ")
    assert (await frontend.http_request(request("tools/list"), STREAMS_FIRST)).status == 200


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_caller_comes_back_to_its_call_and_the_call_ran_once(*, is_noticed: bool) -> None:
    frontend = HttpFrontend()
    session = {**await polling(frontend), **STREAMS_FIRST}
    client = await frontend.http_request(request("tools/call", READ), session)
    if is_noticed:
        client.leave()
    async with frontend.streaming(None, {**session, **last_id(client)}, method="GET") as back:
        frontend.hosted.last_call.emit(PROGRESSED)
        await back.until(lambda: len(back.pushed) == 2)
        frontend.hosted.answer(content=[])
        await back.until(lambda: bool(back.ended))
        assert [event.get("id") for event in back.events] == [None, 1]
    again = await frontend.http_request(None, {**session, **last_id(client)}, method="GET")
    assert again.events == back.events
    assert len(frontend.hosted.stage.link.sent) == 1


async def test_a_resumed_call_goes_on_and_ends_when_its_client_leaves_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frontend = HttpFrontend()
    session = {**await polling(frontend), **STREAMS_FIRST}
    client = await frontend.http_request(request("tools/call", READ), session)
    client.leave()
    monkeypatch.setattr(exchanges, "RESUME_SECONDS", 0.0)
    async with frontend.streaming(None, {**session, **last_id(client)}, method="GET"):
        assert frontend.hub.running() == 1
    await until(lambda: not frontend.hub.running())
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)


@pytest.mark.parametrize("id", ["nothing", "x.1", "another's"])
async def test_an_event_that_is_not_the_sessions_own_is_unknown(id: str) -> None:
    frontend = HttpFrontend()
    theirs = {**await polling(frontend), **STREAMS_FIRST}
    client = await frontend.http_request(request("tools/call", READ), theirs)
    last = last_id(client) if id == "another's" else {"last-event-id": id}
    refused = await frontend.http_request(None, {**await polling(frontend), **last}, method="GET")
    assert (refused.status, refused.begun) == (400, [])


async def test_a_sessions_next_stream_delivers_missed_events() -> None:
    frontend = HttpFrontend()
    session = await polling(frontend)
    await frontend.http_request(request("resources/subscribe", {"uri": NOTES}), session)
    async with frontend.streaming(None, session, method="GET") as first:
        notified = last_id(first)
        frontend.hub.subscriptions.updated(SERVER, NOTES)
        await first.until(lambda: len(first.pushed) == 2)
        frontend.hub.publish(ready(tool("new")))
        await first.until(lambda: len(first.pushed) >= 3)
    frontend.hub.publish(ready(tool("newer"), prompts=[prompt()]))
    async with frontend.streaming(None, {**session, **notified}, method="GET") as second:
        await second.until(lambda: len(second.events) >= 3)
        received = [event["method"] for event in second.events]
    assert received[0] == "notifications/resources/updated"
    assert "notifications/tools/list_changed" in received[1:]
    last = last_id(second)
    async with frontend.streaming(None, {**session, **last}, method="GET") as third:
        assert third.events == []


async def test_unsent_events_of_a_stream_are_sent_on_the_one_before_it() -> None:
    frontend = HttpFrontend()
    session = await polling(frontend)
    async with frontend.streaming(None, session, method="GET") as first:
        async with frontend.streaming(None, session, method="GET") as second:
            for name in ("new", "newer"):  # the second is told only after a while
                frontend.hub.publish(ready(tool(name)))
            await second.until(lambda: bool(second.events))
            assert first.events == []
        received = [event["method"] for event in first.events]
    assert received == ["notifications/tools/list_changed"]


async def test_updates_wait_while_the_caller_has_not_read_the_last() -> None:
    frontend = HttpFrontend()
    session = await polling(frontend)
    await frontend.http_request(request("resources/subscribe", {"uri": NOTES}), session)
    async with frontend.streaming(None, session, method="GET") as stream:
        stream.unsent_bytes = 1
        frontend.hub.subscriptions.updated(SERVER, NOTES)
        frontend.hub.subscriptions.updated(SERVER, NOTES)
        assert stream.events == []
        stream.unsent_bytes = 0
        await stream.until(lambda: bool(stream.events))
        assert len(stream.events) == 1


async def test_ending_a_session_ends_its_streams_at_once() -> None:
    frontend = HttpFrontend()
    session = await polling(frontend)
    async with frontend.streaming(None, session, method="GET") as stream:
        assert (await frontend.http_request(None, session, method="DELETE")).status == 204
        await stream.until(lambda: bool(stream.ended))
    assert not len(frontend.http.streams)


async def test_unused_sessions_end_without_another_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.001)
    monkeypatch.setattr(http_streams, "IDLE_SECONDS", 0.0)
    frontend = HttpFrontend()
    await polling(frontend)
    await until(lambda: not len(frontend.http.sessions))
    monkeypatch.setattr(http_streams, "IDLE_SECONDS", 3600.0)
    await polling(frontend)
    await until(lambda: len(frontend.http.sessions) == 1)
    monkeypatch.setattr(http_streams, "IDLE_SECONDS", 0.0)
    await until(lambda: not len(frontend.http.sessions))


# -- batches -------------------------------------------------------------------------------------------------------


async def test_a_batch_is_answered_by_an_array_each_element_as_if_alone() -> None:
    frontend = HttpFrontend()
    session = await polling(frontend, "2025-03-26")
    batch = [
        request("ping", id="a"),
        request("tools/call", {"name": "files.read"}, id="b"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request("nothing", id="c"),
        request("initialize", HELLO, id="d"),
        request("ping", {"_meta": META}, id="e"),
        [],
        {"jsonrpc": "2.0", "id": "isthmus-1", "result": {}},
        7,
    ]
    client = Client()
    asking = asyncio.ensure_future(frontend.http_request(batch, session, client=client))
    await until(lambda: bool(frontend.hosted.stage.link.sent))
    frontend.hosted.answer(content=[])
    await asking
    received = {answer["id"]: outcome(answer) for answer in client.json if answer["id"] is not None}
    assert received == {"a": {}, "b": {"content": []}, "c": -32601, "d": -32600, "e": -32600}
    assert [outcome(answer) for answer in client.json if answer["id"] is None] == [-32600, -32600]


async def test_a_batch_in_which_a_call_has_events_is_answered_by_a_stream() -> None:
    frontend = HttpFrontend()
    session = await polling(frontend, "2025-03-26")
    client = Client()
    batch = [request("ping", id="a"), request("tools/call", READ, id="b"), request("ping", id="c")]
    asking = asyncio.ensure_future(frontend.http_request(batch, session, client=client))
    await until(lambda: bool(frontend.hosted.stage.link.sent))
    frontend.hosted.last_call.emit(PROGRESSED)
    frontend.hosted.answer(content=[])
    await asking
    assert sorted(event["id"] for event in client.events if "id" in event) == ["a", "b", "c"]
    assert len([event for event in client.events if "method" in event]) == 1
    assert (client.answers, client.ended) == ([], [b""])


async def test_a_batch_whose_caller_leaves_its_stream_is_let_go_and_its_call_goes_on() -> None:
    frontend = HttpFrontend()
    session = await polling(frontend, "2025-03-26")
    client = Client()
    asking = asyncio.ensure_future(frontend.http_request([request("tools/call", READ, id="b")], session, client=client))
    await until(lambda: bool(frontend.hosted.stage.link.sent))
    frontend.hosted.last_call.emit(PROGRESSED)
    assert client.events
    client.leave()
    await asking
    assert frontend.hosted.last_call.outcome is None
    frontend.hosted.answer(content=[])


async def test_a_batch_without_requests_is_accepted_and_its_notifications_are_read() -> None:
    frontend = HttpFrontend()
    session = await polling(frontend, "2025-03-26")
    call = await frontend.http_request(request("tools/call", {"name": "files.read"}, id=5), session)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    assert (await frontend.http_request([cancel], session)).answers == [(202, b"")]
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)
    assert call.answers


@pytest.mark.parametrize(("version", "count"), [("2025-06-18", 1), ("2025-03-26", 0), ("2025-03-26", 101), (None, 1)])
async def test_other_batches_are_refused(version: str | None, count: int) -> None:
    frontend = HttpFrontend()
    session = {} if version is None else await polling(frontend, version)
    client = await frontend.http_request([request("ping", id=number) for number in range(count)], session)
    assert (client.status, outcome(client.json)) == (400, -32600)


async def test_a_batch_of_an_unknown_session_gets_an_error() -> None:
    client = await HttpFrontend().http_request([request("ping")], of("none"))
    assert (client.status, client.json["error"]["message"]) == (404, "Session not found")


# -- versions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1999-01-01", "", "2025-06-18, 2025-06-18"])
@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("POST", request("ping")),
        ("POST", request("tools/call", {"name": "files.read"})),
        ("POST", request("tools/list", {"_meta": {"trace": 1}})),
        ("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}),
        ("POST", {"jsonrpc": "2.0", "id": "isthmus-1", "result": {}}),
        ("POST", [request("ping")]),
        ("GET", None),
        ("DELETE", None),
    ],
)
async def test_an_unsupported_version_is_refused_for_every_method(method: str, body: Any, version: str) -> None:
    frontend = HttpFrontend()
    session = await frontend.open()
    headers = {**of(session), "mcp-protocol-version": version}
    client = await frontend.http_request(body, headers, method=method)
    assert (client.status, outcome(client.json)) == (400, -32022)
    assert client.json["error"]["data"]["requested"] == version
    assert MODERN in client.json["error"]["message"]
    assert await frontend.ask("ping", session=session) == {}
    assert frontend.hosted.stage.link.sent == []


@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05", None])
async def test_a_version_that_is_spoken_is_good_for_everything(version: str | None) -> None:
    frontend = HttpFrontend()
    headers = {**of(await frontend.open()), **({} if version is None else {"mcp-protocol-version": version})}
    received = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await frontend.http_request(received, headers)).status == 202
    async with frontend.streaming(None, headers, method="GET"):
        pass
    assert (await frontend.http_request(headers=headers, method="DELETE")).status == 204
