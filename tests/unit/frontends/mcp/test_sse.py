"""MCP over HTTP+SSE, request by request: owners of sessions, their number, and their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.frontends.http.auth import Authenticator, Fields, OriginGuard
from isthmus.frontends.http.request_cycle import PEER, Message
from isthmus.frontends.mcp import sse as module
from isthmus.frontends.mcp.sse import IDLE_SECONDS, MESSAGES_PATH, STREAM_PATH, McpSse
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.fault_table import Cancelled
from isthmus.wire import sse
from tests.unit.core.doubles import ANYONE, DONE
from tests.unit.frontends.mcp.doubles import SECONDS, Client, Hosted, events

OTHER = Caller("other", "default", Grants(("*",)))
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "files.read", "arguments": {}}}
LATE = 2 * IDLE_SECONDS


class Stream:
    """An open stream."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.address = client.pushed[0].partition(b"data: ")[2].strip().decode()

    @property
    def messages(self) -> list[Any]:
        return events(self.client.pushed[1:])

    async def reply(self, id: int) -> Any:
        await self.client.until(lambda: any(message.get("id") == id for message in self.messages))
        return next(message for message in self.messages if message.get("id") == id)


class HttpFrontend:
    """The frontend over HTTP+SSE, called without a socket."""

    def __init__(self) -> None:
        self.hosted = Hosted()
        self.background = BackgroundTasks("frontend")
        auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), self._identify)
        self.sse = McpSse(self.hosted.mcp_methods, auth, self.background, EVERYTHING)

    @staticmethod
    def _identify(fields: Fields) -> Caller | None:
        return {b"other": OTHER, b"nobody": None}.get(fields.get(b"x-api-key", b""), ANYONE)

    async def http_request(
        self, method: str, address: str, body: Any = None, *, key: str = "", client: Client | None = None
    ) -> Client:
        """Send a request and wait for the end of its answer."""
        client = client or Client()
        client.body = json.dumps(body).encode()
        path, _, query = address.partition("?")
        pairs = {"host": "localhost", "content-type": "application/json", "x-api-key": key}
        client.scope = {
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "extensions": {PEER: client},
        }
        await self.sse.serve(client.scope, _nothing, _nowhere)
        return client

    async def post(self, address: str, body: Any, *, key: str = "") -> int:
        return (await self.http_request("POST", address, body, key=key)).status

    @asynccontextmanager
    async def listening(self, key: str = "") -> AsyncIterator[Stream]:
        """A stream that has begun; leaving the block leaves it, unless it has ended."""
        client = Client()
        task = asyncio.ensure_future(self.http_request("GET", STREAM_PATH, key=key, client=client))
        try:
            await client.until(lambda: bool(client.pushed))
            yield Stream(client)
        finally:
            client.leave()
            async with asyncio.timeout(SECONDS):
                await task

    def sweep(self, later: float) -> None:
        """Look for idle sessions as if it were so much later."""
        self.sse.sweep(asyncio.get_running_loop().time() + later)


async def _nothing() -> Message:
    raise AssertionError("the body was here already")


async def _nowhere(_message: Message) -> None:
    raise AssertionError("the frontend answers through its peer")


@pytest.fixture
async def frontend() -> AsyncIterator[HttpFrontend]:
    made = HttpFrontend()
    yield made
    made.sse.end_streams()
    await made.background.aclose()


# -- whose it is -------------------------------------------------------------------------------------------------


async def test_a_caller_learns_where_to_post_and_gets_the_answers_on_its_stream(frontend: HttpFrontend) -> None:
    async with frontend.listening() as stream:
        assert await frontend.post(stream.address, PING) == 202
        assert await stream.reply(1) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert len(frontend.sse) == 0
    assert frontend.hosted.is_forgotten()


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_another_callers_session_is_as_unknown_as_one_that_never_was(frontend: HttpFrontend, method: str) -> None:
    async with frontend.listening() as stream:
        foreign = await frontend.http_request(method, stream.address, PING, key="other")
        unknown = await frontend.http_request(method, f"{MESSAGES_PATH}?sessionId=none", PING, key="other")
        assert foreign.answers == unknown.answers
        assert (foreign.status, stream.messages, len(frontend.sse)) == (404, [], 1)
        assert (await frontend.http_request(method, stream.address, PING, key="nobody")).status == 401


