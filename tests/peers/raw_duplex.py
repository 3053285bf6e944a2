"""A raw server's side of one caller on a lasting connection in both directions: a pipe, an event stream, a socket.

It takes messages and starts what they ask for; how bytes travel is the affair of `raw_stdio`, `raw_sse` and
`raw_websocket`, each of which gives its own exchanges.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from tests.peers.raw_calls import Caller, Exchange, acknowledged
from tests.peers.raw_protocol import Json, method_of, params_of, version_of


class Duplex:
    """The requests of one caller that are under way."""

    def __init__(self, caller: Caller, new_exchange: Callable[[], Exchange], group: asyncio.TaskGroup) -> None:
        self._caller = caller
        self._protocol = caller.protocol
        self._new_exchange = new_exchange
        self._group = group
        self._running: dict[str, Exchange] = {}
        self._listener: Exchange | None = None

    async def take(self, message: Json) -> None:
        """Do what a message asks for, and give a request a turn before the next message is read."""
        if method_of(message) == "notifications/cancelled":
            if exchange := self._running.get(_key(params_of(message).get("requestId"))):
                exchange.cancelled.set()
        elif method_of(message) == "notifications/initialized":
            self._listener = self._new_exchange()
            self._caller.listeners[self._listener] = None
        elif "id" in message:
            self._group.create_task(self._serve_one(message))
            await asyncio.sleep(0)

    def leave(self) -> None:
        """The caller is gone: stop its notifications and cancel its calls."""
        if self._listener is not None:
            self._caller.listeners.pop(self._listener, None)
        for exchange in self._running.values():
            exchange.cancelled.set()

    async def _serve_one(self, request: Json) -> None:
        exchange = self._running[_key(request["id"])] = self._new_exchange()
        try:
            await self._respond(request, exchange)
        finally:
            self._running.pop(_key(request["id"]), None)

    async def _respond(self, request: Json, exchange: Exchange) -> None:
        envelope = {"jsonrpc": "2.0", "id": request["id"]}
        if refused := self._protocol.refuse(request, None):
            await exchange.write(exchange.frame({**envelope, "error": refused}))
            return
        match method_of(request):
            case "tools/call":
                await self._caller.perform(request, exchange)
                return
            case "initialize" | "server/discover" if "hang_init" in self._protocol.modes:
                await exchange.cancelled.wait()
                return
            case "subscriptions/listen" if version_of(request) is not None:
                await self._listen(request, exchange)
                return
        if "garbage" in self._protocol.modes:
            await exchange.write(exchange.garbage())
        await exchange.write(exchange.frame({**envelope, **self._protocol.answer(request)}))

    async def _listen(self, request: Json, exchange: Exchange) -> None:
        await exchange.write(exchange.frame(acknowledged(request)))
        self._caller.listeners[exchange] = request["id"]
        await exchange.cancelled.wait()
        self._caller.listeners.pop(exchange, None)


def _key(request_id: object) -> str:
    # 1 and "1" are different ids, and 1 and 1.0 the same one to Python but not to a caller.
    return json.dumps(request_id)
