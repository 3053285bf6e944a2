"""The official client of A2A 1.0 with a key, put where the card says: `keys_v1 BINDING URL MINE YOURS`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import httpx
from a2a.client import A2ACardResolver, AuthInterceptor, ClientConfig, ClientFactory, CredentialService
from a2a.types import a2a_pb2 as wire
from google.protobuf.json_format import ParseDict

from tests.agents.tool_requests import QUICK, blamed, fresh, report, tool_request

SECONDS = 60.0


class Holder(CredentialService):
    """Has a key for one of the ways that a card names."""

    def __init__(self, way: str, key: str) -> None:
        self._way = way
        self._key = key

    async def get_credentials(self, security_scheme_name: str, context: Any) -> str | None:
        return self._key if security_scheme_name == self._way else None


async def send(client: Any) -> str:
    """Run a tool and return its task's id."""
    parts = [{"data": tool_request(QUICK, "pay", nonce="n")}]
    message = {"messageId": fresh("m"), "role": "ROLE_USER", "parts": parts}
    request = ParseDict({"message": message}, wire.SendMessageRequest())
    [answer] = [event async for event in client.send_message(request)]
    assert answer.task.status.state == wire.TASK_STATE_COMPLETED, answer
    return str(answer.task.id)


async def main() -> None:
    """Come without a key, then with one in every way, then with another's."""
    binding, url, mine, yours = sys.argv[1:]
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(
            streaming=False,
            httpx_client=http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_protocol_bindings=[binding],
        )

        def client(way: str, key: str) -> Any:
            # A client replaces its card by the extended one: each has its own.
            own = wire.AgentCard()
            own.CopyFrom(card)
            return ClientFactory(config).create(own, [AuthInterceptor(Holder(way, key))])

        report("", "stranger", skills=[skill.id for skill in card.skills], **await blamed(send(client("none", mine))))
        for way in card.security_schemes:
            task = await send(client(way, mine))
            extended = await client(way, mine).get_extended_agent_card(wire.GetExtendedAgentCardRequest())
            other = await blamed(client(way, yours).get_task(wire.GetTaskRequest(id=task)))
            report(way, "known", skills=[skill.id for skill in extended.skills], other=other)


if __name__ == "__main__":
    asyncio.run(main())
