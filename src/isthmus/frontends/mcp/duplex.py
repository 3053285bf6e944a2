"""A conversation with one MCP caller, whatever carries it: both eras, many messages each way on one stream.

It knows no sockets and no frames: whoever carries it hands over whole messages and is handed whole messages to
deliver. The standard streams and the earlier HTTP+SSE transport are carried so.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial

import msgspec

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.inflight import InFlight
from isthmus.core.watch.tasks import Task
from isthmus.frontends.mcp.asker import Asker
from isthmus.frontends.mcp.asking import Asked
from isthmus.frontends.mcp.batches import BATCH_MAX, BATCHES_VERSION
from isthmus.frontends.mcp.caller_side import CallerSide
from isthmus.frontends.mcp.changes import ChangeFeed
from isthmus.frontends.mcp.dialogue import (
    Answer,
    Dialogue,
    profile_of,
    refuse,
    updated_params,
    withdrawn,
)
from isthmus.frontends.mcp.faults import Era
from isthmus.frontends.mcp.interests import Interests
from isthmus.frontends.mcp.marked import MarkedStream
from isthmus.frontends.mcp.subscription import Subscription
from isthmus.frontends.mcp.task_news import TaskNews
from isthmus.frontends.mcp.tasks import is_of_session, status_message
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Surface
from isthmus.model.events import Event, LogLevel
from isthmus.model.features import TOPICS, Topic
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Batch, ErrorReply, Malformed, Notification, Payload, Request, Response
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.capabilities import read_profile
from isthmus.wire.mcp.messages import CANCELLED, CHANGED, UPDATED, Members
from isthmus.wire.mcp.requests import CALLS

INITIALIZED = "notifications/initialized"
_NESTED = refuse(None, jsonrpc.INVALID_REQUEST, "A batch must not hold another")


class Conversation:
    """One caller's. `deliver` takes finished messages; `take` is given what was read."""

    def __init__(
        self,
        dialogue: Dialogue,
        caller: Caller,
        surface: Surface,
        background: BackgroundTasks,
        deliver: Callable[[bytes], None],
        is_crowded: Callable[[], bool] = lambda: False,
        session: str | None = None,
        whose: Callable[[Members], tuple[Caller, str, bool] | None] = lambda _meta: None,
    ) -> None:
        """`is_crowded` says that the caller reads slowly: events are then skipped, as a later report replaces one.

        A caller that is known to be the same again has the `session` that it had. One that calls for others has
        `whose` say by a modern call's `_meta` who calls, in which conversation, and what `Call.shares_link` is.
        """
        self._is_crowded = is_crowded
        self._whose = whose
        self._dialogue = dialogue
        self._hub = dialogue.hub
        self._caller = caller
        self._surface = surface
        self._background = background
        self._say = deliver
        self._calls: dict[bytes, InFlight] = {}
        self._waiting: set[bytes] = set()
        """Calls that wait for servers which only start."""
        self._session = session or secrets.token_hex(8)
        self._interests = Interests(
            self._hub, caller, surface, self._tell_update, session=self._session, is_crowded=is_crowded
        )
        self._version = ""
        """What was agreed on with an earlier caller."""
        self._profile: ClientCapabilities = NO_CAPABILITIES
        self._asked = Asked()
        self._feed: ChangeFeed | None = None
        self._news: TaskNews | None = None
        """Tasks that a modern caller follows, by its subscriptions."""
        self._streams: dict[bytes, Subscription] = {}
        """Subscriptions of a modern caller, by their ids; without a feed until they are acknowledged."""
        self._is_telling = True
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether everything asked so far has been answered."""
        return self._idle.is_set()

    def asked_bytes(self) -> int:
        """How long the arguments are of calls that have not ended."""
        return sum(memoryview(inflight.call.arguments).nbytes for inflight in self._calls.values())

    async def finish(self) -> None:
        """Wait until everything asked so far has been answered."""
        self.stop_telling()
        await self._idle.wait()

    def stop_telling(self) -> None:
        """Tell nothing any more but answers."""
        self._is_telling = False
        if self._feed is not None:
            self._feed.close()
        if self._news is not None:
            self._news.close()
        for id in list(self._streams):
            self._unsubscribe(id)
        self._interests.close()

    def cancel_all(self, why: str) -> None:
        """Withdraw every call: the caller has gone."""
        self._waiting.clear()
        self._asked.close()
        for inflight in list(self._calls.values()):
            inflight.cancel(why)
        self._hub.left(self._session)

    # -- reading ---------------------------------------------------------------------------------------------------

    def take(self, body: bytes) -> Answer | None:
        """Take one message of the caller's; what is no message comes back refused, for the carrier to tell."""
        message = jsonrpc.decode(body, max_depth=self._hub.limits.depth)
        match message:
            case Request(method=method) if method in CALLS and not self._hub.is_settling():
                # Now and not in a task: its cancellation may be the next line.
                self._begin()
                self._call(message)
            case Request():
                self._begin()
                if message.method in CALLS:
                    self._waiting.add(bytes(message.id))
                crashed = partial(self._crashed, message.id)
                self._background.spawn(f"answer to {message.method}", self._answer(message), on_crash=crashed)
            case Notification():
                self._noted(message)
            case Malformed():
                return refuse(message.id, message.code, message.message)
            case Batch():
                return self._batch(body)
            case Response() | ErrorReply():
                self._asked.take(message)
        return None

    def _batch(self, body: bytes) -> Answer | None:
        """Take several messages, of a caller whose revision has such; each is answered by itself."""
        if self._version != BATCHES_VERSION:
            return refuse(None, jsonrpc.INVALID_REQUEST, "Batches are not supported")
        if not (elements := jsonrpc.elements(body, BATCH_MAX)):
            return refuse(None, jsonrpc.INVALID_REQUEST, f"A batch has 1 to {BATCH_MAX} messages")
        for element in elements:
            refused = _NESTED if element.startswith(b"[") else self.take(element)
            if refused is not None:
                self._say(refused.body)
        return None

    def _noted(self, notification: Notification) -> None:
        if notification.method == INITIALIZED:
            if self._feed is None and self._is_telling:
                self._interests.attend()
                self._news = TaskNews(
                    self._hub,
                    self._caller,
                    self._surface,
                    self._tell_task,
                    self._is_crowded,
                    session=self._session,
                    client_caps=self._profile,
                )
                self._feed = ChangeFeed(
                    self._hub, self._caller.grants, self._surface, self._tell_change, TOPICS, client_caps=self._profile
                )
        elif notification.method == CANCELLED and "requestId" in notification.params:
            id = bytes(notification.params["requestId"])
            if (inflight := self._calls.get(id)) is not None:
                inflight.cancel("by the caller")
            self._unsubscribe(id)
            self._waiting.discard(id)

    def _tell_change(self, topic: Topic) -> None:
        self._say(jsonrpc.notification(CHANGED[topic], None))

    def _tell_update(self, uri: str) -> None:
        self._say(jsonrpc.notification(UPDATED, jsonrpc.render(updated_params(uri))))

    def _tell_task(self, task: Task) -> None:
        self._say(status_message(task, self._caller))

    # -- answering -------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> None:
        if request.method in CALLS:
            return await self._call_when_settled(request)
        era = self._dialogue.era_of(request, None)
        meta = self._dialogue.check(request, None) if era == "modern" else None
        if isinstance(meta, Answer):
            self._reply(meta)
        elif request.method == modern.LISTEN and era == "modern":
            await self._listen(request)
        elif era == "legacy" and (noted := await self._dialogue.note(request, self._interests)) is not None:
            self._reply(noted)
        else:
            if request.method == "initialize":
                self._version = legacy.negotiate(legacy.requested_version(request.params) or "")
                self._profile = self._interests.client_caps = read_profile(request.params.get("capabilities"))
            answer = await self._dialogue.answer(
                request, self._caller, self._surface, era, self._profile, self._session, self._version
            )
            self._reply(answer)
        return None

    async def _call_when_settled(self, request: Request) -> None:
        """Start a call once servers that only start were given their moment, unless it is withdrawn meanwhile."""
        id = bytes(request.id)
        await self._hub.settle(
            self._surface, until=partial(self._dialogue.is_known, request, self._caller, self._surface)
        )
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
        whose = None if meta is None else self._whose(meta)
        caller, session, shares = whose or (self._caller, self._session, False)
        read = self._dialogue.read_call(request, caller, self._surface, meta, self._interests.level, self._profile)
        if isinstance(read, Answer):
            return self._reply(read)
        call, token = read
        if call.client_caps or (call.extra and is_of_session(call)):
            call = msgspec.structs.replace(call, session=session, shares_link=shares)
        id = bytes(request.id)
        level = call.log_level if era == "modern" else call.log_level or "debug"
        asker: Asker | None = self._asked if era == "legacy" else self._dialogue.comebacks
        exchange = _Exchange(self, id, era, token, level, call, asker)
        inflight = self._dialogue.start(call, exchange)
        if inflight is not None and inflight.outcome is None and inflight.exchange is exchange:
            self._calls[id] = inflight
            if call.client_caps and era == "modern":
                exchange.inflight = inflight
        return None

    def ended(self, id: bytes, answer: Answer) -> None:
        """A call is over."""
        self._calls.pop(id, None)
        self._reply(answer)

    async def _listen(self, request: Request) -> None:
        client_caps = profile_of(request, "modern")
        wanted = self._dialogue.read_wanted(request, client_caps)
        if isinstance(wanted, Answer):
            self._reply(wanted)
            return
        id = bytes(request.id)
        self._unsubscribe(id)
        stream = MarkedStream(request.id, self._say, frame=bytes)
        listening = self._streams[id] = Subscription(
            self._hub,
            self._caller,
            self._surface,
            client_caps,
            stream,
            self._is_crowded,
            session=self._session,
            kept=self._dialogue.kept,
        )
        honoured = await listening.agree(wanted)
        if self._is_telling and self._streams.get(id) is listening:
            self._say(stream.acknowledge(honoured))
            listening.begin()
            listening.tell_changes(honoured.topics)
        else:  # it was withdrawn meanwhile, or the caller has left
            listening.close()
        self._done()  # it has no answer while the conversation lasts

    def _unsubscribe(self, id: bytes) -> None:
        listening = self._streams.pop(id, None)
        if listening is not None:
            listening.close()

    # -- writing ---------------------------------------------------------------------------------------------------

    def say(self, message: bytes) -> None:
        """Tell the caller something that it cannot do without."""
        self._say(message)

    def report(self, message: bytes) -> None:
        """Tell the caller what a later report replaces, unless it reads slowly."""
        if not self._is_crowded():
            self._say(message)

    def _reply(self, answer: Answer) -> None:
        self._say(answer.body)
        self._done()

    def _begin(self) -> None:
        self._open += 1
        self._idle.clear()

    def _done(self) -> None:
        self._open -= 1
        if not self._open:
            self._idle.set()

    def _crashed(self, id: Payload, _: BaseException) -> None:
        self._reply(refuse(id, jsonrpc.INTERNAL_ERROR, "Internal error; the hub's log says more"))


class _Exchange(CallerSide):
    """The caller's side of a call on this conversation."""

    __slots__ = ("_face",)

    def __init__(
        self,
        face: Conversation,
        id: bytes,
        era: Era,
        token: msgspec.Raw | None,
        level: LogLevel | None,
        call: Call,
        asker: Asker | None,
    ) -> None:
        self._face = face
        self._id = id
        self._era = era
        self._token = token
        self._level = level
        self._asker = asker
        self.call = call
        self.inflight = None

    def emit(self, event: Event) -> None:
        """Pass an event on, if the caller asked for it."""
        message = self._told(event)
        if message is not None:
            self._face.report(message)

    def say(self, message: bytes) -> None:
        """Tell the caller something while the call runs."""
        self._face.say(message)

    def _afterwards(self) -> Callable[[bytes], None]:
        return self._face.report

    def end(self, outcome: Outcome) -> None:
        """Answer."""
        self._face.ended(bytes(self._id), self._answer_to(outcome))
