"""The raw server over HTTP: sessions, streams and statuses of both eras at /mcp, new modes at /control.

A lost connection cancels the request under way where the protocol says so: in the modern era, and wherever
there is no session. Bytes are `raw_connection`'s affair.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field

from tests.peers.raw_calls import Caller, acknowledged
from tests.peers.raw_connection import Connection, HttpExchange, Request, response, status_of
from tests.peers.raw_modes import Modes
from tests.peers.raw_protocol import MODERN_VERSION, Json, RawProtocol, method_of, params_of, version_of


@dataclass(slots=True)
class Session:
    """What a stateful server keeps of a caller."""

    calls: int = 0
    running: dict[str, HttpExchange] = field(default_factory=dict)


class HttpServer:
    """Answers HTTP requests at /mcp, and new modes at /control."""

    def __init__(self, protocol: RawProtocol, *, is_stateless: bool) -> None:
        self._protocol = protocol
        self.caller = Caller(protocol)
        self._is_stateless = is_stateless
        self._sessions: dict[str, Session] = {}

    async def serve(self, port: int) -> None:
        """Listen on loopback for ever; the first line on stdout is `PORT n`."""
        server = await asyncio.get_running_loop().create_server(lambda: Connection(self.respond), "127.0.0.1", port)
        print("PORT", server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def respond(self, request: Request, connection: Connection) -> None:
        """Answer one request of a connection."""
        modes = self._protocol.modes
        if request.path == "/control":
            self._protocol.modes = Modes.parse(request.body.decode())
            await connection.write(response(200, b"{}"))
        elif "redirect" in modes:
            location = f"location: {modes.given['redirect']}\r\n".encode()
            await connection.write(response(307, b"", location))
        elif (status := self._objection(request)) is not None:
            await connection.write(response(status, b""))
        elif request.method == "POST":
            await self._post(request, connection)
        elif request.method == "GET":
            await self._open_stream(request, connection)
        else:
            self._sessions.pop(request.headers.get("mcp-session-id", ""), None)
            await connection.write(response(200, b""))

    def _objection(self, request: Request) -> int | None:
        """The status that refuses a request before its body is read, or None."""
        accept = request.headers.get("accept", "")
        if request.path != "/mcp":
            return 404
        if request.method not in ("POST", "GET", "DELETE"):
            return 405
        if request.method != "POST":
            return 405 if self._is_stateless or self._protocol.era == "modern" else self._session_objection(request)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return 415
        if "application/json" not in accept or "text/event-stream" not in accept:
            return 406
        return None

    def _session_objection(self, request: Request) -> int | None:
        if self._is_stateless:
            return None
        session = request.headers.get("mcp-session-id")
        if session is None:
            return 400
        return None if session in self._sessions else 404

    async def _post(self, http: Request, connection: Connection) -> None:
        message: Json = json.loads(http.body)
        is_modern = version_of(message) is not None or http.headers.get("mcp-protocol-version") == MODERN_VERSION
        if "id" in message and (refused := self._protocol.refuse(message, http.headers)):
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": refused}).encode()
            await connection.write(response(status_of(refused), body))
        elif not is_modern and method_of(message) != "initialize" and (status := self._session_objection(http)):
            await connection.write(response(status, b""))
        elif "id" not in message:
            self._cancel(message, http)
            await connection.write(response(202, b""))
        else:
            exchange = HttpExchange(connection, http.headers, modes=self._protocol.modes, is_modern=is_modern)
            await self._answer(message, exchange, is_modern=is_modern)

    def _cancel(self, message: Json, http: Request) -> None:
        session = self._sessions.get(http.headers.get("mcp-session-id", ""))
        running = session.running.get(json.dumps(params_of(message).get("requestId"))) if session else None
        if method_of(message) == "notifications/cancelled" and running:
            running.cancelled.set()

    async def _answer(self, message: Json, exchange: HttpExchange, *, is_modern: bool) -> None:
        match method_of(message):
            case "tools/call":
                name = "" if is_modern else exchange.headers.get("mcp-session-id", "")
                await self._call(message, exchange, name)
            case "initialize" | "server/discover" if "hang_init" in self._protocol.modes:
                await exchange.lose()
            case "subscriptions/listen" if is_modern:
                await self._listen(exchange, acknowledged(message), message["id"])
            case method:
                if method == "initialize" and not self._is_stateless:
                    exchange.extra = self._new_session()
                await self._say(message, exchange)

    def _new_session(self) -> bytes:
        name = secrets.token_hex(8)
        self._sessions[name] = Session()
        return f"mcp-session-id: {name}\r\n".encode()

    async def _say(self, message: Json, exchange: HttpExchange) -> None:
        if "sse" in self._protocol.modes or "garbage" in self._protocol.modes:
            exchange.stream()
        if "garbage" in self._protocol.modes:
            await exchange.write(exchange.garbage())
        await exchange.write(exchange.frame({"jsonrpc": "2.0", "id": message["id"], **self._protocol.answer(message)}))
        await exchange.close(is_answered=True)

    async def _call(self, message: Json, exchange: HttpExchange, name: str) -> None:
        """Perform a call; its session can cancel it, or without one the loss of its connection does."""
        session, key = self._sessions.get(name), json.dumps(message["id"])
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(exchange.lose()) if session is None else None
            if session is not None:
                session.running[key] = exchange
                self._expire(session, name)
            await self.caller.perform(message, exchange)
            if session is not None:
                del session.running[key]
            if watch is not None:
                watch.cancel()

    def _expire(self, session: Session, name: str) -> None:
        session.calls += 1
        if "session_expire" in self._protocol.modes and session.calls >= self._protocol.modes.count(
            "session_expire", 1
        ):
            del self._sessions[name]

    async def _open_stream(self, http: Request, connection: Connection) -> None:
        exchange = HttpExchange(connection, http.headers, modes=self._protocol.modes, is_modern=False)
        await self._listen(exchange, None, None)

    async def _listen(self, exchange: HttpExchange, first: Json | None, subscription: object) -> None:
        exchange.stream()
        await exchange.write(exchange.frame(first) if first else exchange.comment())
        self.caller.listeners[exchange] = subscription
        await exchange.lose()
        del self.caller.listeners[exchange]
