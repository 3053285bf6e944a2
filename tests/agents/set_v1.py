"""The official client of A2A 1.0 at the address of a set: `set_v1 BINDING URL`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as wire
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.agents.tool_requests import fresh, report

SECONDS = 60.0


async def send(client: Any, instruction: dict[str, Any]) -> dict[str, Any]:
    """Send an instruction; its task."""
    message = {"messageId": fresh("m"), "role": "ROLE_USER", "parts": [{"data": instruction}]}
    request = ParseDict({"message": message}, wire.SendMessageRequest())
    [answer] = [event async for event in client.send_message(request)]
    task: dict[str, Any] = MessageToDict(answer.task)
    return task


async def main() -> None:
    """Read the card of the set and use its tools, and one that it does not have."""
    binding, url = sys.argv[1:]
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(streaming=False, httpx_client=http, supported_protocol_bindings=[binding])
        client = ClientFactory(config).create(card)
        report("", "card", name=card.name, skills=[skill.id for skill in card.skills])
        report("", "called", task=await send(client, {"tool": "new_issue", "arguments": {"title": "t"}}))
        unknown = {"tool": "one.create_issue", "arguments": {"title": "t", "repo": "evil/x"}}
        report("", "unknown", task=await send(client, unknown))


if __name__ == "__main__":
    asyncio.run(main())
