"""A hand-written MCP server, without any SDK, that keeps an honest ledger and misbehaves on demand.

`python tests/peers raw_server --transport http --era both --ledger FILE --mode sleep:0.2,sse`. Before it
answers the tool `pay(nonce)` it appends `{"nonce", "pid"}` to the ledger and waits for the disk; so the
ledger says what ran, whatever the caller was told. The modes are described in `raw_modes`; `raw_protocol` speaks,
`raw_calls` performs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING

from tests.peers.raw_http import HttpServer
from tests.peers.raw_modes import Modes
from tests.peers.raw_protocol import Ledger, RawProtocol
from tests.peers.raw_sse import SseServer
from tests.peers.raw_stdio import StdioServer

if TYPE_CHECKING:
    from tests.peers.raw_websocket import WebSocketServer

FLOOD_BYTES = 64 << 20
ORPHAN_SECONDS = 120
"""After this a child or a stubborn server ends by itself: a failing test must leave no processes."""


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=("stdio", "http", "sse", "websocket"), default="stdio")
    parser.add_argument("--era", choices=("both", "legacy", "modern"), default="both")
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ledger")
    parser.add_argument("--mode", type=Modes.parse, default=Modes())
    return parser.parse_args()


def misbehave_as_process(modes: Modes, ledger: Ledger) -> None:
    """The modes that are about the process rather than its answers."""
    if "ignore_sigterm" in modes:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.alarm(ORPHAN_SECONDS)
    if "fork" in modes:
        ledger.record(child=_leave_child())
    if "stderr_flood" in modes:
        count = modes.count("stderr_flood", FLOOD_BYTES)
        threading.Thread(target=_flood_stderr, args=(count,), daemon=True).start()


def _leave_child() -> int:
    """Start a process that keeps the pipes open and does nothing."""
    if child := os.fork():
        return child
    signal.alarm(ORPHAN_SECONDS)
    while True:
        signal.pause()


def _flood_stderr(count: int) -> None:
    line = b"noise " * 170 + b"\n"
    for _ in range(count // len(line)):
        os.write(2, line)


async def main() -> None:
    """Serve over whatever was asked for."""
    options = parse_options()
    ledger = Ledger(options.ledger)
    misbehave_as_process(options.mode, ledger)
    protocol = RawProtocol(options.era, ledger, options.mode)
    server = server_over(options, protocol)
    async with asyncio.TaskGroup() as group:
        if "churn" in options.mode:
            group.create_task(server.caller.churn())
        await (server.serve() if isinstance(server, StdioServer) else server.serve(options.port))


def server_over(
    options: argparse.Namespace, protocol: RawProtocol
) -> StdioServer | HttpServer | SseServer | WebSocketServer:
    """The server for the carrier that was asked for."""
    match options.transport:
        case "stdio":
            return StdioServer(protocol)
        case "sse":
            return SseServer(protocol)
        case "websocket":
            from tests.peers.raw_websocket import WebSocketServer  # noqa: PLC0415 (the only one that loads a library)

            return WebSocketServer(protocol)
        case _:
            return HttpServer(protocol, is_stateless=options.stateless)


if __name__ == "__main__":
    asyncio.run(main())
