"""Sessions of legacy callers: random, bound to the caller, limited in number and idle time.

A session is never a credential: every request is authenticated by itself, and a session of somebody else is as
unknown as one that never was.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Protocol

from isthmus.core.calls.inflight import InFlight
from isthmus.faces.mcp.asking import Asked
from isthmus.faces.mcp.interests import Interests
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.features import Topic
from isthmus.model.questions import NOTHING, Profile

SESSIONS_MAX = 1_000
"""Sessions that one caller may have at once; its one unused for longest goes first."""

IDLE_SECONDS = 3600.0
"""A session unused for this long is forgotten; its caller initialises again."""


class Ending(Protocol):
    """Something that tells when it is over."""

    on_end: Callable[[], None] | None


@dataclass(slots=True)
class Session:
    """What the hub remembers between two requests of a legacy caller."""

    id: str
    caller: Caller
    surface: Surface
    used_at: float
    calls: dict[bytes, InFlight] = field(default_factory=dict)
    """Calls in flight by the caller's own id for them, so that they can be cancelled by it."""
    waiting: set[bytes] = field(default_factory=set)
    """Calls that were not started yet, because a server only starts."""
    streams: int = 0
    """Streams of changes that are open; a session that listens is in use."""
    seen: dict[Topic, bytes] = field(default_factory=dict)
    """The digests of the lists it was last given."""
    interests: Interests | None = None
    profile: Profile = NOTHING
    """What the caller said it can be asked."""
    asked: Asked = field(default_factory=Asked)
    push: Callable[[str], None] | None = None
    """Tells of an updated resource on the stream that is open now."""
    missed: set[str] = field(default_factory=set)
    """Resources that were updated while no stream was open."""

    def updated(self, uri: str) -> None:
        """Tell that a resource was updated, now or as soon as the caller listens."""
        if self.push is None:
            self.missed.add(uri)
        else:
            self.push(uri)

    def listen(self, push: Callable[[str], None]) -> None:
        """Tell on this stream from now on, and what was missed first."""
        self.streams += 1
        self.push = push
        missed, self.missed = self.missed, set()
        for uri in sorted(missed):
            push(uri)

    def stop_listening(self, push: Callable[[str], None]) -> None:
        """A stream is over."""
        self.streams -= 1
        if self.push is push:
            self.push = None

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

    def __init__(self) -> None:
        self._of: dict[str, OrderedDict[str, Session]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def open(self, caller: Caller, surface: Surface, now: float) -> Session:
        """A new session."""
        own = self._of.setdefault(caller.name, OrderedDict())
        self._sweep(own, now)
        session = Session(secrets.token_urlsafe(24), caller, surface, now)
        own[session.id] = session
        return session

    def _sweep(self, own: OrderedDict[str, Session], now: float) -> None:
        """Forget what was unused for too long, and the one unused for longest if there is no room."""
        for session in list(own.values()):
            if not _is_idle(session, now):
                break
            self.close(session)
        if len(own) >= SESSIONS_MAX:
            self.close(next(iter(own.values())))

    def find(self, id: str, caller: Caller, surface: Surface, now: float) -> Session | None:
        """The caller's own session; None if it is unknown, forgotten, or another's."""
        own = self._of.get(caller.name, OrderedDict())
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
        """End a session and the calls in it."""
        self._of[session.caller.name].pop(session.id, None)
        if session.interests is not None:
            session.interests.close()
        session.asked.close()
        for inflight in list(session.calls.values()):
            inflight.cancel("the session was ended")


def _is_idle(session: Session, now: float) -> bool:
    return now - session.used_at > IDLE_SECONDS and not session.calls and not session.streams
