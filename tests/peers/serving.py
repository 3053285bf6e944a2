"""Shared by the official servers: their options, their ledger and their listeners.

Used by the `server_*` and `full_*` peers, which run in environments with different SDKs; it
therefore knows uvicorn and the standard library, and no SDK. The hand-written server does not use it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import uvicorn

Era = Literal["legacy", "modern", "both"]
Transport = Literal["stdio", "http", "sse", "websocket"]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
INVALID_REQUEST = -32600
UNSUPPORTED_VERSION = -32022


@dataclass(frozen=True, slots=True)
class Options:
    """How a server was asked to run."""

    transport: Transport
    stateless: bool
    json: bool
    port: int
    era: Era
    only: list[str]


def parse_options(eras: tuple[Era, ...], transports: tuple[Transport, ...] = ("stdio", "http", "sse")) -> Options:
    """Read the command line; `eras` and `transports` are those the SDK can serve, the first being the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=transports, default=transports[0])
    parser.add_argument("--stateless", action="store_true", help="HTTP without sessions (legacy era)")
    parser.add_argument("--json", action="store_true", help="HTTP answers as JSON, never as an event stream")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, told as `PORT n` on stdout")
    parser.add_argument("--era", choices=eras, default=eras[0])
    parser.add_argument("--only", nargs="*", default=[], help="capabilities to keep (full_sdk2)")
    return Options(**vars(parser.parse_args()))


def note(line: str) -> None:
    """Append a line to the file named by LEDGER, if any; one write, so that lines do not mix."""
    if path := os.environ.get("LEDGER"):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


async def serve_http(app: App, port: int, *, ws: Literal["none", "websockets-sansio"] = "none") -> None:
    """Serve on loopback until a signal; `PORT n` is on stdout once connections are accepted."""
    listener = socket.create_server(("127.0.0.1", port))
    print("PORT", listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", lifespan="on", ws=ws, timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


class EraGate:
    """ASGI middleware that makes a dual-era server speak one era only.

    It refuses by header, as the SDK routes, in the words of a server that never knew the other era: a legacy
    one answers 400 to a version it cannot read (this is what mcp 1.x does), a modern one names the versions
    it serves.
    """

    def __init__(self, app: App, era: Era) -> None:
        self._app = app
        self._era = era

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or admits(self._era, _version_header(scope)):
            await self._app(scope, receive, send)
            return
        await _refuse(send, refusal(self._era))


def admits(era: Era, version: str | None) -> bool:
    """Whether a server of this era takes a request that states `version` (`None`: states none)."""
    match era:
        case "both":
            return True
        case "legacy":
            return version is None or version in LEGACY_VERSIONS
        case "modern":
            return version is not None and version not in LEGACY_VERSIONS


def refusal(era: Era) -> dict[str, Any]:
    """The JSON-RPC error with which a server of this era turns away a request of the other."""
    if era == "legacy":
        return {"code": INVALID_REQUEST, "message": "Bad Request: Unsupported protocol version"}
    data = {"supported": [MODERN_VERSION], "requested": LEGACY_VERSIONS[-1]}
    return {"code": UNSUPPORTED_VERSION, "message": "Unsupported protocol version", "data": data}


def _version_header(scope: Message) -> str | None:
    headers = cast("list[tuple[bytes, bytes]]", scope["headers"])
    return next((value.decode("latin-1") for name, value in headers if name == b"mcp-protocol-version"), None)


async def _refuse(send: Send, error: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
