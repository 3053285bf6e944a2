"""Streams that an earlier caller may come back to: what was said on them is kept for a while, under ids.

A `Tape` is the stream of one call, a `Bulletin` what a session was told beside its calls. Neither knows JSON-RPC, a
call or a session's rules; exchanges speak on tapes, sessions on bulletins, and `http` brings back who returns.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from isthmus.frontends.http.bodies import CROWDED_BYTES, STREAM, KeepAlive
from isthmus.frontends.http.request_cycle import Peer
from isthmus.wire import sse

RETRY_MS = 500
"""How soon a caller whose stream broke should come back."""

KEEP_SECONDS = 30.0
"""How long an answer is kept after it was given: the connection may have broken under its last bytes."""

EVENTS_MAX = 1_000
EVENTS_BYTES = 256 * 1024
"""Reports and log lines kept for one stream; beyond either, the oldest go. Answers stay."""

QUESTIONS_BYTES = 4 * 1024 * 1024
"""What one stream's open questions may hold; beyond it, who comes back does not hear the oldest."""

ANSWERS_BYTES = 16 * 1024 * 1024
"""What one caller's ended streams may hold; beyond it the oldest go, those first that it seems to have read."""

MATTERS_MAX = 2_000
"""Lists and resources of which a session's bulletin remembers that they were told."""

_DIGITS = 9
"""No stream has a billion events, so an id with a longer number is none of ours."""


class Speaker(Protocol):
    """Who speaks on a tape, and hears of its listener."""

    def left(self, peer: Peer) -> None:
        """A connection broke; not necessarily the one that listens now."""

    def came_back(self) -> None:
        """The caller listens again."""


class Tape:
    """One call's stream: says everything to the connection that listens now, and keeps it for the next."""

    def __init__(self, shelf: Shelf, owner: str, speaker: Speaker) -> None:
        self.name = secrets.token_urlsafe(12)
        self.owner = owner
        self.is_over = False
        self.is_delivered = False
        """Whether somebody listened to the end; what the network made of it, nobody knows."""
        self.size_bytes = 0
        self._shelf = shelf
        self._loop = asyncio.get_running_loop()
        self._speaker: Speaker | None = speaker
        self._kept: dict[int, bytes] = {}
        self._reports: deque[int] = deque()
        self._bytes = 0
        self._questions: dict[bytes, int] = {}
        self._questions_bytes = 0
        self._last = 0
        self._peer: Peer | None = None
        self._alive: KeepAlive | None = None
        self._release: Callable[[], None] | None = None

    # -- who listens -----------------------------------------------------------------------------------------------

    def start(self, peer: Peer, *, is_primed: bool) -> None:
        """Begin on the connection that the call came on; primed, the caller can come back before the first event."""
        self._listen(peer, None)
        if is_primed:
            peer.push(sse.prime(self._id(0), RETRY_MS))

    def resume(self, peer: Peer, after: int, release: Callable[[], None]) -> None:
        """Go on here, with what followed that event; `release` is called when this connection is not needed more."""
        self._let_go(b"")
        self._listen(peer, release)
        missed = [chunk for number, chunk in self._kept.items() if number > after]
        peer.push(b"".join([sse.comment(), *missed]))
        if self.is_over:
            self._let_go(b"")
        elif self._speaker is not None:
            self._speaker.came_back()
            peer.on_disconnect(partial(self._speaker.left, peer))

    def left(self, peer: Peer) -> bool:
        """A connection broke; False if another has taken its place already."""
        if peer is not self._peer:
            return False
        self._detach()
        return True

    def _listen(self, peer: Peer, release: Callable[[], None] | None) -> None:
        self._peer = peer
        self._release = release
        peer.begin(200, STREAM)
        self._alive = KeepAlive(peer, self._loop)

    def _let_go(self, last: bytes) -> None:
        """End the answer on the present connection."""
        if self._peer is not None:
            peer = self._peer
            self._detach()
            peer.end(last)

    def _detach(self) -> None:
        self._peer = None
        if self._alive is not None:
            self._alive.stop()
            self._alive = None  # it holds the peer, with what that sent
        release, self._release = self._release, None
        if release is not None:
            release()

    # -- what is said ----------------------------------------------------------------------------------------------

    def _id(self, number: int) -> str:
        return f"{self.name}.{number}"

    def _keep(self, message: bytes) -> bytes:
        self._last += 1
        chunk = self._kept[self._last] = sse.frame(message, id=self._id(self._last))
        self.size_bytes += len(chunk)
        return chunk

    def report(self, message: bytes) -> None:
        """Say what a later report replaces: it is skipped for a listener that does not read, and not kept for ever."""
        if self._peer is not None and self._peer.buffered_bytes() > CROWDED_BYTES:
            return
        self.say(message)

    def say(self, message: bytes) -> None:
        """Say what the caller cannot do without now, and is kept like a report."""
        chunk = self._keep(message)
        self._reports.append(self._last)
        self._bytes += len(chunk)
        while len(self._reports) > EVENTS_MAX or self._bytes > EVENTS_BYTES:
            self._bytes -= self._drop(self._reports.popleft())
        if self._peer is not None:
            self._peer.push(chunk)

    def _drop(self, number: int) -> int:
        """Keep an event no longer; how many bytes it had."""
        dropped = len(self._kept.pop(number))
        self.size_bytes -= dropped
        return dropped

    def put(self, id: bytes, message: bytes) -> None:
        """Say what the caller is to answer under this id; who comes back hears it again until it is settled."""
        chunk = self._keep(message)
        self._questions[id] = self._last
        self._questions_bytes += len(chunk)
        while self._questions_bytes > QUESTIONS_BYTES and len(self._questions) > 1:
            self.settle(next(iter(self._questions)))
        if self._peer is not None:
            self._peer.push(chunk)

    def settle(self, id: bytes) -> None:
        """A question was answered, or need not be: it is not kept any longer."""
        number = self._questions.pop(id, None)
        if number is not None and not self.is_over:  # else the shelf has counted it already
            self._questions_bytes -= self._drop(number)

    def pause(self, retry_ms: int) -> bool:
        """Let the connection go; the caller is to come back in so many milliseconds. False if nobody listens."""
        if self._peer is None:
            return False
        self._let_go(sse.retry(retry_ms))
        return True

    def end(self, message: bytes) -> None:
        """Say the last thing, which is kept for a while."""
        chunk = self._keep(message)
        self.is_over = True
        self.is_delivered = self._peer is not None
        self._speaker = None
        self._let_go(chunk)
        self._shelf.ended(self)


