"""The client of AgentVault (agentvault 0.2.1) at every server: `client_agentvault URL TOKEN`.

With a number before the address, `client_agentvault NUMBER URL TOKEN`, it does one call that often and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentvault import AgentVaultClient, KeyManager, fetch_agent_card_from_url
from agentvault.models import DataPart, Message, TextPart

from tests.agents.tool_requests import (
    ASKING,
    EXACT,
    QUICK,
    SERVERS,
    STEPS,
    TALKING,
    blamed,
    execution,
    fresh,
    report,
    tool_request,
)

STEP_SECONDS = 60.0
AT_ONCE = 8
"""How many tasks run beside each other when there are many."""

Found = dict[str, Any]


class ServerSteps:
    """The steps at one server."""

    def __init__(self, client: AgentVaultClient, card: Any, server: str, token: str) -> None:
        self._client = client
        self._card = card
        self._keys = KeyManager(use_keyring=False)
        self._server = server
        self._token = f"{token} {server}"

    async def step(self, name: str, do: Callable[[], Awaitable[Found]]) -> None:
        """Do one step and report; what goes wrong is a report too."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                found = await do()
        except Exception as error:  # noqa: BLE001 (the test shows it, and the other steps go on)
            found = {"broken": repr(error)[:2000]}
        report(self._server, name, **found)

    async def begin(self, tool: str, **arguments: Any) -> str:
        """Have a tool run, in the words that this client's own proxy is given."""
        return await self.say(DataPart(content=execution(self._server, tool, **arguments)))

    async def say(self, part: Any) -> str:
        """Begin a task."""
        return str(await self._client.initiate_task(self._card, _message(part), self._keys))

    async def follow(self, task: str) -> AsyncIterator[Found]:
        """All updates of a task."""
        async for event in self._client.receive_messages(self._card, task, self._keys):
            yield {"kind": type(event).__name__, **_plain(event)}

    async def read(self, task: str) -> Found:
        """How a task stands."""
        return _plain(await self._client.get_task_status(self._card, task, self._keys))

    async def card(self) -> Found:
        """What the card says."""
        skills = {skill.id for skill in self._card.skills or ()}
        return {"skills": sorted(skills), "schemes": [scheme.scheme for scheme in self._card.auth_schemes]}

    async def call(self) -> Found:
        """Run a tool, follow it, and look afterwards."""
        task = await self.begin("tell", value=EXACT)
        events = [event async for event in self.follow(task)]
        again = [event async for event in self.follow(task)]
        return {"events": events, "again": again, "read": await self.read(task)}

    async def count(self) -> Found:
        """Follow a tool that reports, and begins to when it is followed."""
        events = []
        with TemporaryDirectory() as folder:
            followed = Path(folder) / "followed"
            async for event in self.follow(await self.begin("count", steps=STEPS, after=str(followed))):
                events.append(event)
                followed.touch()
        return {"events": events}

    async def show(self) -> Found:
        """Run a tool whose result is files, by words of the hub's own."""
        task = await self.say(DataPart(content=tool_request(self._server, "gallery")))
        return {"events": [event async for event in self.follow(task)], "read": await self.read(task)}

    async def fail(self) -> Found:
        """Run a tool that fails, one that is not there, and one at a server that is not there."""
        tools = ("refuse" if self._server == "rpc" else "fail", "nothing")
        tasks = [await self.begin(tool) for tool in tools]
        tasks.append(await self.say(DataPart(content=execution("nowhere", "nothing"))))
        return {"events": [[event async for event in self.follow(task)] for task in tasks]}

    async def answer(self) -> Found:
        """Run a tool that asks, and answer."""
        task = await self.begin("ask")
        asked = [event async for event in self.follow(task)]
        question = await self.read(task)
        answer = _message(DataPart(content={"name": "Ann"}))
        await self._client.send_message(self._card, task, answer, self._keys)
        return {"asked": asked, "question": question, "events": [event async for event in self.follow(task)]}

    async def cancel(self) -> Found:
        """Give a task up while it is followed."""
        events: list[Found] = []
        begun = "holding" if self._server in TALKING else None
        with TemporaryDirectory() as folder:
            followed = Path(folder) / "followed"
            task = await self.hold(str(followed))
            async for event in self.follow(task):
                events.append(event)
                followed.touch()
                if (event.get("state"), event["message"]) == ("WORKING", begun):
                    cancelled = await self._client.terminate_task(self._card, task, self._keys)
        return {"cancelled": cancelled, "events": events, "read": await self.read(task)}

    async def hold(self, followed: str) -> str:
        """Begin what does not end by itself."""
        if self._server in TALKING:
            return await self.begin("hold", token=self._token, after=followed)
        return await self.begin("slow", seconds=600)

    async def refuse(self) -> Found:
        """Ask for what cannot be had."""
        nobody = fresh("nobody")
        ended = await self.begin("nothing")
        async for _ in self.follow(ended):
            pass
        return {
            "missing": await blamed(self.read(nobody)),
            "unfollowed": await blamed(_drained(self.follow(nobody))),
            "ended": await blamed(self._client.terminate_task(self._card, ended, self._keys)),
            "closed": await blamed(self._client.send_message(self._card, ended, _message(_text("more")), self._keys)),
        }

    async def pay(self, nonce: str) -> bool:
        """Run what takes next to no time; whether the stream had its data, once, and its end."""
        events = [event async for event in self.follow(await self.begin("pay", nonce=nonce))]
        said = [event["message"]["parts"][0]["content"] for event in events if event["kind"] == "TaskMessageEvent"]
        results = [content["mcp_result"]["content"] for content in said if content["success"]]
        is_done = bool(events) and events[-1].get("state") == "COMPLETED"
        is_whole = is_done and results == [[{"type": "text", "text": nonce}]]
        if not is_whole:
            report(self._server, f"lost {nonce}", events=events)
        return is_whole


