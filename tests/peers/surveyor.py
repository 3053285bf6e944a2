"""Does a survey's steps with an mcp 2.x client in this process, in the way of the era that it negotiated."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from mcp import Client, MCPDeprecationWarning, MCPError
from mcp_types import (
    LoggingLevel,
    LoggingMessageNotification,
    PromptListChangedNotification,
    PromptReference,
    ResourceListChangedNotification,
    ResourceTemplateReference,
    ResourceUpdatedNotification,
    ToolListChangedNotification,
)

from tests.peers.sdk1_steps import Answer, Step

MODERN = "2026-07-28"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

Connect = Callable[["MessageListener"], AbstractAsyncContextManager[Client]]


@dataclass(slots=True)
class MessageListener:
    """Receives a client's messages of either era, and wakes tasks that wait for one."""

    announced: list[str] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, message: Any) -> None:
        """Note what is announced and what is logged."""
        match message:
            case ToolListChangedNotification():
                self._note("tools")
            case PromptListChangedNotification():
                self._note("prompts")
            case ResourceListChangedNotification():
                self._note("resources")
            case ResourceUpdatedNotification(params=params):
                self._note(str(params.uri))
            case LoggingMessageNotification(params=params):
                self.logs.append(plain(params))
            case _:
                pass

    def _note(self, word: str) -> None:
        self.announced.append(word)
        self._woken.set()

    async def wait_for(self, word: str, past: int) -> int:
        """Wait until `word` is announced once more than `past` times; return how often it was."""
        while self.announced.count(word) <= past:
            self._woken.clear()
            await self._woken.wait()
        return self.announced.count(word)


async def survey(steps: Mapping[str, Step], connect: Connect) -> dict[str, Answer]:
    """Do the steps in one session; the answers by the steps' names."""
    listener = MessageListener()
    async with connect(listener) as client, AsyncExitStack() as stack:
        surveyor = _Surveyor(client, listener, stack)
        return {name: await surveyor.run(step) for name, step in steps.items()}


class _Surveyor:
    """Does one step after the other; a refusal is an answer too."""

    def __init__(self, client: Client, listener: MessageListener, stack: AsyncExitStack) -> None:
        self._client = client
        self._listener = listener
        self._stack = stack
        self._is_modern = client.protocol_version == MODERN
        self._listings: dict[str, Callable[[], Awaitable[Any]]] = {
            "tools": client.list_tools,
            "prompts": client.list_prompts,
            "resources": client.list_resources,
        }

    async def run(self, step: Step) -> Answer:
        try:
            return {"ok": True, **await self._do(step)}
        except MCPError as refused:
            return {"ok": False, "error": plain(refused.error)}
        except TimeoutError:
            return {"ok": False, "error": {"message": f"nothing within {step.get('within')} seconds"}}

    async def _do(self, step: Step) -> Answer:
        client = self._client
        match step["do"]:
            case "hello":
                return {"hello": {"capabilities": plain(client.server_capabilities)}}
            case "list":
                return plain(await client.list_tools())
            case "templates":
                return plain(await client.list_resource_templates())
            case "resources" | "prompts" as what:
                return plain(await self._listings[what]())
            case "read":
                return {"result": plain(await client.read_resource(step["uri"]))}
            case "prompt":
                return {"result": plain(await client.get_prompt(step["name"], step.get("arguments")))}
            case "complete":
                return {"result": plain(await self._complete(step))}
            case "call":
                return await self._call(step)
            case "announcements":
                return {"announcements": self._listener.announced}
            case _:
                return await self._listen(step)

    async def _listen(self, step: Step) -> Answer:
        match step["do"]:
            case "listen":
                return await self._begin_to_listen(step["uri"])
            case "changed":
                async with asyncio.timeout(step["within"]):
                    return await self._await_change(step["what"], step["lists"])
            case "updated":
                async with asyncio.timeout(step["within"]):
                    await self._listener.wait_for(step["uri"], 0)
                return {}
            case other:
                raise ValueError(f"no step is called {other!r}")

    async def _complete(self, step: Step) -> Any:
        ref = cast("dict[str, Any]", step["ref"])
        kind = PromptReference if ref["type"] == "ref/prompt" else ResourceTemplateReference
        return await self._client.complete(kind.model_validate(ref), dict(step["argument"]), step.get("known"))

    async def _call(self, step: Step) -> Answer:
        seen: list[list[Any]] = []

        async def watch(progress: float, total: float | None, message: str | None) -> None:
            seen.append([progress, total, message])

        meta: Any = await self._ask_for_level(step.get("level"))
        self._listener.logs.clear()
        result = await self._client.call_tool(
            step["tool"], step["arguments"], progress_callback=watch if step.get("progress") else None, meta=meta
        )
        return {"result": plain(result), "progress": seen, "logs": list(self._listener.logs)}

    async def _ask_for_level(self, level: LoggingLevel | None) -> dict[str, Any] | None:
        if level is None:
            return None
        if self._is_modern:
            return {LOG_LEVEL: level}
        await level_set(self._client, level)
        return None

    async def _begin_to_listen(self, uri: str) -> Answer:
        if not self._is_modern:
            await subscribed(self._client, uri)
            return {}
        stream = self._client.listen(
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=[uri],
        )
        listening = await self._stack.enter_async_context(stream)
        return {"honored": plain(listening.honored)}

    async def _await_change(self, what: str, awaited: str) -> Answer:
        """Wait for an announcement after which the thing is listed: an earlier one may be about something else."""
        past = 0
        while True:
            past = await self._listener.wait_for(what, past)
            listing = plain(await self._listings[what]())
            if awaited in {item["uri" if what == "resources" else "name"] for item in listing[what]}:
                return listing


async def subscribed(client: Client, uri: str) -> None:
    """Watch a resource as the legacy era does; the SDK calls that deprecated."""
    with warnings.catch_warnings(action="ignore", category=MCPDeprecationWarning):
        asking = client.session.subscribe_resource(uri)
    await asking


async def level_set(client: Client, level: LoggingLevel) -> None:
    """Ask for logs from a level on, as the legacy era does; the SDK calls that deprecated."""
    with warnings.catch_warnings(action="ignore", category=MCPDeprecationWarning):
        asking = client.session.set_logging_level(level)
    await asking


def plain(model: Any) -> dict[str, Any]:
    """A model of the SDK as the JSON that it stands for."""
    return cast("dict[str, Any]", model.model_dump(mode="json", by_alias=True, exclude_none=True))
