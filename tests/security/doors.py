"""Every way into a hub by HTTP: one request for each that a caller with a key would make, and what answers it.

The list is held against the faces' own paths, so that a way in without a row here fails a test.
"""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus import frontends
from isthmus.frontends.a2a import http as a2a
from isthmus.frontends.a2a.cards import CARD_PATHS
from isthmus.frontends.http import health
from isthmus.frontends.mcp import sse
from isthmus.frontends.wellknown import http as wellknown
from tests.conftest import Ledger
from tests.frontends.wire import BASE, Reply, Wire, connected, encoded, key_header, legacy, modern, until
from tests.hubs import HubProcess, serving, stdio
from tests.peers.launch import command

KEY = "a-key-of-the-tests-0001"
OTHER_KEY = "a-key-of-the-tests-0002"

JSON = ("content-type", "application/json")


@dataclass(frozen=True, slots=True)
class Door:
    """One way in, by a request that is right in every respect but what a test spoils."""

    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    is_public: bool = False
    """Whether it answers who shows no key."""
    is_socket: bool = False
    """Whether it is asked to become a WebSocket."""
    takes_body: bool = False
    is_form: bool = False
    """Whether its body is a form, as OAuth wants it, and not JSON."""

    def lines(self, key: str | None = KEY, *, host: tuple[str, ...] = ("localhost",)) -> list[tuple[str, str]]:
        """The headers of the request."""
        rest = [pair for pair in self.headers if pair[0] != "host"]
        return [*(("host", each) for each in host), *rest, *key_header(key)]


def _posts(path: str, body: dict[str, Any], *more: tuple[str, str]) -> Door:
    return Door("POST", path, encoded(body), (*BASE[1:], *more), takes_body=True)


def _socket(path: str) -> Door:
    upgrade = (
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    )
    return Door("GET", path, headers=upgrade, is_socket=True)


MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "builtin.echo"}]}
V1 = ("a2a-version", "1.0")

DOORS: dict[str, Door] = {
    "MCP, legacy": _posts("/mcp", legacy("ping")),
    "MCP, modern": _posts(
        "/mcp", modern("tools/list"), ("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")
    ),
    "MCP, one server": _posts("/mcp/raw", legacy("ping")),
    "MCP, the stream": Door("GET", "/mcp", headers=(("accept", "text/event-stream"),)),
    "MCP, the end": Door("DELETE", "/mcp"),
    "SSE": Door("GET", "/sse", headers=(("accept", "text/event-stream"),)),
    "SSE, messages": _posts("/messages", legacy("ping")),
    "SSE, messages/": _posts("/messages/", legacy("ping")),
    "A2A": _posts("/a2a", legacy("SendMessage", {"message": MESSAGE}), V1),
    "A2A/": _posts("/a2a/", legacy("SendMessage", {"message": MESSAGE}), V1),
    "A2A at the root": _posts("/", legacy("SendMessage", {"message": MESSAGE}), V1),
    "A2A, plain": _posts("/a2a/rest/message:send", {"message": MESSAGE}, V1),
    "A2A, plain, tasks": Door("GET", "/a2a/rest/tasks", headers=(V1,)),
    "REST, tools": Door("GET", "/v1/tools"),
    "REST, a call": _posts("/v1/tools/builtin.echo", {"text": "x"}),
    "REST, answers to questions": _posts("/v1/questions/none", {"action": "decline"}),
    "REST, figures": Door("GET", "/v1/stats"),
    "REST, a log": Door("GET", "/v1/logs/none"),
    "REST, a restart": Door("POST", "/v1/restart/none"),
    "REST, servers": Door("GET", "/v1/servers"),
    "REST, one server": Door("GET", "/v1/servers/raw"),
    "REST, resources": Door("GET", "/v1/resources"),
    "REST, templates": Door("GET", "/v1/resources/templates"),
    "REST, a resource": Door("GET", "/v1/resources/read?uri=x:1"),
    "REST, prompts": Door("GET", "/v1/prompts"),
    "REST, a prompt": Door("GET", "/v1/prompts/raw.none"),
    "REST, completions": _posts("/v1/completions", {"ref": {"type": "ref/prompt", "name": "x"}}),
    "REST, agents": Door("GET", "/v1/relay/agents"),
    "REST, one agent": Door("GET", "/v1/relay/agents/none"),
    "REST, dialled in": Door("GET", "/v1/relay/servers"),
    "REST, one that dialled in": Door("DELETE", "/v1/relay/servers/none"),
    "REST, their tools": Door("GET", "/v1/relay/tools"),
    "REST, devices": Door("GET", "/v1/relay/devices"),
    "REST, the hub": Door("GET", "/v1/hub"),
    "REST, description": Door("GET", "/openapi.json"),
    "card": Door("GET", "/.well-known/agent-card.json", is_public=True),
    "card at /a2a": Door("GET", "/a2a/.well-known/agent-card.json", is_public=True),
    "card, 1.0": Door("GET", "/a2a/1.0/.well-known/agent-card.json", is_public=True),
    "card, 0.3": Door("GET", "/a2a/0.3/.well-known/agent-card.json", is_public=True),
    "card, earlier": Door("GET", "/.well-known/agent.json", is_public=True),
    "card, root": Door("GET", "/agent-card.json", is_public=True),
    "keys of push notifications": Door("GET", "/.well-known/jwks.json", is_public=True),
    "card at /": Door("GET", "/", is_public=True),
    "catalog": Door("GET", "/.well-known/ai-catalog.json", is_public=True),
    "card of a server": Door("GET", "/mcp/server-card", is_public=True),
    "OAuth, resource": Door("GET", "/.well-known/oauth-protected-resource", is_public=True),
    "OAuth, server": Door("GET", "/.well-known/oauth-authorization-server", is_public=True),
    "OAuth, a token": Door(
        "POST",
        "/oauth/token",
        b"grant_type=client_credentials",
        (("content-type", "application/x-www-form-urlencoded"),),
        takes_body=True,
        is_form=True,
    ),
    "relay, health": Door("GET", "/mcp_endpoint/health", is_public=True),
    "relay, server": _socket("/mcp_endpoint/mcp/"),
    "relay, device": _socket("/mcp_endpoint/call/"),
    "alive": Door("GET", "/livez", is_public=True),
    "ready": Door("GET", "/readyz", is_public=True),
    "well": Door("GET", "/healthz", is_public=True),
}

