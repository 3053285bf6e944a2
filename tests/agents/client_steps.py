"""The steps that a client of an official SDK runs at every server, with every binding: each step is one report.

The SDKs differ in their objects, so each client turns them into the same plain values (`Shown`): a task or an update of
one with its state and its parts, where a part is `{"text"}`, `{"data"}` or `{"file" | "url", "type", "name"}`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from tests.agents.tool_requests import (
    ASKING,
    EXACT,
    SERVERS,
    STEPS,
    TALKING,
    blamed,
    failing,
    fresh,
    holding,
    report,
    tool_request,
)

STEP_SECONDS = 60.0

Shown = dict[str, Any]
Parts = list[dict[str, Any]]


class Client(Protocol):
    """An official client in plain values; `last_body` is the last body that was JSON, as it came."""

    last_body: str

    async def card(self) -> Shown: ...

    async def send(self, parts: Parts, *, task: str | None = None) -> Shown: ...

    def stream(self, parts: Parts) -> AsyncIterator[Shown]: ...

    async def get(self, task: str) -> Shown: ...

    async def list(self, context: str) -> list[Shown] | None: ...

    async def cancel(self, task: str) -> Shown: ...

    def subscribe(self, task: str) -> AsyncIterator[Shown]: ...


async def run_steps(client: Client, token: str) -> None:
    """Run every step at every server."""
    for server in SERVERS:
        server_steps = ServerSteps(client, server, token)
        await server_steps.step("card", server_steps.card)
        await server_steps.step("called", server_steps.call)
        await server_steps.step("streamed", server_steps.stream)
        await server_steps.step("failed", server_steps.fail)
        await server_steps.step("refused", server_steps.refuse)
        await server_steps.step("offered", server_steps.choose)
        if server in TALKING:
            await server_steps.step("shown", server_steps.show)
        if server in ASKING:
            await server_steps.step("asked", server_steps.answer)
            await server_steps.step("declined", server_steps.decline)
        # The last: as long as a cancelled call may still run, a server on a pipe may ask a question about it.
        await server_steps.step("cancelled", server_steps.cancel)


class ServerSteps:
    """The steps at one server."""

    def __init__(self, client: Client, server: str, token: str) -> None:
        self._client = client
        self._server = server
        self._token = f"{token} {server}"

    async def step(self, name: str, do: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Do one step and report; what goes wrong is a report too."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                found = await do()
        except Exception as error:  # noqa: BLE001 (the test shows it, and the other steps go on)
            found = {"broken": repr(error)[:2000]}
        report(self._server, name, **found)

    async def card(self) -> dict[str, Any]:
        """Read the card."""
        return {"card": await self._client.card()}

    async def call(self) -> dict[str, Any]:
        """Run a tool and look at the task afterwards; as a text, because protobuf would make doubles of the numbers."""
        text = json.dumps(tool_request(self._server, "tell", value=EXACT))
        task = await self._client.send([{"text": text}])
        body = self._client.last_body
        found = await self._client.get(task["task"])
        return {"task": task, "body": body, "found": found, "listed": await self._client.list(task["context"])}

    async def stream(self) -> dict[str, Any]:
        """Follow a tool that reports."""
        talks = self._server in TALKING
        what = (
            tool_request(self._server, "count", steps=STEPS) if talks else tool_request(self._server, "tell", value={})
        )
        return {"events": [event async for event in self._client.stream([{"data": what}])]}

    async def cancel(self) -> dict[str, Any]:
        """Follow a task twice, and give it up."""
        first: list[Shown] = []
        begun = asyncio.Event()

        async def follow() -> None:
            async for event in self._client.stream([{"data": holding(self._server, self._token)}]):
                first.append(event)
                if self._server not in TALKING or {"text": "holding"} in event["parts"]:
                    begun.set()

        async def follow_too() -> list[Shown]:
            events = []
            async for event in self._client.subscribe(first[0]["task"]):
                events.append(event)
                subscribed.set()
            return events

        subscribed = asyncio.Event()
        following = asyncio.create_task(follow())
        await begun.wait()
        second = asyncio.create_task(follow_too())
        await subscribed.wait()
        cancelled = await self._client.cancel(first[0]["task"])
        await following
        return {"cancelled": cancelled, "first": first, "second": await second}

    async def fail(self) -> dict[str, Any]:
        """Run a tool that fails, and one that is not there."""
        unknown = await self._client.send([{"data": tool_request(self._server, "nothing")}])
        return {"task": await self._client.send([{"data": failing(self._server)}]), "unknown": unknown}

    async def choose(self) -> dict[str, Any]:
        """Say words that are no instruction, and then which tool is meant."""
        offer = await self._client.send([{"text": "hello"}])
        chosen = [{"data": tool_request(self._server, "readFile", path="/x")}]
        return {"offer": offer, "chosen": await self._client.send(chosen, task=offer["task"])}

    async def refuse(self) -> dict[str, Any]:
        """Ask for what cannot be had."""
        ended = (await self._client.send([{"data": failing(self._server)}]))["task"]
        return {
            "missing": await blamed(self._client.get(fresh("nobody"))),
            "ended": await blamed(self._client.cancel(ended)),
            "over": await blamed(_drained(self._client.subscribe(ended))),
            "closed": await blamed(self._client.send([{"text": "more"}], task=ended)),
        }

    async def show(self) -> dict[str, Any]:
        """Run a tool whose result is files."""
        return {"task": await self._client.send([{"data": tool_request(self._server, "gallery")}])}

    async def answer(self) -> dict[str, Any]:
        """Run a tool that asks, and answer."""
        question = await self._client.send([{"data": tool_request(self._server, "ask")}])
        answered = await self._client.send([{"data": {"name": "Ann"}}], task=question["task"])
        return {"question": question, "answered": answered}

    async def decline(self) -> dict[str, Any]:
        """Run a tool that asks, and do not answer."""
        question = await self._client.send([{"data": tool_request(self._server, "ask")}])
        return {"answered": await self._client.send([{"text": "no"}], task=question["task"])}


async def _drained(events: AsyncIterator[Shown]) -> list[Shown]:
    return [event async for event in events]
