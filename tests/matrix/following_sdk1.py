"""Two clients on the official SDK, mcp 1.x, with elicitation, that follow a resource: a script of its own.

On stdin: an address, a resource, and a tool that updates it in the process of who calls it. The first calls, waits
until it is told, and then the second does. One JSON object comes out: how often each was told, and what each read.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import anyio
import httpx
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client

CALL_SECONDS = 30.0


class Reader:
    """One client, and its notifications."""

    def __init__(self) -> None:
        self.notified: list[str] = []
        self._woken = anyio.Event()

    async def hear(self, message: Any) -> None:
        """Note which resource was updated."""
        if isinstance(message, types.ServerNotification):
            note = message.root
            if isinstance(note, types.ResourceUpdatedNotification):
                self.notified.append(str(note.params.uri))
                self._woken.set()
                self._woken = anyio.Event()

    async def until_notified(self, uri: str) -> None:
        """Wait for the first word on it."""
        with anyio.fail_after(CALL_SECONDS):
            while uri not in self.notified:
                await self._woken.wait()

    def session(self, read: Any, write: Any) -> ClientSession:
        """A session that can be asked to fill in a form."""
        seconds = timedelta(seconds=CALL_SECONDS)
        return ClientSession(read, write, seconds, elicitation_callback=decline, message_handler=self.hear)


async def decline(*_: Any) -> types.ElicitResult:
    """Answer no form."""
    return types.ElicitResult(action="decline")


async def read_after(reader: Reader, session: ClientSession, todo: dict[str, Any]) -> str:
    """Update the resource, wait for the notification, and read it."""
    await session.call_tool(todo["tool"], {})
    await reader.until_notified(todo["uri"])
    content = (await session.read_resource(todo["uri"])).contents[0]
    return getattr(content, "text", "")


async def main() -> None:
    """Run with both."""
    todo = json.loads(sys.stdin.read())
    one, two = Reader(), Reader()
    async with (
        httpx.AsyncClient(trust_env=False, timeout=CALL_SECONDS) as http,
        streamable_http_client(todo["url"], http_client=http) as (read, write, _),
        one.session(read, write) as first,
        streamable_http_client(todo["url"], http_client=http) as (read, write, _),
        two.session(read, write) as second,
    ):
        for session in (first, second):
            await session.initialize()
            await session.list_tools()
            await session.subscribe_resource(todo["uri"])
        texts = [await read_after(one, first, todo), await read_after(two, second, todo)]
    print(json.dumps({"notified": [len(one.notified), len(two.notified)], "read": texts}))


if __name__ == "__main__":
    anyio.run(main)
