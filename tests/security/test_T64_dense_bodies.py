"""T64: bodies of very many small values, or of very long numbers, hold the event loop while they are decoded.

A caller's message has at most 100,000 values, whatever its length (`wire.jsonrpc.is_dense`). Text and pictures of
megabytes are one value, and pass. Measured by the hub itself: processor time of its event loop between two beats.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.hubs import HubProcess, serving
from tests.security.heavy_inputs import HELD

HELD_SECONDS = float(HELD)
SIZE = 3_500_000
MODERN = "2026-07-28"
META = '{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}'


def filled(piece: str) -> str:
    return "[" + piece * (SIZE // len(piece)) + "1]"


DENSE = {
    "objects": filled('{"b":1},'),
    "empty objects": filled("{},"),
    "numbers": filled("1,"),
    "strings": filled('"a",'),
    "strings with commas": filled('",",'),
    "members": "{" + ",".join(f'"k{at}":1' for at in range(300_000)) + "}",
    "nested": filled("[" * 40 + "]" * 40 + ","),
    "long numbers": filled("9" * 4000 + ","),
}

ENDPOINTS: dict[str, tuple[str, dict[str, str], str]] = {
    "mcp": (
        "/mcp",
        {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "builtin.echo"},
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"builtin.echo","arguments":{"text":"x","v":%s},'
        f'"_meta":{META}}}}}',
    ),
    "mcp in front of everything": ("/mcp", {"mcp-protocol-version": MODERN}, "%s"),
    "a2a 1.0": (
        "/a2a",
        {"a2a-version": "1.0"},
        '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER",'
        '"parts":[{"data":{"tool":"builtin.echo","arguments":{"text":"x","v":%s}}}]}}}',
    ),
    "a2a 0.3": (
        "/a2a",
        {},
        '{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m",'
        '"role":"user","metadata":{"v":%s},"parts":[{"kind":"text","text":"hi"}]}}}',
    ),
    "a2a 1.0, plain": (
        "/a2a/rest/message:send",
        {"a2a-version": "1.0"},
        '{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"data":%s}]}}',
    ),
    "agentvault": (
        "/a2a",
        {},
        '{"jsonrpc":"2.0","id":1,"method":"tasks/send","params":{"message":{"role":"user","parts":[{"type":"data",'
        '"content":{"target_mcp_server_id":"builtin","tool_name":"echo","arguments":{"text":"x","v":%s}}}]}}}',
    ),
    "rest": ("/v1/tools/builtin.echo", {}, '{"text":"x","v":%s}'),
}


async def busiest(http: httpx2.AsyncClient, hub: HubProcess) -> float:
    answer = await http.get(f"http://127.0.0.1:{hub.port}/v1/hub")
    figure: float = json.loads(answer.content)["event_loop"]["busy_seconds_max"]
    return figure


async def posted(http: httpx2.AsyncClient, hub: HubProcess, endpoint: str, value: str) -> httpx2.Response:
    path, headers, body = ENDPOINTS[endpoint]
    both = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    return await http.post(f"http://127.0.0.1:{hub.port}{path}", content=body.replace("%s", value), headers=both)


@pytest.mark.asyncio
@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_a_dense_body_is_refused_and_delays_no_other_call(endpoint: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as hub, httpx2.AsyncClient(timeout=60) as http:
        for label, value in DENSE.items():
            refused = await posted(http, hub, endpoint, value)
            answer: Any = refused.json()
            assert refused.status_code >= 400 or "error" in answer, (label, refused.text[:300])
            assert await busiest(http, hub) < HELD_SECONDS, label
        fine = await posted(http, hub, "rest", '"' + "a,b," * 500_000 + '"')
        assert fine.status_code == 200, fine.text[:300]
