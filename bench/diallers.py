"""`python -m bench.diallers`: MCP servers that dial in at a hub, thousands in one process, each under its own agent.

Each opens a WebSocket as the relay's clients do, answers what a hub asks of a server, echoes what is called, and pings
every 20 seconds. Prints `READY n` once all have been listed, and a line beginning with `LOST` for each that goes
afterwards. With `--listen` it also takes WebSockets itself, whose callers reach the same echo without a hub; it prints
`PORT n` then. Started by `bench.crowd` and `bench.relayed`.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import uvloop

from bench.direct import ECHO_TOOL, Echo
from bench.frames import CLOSE, PING, PONG, TEXT, FrameReader, frame, request, welcome
from bench.tokens import token_for

SERVERS_PATH = "/mcp_endpoint/mcp/"

PING_SECONDS = 20.0
"""How often the relay's real clients ping."""

AT_ONCE = 100
"""Connections that are being made and listed at one moment: as many as a listening socket surely takes."""

LISTED_SECONDS = 120.0
"""How long a connection may wait for its turn to be listed."""

REPEAT_TOOL = {
    "name": "repeat",
    "title": "Repeat a text",
    "description": "Return the text it was given as often as it was told, with something between, in one answer.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What is to be said again, exactly as it is."},
            "times": {"type": "integer", "description": "How often.", "minimum": 1, "maximum": 10, "default": 2},
            "between": {"type": "string", "description": "What stands between, a comma unless it is said."},
        },
        "required": ["text"],
    },
}
"""Of ordinary length: what a server lists is a part of what the hub keeps of it."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Agents that dial in at one hub."""

    port: int
    first: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Crowd:
        """From `PORT:FIRST:COUNT`."""
        return cls(*map(int, text.split(":")))


def agent_name(number: int) -> str:
    """What an agent is called."""
    return f"agent-{number:05}"


class DialledEcho(Echo):
    """An echo that lists two tools of ordinary length and knows when it was asked for them."""

    def __init__(self) -> None:
        super().__init__("legacy")
        tools = msgspec.json.encode({"tools": [ECHO_TOOL, REPEAT_TOOL]})
        self._answers["tools/list"] = b'{"jsonrpc":"2.0","id":%b,"result":' + tools + b"}"


class Dialler(asyncio.Protocol):
    """One server's WebSocket. `listed` ends when it was asked for its tools."""

    __slots__ = ("_echo", "_frames", "_head", "_loop", "_target", "_timer", "_transport", "agent", "listed")

    def __init__(self, echo: Echo, port: int, agent: str) -> None:
        self.agent = agent
        self._echo = echo
        self._target = request(port, f"{SERVERS_PATH}?token={token_for(agent)}")
        self._head = b""
        self._frames: FrameReader | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.listed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the WebSocket."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._target)

    def data_received(self, data: bytes) -> None:
        """Shake hands, then answer."""
        if self._frames is None:
            head, found, data = (self._head + data).partition(b"\r\n\r\n")
            self._head = head if not found else b""
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self._fail(f"the hub answered {head[:60]!r}")
                return
            self._frames = FrameReader()
            self._timer = self._loop.call_later(PING_SECONDS, self._ping)
        for opcode, payload in self._frames.feed(data):
            self._take(opcode, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody dials again here: a lost connection is something to know of."""
        if self._timer is not None:
            self._timer.cancel()
        self._fail(f"the connection was lost ({exc or 'closed by the hub'})")

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == TEXT:
            if (answer := self._echo.answer(payload)) is not None:
                self._write(TEXT, answer)
            if not self.listed.done() and b'"tools/list"' in payload:
                self.listed.set_result(None)
        elif opcode == PING:
            self._write(PONG, payload)
        elif opcode == CLOSE:
            self._fail(f"the hub closed it: {payload[2:].decode(errors='replace')} ({int.from_bytes(payload[:2])})")

    def _ping(self) -> None:
        self._write(PING, b"beat")
        self._timer = self._loop.call_later(PING_SECONDS, self._ping)

    def _write(self, opcode: int, payload: bytes) -> None:
        self._transport.write(frame(opcode, payload, is_client=True))

    def _fail(self, reason: str) -> None:
        if not self.listed.done():
            self.listed.set_exception(ConnectionError(f"{self.agent}: {reason}"))
            self.listed.exception()  # one such failure ends the run, and nobody asks for the others
        else:
            print(f"LOST {self.agent}: {reason}", flush=True)
        self._transport.abort()


class Listener(asyncio.Protocol):
    """One caller's WebSocket, straight to the echo."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._head = b""
        self._frames: FrameReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to write to."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Shake hands, then answer; what arrived together is answered together."""
        if self._frames is None:
            self._head, found, data = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                return
            self._frames = FrameReader()
            self._transport.write(welcome(self._head))
        texts = (payload for opcode, payload in self._frames.feed(data) if opcode == TEXT)
        answers = [answer for text in texts if (answer := self._echo.answer(text)) is not None]
        if answers:
            self._transport.write(b"".join(frame(TEXT, answer, is_client=False) for answer in answers))


async def dial(crowd: Crowd, echo: Echo) -> list[Dialler]:
    """Connect a crowd, some at a time, and return it once the hub has asked each for its tools.

    Raises:
        ConnectionError: one was turned away.
        TimeoutError: one was not listed.
    """
    diallers: list[Dialler] = []
    for first in range(crowd.first, crowd.first + crowd.count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, crowd.first + crowd.count))
        batch = [await dial_one(crowd.port, agent_name(number), echo) for number in numbers]
        async with asyncio.timeout(LISTED_SECONDS):
            for dialler in batch:
                await dialler.listed
        diallers += batch
    return diallers


async def dial_one(port: int, agent: str, echo: Echo) -> Dialler:
    """Connect one."""
    loop = asyncio.get_running_loop()
    _, dialler = await loop.create_connection(lambda: Dialler(echo, port, agent), "127.0.0.1", port)
    return dialler


async def run(crowds: Sequence[Crowd], *, is_listening: bool) -> None:
    """Dial in, and stay until killed."""
    echo = DialledEcho()
    if is_listening:
        listening = await asyncio.get_running_loop().create_server(lambda: Listener(echo), "127.0.0.1", 0)
        print("PORT", listening.sockets[0].getsockname()[1], flush=True)
    diallers = [dialler for crowd in crowds for dialler in await dial(crowd, echo)]
    print("READY", len(diallers), flush=True)
    await asyncio.get_running_loop().create_future()


def raise_descriptor_limit() -> None:
    """Each connection is a descriptor, and a shell usually gives 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Run the crowds that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("crowds", nargs="*", type=Crowd.parse, metavar="PORT:FIRST:COUNT")
    parser.add_argument("--listen", action="store_true", help="take WebSockets as well, for calls without a hub")
    options = parser.parse_args()
    raise_descriptor_limit()
    try:
        uvloop.run(run(options.crowds, is_listening=options.listen))
    except (ConnectionError, TimeoutError) as error:
        print(f"FAILED {str(error) or 'the hub did not ask for tools'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
