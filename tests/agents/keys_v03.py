"""The official client of A2A 0.3 with a key, put where the card says: `keys_v03 BINDING URL MINE YOURS`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.auth import AuthInterceptor, CredentialService
from a2a.types import DataPart, Message, Part, TaskQueryParams, TaskState

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
    parts = [Part(DataPart(data=tool_request(QUICK, "pay", nonce="n")))]
    message = Message(message_id=fresh("m"), role="user", parts=parts)
    [(task, _)] = [event async for event in client.send_message(message)]
    assert task.status.state == TaskState.completed, task
    return str(task.id)


async def main() -> None:
    """Come without a key, then with one in every way, then with another's."""
    binding, url, mine, yours = sys.argv[1:]
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(streaming=False, httpx_client=http, supported_transports=[binding])

        def client(way: str, key: str) -> Any:
            own = card.model_copy(deep=True)
            return ClientFactory(config).create(own, interceptors=[AuthInterceptor(Holder(way, key))])

        report("", "stranger", skills=[skill.id for skill in card.skills], **await blamed(send(client("none", mine))))
        for way in card.security_schemes or {}:
            task = await send(client(way, mine))
            extended = await client(way, mine).get_card()
            other = await blamed(client(way, yours).get_task(TaskQueryParams(id=task)))
            report(way, "known", skills=[skill.id for skill in extended.skills], other=other)


if __name__ == "__main__":
    asyncio.run(main())