class Shelf:
    """The tapes of one caller's sessions, by name. What has ended is kept for a while."""

    def __init__(self) -> None:
        self._tapes: dict[str, Tape] = {}
        self._ended: dict[str, float] = {}
        """When each that ended is given up, the next first."""
        self._ended_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._tapes)

    def open(self, owner: str, speaker: Speaker) -> Tape:
        """A new tape, of the session whose id is `owner`."""
        tape = Tape(self, owner, speaker)
        self._tapes[tape.name] = tape
        return tape

    def find(self, owner: str, event_id: str) -> tuple[Tape, int] | None:
        """The tape that an event is on, and its number; None if this session has none such."""
        name, _, number = event_id.rpartition(".")
        tape = self._tapes.get(name)
        if tape is None or tape.owner != owner or not _is_number(number):
            return None
        return tape, int(number)

    def ended(self, tape: Tape) -> None:
        """Keep an ended tape for a while, and only so many bytes of them."""
        if tape.name not in self._tapes:  # its session is gone
            return
        loop = asyncio.get_running_loop()
        self._ended[tape.name] = loop.time() + KEEP_SECONDS
        self._ended_bytes += tape.size_bytes
        while self._ended_bytes > ANSWERS_BYTES and len(self._ended) > 1:
            self._drop(self._least_needed())
        if self._timer is None:
            self._timer = loop.call_later(KEEP_SECONDS, self._expire)

    def forget(self, owner: str) -> None:
        """Drop everything of a session that is over."""
        for name in [name for name, tape in self._tapes.items() if tape.owner == owner]:
            self._drop(name)

    def _least_needed(self) -> str:
        *older, _newest = self._ended
        return next((name for name in older if self._tapes[name].is_delivered), older[0])

    def _drop(self, name: str) -> None:
        tape = self._tapes.pop(name)
        if self._ended.pop(name, None) is not None:
            self._ended_bytes -= tape.size_bytes

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for name, due in list(self._ended.items()):
            if due > loop.time():
                self._timer = loop.call_at(due, self._expire)
                return
            self._drop(name)


class Bulletin:
    """What a session was told beside its calls: of each matter only that it was told, and when last."""

    def __init__(self) -> None:
        self._name = secrets.token_urlsafe(12)
        self._told: dict[str, tuple[int, bytes]] = {}
        self._last = 0

    def mark(self, last_event_id: str | None = None) -> bytes:
        """How a stream begins: with where the caller may come back to, which is here or where it was."""
        return sse.mark(last_event_id or f"{self._name}.{self._last}", RETRY_MS)

    def add(self, matter: str, message: bytes) -> bytes:
        """The event for a message about something; it takes the place of the last one about the same."""
        self._last += 1
        chunk = sse.frame(message, id=f"{self._name}.{self._last}")
        self._told.pop(matter, None)
        self._told[matter] = (self._last, chunk)
        if len(self._told) > MATTERS_MAX:
            del self._told[next(iter(self._told))]
        return chunk

    def forget(self, matter: str) -> None:
        """Nobody cares for it any more."""
        self._told.pop(matter, None)

    def after(self, event_id: str) -> bytes | None:
        """What was told after an event; None if it is none of these."""
        name, _, number = event_id.rpartition(".")
        if name != self._name or not _is_number(number):
            return None
        return b"".join(chunk for told, chunk in self._told.values() if told > int(number))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS
