"""MCP over standard streams: one caller, both eras, one line a message.

A carrier for `dialogue` without a door: whoever owns the streams feeds bytes in and is handed bytes to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.crew import Crew
from isthmus.faces.mcp.changes import ChangeFeed
from isthmus.faces.mcp.dialogue import Answer, Dialogue, Era, answer_call, event_notification, refuse, withdrawn
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.events import Event
from isthmus.model.outcomes import Outcome
from isthmus.wire import jsonrpc, lines
from isthmus.wire.jsonrpc import Batch, Malformed, Notification, Payload, Request
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.tools import CANCELLED, TOOLS_CHANGED
from isthmus.wire.oversized import Oversized

log = structlog.get_logger(__name__)

INITIALIZED = "notifications/initialized"


class McpStdio:
    """One conversation. `write` takes finished lines; `feed` gives what was read."""

    def __init__(
        self,
        dialogue: Dialogue,
        caller: Caller,
        surface: Surface,
        crew: Crew,
        write: Callable[[bytes], None],
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_crowded` says that the caller reads slowly: progress is then skipped, as a later report replaces it."""
        self._is_crowded = is_crowded
        self._dialogue = dialogue
        self._hub = dialogue.hub
        self._caller = caller
        self._surface = surface
        self._crew = crew
        self._write = write
        self._decoder = lines.LineDecoder(self._hub.limits.request_bytes)
        self._calls: dict[bytes, InFlight] = {}
        self._waiting: set[bytes] = set()
        """Calls that wait for servers which only start."""
        self._feeds: dict[bytes, ChangeFeed] = {}
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def feed(self, chunk: bytes) -> None:
        """Take what was read from the caller."""
        for line in self._decoder.feed(chunk):
            if isinstance(line, Oversized):
                text = f"a message may have {line.limit_bytes} bytes at most"
                self._say(refuse(None, jsonrpc.INVALID_REQUEST, text).body)
            else:
                self._read(line)

    async def finish(self) -> None:
        """Wait until everything asked so far has been answered."""
        for feed in self._feeds.values():
            feed.close()
        await self._idle.wait()

    def cancel_all(self, why: str) -> None:
        """Withdraw every call: the caller has gone."""
        for inflight in list(self._calls.values()):
            inflight.cancel(why)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, line: bytes) -> None:
        message = jsonrpc.decode(line, max_depth=self._hub.limits.depth)
        match message:
            case Request(method="tools/call") if not self._hub.is_settling():
                # Now and not in a task: its cancellation may be the next line.
                self._begin()
                self._call(message)
            case Request():
                self._begin()
                if message.method == "tools/call":
                    self._waiting.add(bytes(message.id))
                crashed = partial(self._crashed, message.id)
                self._crew.spawn(f"answer to {message.method}", self._answer(message), on_crash=crashed)
            case Notification():
                self._noted(message)
            case Malformed():
                self._say(refuse(message.id, message.code, message.message).body)
            case Batch():
                self._say(refuse(None, jsonrpc.INVALID_REQUEST, "Batches are not supported").body)
            case _:
                pass  # an answer, though nothing was asked

    def _noted(self, notification: Notification) -> None:
        if notification.method == INITIALIZED:
            self._subscribe(b"", jsonrpc.notification(TOOLS_CHANGED, None))
        elif notification.method == CANCELLED and "requestId" in notification.params:
            id = bytes(notification.params["requestId"])
            if (inflight := self._calls.get(id)) is not None:
                inflight.cancel("by the caller")
            elif (feed := self._feeds.pop(id, None)) is not None:
                feed.close()
            self._waiting.discard(id)

    # -- answering -------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> None:
        if request.method == "tools/call":
            return await self._call_when_settled(request)
        era = self._dialogue.era_of(request, None)
        meta = self._dialogue.check(request, None) if era == "modern" else None
        if isinstance(meta, Answer):
            self._reply(meta)
        elif request.method == modern.LISTEN and era == "modern":
            self._listen(request)
        else:
            self._reply(await self._dialogue.answer(request, self._caller, self._surface, era))
        return None

    async def _call_when_settled(self, request: Request) -> None:
        """Start a call once servers that only start were given their moment, unless it is withdrawn meanwhile."""
        id = bytes(request.id)
        await self._hub.settle(self._surface)
        if id in self._waiting:
            self._waiting.discard(id)
            self._call(request)
        else:
            self._reply(withdrawn(request.id))

    def _call(self, request: Request) -> None:
        era = self._dialogue.era_of(request, None)
        meta = self._dialogue.check(request, None) if era == "modern" else None
        if isinstance(meta, Answer):
            return self._reply(meta)
        read = self._dialogue.read_call(request, self._caller, self._surface, meta)
        if isinstance(read, Answer):
            return self._reply(read)
        call, token = read
        id = bytes(request.id)
        inflight = self._hub.start(call, _Exchange(self, id, era, token))
        if inflight.outcome is None:
            self._calls[id] = inflight
        return None

    def ended(self, id: bytes, outcome: Outcome, era: Era) -> None:
        """A call is over."""
        self._calls.pop(id, None)
        self._reply(answer_call(id, outcome, era))

    def _listen(self, request: Request) -> None:
        wanted = modern.wants_tool_changes(request.params)
        if wanted is None:
            text = "subscriptions/listen needs notifications, an object"
            self._reply(refuse(request.id, jsonrpc.INVALID_PARAMS, text))
            return
        params = modern.acknowledged_params(request.id, tools=wanted)
        self._say(jsonrpc.notification(modern.ACKNOWLEDGED, params))
        self._done()  # it has no answer while the conversation lasts
        if wanted:
            news = jsonrpc.notification(TOOLS_CHANGED, modern.marked_params(request.id))
            self._subscribe(bytes(request.id), news)

    def _subscribe(self, id: bytes, news: bytes) -> None:
        if id not in self._feeds:
            self._feeds[id] = ChangeFeed(self._hub, self._caller.grants, self._surface, lambda: self._say(news))

    # -- writing ---------------------------------------------------------------------------------------------------

    def say_event(self, event: Event, token: Payload) -> None:
        """Tell the caller what happens during a call."""
        if not self._is_crowded():
            self._say(event_notification(event, token))

    def _reply(self, answer: Answer) -> None:
        self._say(answer.body)
        self._done()

    def _say(self, message: bytes) -> None:
        self._write(lines.frame(message))

    def _begin(self) -> None:
        self._open += 1
        self._idle.clear()

    def _done(self) -> None:
        self._open -= 1
        if not self._open:
            self._idle.set()

    def _crashed(self, id: Payload, _: BaseException) -> None:
        self._reply(refuse(id, jsonrpc.INTERNAL_ERROR, "Internal error; the hub's log says more"))


class _Exchange:
    """The caller's side of a call on this conversation."""

    __slots__ = ("_era", "_face", "_id", "_token")

    def __init__(self, face: McpStdio, id: bytes, era: Era, token: msgspec.Raw | None) -> None:
        self._face = face
        self._id = id
        self._era = era
        self._token = token

    def emit(self, event: Event) -> None:
        """Pass progress on, if the caller asked for it."""
        if self._token is not None:
            self._face.say_event(event, self._token)

    def end(self, outcome: Outcome) -> None:
        """Answer."""
        self._face.ended(self._id, outcome, self._era)
