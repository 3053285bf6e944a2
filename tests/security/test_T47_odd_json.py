"""T47: JSON that nests too deep, has numbers out of range, or has a million members.

Depth, members and size are bounded before anything is decoded, in what callers send and in what servers answer, by
whatever carrier. What one server answers costs its own call.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ledger
from tests.frontends.wire import BASE, PING, PONG, connected, key_header
from tests.hubs import HubProcess, Raw, serving, stdio
from tests.relay.peers import RawServer, raw_server
from tests.relay.tokens import KEY as RELAY_KEY
from tests.security.endpoints import KEY, POSTS, knock
from tests.security.fickle import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


ODD: dict[str, str] = {
    "65 levels": deep(65),
    "a thousand levels": deep(1_000),
    "a hundred thousand levels": deep(100_000),
    "levels that do not end": "[" * 100_000,
}
FINE: dict[str, str] = {
    "very many members": "{" + ",".join(f'"{at}":0' for at in range(150_000)) + "}",
    "members of which all are one": "{" + '"a":0,' * 150_000 + '"a":0}',
    "a number of five thousand digits": "9" * 5_000,
    "a number beyond all": "1e999",
    "a number of many places": "0." + "1" * 5_000,
    "a long text": '"' + "x" * 1_000_000 + '"',
    "sixty levels": deep(50),
}
"""What is odd and allowed: it is passed on as it is, or refused, and nothing breaks."""


@pytest.mark.parametrize("label", ODD)
@pytest.mark.parametrize("name", POSTS)
async def test_no_endpoint_takes_it(guarded: tuple[HubProcess, Ledger], name: str, label: str) -> None:
    hub, _ = guarded
    endpoint = POSTS[name]
    body = endpoint.body[:-1] + b',"params_":' + ODD[label].encode() + b"}"
    async with connected(hub.port) as wire:
        reply = await knock(wire, endpoint, endpoint.lines(), body)
        if not endpoint.path.startswith("/messages"):
            assert reply.status == 400 or reply.code in (-32600, -32602, -32700), reply.body[:200]
    async with connected(hub.port) as wire:
        assert (await wire.request(PING, [*BASE, *key_header(KEY)])).body == PONG


@pytest.mark.parametrize("label", [*ODD, *FINE])
async def test_arguments_that_are_odd_break_nothing(guarded: tuple[HubProcess, Ledger], label: str) -> None:
    hub, _ = guarded
    value = ODD.get(label) or FINE[label]
    params = f'{{"name":"raw.echo","arguments":{{"text":{value}}}}}'
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode()
    async with connected(hub.port) as wire:
        reply = await wire.request(body, [*BASE, *key_header(KEY)])
        assert reply.status in (200, 400)
        assert label in FINE or reply.code is not None
        assert (await wire.request(PING, [*BASE, *key_header(KEY)])).body == PONG


WHOLE = {label: text for label, text in ODD.items() if label != "levels that do not end"}
"""Answers with a definite end: text that never ends, on a stream, answers nothing."""

# -- what servers answer -----------------------------------------------------------------------------------------------

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method = asked["method"]
    end = '"error":{"code":-32601,"message":"no"}'
    if method == "initialize":
        end = '"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":%s}'
        end = end % '{"name":"x","version":"1"}'
    elif method == "tools/list":
        end = '"result":{"tools":[{"name":"odd","inputSchema":{"type":"object"}},{"name":"fine","inputSchema":{}}]}'
    elif method == "tools/call":
        extra = open(sys.argv[1]).read() if asked["params"]["name"] == "odd" else "1"
        end = '"result":{"content":[],"structuredContent":{"x":%s}}' % extra
    elif method == "ping":
        end = '"result":{}'
    sys.stdout.write('{"jsonrpc":"2.0","id":%s,%s}\\n' % (json.dumps(asked["id"]), end))
    sys.stdout.flush()
"""


async def test_an_odd_answer_over_stdio_costs_its_call(tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    (tmp_path / "server.py").write_text(SERVER)
    entry = stdio([sys.executable, str(tmp_path / "server.py"), str(odd)])
    await costs_its_call(tmp_path, entry, odd, WHOLE)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_odd_answer_over_http_costs_its_call(tmp_path: Path, kind: str) -> None:
    async with answering(tmp_path / "odd.json", kind) as port:
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "type": "http"}
        await costs_its_call(tmp_path, entry, tmp_path / "odd.json", ODD)


