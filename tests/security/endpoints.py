"""Every HTTP endpoint of a hub: one valid request for each, and its answer.

The list is held against the frontends' own paths, so that a way in without a row here fails a test.
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
class Endpoint:
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


def _posts(path: str, body: dict[str, Any], *more: tuple[str, str]) -> Endpoint:
    return Endpoint("POST", path, encoded(body), (*BASE[1:], *more), takes_body=True)


def _socket(path: str) -> Endpoint:
    upgrade = (
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    )
    return Endpoint("GET", path, headers=upgrade, is_socket=True)


MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "builtin.echo"}]}
V1 = ("a2a-version", "1.0")

ENDPOINTS: dict[str, Endpoint] = {
    "MCP, legacy": _posts("/mcp", legacy("ping")),
    "MCP, modern": _posts(
        "/mcp", modern("tools/list"), ("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")
    ),
    "MCP, one server": _posts("/mcp/raw", legacy("ping")),
    "MCP, the stream": Endpoint("GET", "/mcp", headers=(("accept", "text/event-stream"),)),
    "MCP, the end": Endpoint("DELETE", "/mcp"),
    "SSE": Endpoint("GET", "/sse", headers=(("accept", "text/event-stream"),)),
    "SSE, messages": _posts("/messages", legacy("ping")),
    "SSE, messages/": _posts("/messages/", legacy("ping")),
    "A2A": _posts("/a2a", legacy("SendMessage", {"message": MESSAGE}), V1),
    "A2A/": _posts("/a2a/", legacy("SendMessage", {"message": MESSAGE}), V1),
    "A2A at the root": _posts("/", legacy("SendMessage", {"message": MESSAGE}), V1),
    "A2A, plain": _posts("/a2a/rest/message:send", {"message": MESSAGE}, V1),
    "A2A, plain, tasks": Endpoint("GET", "/a2a/rest/tasks", headers=(V1,)),
    "A2A, a set": _posts("/a2a/sets/few", legacy("SendMessage", {"message": MESSAGE}), V1),
    "A2A, a set, plain": _posts("/a2a/sets/few/rest/message:send", {"message": MESSAGE}, V1),
    "A2A, a set's card": Endpoint("GET", "/a2a/sets/few/.well-known/agent-card.json", is_public=True),
    "MCP, a set": _posts("/mcp/few", legacy("ping")),
    "REST, tools": Endpoint("GET", "/v1/tools"),
    "REST, a call": _posts("/v1/tools/builtin.echo", {"text": "x"}),
    "REST, answers to questions": _posts("/v1/questions/none", {"action": "decline"}),
    "REST, figures": Endpoint("GET", "/v1/stats"),
    "REST, activity": Endpoint("GET", "/v1/activity"),
    "REST, one call": Endpoint("GET", "/v1/activity/1"),
    "REST, a capture": _posts("/v1/activity/capture", {"seconds": 0}),
    "REST, the end of a capture": Endpoint("DELETE", "/v1/activity/capture"),
    "REST, definitions": Endpoint("GET", "/v1/definitions"),
    "REST, an approval": _posts("/v1/definitions/none", {"fingerprint": "00"}),
    "REST, calls that wait": Endpoint("GET", "/v1/approvals"),
    "REST, a call that waits": Endpoint("GET", "/v1/approvals/none"),
    "REST, allowing a call": _posts("/v1/approvals/allow/none", {"for": "once"}),
    "REST, budgets": Endpoint("GET", "/v1/budgets"),
    "REST, denying a call": _posts("/v1/approvals/deny/none", {"reason": "no"}),
    "REST, the configuration": Endpoint("GET", "/v1/configuration"),
    "REST, tasks": Endpoint("GET", "/v1/tasks"),
    "REST, one task": Endpoint("GET", "/v1/tasks/none"),
    "REST, a task's end": Endpoint("POST", "/v1/cancel/none"),
    "REST, sessions": Endpoint("GET", "/v1/sessions"),
    "REST, nodes": Endpoint("GET", "/v1/cluster"),
    "REST, access": Endpoint("GET", "/v1/access"),
    "REST, access by server": Endpoint("GET", "/v1/access/servers"),
    "REST, a preview of access": _posts("/v1/access/preview", {"callers": {}}),
    "REST, the audit log": Endpoint("GET", "/v1/audit"),
    "REST, verifying the audit log": Endpoint("POST", "/v1/audit/verify"),
    "console": Endpoint("GET", "/console/", is_public=True),
    "console, the session": Endpoint("GET", "/console/session", is_public=True),
    "console, the REST API": Endpoint("GET", "/docs", is_public=True),
    "REST, a preview of servers": _posts("/v1/configuration/preview", {"text": "https://example.com/mcp"}),
    "REST, enabling": Endpoint("POST", "/v1/enable/none"),
    "REST, disabling": Endpoint("POST", "/v1/disable/none"),
    "REST, a log": Endpoint("GET", "/v1/logs/none"),
    "REST, a restart": Endpoint("POST", "/v1/restart/none"),
    "REST, servers": Endpoint("GET", "/v1/servers"),
    "REST, one server": Endpoint("GET", "/v1/servers/raw"),
    "REST, resources": Endpoint("GET", "/v1/resources"),
    "REST, templates": Endpoint("GET", "/v1/resources/templates"),
    "REST, a resource": Endpoint("GET", "/v1/resources/read?uri=x:1"),
    "REST, prompts": Endpoint("GET", "/v1/prompts"),
    "REST, a prompt": Endpoint("GET", "/v1/prompts/raw.none"),
    "REST, completions": _posts("/v1/completions", {"ref": {"type": "ref/prompt", "name": "x"}}),
    "REST, agents": Endpoint("GET", "/v1/relay/agents"),
    "REST, one agent": Endpoint("GET", "/v1/relay/agents/none"),
    "REST, dialled in": Endpoint("GET", "/v1/relay/servers"),
    "REST, one that dialled in": Endpoint("DELETE", "/v1/relay/servers/none"),
    "REST, their tools": Endpoint("GET", "/v1/relay/tools"),
    "REST, devices": Endpoint("GET", "/v1/relay/devices"),
    "REST, the hub": Endpoint("GET", "/v1/hub"),
    "REST, description": Endpoint("GET", "/openapi.json"),
    "card": Endpoint("GET", "/.well-known/agent-card.json", is_public=True),
    "card at /a2a": Endpoint("GET", "/a2a/.well-known/agent-card.json", is_public=True),
    "card, 1.0": Endpoint("GET", "/a2a/1.0/.well-known/agent-card.json", is_public=True),
    "card, 0.3": Endpoint("GET", "/a2a/0.3/.well-known/agent-card.json", is_public=True),
    "card, earlier": Endpoint("GET", "/.well-known/agent.json", is_public=True),
    "card, root": Endpoint("GET", "/agent-card.json", is_public=True),
    "keys of push notifications": Endpoint("GET", "/.well-known/jwks.json", is_public=True),
    "card at /": Endpoint("GET", "/", is_public=True),
    "catalog": Endpoint("GET", "/.well-known/ai-catalog.json", is_public=True),
    "card of a server": Endpoint("GET", "/mcp/server-card", is_public=True),
    "OAuth, resource": Endpoint("GET", "/.well-known/oauth-protected-resource", is_public=True),
    "OAuth, server": Endpoint("GET", "/.well-known/oauth-authorization-server", is_public=True),
    "OAuth, a token": Endpoint(
        "POST",
        "/oauth/token",
        b"grant_type=client_credentials",
        (("content-type", "application/x-www-form-urlencoded"),),
        takes_body=True,
        is_form=True,
    ),
    "relay, health": Endpoint("GET", "/mcp_endpoint/health", is_public=True),
    "relay, server": _socket("/mcp_endpoint/mcp/"),
    "relay, device": _socket("/mcp_endpoint/call/"),
    "alive": Endpoint("GET", "/livez", is_public=True),
    "ready": Endpoint("GET", "/readyz", is_public=True),
    "well": Endpoint("GET", "/healthz", is_public=True),
    "metrics": Endpoint("GET", "/metrics"),
}

POSTS = {name: endpoint for name, endpoint in ENDPOINTS.items() if endpoint.takes_body and not endpoint.is_form}
CLOSED = {
    name: endpoint
    for name, endpoint in ENDPOINTS.items()
    if not (endpoint.is_public or endpoint.is_socket or endpoint.is_form)
}

NO_ENDPOINTS = {
    "/oauth/authorize": "it names the token endpoint to every client",
    "/call": "a part of the relay's paths",
    "/health": "the same",
    "/server-card": "the end of the path of a card",
    "/rest": "the end of the path of a set's agent",
    "/rest/": "the same",
    "/session": "the end of the path of the console's sessions",
}
FRONTENDS = Path(frontends.__file__ or "").parent


def spelt_paths() -> set[str]:
    """Every text in the frontends' source that can be a path of one, up to what it leaves open."""
    constants = (
        node.value
        for file in FRONTENDS.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
    )
    texts = {text for text in constants if isinstance(text, str) and text.startswith("/") and len(text.split()) == 1}
    return {text.partition("{")[0] for text in texts}


