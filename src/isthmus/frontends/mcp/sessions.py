"""Sessions of legacy callers: random, bound to the caller, limited in number and idle time.

A session is never a credential: every request is authenticated by itself, and a session of somebody else is as
unknown as one that never was.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from isthmus.core.calls.inflight import InFlight
from isthmus.core.watch.tasks import Task
from isthmus.frontends.http.bodies import CROWDED_BYTES
from isthmus.frontends.mcp.asking import Asked
from isthmus.frontends.mcp.dialogue import updated_params
from isthmus.frontends.mcp.interests import Interests
from isthmus.frontends.mcp.replays import Bulletin, Shelf, Speaker, Tape
from isthmus.frontends.mcp.task_news import TaskNews
from isthmus.frontends.mcp.tasks import status_message
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.features import Topic
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities
from isthmus.wire import jsonrpc, sse
from isthmus.wire.mcp.messages import CHANGED, UPDATED

Owner: TypeAlias = tuple[str, str]
"""A caller's tenant and name."""

SESSIONS_MAX = 1_000
"""Sessions that one caller may have at once; its one unused for longest goes first."""

IDLE_SECONDS = 3600.0
"""A session unused for this long is forgotten; its caller initialises again."""

UNTOLD_MAX = 100
"""Tasks of which a session is told when it listens; it can ask about each and all at any time."""

POLLING_VERSION = "2025-11-25"
"""From here on, callers know that a stream may begin with an event without content, and be left and resumed."""


class Ending(Protocol):
    """Something that tells when it is over."""

    on_end: Callable[[], None] | None


@dataclass(slots=True, eq=False)
class Listener:
    """A stream on which a session is told what belongs to no call."""

    tell: Callable[[bytes], None]
    end: Callable[[], None]
    unsent_bytes: Callable[[], int] = lambda: 0


@dataclass(slots=True)
class Session:
    """What the hub remembers between two requests of a legacy caller."""

    id: str
    caller: Caller
    surface: Surface
    used_at: float
    shelf: Shelf = field(default_factory=Shelf)
    """The streams of its caller's calls, its own among them."""
    version: str = ""
    """What was agreed on when it was opened."""
    calls: dict[bytes, InFlight] = field(default_factory=dict)
    """Calls in flight by the caller's own id for them, so that they can be cancelled by it."""
    waiting: set[bytes] = field(default_factory=set)
    """Calls that were not started yet, because a server only starts."""
    listeners: list[Listener] = field(default_factory=list)
    """Streams that are open; the latest is told. A session that listens is in use."""
    seen: dict[Topic, bytes] = field(default_factory=dict)
    """The digests of the lists it was last given."""
    told: dict[Topic, bytes] = field(default_factory=dict)
    """Those of the lists that it was last given, or told that they changed."""
    interests: Interests | None = None
    client_caps: ClientCapabilities = NO_CAPABILITIES
    """What the caller said it can be asked."""
    asked: Asked = field(default_factory=Asked)
    bulletin: Bulletin = field(default_factory=Bulletin)
    missed: dict[str, None] = field(default_factory=dict)
    """Resources that were updated while no stream was open, in the order in which they first were."""
    news: TaskNews | None = None
    untold: dict[Task, None] = field(default_factory=dict)
    """Tasks of which there was something to tell meanwhile."""

    @property
    def can_poll(self) -> bool:
        """Whether its caller knows that it may have to come back to a stream."""
        return self.version >= POLLING_VERSION

    def record(self, speaker: Speaker) -> Tape:
        """A stream for a call of this session, to which its caller can come back."""
        return self.shelf.open(self.id, speaker)

    def is_crowded(self) -> bool:
        """Whether the caller has not taken yet what it was told last."""
        return bool(self.listeners) and self.listeners[-1].unsent_bytes() > 0

    def is_slow(self) -> bool:
        """Whether the caller is far behind with what it was told."""
        return bool(self.listeners) and self.listeners[-1].unsent_bytes() > CROWDED_BYTES

    def say(self, message: bytes) -> None:
        """Tell what belongs to no call that runs, if the caller listens; it is of no use later."""
        if self.listeners:
            self.listeners[-1].tell(sse.frame(message))

    def report(self, message: bytes) -> None:
        """The same for what a later report replaces, unless the caller reads slowly."""
        if not self.is_slow():
            self.say(message)

    def updated(self, uri: str) -> None:
        """Tell that a resource was updated, now or as soon as the caller listens."""
        if not self.listeners:
            self.missed[uri] = None
        else:
            self.listeners[-1].tell(self.bulletin.add(uri, _updated(uri)))

    def forget(self, uri: str) -> None:
        """Tell nothing of a resource that the caller does not follow any more."""
        self.missed.pop(uri, None)
        self.bulletin.forget(uri)

    def task_told(self, task: Task) -> None:
        """Tell how a task stands, now or as soon as the caller listens."""
        if self.listeners:
            self.say(status_message(task, self.caller))
            return
        self.untold[task] = None
        if len(self.untold) > UNTOLD_MAX:
            del self.untold[next(iter(self.untold))]

    def tell_change(self, topic: Topic, listener: Listener) -> bool:
        """Tell that a list changed; False if there is a later stream on which that is told."""
        if self.listeners[-1:] != [listener]:
            return False
        listener.tell(self.bulletin.add(CHANGED[topic], jsonrpc.notification(CHANGED[topic], None)))
        return True

    def listen(self, listener: Listener, last_event_id: str | None = None) -> None:
        """Tell on this stream from now on; first what followed the event that the caller heard last, then the rest."""
        again = None if last_event_id is None else self.bulletin.after(last_event_id)
        if again:
            listener.tell(again)
        self.listeners.append(listener)
        missed, self.missed = self.missed, {}
        for uri in missed:
            self.updated(uri)
        untold, self.untold = self.untold, {}
        for task in untold:
            self.task_told(task)

    def stop_listening(self, listener: Listener) -> None:
        """A stream is over; if it was the latest, the one before it is told now."""
        self.listeners.remove(listener)

    def cancel(self, id: bytes) -> None:
        """Withdraw the call that the caller knows by this id, if there is one."""
        self.waiting.discard(id)
        inflight = self.calls.get(id)
        if inflight is not None:
            inflight.cancel("by the caller")

    def hold(self, id: bytes, inflight: InFlight, exchange: Ending) -> None:
        """Keep a call so that the caller can cancel it by its own id, until it ends."""
        self.calls[id] = inflight
        then = exchange.on_end

        def release() -> None:
            if self.calls.get(id) is inflight:
                del self.calls[id]
            if then is not None:
                then()

        exchange.on_end = release


