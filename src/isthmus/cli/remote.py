"""A hub that runs already, asked over REST: one connection, documents and calls, nothing kept.

A call is a stream: progress comes as it is made, and a hub that says nothing at all for long is taken for dead.
Whoever stops waiting closes the connection, and the hub withdraws the call at the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.faults import EXECUTED, Told, told_in
from isthmus.cli.reached import Asked
from isthmus.cli.sources import KEY_VARIABLE, Running
from isthmus.core.background import BackgroundTasks
from isthmus.model.calls import Kind
from isthmus.model.events import Event, Progress
from isthmus.model.outcomes import Result
from isthmus.transport.egress import Egress, parse_url
from isthmus.transport.http import HttpClient, Lost, Ticket, request_head
from isthmus.wire.jsonrpc import object_members
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape
from isthmus.wire.mcp.requests import read_call_result
from isthmus.wire.mcp.results import verbatim
from isthmus.wire.oversized import Oversized
from isthmus.wire.sse import SseDecoder, SseEvent

SILENCE_SECONDS = 60.0
"""How long a hub may say nothing; on an open stream it says something every quarter of this."""

REPLY_BYTES = 64 * 1024 * 1024
"""Room for the lists of many servers; what is longer is a defect."""

OK = 200
FORBIDDEN = 403
REFUSED = (401, FORBIDDEN)
EVENT_STREAM = "text/event-stream"

LISTS = {
    TOOLS.method: "/v1/tools",
    PROMPTS.method: "/v1/prompts",
    RESOURCES.method: "/v1/resources",
    TEMPLATES.method: "/v1/resources/templates",
}


class RemoteHub:
    """A running hub."""

    def __init__(self, source: Running, *, is_needed: bool = False) -> None:
        """Dials nothing yet. One that is needed cannot be replaced by a hub of the command's own."""
        self._source = source
        self._is_needed = is_needed
        self._origin, path = parse_url(source.reach.url)
        self._base = path.rstrip("/").removesuffix("/mcp")
        self._background = BackgroundTasks("remote")
        self._client = HttpClient(self._origin, Egress(), self._background, is_configured=True, limit=1)

    async def list(self, shape: ListShape) -> bytes:
        """See `Reached`."""
        return await self._get(LISTS[shape.method])

    async def servers(self) -> bytes:
        """See `Reached`."""
        return await self._get("/v1/servers")

    async def relay(self, what: Literal["servers", "devices"]) -> bytes:
        """Who dialled in, or which devices are there."""
        return await self._get(f"/v1/relay/{what}")

    async def forget(self, server: str) -> str | None:
        """Have a server forgotten that dialled in and is away; why that was not done, if it was not."""
        reply = await self._ask("DELETE", _named("/v1/relay/servers/", server), None, "application/json", _ignore)
        if isinstance(reply, Lost):
            raise self._unreachable(reply.reason)
        if reply.status == OK:
            return None
        told = told_in(reply.body)
        if told is not None and reply.status == FORBIDDEN:
            make = "Make one with `isthmus token create NAME --operator` where the hub is."
            raise CommandFailed(Exit.NOT_ALLOWED, f"the hub at {self._source.reach.url}: {told.message}", make)
        if told is None or reply.status in REFUSED:
            raise self._turned_away(reply)
        return told.message

    async def _get(self, path: str) -> bytes:
        reply = await self._ask("GET", path, None, "application/json", _ignore)
        if isinstance(reply, Lost):
            raise self._unreachable(reply.reason)
        if reply.status == OK:
            return reply.body
        raise self._turned_away(reply)

    async def perform(self, asked: Asked, watch: Callable[[Event], None]) -> Result | Told:
        """See `Reached`."""
        match asked.kind:
            case "tool":
                reply = await self._call("POST", _named("/v1/tools/", asked.name), asked, watch)
            case "prompt":
                reply = await self._call("POST", _named("/v1/prompts/", asked.name), asked, watch)
            case "resource":
                query = urlencode({"uri": asked.name}, quote_via=quote)
                reply = await self._call("GET", f"/v1/resources/read?{query}", asked, watch)
            case _:
                raise NotImplementedError(asked.kind)
        return self._outcome(reply, asked.kind)

    async def aclose(self) -> None:
        """See `Reached`."""
        await self._client.aclose()
        await self._background.aclose()

    # -- asking ----------------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str, asked: Asked, watch: Callable[[Event], None]) -> Reply | Lost:
        body = bytes(asked.arguments) if method == "POST" else None
        return await self._ask(method, path, body, f"{EVENT_STREAM}, application/json", watch)

    async def _ask(
        self, method: str, path: str, body: bytes | None, accept: str, watch: Callable[[Event], None]
    ) -> Reply | Lost:
        headers = {**self._source.reach.headers, "Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/json"
        answer = Answer(watch)
        head = request_head(method, self._base + path, self._origin, headers)
        answer.await_on(self._client.send(head, body, answer))
        return await answer.wait()

    # -- reading ---------------------------------------------------------------------------------------------

    def _outcome(self, reply: Reply | Lost, kind: Kind) -> Result | Told:
        if isinstance(reply, Lost):
            if reply.may_have_left:
                return Told(f"Lost the hub during the call: {reply.reason}", "unknown", "lost")
            raise self._unreachable(reply.reason, EXECUTED["no"])
        if reply.status == OK and reply.event != "error":
            return self._result(reply, kind)
        told = None if reply.status in REFUSED else told_in(reply.body)
        if told is None:
            raise self._turned_away(reply)
        return told

    def _result(self, reply: Reply, kind: Kind) -> Result | Told:
        if kind == "tool":
            try:
                msgspec.json.decode(reply.body)
            except msgspec.MsgspecError:
                return Told("The hub gave an unusable answer", "unknown", "bad_reply")
            return verbatim(reply.body)
        answer = read_call_result(reply.body)
        if answer is None:
            return Told("The hub gave an unusable answer", "unknown", "bad_reply")
        return Result(msgspec.Raw(reply.body), is_error=answer.is_error)

    def _turned_away(self, reply: Reply) -> CommandFailed:
        if reply.status in REFUSED:
            return not_allowed(self._source.reach.url, reply.status, has_key=self._source.has_key)
        told = told_in(reply.body)
        return self._unreachable(f"it answers HTTP {reply.status}{'' if told is None else f' ({told.message})'}")

    def _unreachable(self, why: str, *facts: str) -> CommandFailed:
        return CommandFailed(
            Exit.UNREACHABLE,
            f"cannot reach the hub at {self._source.reach.url}: {why}",
            *facts,
            "Start one with `isthmus serve`, or name its address with --hub or ISTHMUS_HUB.",
            *(() if self._is_needed else ("To do without a running hub, name a configuration with --config.",)),
        )


def _named(path: str, name: str) -> str:
    return path + quote(name, safe="")


def _ignore(_: Event) -> None:
    """For answers without events."""


def not_allowed(url: str, status: int, *, has_key: bool) -> CommandFailed:
    """Tell that the hub does not let us in."""
    advice = (
        f"The key in {KEY_VARIABLE} is not one the hub knows: ask whoever runs it for another."
        if has_key
        else f"Set {KEY_VARIABLE} to the key of a caller that is configured there."
    )
    return CommandFailed(Exit.NOT_ALLOWED, f"the hub at {url} does not let us in (HTTP {status})", advice)


class Reply(msgspec.Struct, frozen=True):
    """An answer: its body, or the data of the event with which a stream ended."""

    status: int
    body: bytes
    event: str | None = None


class Answer:
    """One answer as it arrives: collects a body, or passes events on until the last."""

    def __init__(self, watch: Callable[[Event], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[Reply | Lost] = self._loop.create_future()
        self._watch = watch
        self._ticket: Ticket | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._status = 0
        self._body = bytearray()
        self._decoder: SseDecoder | None = None

    def await_on(self, ticket: Ticket) -> None:
        """The request is on its way."""
        self._ticket = ticket
        self._listen()

    async def wait(self) -> Reply | Lost:
        """Wait for the end; who stops waiting closes the connection."""
        try:
            return await self._done
        finally:
            if self._silence is not None:
                self._silence.cancel()
            if self._ticket is not None:
                self._ticket.abort()

    def _listen(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._loop.call_later(
            SILENCE_SECONDS, self._give_up, f"it said nothing for {SILENCE_SECONDS:g} s"
        )

    def _give_up(self, why: str) -> None:
        assert self._ticket is not None
        self._end(Lost(why, self._ticket.may_have_left))

    def _end(self, reply: Reply | Lost) -> None:
        if not self._done.done():
            self._done.set_result(reply)

    # -- what the connection tells ---------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """See `Sink`."""
        self._listen()
        self._status = status
        if headers.get("content-type", "").partition(";")[0].strip().lower() == EVENT_STREAM:
            self._decoder = SseDecoder(REPLY_BYTES)

    def on_body(self, chunk: bytes) -> None:
        """See `Sink`."""
        self._listen()
        if self._decoder is not None:
            for event in self._decoder.feed(chunk):
                self._take(event)
        elif len(self._body) + len(chunk) > REPLY_BYTES:
            self._give_up(f"its answer is longer than {REPLY_BYTES} bytes")
        else:
            self._body += chunk

    def on_end(self) -> None:
        """See `Sink`."""
        if self._decoder is None:
            self._end(Reply(self._status, bytes(self._body)))
        else:
            self._give_up("its stream ended before the answer")

    def on_lost(self, lost: Lost) -> None:
        """See `Sink`."""
        self._end(lost)

    def _take(self, event: SseEvent | Oversized) -> None:
        if isinstance(event, Oversized):
            self._give_up(f"its answer is longer than {REPLY_BYTES} bytes")
        elif event.event in ("result", "error"):
            self._end(Reply(self._status, event.data, event.event))
        elif event.event == "progress" and (members := object_members(event.data)) is not None:
            self._watch(Progress(members))
