"""How a raw server performs `tools/call`: the ledger first, then whatever its modes say.

It writes through an `Exchange`, one per request, which stdio and HTTP each implement; so every mode means the
same on both, as far as the carrier allows.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tests.peers.raw_modes import Modes
from tests.peers.raw_protocol import (
    INVALID_PARAMS,
    META,
    Json,
    RawProtocol,
    error,
    finished,
    meta_of,
    params_of,
)

CANCELLED = -32800
FLOOD_MESSAGES = 100_000
FLOOD_BATCH = 500
ENDLESS_SECONDS = 0.001
"""A pause between endless events: still a flood to the reader, without taking a whole core."""
LOOK_SECONDS = 0.01
"""How often a file that an answer waits for is looked for."""


class Exchange(Protocol):
    """The server's side of one request. `cancelled` is set when its caller no longer wants the answer."""

    cancelled: asyncio.Event
    headers: dict[str, str]

    def stream(self) -> None:
        """Choose an event stream for the answer, if the carrier has a choice."""

    def frame(self, message: Json) -> bytes:
        """The bytes with which the message goes out, everything before them included."""

    async def write(self, data: bytes) -> None:
        """Send bytes as they are and return once the kernel has them."""

    def unended(self, size: int) -> bytes:
        """The start of a message without its end."""

    def garbage(self) -> bytes:
        """Things that a careful reader skips."""

    def drop(self) -> None:
        """Break the connection, with whatever else is under way on it."""

    async def close(self, *, is_answered: bool) -> None:
        """End the answer properly."""


class Caller:
    """Performs calls for one server and remembers who wants to hear of list changes."""

    def __init__(self, protocol: RawProtocol) -> None:
        self.protocol = protocol
        self.listeners: dict[Exchange, object] = {}
        """Open streams for list changes, each with its subscription id (modern) or None (legacy)."""

    async def perform(self, request: Json, exchange: Exchange) -> None:
        """Run one `tools/call` to whatever end its modes give it."""
        modes = self.protocol.modes.with_more(_arguments(request).get("mode"))
        if modes.given.keys() & STREAMED:
            exchange.stream()
        if "die_before_write" in modes:
            die()
        if "hang" in modes:
            await self._wait_for_ever(request, exchange)
            return
        self._record(request, executed=True)
        if "die_after_ledger" in modes:
            die()
        if "drop" in modes:
            exchange.drop()
            return
        await self._misbehave_before_answer(request, exchange, modes)
        if not await self._delay(exchange, modes):
            self._record(request, executed=False)
            await exchange.close(is_answered=False)
            return
        await _answer(exchange, {**_envelope(request), **await self._outcome(request, exchange, modes)}, modes)

    async def announce_change(self) -> None:
        """Tell every listener that the list of tools has changed."""
        for exchange, subscription in list(self.listeners.items()):
            await exchange.write(exchange.frame(list_changed(subscription)))

    async def churn(self) -> None:
        """Change the list and announce it, as often a second as the mode says, for ever."""
        every, turn = 1 / self.protocol.modes.number("churn", 1000), 0
        started = asyncio.get_running_loop().time()
        while True:
            turn += 1
            self.protocol.turn = turn
            await self.announce_change()
            await asyncio.sleep(started + turn * every - asyncio.get_running_loop().time())

    async def _wait_for_ever(self, request: Json, exchange: Exchange) -> None:
        await exchange.cancelled.wait()
        self._record(request, executed=False)
        await exchange.close(is_answered=False)

    def _record(self, request: Json, *, executed: bool) -> None:
        nonce = _arguments(request).get("nonce")
        if params_of(request).get("name") == "pay":
            received = {"cancelled": nonce, "at": time.monotonic()}
            self.protocol.ledger.record(**({"nonce": nonce} if executed else received))

    async def _misbehave_before_answer(self, request: Json, exchange: Exchange, modes: Modes) -> None:
        if "garbage" in modes:
            await exchange.write(exchange.garbage())
        if "progress" in modes and (token := meta_of(request).get("progressToken")) is not None:
            total = modes.count("progress", 3)
            for step in range(1, total + 1):
                await exchange.write(exchange.frame(progress(token, step, total)))
        if "notify_flood" in modes:
            await _flood(exchange, modes.count("notify_flood", FLOOD_MESSAGES))
        if "nonewline" in modes:
            await exchange.write(exchange.unended(modes.count("nonewline", 64 << 20)))
            await exchange.cancelled.wait()
        while "endless_sse" in modes and not exchange.cancelled.is_set():
            await exchange.write(exchange.frame(progress("nobody", 1, 1, "x" * 1024)))
            await asyncio.sleep(ENDLESS_SECONDS)

    async def _delay(self, exchange: Exchange, modes: Modes) -> bool:
        """Wait as told; whether an answer is still to be sent."""
        if "late_reply" in modes:
            await _cancelled_within(exchange, modes.number("late_reply", 2.0))
            return True
        if "sleep" in modes:
            return not await _cancelled_within(exchange, modes.number("sleep", 1.0))
        while "until" in modes and not _is_there(modes.given["until"]):
            if await _cancelled_within(exchange, LOOK_SECONDS):
                return False
        return not exchange.cancelled.is_set()

    async def _outcome(self, request: Json, exchange: Exchange, modes: Modes) -> Json:
        given = _arguments(request)
        match params_of(request).get("name"):
            case "pay":
                text = given.get("nonce")
            case "echo":
                text = given.get("text")
            case "meta":
                text = json.dumps({"_meta": meta_of(request), "headers": exchange.headers})
            case "grow":
                text = await self._grow(str(given.get("name")))
            case str(other) if self.protocol.is_one_of_many(other):
                text = other
            case other:
                return {"error": error(INVALID_PARAMS, f"Unknown tool: {other}")}
        content = [{"type": "text", "text": text}]
        if "huge" in modes:
            content.append({"type": "text", "text": "x" * modes.count("huge", 100 << 20)})
        return {"result": finished(request, {"content": content, "isError": False})}

    async def _grow(self, name: str) -> str:
        self.protocol.tools.append({**self.protocol.tools[1], "name": name})
        await self.announce_change()
        return name


