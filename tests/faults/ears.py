"""A modern caller's stream of what it asked to be told, read line by line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from tests.hubs import META, MODERN, Raw

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS_CHANGED = "notifications/tools/list_changed"
HEARD_SECONDS = 60.0
"""Who waits for so long has found something that is never told."""


class EventListener:
    """What was told: the URI of what was updated, else the method. `honoured` are the URIs that are followed."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.at: list[float] = []
        self.honoured: list[str] = []
        self._woken = asyncio.Event()

    async def follow(self, lines: AsyncIterator[str]) -> None:
        """Read to the end."""
        async for line in lines:
            if line.startswith("data: "):
                self._take(json.loads(line.removeprefix("data: ")))

    def _take(self, message: dict[str, object]) -> None:
        params = message.get("params", {})
        assert isinstance(params, dict)
        if message.get("method") == ACKNOWLEDGED:
            self.honoured = params["notifications"].get("resourceSubscriptions", [])
        self.told.append(params.get("uri", message.get("method", "")))
        self.at.append(asyncio.get_running_loop().time())
        self._woken.set()

    async def wait_for(self, word: str, past: int = 0) -> None:
        """Wait until it is told once more than `past` times."""
        async with asyncio.timeout(HEARD_SECONDS):
            while self.told.count(word) <= past:
                self._woken.clear()
                await self._woken.wait()


@asynccontextmanager
async def listening(
    url: str, uris: Sequence[str], *, key: str | None = None, without: Sequence[str] = ()
) -> AsyncIterator[EventListener]:
    """Somebody who wants to hear of changes of tools, and of updates of these resources.

    The hub waits a moment for each resource's server and then goes on without it, so on a busy machine it is asked
    again. `without` are resources of which nobody is ever told.
    """
    async with AsyncExitStack() as stack, asyncio.timeout(HEARD_SECONDS) as patience:
        ear = await stack.enter_async_context(_listening(url, uris, key))
        while not {*uris} - {*without} <= {*ear.honoured}:
            await stack.aclose()
            ear = await stack.enter_async_context(_listening(url, uris, key))
        patience.reschedule(None)
        yield ear


@asynccontextmanager
async def _listening(url: str, uris: Sequence[str], key: str | None) -> AsyncIterator[EventListener]:
    ear = EventListener()
    wanted = {"toolsListChanged": True, "resourceSubscriptions": list(uris)}
    params = {"notifications": wanted, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "subscriptions/listen",
    }
    async with Raw(url, key=key) as caller, caller.http.stream("POST", url, json=body, headers=headers) as stream:
        following = asyncio.ensure_future(ear.follow(stream.aiter_lines()))
        await ear.wait_for(ACKNOWLEDGED)
        yield ear
        following.cancel()