def _message(part: Any) -> Message:
    return Message(role="user", parts=[part])


def _text(text: str) -> TextPart:
    return TextPart(content=text)


def _plain(model: Any) -> Found:
    plain: Found = model.model_dump(mode="json", by_alias=True)
    return plain


async def _drained(events: AsyncIterator[Found]) -> list[Found]:
    return [event async for event in events]


async def run_steps(client: AgentVaultClient, card: Any, token: str) -> None:
    """Every step at every server."""
    for server in SERVERS:
        server_steps = ServerSteps(client, card, server, token)
        await server_steps.step("card", server_steps.card)
        await server_steps.step("called", server_steps.call)
        await server_steps.step("failed", server_steps.fail)
        await server_steps.step("refused", server_steps.refuse)
        if server in TALKING:
            await server_steps.step("counted", server_steps.count)
            await server_steps.step("shown", server_steps.show)
        if server in ASKING:
            await server_steps.step("asked", server_steps.answer)
        # The last: as long as a call that was given up may still run, a server on a pipe may be asking for it.
        await server_steps.step("cancelled", server_steps.cancel)


async def pay(client: AgentVaultClient, card: Any, times: int, token: str) -> None:
    """One quick call, so often, a few at once."""
    server_steps = ServerSteps(client, card, QUICK, token)
    left = iter(range(times))

    async def work() -> list[bool]:
        return [await server_steps.pay(f"{token}-{number}") for number in left]

    results = await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    report(QUICK, "paid", whole=sum(map(sum, results)))


async def main() -> None:
    """Run every step."""
    logging.disable()
    *times, url, token = sys.argv[1:]
    card = await fetch_agent_card_from_url(f"{url}/agent-card.json")
    async with AgentVaultClient(default_timeout=STEP_SECONDS) as client:
        if times:
            await pay(client, card, int(times[0]), token)
        else:
            await run_steps(client, card, token)


if __name__ == "__main__":
    asyncio.run(main())
