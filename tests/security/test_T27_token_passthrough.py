"""T27: a token with another audience, and a caller's token that reaches a server.

A token must name the hub as its audience; another one is refused with a challenge that says where a right one is to be
had (RFC 9728). What a caller shows ends here: the hub's requests to servers are written from what is configured for
them, and nothing of a caller's headers goes into them, whichever way the caller came and the server is reached.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.faults import quick_server
from tests.frontends.wire import legacy, until
from tests.hubs import META, MODERN
from tests.peers.launch import command as peer_command
from tests.peers.launch import http_peer, listening_peer
from tests.security.issuer_hub import KEY, IssuerHub, Tap, issuer_hub, served

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("passthrough")]

CANARIES = ("canary-cookie", "canary-forwarded", "canary-proxy", KEY)
BESIDE = {
    "cookie": "sid=canary-cookie",
    "forwarded": "for=canary-forwarded",
    "x-forwarded-for": "canary-forwarded",
    "x-forwarded-authorization": "Bearer canary-forwarded",
    "proxy-authorization": "Basic canary-proxy",
}
CARRIERS = ("http", "sse", "websocket", "rpc", "stdio", "agent")


@dataclass
class Agent:
    """An A2A agent that answers every message with its text, and keeps what it was sent."""

    sent: bytearray = field(default_factory=bytearray)
    own_port: int = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
            self.sent += head + body
            answer = json.dumps(self._answer(body)).encode()
            kind = b"content-type: application/json\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (kind, len(answer), answer))
        writer.close()

    def _answer(self, body: bytes) -> dict[str, Any]:
        if not body:
            skill = {"id": "pay", "name": "pay", "description": "Pays", "tags": ["x"]}
            url = f"http://127.0.0.1:{self.own_port}/"
            return {
                "name": "agent",
                "description": "d",
                "version": "1",
                "protocolVersion": "0.3.0",
                "url": url,
                "preferredTransport": "JSONRPC",
                "capabilities": {"streaming": False},
                "defaultInputModes": ["text/plain"],
                "defaultOutputModes": ["text/plain"],
                "skills": [skill],
            }
        parts = [{"kind": "text", "text": "paid"}]
        message = {"kind": "message", "messageId": "m", "role": "agent", "parts": parts}
        return {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": message}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Agent]:
        async with served(self._serve) as self.own_port:
            yield self


@dataclass(frozen=True, slots=True)
class Field:
    """A hub in front of a server by every carrier, and what each was sent."""

    issuer_hub: IssuerHub
    taps: dict[str, Tap | Agent]
    piped: Path

    def sent(self, carrier: str) -> bytes:
        if carrier == "stdio":
            return self.piped.read_bytes()
        sent = bytes(self.taps[carrier].sent)
        return _unmasked(sent) if carrier == "websocket" else sent


def _unmasked(sent: bytes) -> bytes:
    """What a client said on one WebSocket: its head, and what its frames hold."""
    said, _, frames = sent.partition(b"\r\n\r\n")
    while frames:
        size, at = frames[1] & 0x7F, 2
        if size == 126:
            size, at = int.from_bytes(frames[2:4]), 4
        mask, payload = frames[at : at + 4], frames[at + 4 : at + 4 + size]
        said += bytes(byte ^ mask[position % 4] for position, byte in enumerate(payload))
        frames = frames[at + 4 + size :]
    return said


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    folder = tmp_path_factory.mktemp("passthrough")
    piped, paid = folder / "piped", folder / "paid"
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        peers = {
            "http": await enter(http_peer("raw_server")),
            "sse": await enter(listening_peer(peer_command("raw_server", "--transport", "sse"))),
            "websocket": await enter(listening_peer(peer_command("raw_server", "--transport", "websocket"))),
            "rpc": await enter(listening_peer(peer_command("rpc_server", "--listed"))),
        }
        taps: dict[str, Tap | Agent] = {name: await enter(Tap(peer.port).opened()) for name, peer in peers.items()}
        taps["agent"] = await enter(Agent().opened())
        at = {name: f"127.0.0.1:{tap.own_port}" for name, tap in taps.items()}
        words = " ".join(f"'{word}'" for word in quick_server.command(paid))
        servers = {
            "http": {"url": f"http://{at['http']}/mcp", "headers": {"Authorization": "Bearer own-of-the-hub"}},
            "sse": {"url": f"http://{at['sse']}/sse", "type": "sse"},
            "websocket": {"url": f"ws://{at['websocket']}/mcp"},
            "rpc": {"rpc": f"http://{at['rpc']}/rpc"},
            "agent": {"agent": f"http://{at['agent']}"},
            "stdio": {"command": "/bin/sh", "args": ["-c", f"tee '{piped}' | exec {words}"]},
        }
        both = await enter(issuer_hub(folder, servers))
        field = Field(both, taps, piped)

        async def are_all_listed() -> bool:
            response = (await both.ask(both.token())).json()
            return {f"{carrier}.pay" for carrier in CARRIERS} <= {tool["name"] for tool in response["tools"]}

        await until(are_all_listed)
        yield field


def _proofs(here: Field) -> dict[str, dict[str, str]]:
    """Every way to show who one is."""
    return {
        "token": {"authorization": f"Bearer {here.issuer_hub.token(jti='canary')}"},
        "key": {"authorization": f"Bearer {KEY}"},
        "header": {"x-api-key": KEY},
    }


async def _by_mcp(here: Field, tool: str, nonce: str, headers: dict[str, str]) -> httpx2.Response:
    params = {"name": tool, "arguments": {"nonce": nonce, "message": nonce}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    own = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    return await here.issuer_hub.http.post(here.issuer_hub.hub.url, json=body, headers={**own, **headers})


async def _by_rest(here: Field, tool: str, nonce: str, headers: dict[str, str]) -> httpx2.Response:
    arguments = {"nonce": nonce, "message": nonce}
    return await here.issuer_hub.http.post(f"{here.issuer_hub.base}/v1/tools/{tool}", json=arguments, headers=headers)


async def _by_a2a(here: Field, tool: str, nonce: str, headers: dict[str, str]) -> httpx2.Response:
    server, _, name = tool.partition(".")
    data = {"target_mcp_server_id": server, "tool_name": name, "arguments": {"nonce": nonce, "message": nonce}}
    part = {"kind": "data", "data": data}
    message = {"kind": "message", "messageId": nonce, "role": "user", "parts": [part]}
    params = {"message": message, "configuration": {"blocking": True}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
    return await here.issuer_hub.http.post(f"{here.issuer_hub.base}/a2a", json=body, headers=headers)


async def _by_session(here: Field, tool: str, nonce: str, headers: dict[str, str]) -> httpx2.Response:
    own = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    opened = await here.issuer_hub.http.post(here.issuer_hub.hub.url, json=legacy("initialize", info), headers=own)
    own["mcp-session-id"] = opened.headers["mcp-session-id"]
    call = legacy("tools/call", {"name": tool, "arguments": {"nonce": nonce, "message": nonce}}, id=2)
    return await here.issuer_hub.http.post(here.issuer_hub.hub.url, json=call, headers=own)


WAYS = {"mcp": _by_mcp, "session": _by_session, "rest": _by_rest, "a2a": _by_a2a}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_that_a_caller_shows_reaches_a_server(here: Field, way: str, carrier: str) -> None:
    for proof, shown in _proofs(here).items():
        nonce = f"nonce-{way}-{carrier}-{proof}"
        answer = await WAYS[way](here, f"{carrier}.pay", nonce, {**BESIDE, **shown})
        assert answer.status_code == 200, answer.text
        sent = here.sent(carrier)
        assert nonce.encode() in sent, f"the call went there: {answer.text}"
        for canary in (*CANARIES, *(value.removeprefix("Bearer ") for value in shown.values())):
            assert canary.encode() not in sent
        assert (b"own-of-the-hub" in sent) == (carrier == "http"), "what is configured for a server goes to that one"


@pytest.mark.parametrize("path", ["/mcp", "/mcp/http", "/v1/tools", "/a2a", "/sse"])
@pytest.mark.parametrize("audience", ["https://other.example", None])
async def test_a_token_for_another_audience_is_answered_with_a_challenge(
    here: Field, path: str, audience: str | None
) -> None:
    both = here.issuer_hub
    method = "GET" if path in ("/v1/tools", "/sse") else "POST"
    headers = {"authorization": f"Bearer {both.token(aud=audience)}", "content-type": "application/json"}
    answer = await both.http.request(method, both.base + path, headers=headers, content=b"{}")

    assert answer.status_code == 401
    challenge = answer.headers["www-authenticate"]
    assert 'error="invalid_token", error_description="it was made for another audience"' in challenge
    place = challenge.partition('resource_metadata="')[2].partition('"')[0]
    metadata = (await both.http.get(place)).json()
    assert metadata["authorization_servers"] == [both.issuer.url, both.base]


async def test_where_tokens_are_to_be_had_is_not_taken_from_a_request(here: Field) -> None:
    both = here.issuer_hub
    called = f"localhost:{both.hub.port}"
    headers = {"host": called, "x-forwarded-host": "evil.example", "forwarded": "host=evil.example"}
    challenge = (await both.http.get(f"{both.base}/v1/tools", headers=headers)).headers["www-authenticate"]
    assert f'resource_metadata="http://{called}/.well-known/' in challenge
    place = f"{both.base}/.well-known/oauth-protected-resource"
    assert "evil.example" not in (await both.http.get(place, headers={"host": "evil.example"})).text