def known_paths() -> set[str]:
    """The paths that frontends say are theirs."""
    return {
        "/mcp",
        *health.PATHS,
        health.METRICS_PATH,
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
    sets = {"few": {"tools": ["builtin.echo"]}}
    async with serving(folder, servers, callers=callers, hub=hub, sets=sets, **tables) as running:

        async def is_there() -> bool:
            async with connected(running.port) as wire:
                reply = await wire.request(encoded(legacy("tools/list")), [*BASE, *key_header(KEY)])
            return "raw.pay" in {tool["name"] for tool in reply.json["result"]["tools"]}

        await until(is_there)
        yield running, ledger


async def knock(wire: Wire, endpoint: Endpoint, headers: list[tuple[str, str]], body: bytes | None = None) -> Reply:
    """Make an endpoint's request with these headers; of what goes on only the head is read."""
    sent = endpoint.body if body is None else body
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    length = f"content-length: {len(sent)}\r\n" if endpoint.takes_body or sent else ""
    await wire.say(f"{endpoint.method} {endpoint.path} HTTP/1.1\r\n{lines}{length}\r\n".encode("latin-1") + sent)
    status, fields = await wire.head()
    if fields.get("content-type") == "text/event-stream" or status == 101 or "content-length" not in fields:
        return Reply(status, fields, b"")
    return Reply(status, fields, await wire.reader.readexactly(int(fields["content-length"])))