async def test_an_odd_answer_to_plain_json_rpc_costs_its_call(tmp_path: Path) -> None:
    async with answering(tmp_path / "odd.json", "application/json") as port:
        tools: dict[str, Any] = {"odd": {"inputSchema": {}}, "fine": {"inputSchema": {}}}
        entry = {"rpc": f"http://127.0.0.1:{port}/rpc", "tools": tools}
        await costs_its_call(tmp_path, entry, tmp_path / "odd.json", ODD)


async def test_an_odd_answer_of_a_dial_in_server_costs_its_call(tmp_path: Path) -> None:
    class Odd(RawServer):
        text = ""

        async def send_back(self, message: dict[str, Any], answer: dict[str, Any]) -> None:
            if message["method"] == "tools/call" and self.text:
                await self.say(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{{"content":[],"x":{self.text}}}}}')
            else:
                await super().send_back(message, answer)

    async with (
        serving(tmp_path, relay={"key": RELAY_KEY}) as hub,
        Raw(hub.url) as raw,
        raw_server(hub.port, "agent", "s") as server,
    ):
        server.__class__ = Odd

        async def is_there() -> bool:
            return "agent_s.echo" in await raw.names()

        await until(is_there, "it is listed")
        for label, text in WHOLE.items():
            Odd.text = text
            answer = await raw.call("agent_s.echo", {"text": "x"})
            assert answer["error"]["data"]["reason"] == "bad_reply", label
        Odd.text = ""
        assert "result" in await raw.call("agent_s.echo", {"text": "x"})


async def costs_its_call(folder: Path, entry: dict[str, Any], file: Path, odd: dict[str, str]) -> None:
    """Calls of one tool are answered by what is in a file, and only those fail."""
    async with serving(folder, {"odd": entry}) as hub, Raw(hub.url) as raw:

        async def is_there() -> bool:
            return "odd.fine" in await raw.names()

        async def is_well() -> bool:
            return "result" in await raw.call("odd.fine")

        await until(is_there, "it is listed")
        for label, text in odd.items():
            file.write_text(text)  # noqa: ASYNC240 - a small file, and nobody waits
            answer = await raw.call("odd.odd")
            assert answer["error"]["data"]["reason"] in ("bad_reply", "lost"), label
            assert answer["error"]["data"]["executed"] == "unknown"
            assert "result" in await raw.call("builtin.echo", {"text": "x"})
            await until(is_well, "the next call is well")
        assert not [line for line in hub.said if "Traceback" in line]


@asynccontextmanager
async def answering(file: Path, kind: str) -> AsyncIterator[int]:
    """A server over HTTP that answers calls of `odd` by what is in a file."""

    def end_of(asked: dict[str, Any]) -> str:
        match asked["method"]:
            case "initialize":
                me = {"name": "x", "version": "1"}
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": me}
                return f'"result":{json.dumps(result)}'
            case "tools/list":
                return '"result":{"tools":[{"name":"odd","inputSchema":{}},{"name":"fine","inputSchema":{}}]}'
            case "tools/call":
                extra = file.read_text() if asked["params"]["name"] == "odd" else "1"
                return f'"result":{{"content":[],"structuredContent":{{"x":{extra}}}}}'
            case "odd" | "fine":
                return f'"result":{file.read_text() if asked["method"] == "odd" else "1"}'
            case "ping":
                return '"result":{}'
            case _:
                return '"error":{"code":-32601,"message":"no"}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = next((line[15:] for line in head.split("\r\n") if line.startswith("content-length")), "0")
                asked = json.loads(await reader.readexactly(int(length)) or b"{}")
                if "id" not in asked:
                    status = b"202 Accepted" if asked else b"405 Method Not Allowed"
                    writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
                    continue
                text = f'{{"jsonrpc":"2.0","id":{json.dumps(asked["id"])},{end_of(asked)}}}'
                body = (f"data: {text}\n\n" if kind == "text/event-stream" else text).encode()
                received = b"content-type: %b\r\ncontent-length: %d" % (kind.encode(), len(body))
                writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (received, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
