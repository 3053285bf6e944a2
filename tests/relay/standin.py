"""A stand-in for a foreign hub: a WebSocket server with scripted behaviour.

It behaves as the original relay does: it sends nothing by itself and chooses no subprotocol, unless it is to share
sockets. Each connection that comes is a `Guest`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from isthmus.model.relay import MUX_SUBPROTOCOL

Json = dict[str, Any]

PATIENCE = 20.0

HELLO: Json = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "stand-in", "version": "1"},
}


class Guest:
    """Who dialled in, on one connection."""

    def __init__(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.socket = socket
        self.headers = socket.request.headers
        self.path = urlsplit(socket.request.path).path
        self.query = {name: values[0] for name, values in parse_qs(urlsplit(socket.request.path).query).items()}
        self.is_muxed = socket.subprotocol == MUX_SUBPROTOCOL
        self.words: asyncio.Queue[Json] = asyncio.Queue()
        """What was said on the connection itself, where it is shared."""
        self.notes: asyncio.Queue[Json] = asyncio.Queue()
        """Messages without a request."""
        self._pending: dict[tuple[int, str], asyncio.Future[Json]] = {}
        self._ids = itertools.count(1)

    async def listen(self) -> None:
        """Sort what comes, until the connection ends."""
        try:
            async for frame in self.socket:
                self._take(str(frame))
        except ConnectionClosed:
            pass
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the connection ended"))

    def _take(self, frame: str) -> None:
        number, _, rest = frame.partition(" ") if self.is_muxed else ("0", "", frame)
        message: Json = json.loads(rest)
        if self.is_muxed and number == "0":
            self.words.put_nowait(message)
        elif (waiting := self._pending.pop((int(number), json.dumps(message.get("id"))), None)) is not None:
            if not waiting.done():
                waiting.set_result(message)
        else:
            self.notes.put_nowait({"channel": int(number), **message})

    async def say(self, message: Json, channel: int = 0) -> None:
        """Send one message, on a channel where the connection is shared."""
        text = json.dumps({"jsonrpc": "2.0", **message})
        await self.socket.send(f"{channel} {text}" if self.is_muxed else text)

    async def control(self, word: Json) -> None:
        """Send a control message on the connection itself."""
        await self.socket.send(f"0 {json.dumps(word)}")

    async def send(self, method: str, params: Json | None = None, *, id: Any = None, channel: int = 0) -> Any:
        """Ask something and return at once, with what will be the answer."""
        id = next(self._ids) if id is None else id
        waiting = self._pending[channel, json.dumps(id)] = asyncio.get_running_loop().create_future()
        await self.say({"id": id, "method": method, **({} if params is None else {"params": params})}, channel)
        return waiting

    async def ask(self, method: str, params: Json | None = None, *, id: Any = None, channel: int = 0) -> Json:
        """Ask something and wait for the answer."""
        answer: Json = await asyncio.wait_for(await self.send(method, params, id=id, channel=channel), PATIENCE)
        return answer

    async def greet(self, channel: int = 0) -> Json:
        """Open the conversation, as the earlier era does."""
        hello = {**HELLO, "capabilities": {}} if self.is_muxed else HELLO  # who shares is told with each call
        welcome = await self.ask("initialize", hello, channel=channel)
        await self.say({"method": "notifications/initialized"}, channel)
        return welcome

    async def call(self, tool: str, *, id: Any = None, channel: int = 0, **arguments: Any) -> str:
        """Call a tool and return the text it gives, or the message of its error."""
        params = {"name": tool, "arguments": arguments}
        return text_in(await self.ask("tools/call", params, id=id, channel=channel))

    async def opened(self) -> tuple[int, str]:
        """Wait until a channel is opened: its number and the server's id."""
        while True:
            word = await asyncio.wait_for(self.words.get(), PATIENCE)
            if "open" in word:
                return word["open"], word["server_id"]

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection."""
        await self.socket.close(code, reason)

    def cut(self) -> None:
        """End the connection without a word, as a hub does that is killed."""
        self.socket.transport.abort()


def text_in(answer: Json) -> str:
    """The text of a result, or the message of an error."""
    return str(answer["error"]["message"] if "error" in answer else answer["result"]["content"][0]["text"])


class StandIn:
    """The hub.

    `shares` says whether it shares sockets; `status` answers every handshake by an error; a `refusal` opens sockets and
    closes them with 1008; `keeps_one` closes every connection for the next one.
    """

    def __init__(self) -> None:
        self.port = 0
        self.shares = False
        self.status: int | None = None
        self.refusal: str | None = None
        self.keeps_one = False
        self.attempts = 0
        self.present: list[Guest] = []
        self._arrived: asyncio.Queue[Guest] = asyncio.Queue()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/mcp_endpoint/mcp/?token=a%2Bb"

    async def arrives(self) -> Guest:
        """Wait for the next connection."""
        return await asyncio.wait_for(self._arrived.get(), PATIENCE)

    async def _received(self, socket: ServerConnection) -> None:
        guest = Guest(socket)
        if self.refusal is not None:
            await guest.close(1008, self.refusal)
            return
        if self.keeps_one:
            for before in self.present:
                await before.close(1000, "新连接替换")
        self.present.append(guest)
        self._arrived.put_nowait(guest)
        await guest.listen()
        self.present.remove(guest)

    def _checked(self, connection: ServerConnection, request: Request) -> Response | None:
        self.attempts += 1
        return None if self.status is None else connection.respond(HTTPStatus(self.status), "no\n")

    def _chosen(self, _: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        return Subprotocol(MUX_SUBPROTOCOL) if self.shares and MUX_SUBPROTOCOL in offered else None


@asynccontextmanager
async def standing_in(**how: Any) -> AsyncIterator[StandIn]:
    """Run one that behaves so."""
    hub = StandIn()
    for name, value in how.items():
        setattr(hub, name, value)
    async with serve(
        hub._received, "127.0.0.1", 0, select_subprotocol=hub._chosen, process_request=hub._checked
    ) as server:
        hub.port = next(iter(server.sockets)).getsockname()[1]
        yield hub