class Sessions:
    """All sessions of one face, kept by caller so that nobody can crowd out another's. Time comes in."""

    def __init__(self, on_close: Callable[[str], None] = lambda _id: None) -> None:
        """`on_close` hears of every session that is over, when its calls are."""
        self._on_close = on_close
        self._of: dict[Owner, OrderedDict[str, Session]] = {}
        self._shelves: dict[Owner, Shelf] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def open(self, caller: Caller, surface: Surface, now: float, version: str = "") -> Session:
        """A new session, in which this version of MCP is spoken."""
        owner = _owner(caller)
        self._make_room(self._of.get(owner, OrderedDict()), now)
        own = self._of.setdefault(owner, OrderedDict())
        shelf = self._shelves.setdefault(owner, Shelf())
        session = Session(secrets.token_urlsafe(24), caller, surface, now, shelf, version)
        own[session.id] = session
        return session

    def sweep(self, now: float) -> None:
        """Forget every session that was unused for too long."""
        for own in list(self._of.values()):
            for session in [session for session in own.values() if _is_idle(session, now)]:
                self.close(session)

    def _make_room(self, own: OrderedDict[str, Session], now: float) -> None:
        """Forget what was unused for too long, and the one unused for longest if there is no room."""
        for session in list(own.values()):
            if not _is_idle(session, now):
                break
            self.close(session)
        if len(own) >= SESSIONS_MAX:
            self.close(next(iter(own.values())))

    def find(self, id: str, caller: Caller, surface: Surface, now: float) -> Session | None:
        """The caller's own session; None if it is unknown, forgotten, or another's."""
        own = self._of.get(_owner(caller), OrderedDict())
        session = own.get(id)
        if session is None or session.caller != caller or session.surface != surface:
            return None
        if _is_idle(session, now):
            self.close(session)
            return None
        session.used_at = now
        own.move_to_end(id)
        return session

    def retain(self, callers: Container[Caller]) -> None:
        """End the sessions of everybody else: who was taken out of the configuration, or may now do other things."""
        for own in list(self._of.values()):
            for session in list(own.values()):
                if session.caller not in callers:
                    self.close(session)

    def close(self, session: Session) -> None:
        """End a session, the calls in it and its streams."""
        owner = _owner(session.caller)
        own = self._of.get(owner, OrderedDict())
        if own.pop(session.id, None) is not None and not own:
            # Callers may come by the thousand, each known by a token of its own.
            del self._of[owner], self._shelves[owner]
        if session.interests is not None:
            session.interests.close()
        if session.news is not None:
            session.news.close()
        session.asked.close()
        for inflight in list(session.calls.values()):
            inflight.cancel("the session was ended")
        self._on_close(session.id)
        session.shelf.forget(session.id)
        for listener in list(session.listeners):
            listener.end()


def _owner(caller: Caller) -> Owner:
    """Two tenants may have a caller of the same name each."""
    return caller.tenant, caller.name


def _is_idle(session: Session, now: float) -> bool:
    return now - session.used_at > IDLE_SECONDS and not session.calls and not session.listeners


def _updated(uri: str) -> bytes:
    return jsonrpc.notification(UPDATED, jsonrpc.render(updated_params(uri)))
