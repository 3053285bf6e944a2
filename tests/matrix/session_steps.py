"""The steps of a session that every client runs at every server.

mcp 1.x runs them in a process of its own (`client_sdk1`), mcp 2.x and FastMCP run them here. All report in the same
form, so tests are the same for all clients.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

from mcp import Client, MCPError

from tests.matrix.in_process_clients import Connect, InProcessClient
from tests.peers.client_sdk2 import Listener, Mode, cancel_once_begun
from tests.peers.sdk1_steps import Answer, Step

ClientName = Literal["sdk1", "sdk2-legacy", "sdk2-modern", "sdk2-auto", "fastmcp-legacy", "fastmcp-auto"]
SDK_CLIENT_NAMES: tuple[ClientName, ...] = ("sdk1", "sdk2-legacy", "sdk2-modern", "sdk2-auto")
CLIENT_NAMES: tuple[ClientName, ...] = (*SDK_CLIENT_NAMES, "fastmcp-legacy", "fastmcp-auto")
MODES: dict[ClientName, Mode] = {
    "sdk2-legacy": "legacy",
    "sdk2-modern": "2026-07-28",
    "sdk2-auto": "auto",
    "fastmcp-legacy": "legacy",
    "fastmcp-auto": "auto",
}

LEGACY = "2025-11-25"
MODERN = "2026-07-28"
SPOKEN: dict[ClientName, str] = {
    "sdk1": LEGACY,
    "sdk2-legacy": LEGACY,
    "sdk2-modern": MODERN,
    "sdk2-auto": MODERN,
    "fastmcp-legacy": LEGACY,
    "fastmcp-auto": MODERN,
}
"""The version that each client must end up with; left to choose, it takes the newest."""

HOP = "io.modelcontextprotocol/"
"""The prefix of members of `_meta` that belong to one hop."""

TEXT = 'h\u00e9llo \U0001f30d\r\n\u2028 "quoted" \\ end'
"""Characters that break careless framing."""

TRACE: dict[str, Any] = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "example.org/deep": {"a": [1, None]},
}

NOTIFICATION_SECONDS = 30.0
"""How long an announcement may take: the hub lists again, and announces, at most once a second each."""


def session_steps(token: str, *, prefix: str = "", listens: bool = True) -> dict[str, Step]:
    """The steps, by name; `prefix` is before every tool's name, `token` is unique to this session."""

    def call(tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Step:
        return {"do": "call", "tool": prefix + tool, "arguments": dict(arguments or {}), **more}

    steps: dict[str, Step] = {
        "hello": {"do": "hello"},
        "listed": {"do": "list"},
        "echoed": call("echo", {"text": TEXT}),
        "added": call("add", {"a": 40, "b": 2}),
        "decorated": call("decorated"),
        "failed": call("fail"),
        "raised": call("boom"),
        "slow": call("slow", {"seconds": 0.05, "steps": 5}, progress=True),
        "meta": call("meta", meta=TRACE, progress=True),
        "cancelled": {"do": "cancel", "tool": f"{prefix}cancellable", "arguments": {"token": token}, "grace": 15},
        "grown": call("grow", {"name": token}),
    }
    if listens:
        steps["changed"] = {"do": "changed", "within": NOTIFICATION_SECONDS, "lists": prefix + token}
    return {**steps, "listed_again": {"do": "list"}}


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The answers in one session, by the names of its steps."""

    token: str
    prefix: str
    answers: Mapping[str, Answer]

    def result(self, step: str) -> dict[str, Any]:
        """A call's result, without what belongs to the hop and not to the tool."""
        answer = self.answers[step]
        assert answer["ok"], answer
        return without_hop(answer["result"])

    def text(self, step: str) -> str:
        """The text of a call's result."""
        return cast("str", self.result(step)["content"][0]["text"])

    def tools(self, step: str) -> dict[str, dict[str, Any]]:
        """A listing of this server's tools, by their own names."""
        answer = self.answers[step]
        assert answer["ok"], answer
        return {
            tool["name"].removeprefix(self.prefix): {**tool, "name": tool["name"].removeprefix(self.prefix)}
            for tool in answer["tools"]
            if tool["name"].startswith(self.prefix)
        }

    def meta(self) -> dict[str, Any]:
        """The `_meta` that the server received."""
        return cast("dict[str, Any]", json.loads(self.text("meta")))


def without_hop(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without the members in which the eras differ: its type, and the server's name."""
    kept = {key: value for key, value in result.items() if key not in {"resultType", "_meta"}}
    meta = {key: value for key, value in result.get("_meta", {}).items() if not key.startswith(HOP)}
    return {**kept, "_meta": meta} if meta else kept


WaitForChange = Callable[[], Awaitable[object]]


async def run_session(steps: Mapping[str, Step], mode: Mode, connect: Connect) -> dict[str, Answer]:
    """Do the steps with a client in this process, with notifications of changes as in the negotiated era."""
    listener = Listener()
    listens = any(step["do"] == "changed" for step in steps.values())
    async with connect(mode, listener) as client, _changes(client, listener, listens=listens) as wait_for_change:
        runner = _StepRunner(client, wait_for_change)
        return {name: await runner.run(step) for name, step in steps.items()}


@asynccontextmanager
async def _changes(client: InProcessClient, listener: Listener, *, listens: bool) -> AsyncIterator[WaitForChange]:
    async def wait() -> None:
        await listener.changed.wait()
        listener.changed.clear()

    if client.protocol_version != MODERN or not listens:
        yield wait
        return
    async with client.listen(tools_list_changed=True) as changes:
        yield changes.__anext__


class _StepRunner:
    """Runs one step after the other; an error is an answer too."""

    def __init__(self, client: InProcessClient, wait_for_change: WaitForChange) -> None:
        self._client = client
        self._wait_for_change = wait_for_change

    async def run(self, step: Step) -> Answer:
        try:
            return {"ok": True, **await self._do(step)}
        except MCPError as refused:
            return {"ok": False, "error": plain(refused.error)}
        except TimeoutError:
            return {"ok": False, "error": {"message": f"nothing within {step.get('within')} seconds"}}

    async def _do(self, step: Step) -> Answer:
        match step["do"]:
            case "hello":
                return {"hello": {"protocolVersion": self._client.protocol_version}}
            case "list":
                return {"tools": plain(await self._client.list_tools())["tools"]}
            case "call":
                return await self._call(step)
            case "cancel":
                await cancel_once_begun(cast("Client", self._client), step["tool"], step["arguments"])
                return {"answer": {}}
            case "changed":
                async with asyncio.timeout(step["within"]):
                    return await self._await_change(step["lists"])
            case other:
                raise ValueError(f"no step is called {other!r}")

    async def _call(self, step: Step) -> Answer:
        seen: list[list[Any]] = []

        async def watch(progress: float, total: float | None, message: str | None) -> None:
            seen.append([progress, total, message])

        result = await self._client.call_tool(
            step["tool"],
            step["arguments"],
            progress_callback=watch if step.get("progress") else None,
            meta=step.get("meta"),
        )
        return {"result": plain(result), "progress": seen}

    async def _await_change(self, awaited: str) -> Answer:
        """Wait for an announcement after which the tool is listed: an earlier one may be about something else."""
        while True:
            await self._wait_for_change()
            tools = plain(await self._client.list_tools())["tools"]
            if awaited in {tool["name"] for tool in tools}:
                return {"tools": tools}


def plain(model: Any) -> dict[str, Any]:
    """A model of the SDK as the JSON that it stands for."""
    return cast("dict[str, Any]", model.model_dump(mode="json", by_alias=True, exclude_none=True))
