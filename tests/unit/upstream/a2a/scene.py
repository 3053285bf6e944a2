"""A scripted agent, a link to it, and a hub with it as the only server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.settings import Limits
from isthmus.credentials.server_logins import StaticCredentials
from isthmus.model.calls import Call, ClientCapabilities, Result
from isthmus.transport.egress import Egress
from isthmus.upstream.a2a.link import AgentLink
from isthmus.upstream.a2a.remote_task import TaskIds
from isthmus.upstream.server_settings import AgentSettings
from isthmus.wire.a2a.operations import SendMessage
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import ANYONE, SERVER, Listener, Stage, call
from tests.unit.upstream.a2a.scripted import LATEST, TASK, Kind, Script, ScriptedAgent

SECONDS = 20.0
NAME = "files.research"
ASKABLE: ClientCapabilities = frozenset({"elicitation", "elicitation.form"})
LIMITS = Limits(reply_bytes=64 * 1024, connect_seconds=5.0)


class Scene:
    """An agent, a link to it, and a hub whose only server it is."""

    def __init__(self, agent: ScriptedAgent, background: BackgroundTasks) -> None:
        self.agent = agent
        self._background = background
        self.task_ids = TaskIds()
        self.link = self.dial(agent.origin)

    @property
    def task_id(self) -> str:
        """The task of the agent, as its caller names it."""
        return self.task_ids.public(ANYONE, SERVER, TASK)

    def dial(self, url: str, *origins: str) -> AgentLink:
        reach = AgentSettings(url, {"X-Key": "secret"}, origins)
        link = AgentLink(
            SERVER,
            Implementation("test", "1"),
            LIMITS,
            reach=reach,
            credentials=StaticCredentials({SERVER: reach.headers}),
            egress=Egress(),
            background=self._background,
            max_calls=4,
        )
        link.task_ids = self.task_ids
        return link

    async def handshake(self) -> None:
        """Read the card, and have its tools called."""
        await self.link.handshake("legacy")
        listing = await self.link.list_features()
        self.stage = Stage(*listing.tools)
        self.stage.server_queue.attach(self.link)

    def start(self, arguments: dict[str, Any] | None = None, **more: Any) -> tuple[InFlight, Listener]:
        asked = call(NAME, {"message": "go"} if arguments is None else arguments, timeout=more.pop("timeout", None))
        caller = more.pop("caller", ANYONE)
        return self.stage.start(Call(caller, asked.surface, NAME, asked.arguments, timeout=asked.timeout, **more))

    async def outcome(self, arguments: dict[str, Any] | None = None, **more: Any) -> Listener:
        """A call that has ended."""
        _, listener = self.start(arguments, **more)
        await over(listener)
        return listener

    async def answered(self, script: Script, **more: Any) -> Listener:
        """A call whose message was answered so."""
        self.agent.scripts[SendMessage] = script
        return await self.outcome(**more)


async def over(listener: Listener) -> None:
    async with asyncio.timeout(SECONDS):
        await listener.ended.wait()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - what is seen on the other side has no notification
            await asyncio.sleep(0.005)


def result_of(listener: Listener) -> dict[str, Any]:
    (outcome,) = listener.ends
    assert isinstance(outcome, Result), outcome
    value: dict[str, Any] = json.loads(bytes(outcome.payload))
    assert value["isError"] is outcome.is_error
    return value


def texts(listener: Listener) -> list[str]:
    return [block["text"] for block in result_of(listener)["content"]]


@asynccontextmanager
async def opened(kind: Kind = LATEST, *, can_stream: bool = True) -> AsyncIterator[Scene]:
    """A scene whose agent has been greeted."""
    background = BackgroundTasks("test")
    async with ScriptedAgent(kind, can_stream=can_stream) as agent:
        scene = Scene(agent, background)
        try:
            await scene.handshake()
            yield scene
        finally:
            await scene.link.aclose()
            await background.aclose()
