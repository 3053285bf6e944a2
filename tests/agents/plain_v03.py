"""The client class of A2A 0.2 and 0.3 that sends no configuration (`A2AClient`): `plain_v03 URL`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
from a2a.client import A2ACardResolver, A2AClient
from a2a.types import (
    Message,
    MessageSendConfiguration,
    MessageSendParams,
    Role,
    SendMessageRequest,
    SendStreamingMessageRequest,
)

from tests.agents.tool_requests import blamed, fresh, report, tool_request

SECONDS = 60.0


async def main() -> None:
    """Send the same message twice: as it is, and with the word that nobody waits."""
    [url] = sys.argv[1:]
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        client = A2AClient(httpx_client=http, agent_card=card)
        for step, configuration in (("plain", None), ("at once", MessageSendConfiguration(blocking=False))):
            part: Any = {"kind": "data", "data": tool_request("rpc", "slow", seconds=0.5)}
            message = Message(message_id=fresh("m"), role=Role.user, parts=[part])
            params = MessageSendParams(message=message, configuration=configuration)
            answer: Any = (await client.send_message(SendMessageRequest(id=fresh("r"), params=params))).root
            task = answer.result
            report("rpc", step, state=task.status.state.value, artifacts=len(task.artifacts or []))
        message = Message(message_id=fresh("m"), role=Role.user, parts=[part], task_id="no-such-task")
        request = SendStreamingMessageRequest(id=fresh("r"), params=MessageSendParams(message=message))
        report("rpc", "stream", **await blamed(anext(client.send_message_streaming(request))))


if __name__ == "__main__":
    asyncio.run(main())
