"""A modern caller's stream of notifications, read line by line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from tests.hubs import META, MODERN, Raw

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS_CHANGED = "notifications/tools/list_changed"
NOTIFICATION_SECONDS = 60.0
"""A notification that takes longer is not coming."""


class EventListener:
    """Notifications: the URI of an updated resource, else the method. `honoured` are the URIs that the hub accepted."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.received_at: list[float] = []
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
        self.received.append(params.get("uri", message.get("method", "")))
        self.received_at.append(asyncio.get_running_loop().time())
        self._woken.set()

    async def wait_for(self, word: str, past: int = 0) -> None:
        """Wait until it was received more than `past` times."""
        async with asyncio.timeout(NOTIFICATION_SECONDS):
            while self.received.count(word) <= past:
                self._woken.clear()
                await self._woken.wait()


@asynccontextmanager
async def listening(
    url: str, uris: Sequence[str], *, key: str | None = None, without: Sequence[str] = ()
) -> AsyncIterator[EventListener]:
    """A caller that subscribes to changes of tools, and to updates of these resources.

    The hub waits a moment for each resource's server and then goes on without it, so on a busy machine the caller
    subscribes again. `without` are resources that the hub does not accept.
    """
    async with AsyncExitStack() as stack, asyncio.timeout(NOTIFICATION_SECONDS) as deadline:
        listener = await stack.enter_async_context(_listening(url, uris, key))
        while not {*uris} - {*without} <= {*listener.honoured}:
            await stack.aclose()
            listener = await stack.enter_async_context(_listening(url, uris, key))
        deadline.reschedule(None)
        yield listener


@asynccontextmanager
async def _listening(url: str, uris: Sequence[str], key: str | None) -> AsyncIterator[EventListener]:
    listener = EventListener()
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
        following = asyncio.ensure_future(listener.follow(stream.aiter_lines()))
        await listener.wait_for(ACKNOWLEDGED)
        yield listener
        following.cancel()
