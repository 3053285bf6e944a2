"""The official client of A2A 1.0 sends scripts: `code_v1 URL KEY KEY_WITHOUT_SCRIPTS`."""

from __future__ import annotations

import asyncio
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

from tests.agents.set_v1 import SECONDS, send
from tests.agents.tool_requests import report


async def main() -> None:
    """Send a script that works, one whose types are wrong, and one of a caller without scripts."""
    url, key, other = sys.argv[1:]
    for step, code, who in (
        ("done", "await shop_add(a=2, b=3)", key),
        ("failed", "await shop_add(a='2', b=3)", key),
        ("listed", "1", other),
    ):
        headers = {"authorization": f"Bearer {who}"}
        async with httpx.AsyncClient(timeout=SECONDS, headers=headers) as http:
            card = await A2ACardResolver(http, url).get_agent_card()
            config = ClientConfig(streaming=False, httpx_client=http, supported_protocol_bindings=["JSONRPC"])
            client = ClientFactory(config).create(card)
            report("", step, task=await send(client, {"code": code}))


if __name__ == "__main__":
    asyncio.run(main())