POSTS = {name: door for name, door in DOORS.items() if door.takes_body and not door.is_form}
CLOSED = {name: door for name, door in DOORS.items() if not (door.is_public or door.is_socket or door.is_form)}

NO_DOORS = {
    "/oauth/authorize": "it says where tokens are to be had, whoever asks",
    "/call": "a part of the relay's paths",
    "/health": "the same",
    "/server-card": "the end of the path of a card",
}
FACES = Path(frontends.__file__ or "").parent


def spelt_paths() -> set[str]:
    """Every text in the faces' source that can be a path of one, up to what it leaves open."""
    constants = (
        node.value
        for file in FACES.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
    )
    texts = {text for text in constants if isinstance(text, str) and text.startswith("/") and len(text.split()) == 1}
    return {text.partition("{")[0] for text in texts}


def known_paths() -> set[str]:
    """The paths that faces say are theirs."""
    return {
        "/mcp",
        *health.PATHS,
        *sse.PATHS,
        *a2a.RPC_PATHS,
        *CARD_PATHS,
        a2a.KEYS_PATH,
        wellknown.CATALOG_PATH,
    }


@asynccontextmanager
async def opened(folder: Path, **tables: Any) -> AsyncIterator[tuple[HubProcess, Ledger]]:
    """A hub with two callers and a server that notes what it was called."""
    ledger = Ledger(folder / "ledger.jsonl")
    servers = {"raw": stdio(command("raw_server", "--ledger", str(ledger.path)))}
    callers = {
        "one": {"key": KEY, "allow": ["*"], "tenant": "acme", "operator": True},
        "two": {"key": OTHER_KEY, "allow": ["*"], "tenant": "other"},
    }
    hub = {"public_url": "https://hub.example", "hosts": ["localhost"], **tables.pop("hub", {})}
    async with serving(folder, servers, callers=callers, hub=hub, **tables) as running:

        async def is_there() -> bool:
            async with connected(running.port) as wire:
                reply = await wire.request(encoded(legacy("tools/list")), [*BASE, *key_header(KEY)])
            return "raw.pay" in {tool["name"] for tool in reply.json["result"]["tools"]}

        await until(is_there)
        yield running, ledger


async def knock(wire: Wire, door: Door, headers: list[tuple[str, str]], body: bytes | None = None) -> Reply:
    """Make a door's request with these headers; of what goes on only the head is read."""
    sent = door.body if body is None else body
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    length = f"content-length: {len(sent)}\r\n" if door.takes_body or sent else ""
    await wire.say(f"{door.method} {door.path} HTTP/1.1\r\n{lines}{length}\r\n".encode("latin-1") + sent)
    status, fields = await wire.head()
    if fields.get("content-type") == "text/event-stream" or status == 101 or "content-length" not in fields:
        return Reply(status, fields, b"")
    return Reply(status, fields, await wire.reader.readexactly(int(fields["content-length"])))
