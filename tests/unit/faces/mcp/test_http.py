"""MCP over Streamable HTTP, visit by visit: sessions, every method of both eras, and the streams of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from isthmus.core.calls.lane import Lane
from isthmus.core.catalog.snapshot import Standing
from isthmus.faces.http.gate import Gate, Headers
from isthmus.faces.http.origin import OriginGuard
from isthmus.faces.http.turn import PEER, Message
from isthmus.faces.mcp import http as module
from isthmus.faces.mcp.http import McpHttp
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.events import LOG_LEVELS, Log
from isthmus.model.faults import Cancelled, ServerError
from isthmus.model.names import ServerName
from tests.unit.core.doubles import ANYONE, DONE, SERVER, prompt, raw, ready, tool
from tests.unit.faces.mcp.doubles import (
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
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
ARGUMENT = {"name": "path", "value": "/"}
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class Face:
    """The face over HTTP, visited without a socket."""

    def __init__(self, standing: Standing = OFFER) -> None:
        self.hosted = Hosted(standing)
        self.hub = self.hosted.hub
        self.http = McpHttp(self.hosted.dialogue, Gate(OriginGuard(bind_host="127.0.0.1"), self._identify))

    @staticmethod
    def _identify(headers: Headers) -> Caller | None:
        return {b"other": OTHER, b"nobody": None}.get(dict(headers).get(b"x-api-key", b""), ANYONE)

    def scope(self, client: Client, method: str, headers: Mapping[str, str]) -> Message:
        base = {"host": "localhost", "content-type": "application/json"}
        pairs = [(key.encode(), value.encode()) for key, value in {**base, **headers}.items()]
        client.scope = {"method": method, "headers": pairs, "path": "/mcp", "extensions": {PEER: client}}
        return client.scope

    async def visit(
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
        client = await self.visit(request("initialize", HELLO), headers)
        (line,) = [line for line in client.lines[0].split(b"\r\n") if line.startswith(b"mcp-session-id: ")]
        return line.partition(b": ")[2].decode()

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, session: str | None = None) -> Any:
        """Ask in the earlier era; returns the result, or the error's code."""
        return outcome((await self.visit(request(method, params), of(session))).json)

    async def ask_modern(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Ask in the modern era; returns the result, or the error's code."""
        return outcome((await self.visit(*modern(method, params))).json)

    @asynccontextmanager
    async def streaming(self, *visit: Any, **how: Any) -> AsyncIterator[Client]:
        """A stream of changes that has begun; leaving the block leaves it."""
        client = Client()
        task = asyncio.ensure_future(self.visit(*visit, client=client, **how))
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
    raise AssertionError("the face answers through its peer")


def request(method: str, params: Mapping[str, Any] | None = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": dict(params or {})}


def modern(method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A modern request and its headers."""
    told = {**(params or {}), "_meta": {**META, **meta}}
    name = {"mcp-name": told[NAMED[method]]} if method in NAMED and NAMED[method] in told else {}
    return request(method, told), {"mcp-protocol-version": MODERN, "mcp-method": method, **name}


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
async def test_every_list_is_given_in_both_eras_and_names_who_is_missing(
    method: str, member: str, named: list[str]
) -> None:
    face = Face()
    face.hub.open_lane(Lane(SLOW, face.hub.limits), Standing(SLOW, "retrying", "gone", is_settled=True))
    for told in (await face.ask(method), await face.ask_modern(method)):
        assert [entry["name"] for entry in told[member]] == named
        assert list(told["_meta"]["isthmus/missing"]) == ["slow"]


async def test_a_caller_is_told_what_the_servers_really_can() -> None:
    for standing, capabilities in (
        (OFFER, {"tools", "prompts", "resources", "completions", "logging"}),
        (ready(tool(), abilities=frozenset({"tools", "logging"})), {"tools", "logging"}),
    ):
        face = Face(standing)
        assert (await face.ask("initialize", HELLO))["capabilities"].keys() == capabilities
        assert (await face.ask_modern("server/discover"))["capabilities"].keys() == capabilities


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
    face, client = Face(), Client()
    body, headers = modern(method, params) if era == "modern" else (request(method, params), {})
    client.body = json.dumps(body).encode()
    face.scope(client, "POST", headers)
    assert face.http.take(EVERYTHING, client)
    assert face.hosted.last_call.name == own
    face.hosted.answer(ok=1)
    assert (client.status, client.json["result"]["ok"]) == (200, 1)
    assert ("resultType" in client.json["result"]) == (era == "modern")


async def test_what_is_unknown_has_the_code_and_status_of_its_era() -> None:
    face = Face(ready(abilities=frozenset({"tools"})))
    earlier = await face.visit(request("resources/read", {"uri": "x:y"}))
    assert (earlier.status, outcome(earlier.json)) == (200, -32002)
    later = await face.visit(*modern("resources/read", {"uri": "x:y"}))
    assert (later.status, outcome(later.json)) == (400, -32602)


@pytest.mark.parametrize("name", ["mcp-name", "mcp-method"])
async def test_a_header_that_names_another_thing_than_the_body_is_refused(name: str) -> None:
    face = Face()
    body, headers = modern("resources/read", {"uri": NOTES})
    client = await face.visit(body, {**headers, name: "another"})
    assert (client.status, outcome(client.json)) == (400, -32020)
    assert face.hosted.stage.link.sent == []


async def test_a_call_waits_for_servers_that_only_start_and_can_be_withdrawn_meanwhile() -> None:
    face = Face()
    session = await face.open()
    face.hub.open_lane(Lane(SLOW, face.hub.limits), Standing(SLOW))
    client = Client()
    asking = asyncio.ensure_future(
        face.visit(request("tools/call", {"name": "files.read"}, id=5), of(session), client=client)
    )
    await asyncio.sleep(0)
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    assert (await face.visit(cancelled, of(session))).status == 202
    face.hub.publish(ready(server=SLOW))
    await asking
    assert outcome(client.json) == -32012
    assert face.hosted.stage.link.sent == []


# -- what a session wants ------------------------------------------------------------------------------------------


async def hear_all(face: Face, body: Any, headers: Mapping[str, str]) -> list[str]:
    """The levels that a caller hears of a call during which its server logs at every level."""
    client = await face.visit(body, headers)
    for level in LOG_LEVELS:
        face.hosted.last_call.emit(Log(level, {"level": raw(level), "data": raw("x")}))
    face.hosted.answer()
    return [told["params"]["level"] for told in client.events if told.get("method") == "notifications/message"]


async def test_a_session_hears_what_it_chose_and_servers_are_asked_for_it() -> None:
    face = Face()
    session = await face.open()
    assert await face.ask("logging/setLevel", {"level": "error"}, session) == {}
    assert face.hosted.level() == "error"
    another = await face.open()
    assert face.hosted.level() == "debug"  # it never chose, and must miss nothing
    call = request("tools/call", {"name": "files.read"})
    assert await hear_all(face, call, of(session)) == ["error", "critical", "alert", "emergency"]
    assert await hear_all(face, call, of(another)) == list(LOG_LEVELS)
    assert await hear_all(face, call, {**of(another), "accept": "application/json"}) == []
    await face.visit(headers=of(another), method="DELETE")
    assert face.hosted.level() == "error"


async def test_a_modern_caller_hears_what_each_call_asks_for() -> None:
    face = Face()
    assert await hear_all(face, *modern("tools/call", {"name": "files.read"})) == []
    asked = modern("tools/call", {"name": "files.read"}, **{LOG_KEY: "alert"})
    assert await hear_all(face, *asked) == ["alert", "emergency"]


async def test_a_session_follows_resources_and_is_told_of_them_on_its_stream() -> None:
    face = Face()
    session = await face.open()
    assert await face.ask("resources/subscribe", {"uri": NOTES}, session) == {}
    face.hub.subscriptions.updated(SERVER, NOTES)
    async with face.streaming(None, of(session), method="GET") as stream:
        await stream.until(lambda: len(stream.events) == 1)  # what was missed while nobody listened
        face.hub.subscriptions.updated(SERVER, NOTES)
        await stream.until(lambda: len(stream.events) == 2)
    update = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": NOTES}}
    assert stream.events == [update, update]
    assert await face.ask("resources/unsubscribe", {"uri": NOTES}, session) == {}
    assert face.hosted.announcer.asked == [f"+{NOTES}", f"-{NOTES}"]


async def test_one_session_is_not_told_what_another_follows() -> None:
    face = Face()
    session, another = await face.open(), await face.open()
    await face.ask("resources/subscribe", {"uri": NOTES}, session)
    async with face.streaming(None, of(another), method="GET") as stream:
        face.hub.subscriptions.updated(SERVER, NOTES)
        face.hub.publish(ready(tool("new")))
        await stream.until(lambda: len(stream.events) == 3)
    assert {told["method"].rpartition("/")[2] for told in stream.events} == {"list_changed"}


@pytest.mark.parametrize(
    ("params", "refusal", "code"),
    [
        ({"uri": 7}, None, -32602),
        ({"uri": NOTES}, ServerError(SERVER, -32000, "no"), -32000),
    ],
)
async def test_what_cannot_be_followed_is_refused(
    params: dict[str, Any], refusal: ServerError | None, code: int
) -> None:
    face = Face()
    face.hosted.announcer.refusal = refusal
    assert await face.ask("resources/subscribe", params, await face.open()) == code


@pytest.mark.parametrize("method", ["logging/setLevel", "resources/subscribe", "resources/unsubscribe"])
async def test_who_has_no_session_can_want_nothing_for_longer_than_a_request(method: str) -> None:
    face = Face()
    params = {"level": "debug", "uri": NOTES}
    assert await face.ask(method, params) == -32601
    assert await face.ask_modern(method, params) == -32601
    assert face.hosted.is_forgotten()


async def test_another_callers_session_is_as_unknown_as_none() -> None:
    face = Face()
    session = await face.open()
    stolen = {**of(session), "x-api-key": "other"}
    for body in (request("resources/subscribe", {"uri": NOTES}), request("tools/call", {"name": "files.read"})):
        assert (await face.visit(body, stolen)).status == 404
    assert (await face.visit(headers=stolen, method="DELETE")).status == 404
    assert (await face.visit(headers=stolen, method="GET")).status == 404
    assert face.hosted.stage.link.sent == []


async def test_an_ended_session_wants_nothing_any_more() -> None:
    face = Face()
    session = await face.open()
    await face.ask("resources/subscribe", {"uri": NOTES}, session)
    await face.visit(request("tools/call", {"name": "files.read"}), of(session))
    assert (await face.visit(headers=of(session), method="DELETE")).status == 204
    assert isinstance(face.hosted.last_call.outcome, Cancelled)
    assert face.hosted.is_forgotten()
    assert (await face.visit(headers=of(session), method="DELETE")).status == 404


async def test_who_was_taken_out_loses_sessions_and_streams() -> None:
    face = Face()
    mine, theirs = await face.open(), await face.open(**{"x-api-key": "other"})
    await face.ask("resources/subscribe", {"uri": NOTES}, mine)
    client = Client()
    listening = asyncio.ensure_future(face.visit(headers=of(mine), method="GET", client=client))
    await client.until(lambda: bool(client.pushed))
    face.http.retain({OTHER})
    async with asyncio.timeout(30):
        await listening
    assert client.ended == [b""]
    assert await face.ask("ping", session=mine) == -32600
    assert outcome((await face.visit(request("ping"), {**of(theirs), "x-api-key": "other"})).json) == {}
    assert face.hosted.announcer.asked == [f"+{NOTES}", f"-{NOTES}"]
    assert (len(face.http.sessions), face.http.streams) == (1, {})


# -- streams of changes --------------------------------------------------------------------------------------------


async def test_a_session_is_told_at_once_of_every_list_that_changed_since_it_saw_it() -> None:
    face = Face()
    session = await face.open()
    for method in ("tools/list", "prompts/list", "resources/templates/list"):
        await face.ask(method, session=session)
    face.hub.publish(ready(tool(), prompts=[prompt("new")]))
    async with face.streaming(None, of(session), method="GET") as stream:
        await stream.until(lambda: len(stream.events) == 2)
    changed = [told["method"] for told in stream.events]
    assert changed == ["notifications/prompts/list_changed", "notifications/resources/list_changed"]


async def test_a_subscription_is_acknowledged_and_everything_on_it_is_marked() -> None:
    face = Face()
    wanted = {"promptsListChanged": True, "resourceSubscriptions": [NOTES]}
    async with face.streaming(*modern("subscriptions/listen", {"notifications": wanted})) as stream:
        assert stream.events[0]["params"]["notifications"] == wanted
        face.hub.publish(ready(tool("new"), prompts=[prompt("new")]))
        face.hub.subscriptions.updated(SERVER, NOTES)
        await stream.until(lambda: len(stream.events) == 3)
    assert [told["method"] for told in stream.events[1:3]] == [
        "notifications/prompts/list_changed",
        "notifications/resources/updated",
    ]
    assert {told["params"]["_meta"][SUBSCRIPTION_KEY] for told in stream.events[:3]} == {1}
    assert face.hosted.is_forgotten()
    assert face.hosted.announcer.asked == [f"+{NOTES}", f"-{NOTES}"]


async def test_a_subscription_ends_with_its_answer_when_the_hub_goes() -> None:
    face = Face()
    async with face.streaming(*modern("subscriptions/listen", {"notifications": {}})) as stream:
        face.http.end_streams()
        await stream.until(lambda: bool(stream.ended))
    assert stream.events[-1]["result"]["resultType"] == "complete"
    assert face.http.streams == {}


async def test_a_subscriber_that_leaves_before_it_is_acknowledged_leaves_nothing() -> None:
    face, client = Face(), Client()
    face.hosted.announcer.opened.clear()
    body, headers = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": [NOTES]}})
    task = asyncio.ensure_future(face.visit(body, headers, client=client))
    async with asyncio.timeout(30):
        while not face.hosted.announcer.asked:  # noqa: ASYNC110 - the announcer tells nobody
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert face.hosted.is_forgotten()


@pytest.mark.parametrize(
    ("params", "headers", "status"),
    [({"notifications": 7}, {}, 400), ({"notifications": {}}, {"accept": "application/json"}, 406)],
)
async def test_a_subscription_that_cannot_be_given_is_refused(
    params: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    body, own = modern("subscriptions/listen", params)
    assert (await Face().visit(body, {**own, **headers})).status == status


# -- doors and manners ---------------------------------------------------------------------------------------------


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
async def test_what_cannot_be_served_is_refused_with_its_status(
    method: str, headers: dict[str, str], status: int
) -> None:
    assert (await Face().visit(request("ping"), headers, method=method)).status == status


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
async def test_what_is_no_request_is_acknowledged_or_refused(body: Any, status: int, code: int | None) -> None:
    client = await Face().visit(body)
    assert client.status == status
    assert code is None or outcome(client.json) == code


async def test_a_notification_to_a_session_that_is_not_there_is_told_so() -> None:
    client = await Face().visit({"jsonrpc": "2.0", "method": "notifications/cancelled"}, of("none"))
    assert client.status == 404


async def test_a_notification_cancels_the_call_that_it_names_and_no_other() -> None:
    face = Face()
    session = await face.open()
    await face.visit(request("tools/call", {"name": "files.read"}, id=5), of(session))
    for params in ({}, {"requestId": 6}):
        await face.visit({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, of(session))
    assert face.hub.running() == 1
    await face.visit({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}, of(session))
    assert isinstance(face.hosted.last_call.outcome, Cancelled)


async def test_a_header_that_is_given_twice_is_refused_where_somebody_may_route_on_it() -> None:
    face, client = Face(), Client()
    body, headers = modern("tools/list")
    client.body = json.dumps(body).encode()
    scope = face.scope(client, "POST", headers)
    scope["headers"] += [(b"x-other", b"1"), (b"x-other", b"2")]
    await face.http.serve(EVERYTHING, scope, _nothing, _nowhere)
    scope["headers"].append((b"mcp-method", b"tools/list"))
    await face.http.serve(EVERYTHING, scope, _nothing, _nowhere)
    assert [status for status, _ in client.answers] == [200, 400]
    assert "mcp-method is given twice" in json.loads(client.answers[1][1])["error"]["message"]


@pytest.mark.parametrize("stays", [True, False])
async def test_a_body_is_read_as_it_comes_and_nothing_is_done_for_who_leaves_meanwhile(*, stays: bool) -> None:
    class Slow(Client):
        def take_body(self) -> bytes | None:
            return None

    face, client = Face(), Slow()
    text = json.dumps(request("ping")).encode()
    last: Message = {"type": "http.request", "body": text[5:]} if stays else {"type": "http.disconnect"}
    parts = iter([{"type": "http.request", "body": text[:5], "more_body": True}, last])

    async def receive() -> Message:
        return next(parts)

    await face.http.serve(EVERYTHING, face.scope(client, "POST", {}), receive, _nowhere)
    assert [status for status, _ in client.answers] == ([200] if stays else [])


@pytest.mark.parametrize(
    ("params", "headers"),
    [({}, {}), ({"name": "files.read"}, of("none")), ({"name": "files.read"}, {"mcp-protocol-version": "1"})],
)
async def test_a_call_that_is_refused_after_waiting_for_servers_is_answered_too(
    params: dict[str, Any], headers: dict[str, str]
) -> None:
    face = Face()
    face.hub.open_lane(Lane(SLOW, face.hub.limits), Standing(SLOW))
    client = Client()
    asking = asyncio.ensure_future(face.visit(request("tools/call", params), headers, client=client))
    await asyncio.sleep(0)
    face.hub.publish(ready(server=SLOW))
    await asking
    assert "error" in client.json
    assert face.hosted.stage.link.sent == []


@pytest.mark.parametrize("accept", ["Application/JSON;q=0.5", "text/*", "application/*, text/html"])
async def test_what_a_caller_accepts_is_read_however_it_is_written(accept: str) -> None:
    assert (await Face().visit(request("ping"), {"accept": accept})).status == 200


async def test_a_server_that_the_caller_may_not_see_has_no_path() -> None:
    face = Face()
    for server in (SERVER, SLOW):
        status = (await face.visit(request("tools/list"), surface=Surface("own", server))).status
        assert status == (200 if server == SERVER else 404)


async def test_a_caller_of_the_earlier_era_that_loses_its_connection_may_come_back_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    face = Face()
    (await face.visit(request("resources/read", {"uri": NOTES}))).leave()
    assert face.hub.running() == 1
    face.hosted.last_call.finish(DONE)
    monkeypatch.setattr(module, "RESUME_SECONDS", 0.0)
    client = await face.visit(request("prompts/get", {"name": "files.ask"}))
    client.leave()
    await client.until(lambda: bool(client.answers))
    assert isinstance(face.hosted.last_call.outcome, Cancelled)


async def test_a_modern_caller_that_closes_its_connection_withdraws_its_call() -> None:
    face = Face()
    (await face.visit(*modern("resources/read", {"uri": NOTES}))).leave()
    assert isinstance(face.hosted.last_call.outcome, Cancelled)