@pytest.mark.parametrize("query", ["", "?sessionId=", "?other=1", "?sessionId={id}&session_id={id}"])
async def test_an_address_that_names_no_one_session_leads_nowhere(frontend: HttpFrontend, query: str) -> None:
    async with frontend.listening() as stream:
        id = stream.address.partition("=")[2]
        assert await frontend.post(MESSAGES_PATH + query.format(id=id), PING) == 404
        assert await frontend.post(f"{MESSAGES_PATH}?session_id={id}", PING) == 202


async def test_a_caller_with_changed_permissions_loses_its_session_and_its_calls(frontend: HttpFrontend) -> None:
    async with frontend.listening() as stream, frontend.listening("other") as other:
        assert await frontend.post(stream.address, CALL) == 202
        frontend.sse.retain({OTHER})
        await stream.client.until(lambda: bool(stream.client.ended))
        assert isinstance(frontend.hosted.last_call.outcome, Cancelled)
        assert await frontend.post(other.address, PING, key="other") == 202


async def test_a_caller_that_leaves_withdraws_its_calls(frontend: HttpFrontend) -> None:
    async with frontend.listening() as stream:
        assert await frontend.post(stream.address, CALL) == 202
    assert isinstance(frontend.hosted.last_call.outcome, Cancelled)


# -- how many ----------------------------------------------------------------------------------------------------


async def test_a_stream_over_the_limit_of_its_caller_is_refused(
    frontend: HttpFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    async with frontend.listening():
        async with frontend.listening():
            refused = await frontend.http_request("GET", STREAM_PATH)
            assert refused.status == 429
            assert len(frontend.sse) == 2
            async with frontend.listening("other"):
                assert len(frontend.sse) == 3, "others have room of their own"
        async with frontend.listening():
            assert len(frontend.sse) == 2, "a stream that was left makes room"


# -- how long ----------------------------------------------------------------------------------------------------


async def test_a_silent_session_is_ended(frontend: HttpFrontend) -> None:
    async with frontend.listening() as stream:
        frontend.sweep(IDLE_SECONDS / 2)
        assert await frontend.post(stream.address, PING) == 202
        await stream.reply(1)
        frontend.sweep(LATE)
        await stream.client.until(lambda: bool(stream.client.ended))
        assert await frontend.post(stream.address, PING) == 404


async def test_signs_of_life_are_nothing_that_is_said(frontend: HttpFrontend) -> None:
    async with frontend.listening() as stream:
        stream.client.push(sse.comment())
        frontend.sweep(LATE)
        await stream.client.until(lambda: bool(stream.client.ended))


async def test_a_session_with_a_call_is_not_idle_however_long_it_takes(frontend: HttpFrontend) -> None:
    async with frontend.listening() as stream:
        assert await frontend.post(stream.address, CALL) == 202
        frontend.sweep(LATE)
        frontend.hosted.last_call.finish(DONE)
        assert (await stream.reply(2))["result"] is not None
        assert stream.client.ended == []
        frontend.sweep(LATE)
        await stream.client.until(lambda: bool(stream.client.ended))


@pytest.mark.parametrize("says", ["the caller", "the hub"])
async def test_a_message_keeps_the_session(frontend: HttpFrontend, says: str) -> None:
    async with frontend.listening() as stream:
        (session,) = frontend.sse._sessions.values()
        session.used_at -= LATE
        if says == "the caller":
            await frontend.post(stream.address, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        else:
            session.send(b"{}")
        frontend.sweep(0.0)
        assert not session.over.done()
        session.used_at -= LATE
        frontend.sweep(0.0)
        assert session.over.done()


async def test_idle_sessions_are_looked_for_while_there_are_any(
    frontend: HttpFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.001)
    async with frontend.listening() as stream:
        (session,) = frontend.sse._sessions.values()
        session.used_at -= LATE
        await stream.client.until(lambda: bool(stream.client.ended))
    async with asyncio.timeout(SECONDS):
        while frontend.sse._sweeping is not None:  # noqa: ASYNC110 - a timer has no notification
            await asyncio.sleep(0)