STREAMED = {"sse", "garbage", "dup_reply", "notify_flood", "endless_sse", "progress", "nonewline"}
"""Modes that need more than one message in an answer."""


async def _answer(exchange: Exchange, reply: Json, modes: Modes) -> None:
    if "wrong_id" in modes:
        reply = {**reply, "id": "nobody asked with this id"}
    data = exchange.frame(reply)
    if "die_mid_reply" in modes:
        await exchange.write(data[: modes.count("die_mid_reply", 16)])
        die()
    await exchange.write(data)
    if "dup_reply" in modes:
        await exchange.write(exchange.frame(reply))
    if "garbage" in modes:
        await exchange.write(exchange.garbage())
    await exchange.close(is_answered=True)


async def _flood(exchange: Exchange, messages: int) -> None:
    for start in range(0, messages, FLOOD_BATCH):
        for at in range(start, min(start + FLOOD_BATCH, messages), 2):
            await exchange.write(exchange.frame(list_changed(None)) + exchange.frame(progress("nobody", at, messages)))
        await asyncio.sleep(0)


async def _cancelled_within(exchange: Exchange, seconds: float) -> bool:
    try:
        await asyncio.wait_for(exchange.cancelled.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _is_there(path: str) -> bool:
    return Path(path).exists()


def _arguments(request: Json) -> Json:
    given = params_of(request).get("arguments")
    return given if isinstance(given, dict) else {}


def _envelope(request: Json) -> Json:
    return {"jsonrpc": "2.0", "id": request.get("id")}


def list_changed(subscription: object) -> Json:
    """The notification, tagged as the modern era wants it if there is a subscription."""
    tag = {} if subscription is None else {"params": {"_meta": {META + "subscriptionId": subscription}}}
    return {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", **tag}


def acknowledged(request: Json) -> Json:
    """The first message of a modern subscription."""
    params = {
        "_meta": {META + "subscriptionId": request.get("id")},
        "notifications": {"toolsListChanged": True},
    }
    return {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}


def progress(token: object, done: int, total: int, message: str = "") -> Json:
    """A progress notification."""
    params: dict[str, Any] = {"progressToken": token, "progress": done, "total": total, "message": message}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def die() -> NoReturn:
    """End this process as a crash would: nothing is flushed or closed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
