"""A closed-loop load: each connection sends its next call when the last one has been answered and checked.

Called by `python -m bench`. It counts only answers that carry the right id and the right text; anything
else ends the run with `WrongAnswer`, because a fast wrong answer must never look like a good figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from secrets import token_hex
from socket import socket
from time import perf_counter
from typing import TypeAlias, cast

import httptools
import msgspec

from bench.messages import Ask

GRACE_SECONDS = 5.0
"""How long after a round's end its last calls may still take; a loopback echo takes milliseconds."""


class WrongAnswer(Exception):
    """An answer that is not the one to the call that was sent, or none at all."""


class Text(msgspec.Struct):
    """One piece of content."""

    text: str


class CallResult(msgspec.Struct):
    """What a result must hold to be checked."""

    content: list[Text]


class Answer(msgspec.Struct):
    """What an answer must hold to be checked."""

    id: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class Served:
    """What one round of load saw."""

    calls: int
    seconds: float
    latencies: Sequence[float]
    """Seconds from write to checked answer, sorted."""

    def quantile(self, share: float) -> float:
        """Return the latency in seconds that `share` of the calls did not exceed."""
        return self.latencies[min(int(len(self.latencies) * share), len(self.latencies) - 1)]


DECODER = msgspec.json.Decoder(Answer)

Check: TypeAlias = Callable[[bytes, Ask], str | None]
"""Says what is wrong with an answer, or nothing."""


class Caller(asyncio.Protocol):
    """One keep-alive connection in a closed loop."""

    def __init__(self, asks: Sequence[Ask], until: float, check: Check) -> None:
        self._asks = cycle(asks)
        self._check = check
        self._until = until
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)
        self.latencies: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first call."""
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        """Let the parser call back."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        """Gather the answer's body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Check the answer, note how long it took, and send the next call."""
        body, self._body = self._body, b""
        now = perf_counter()
        if complaint := self._check(body, self._ask):
            self._fail(f"HTTP {self._parser.get_status_code()}: {complaint}")
            return
        self.latencies.append(now - self._sent)
        if now < self._until:
            self._next()
        else:
            self.ended.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that goes before the round's end is a failure."""
        self._fail(f"the connection was lost ({exc or 'closed by the peer'})")

    def _next(self) -> None:
        self._ask = ask = next(self._asks)
        wire = ask.wire.replace(ask.unique, token_hex(len(ask.unique) // 2).encode()) if ask.unique else ask.wire
        self._sent = perf_counter()
        self._transport.write(wire)

    def _fail(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(WrongAnswer(reason))
            self._transport.abort()


def complaint_about(body: bytes, ask: Ask) -> str | None:
    """Return None when `body` answers `ask`, or what is wrong with it."""
    try:
        answer = DECODER.decode(body)
    except msgspec.MsgspecError as error:
        return f"{error}: {body[:300]!r}"
    if answer.id == ask.id and answer.result.content[0].text == ask.text:
        return None
    return f"call {ask.id} was answered with {body[:300]!r}"


def complaint_about_event(body: bytes, ask: Ask) -> str | None:
    """The same for an answer that may be an event stream, which has it in the last event with data."""
    if body.startswith(b"{"):
        return complaint_about(body, ask)
    events = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    return complaint_about(next((data for data in reversed(events) if data), body), ask)


async def drive(
    port: int,
    asks_of: Sequence[Sequence[Ask]],
    seconds: float,
    check: Check = complaint_about,
    sockets: Sequence[socket] | None = None,
) -> Served:
    """Call for `seconds` over one connection for each list of asks: a new one, or one of `sockets`, which it closes.

    Raises:
        WrongAnswer: an answer was wrong, or a connection was lost or fell silent.
    """
    loop = asyncio.get_running_loop()
    start = perf_counter()
    callers: list[Caller] = []
    for number, asks in enumerate(asks_of):
        connect = partial(Caller, asks, start + seconds, check)
        if sockets is None:
            _, caller = await loop.create_connection(connect, "127.0.0.1", port)
        else:
            _, caller = await loop.create_connection(connect, sock=sockets[number])
        callers.append(caller)
    await all_ended(callers, within=seconds + GRACE_SECONDS)
    latencies = sorted(latency for caller in callers for latency in caller.latencies)
    return Served(len(latencies), perf_counter() - start, latencies)


async def all_ended(callers: Sequence[Caller], within: float) -> None:
    """Wait for every caller, and raise the first failure."""
    done, silent = await asyncio.wait([caller.ended for caller in callers], timeout=within)
    for ended in done:
        ended.result()
    if silent:
        raise WrongAnswer(f"{len(silent)} of {len(callers)} connections had no answer for {GRACE_SECONDS:g} s")
