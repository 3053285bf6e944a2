"""Every step with the last official client of A2A 0.3 (a2a-sdk 0.3): `client_v03 BINDING URL TOKEN`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, TaskIdParams, TaskQueryParams

from tests.agents.client_steps import Parts, Shown, run_steps
from tests.agents.tool_requests import fresh

SECONDS = 60.0


class OfficialClient:
    """The SDK's client, once for answers and once for streams."""

    last_body = ""

    def __init__(self, url: str, binding: str) -> None:
        self._url = url
        self._binding = binding
        self._http = httpx.AsyncClient(timeout=SECONDS, event_hooks={"response": [self._keep_body]})

    async def connect(self) -> None:
        """Read the card and make the clients that it is for."""
        self._card = await A2ACardResolver(self._http, self._url).get_agent_card()
        self._whole, self._streaming = (
            ClientFactory(
                ClientConfig(streaming=streams, httpx_client=self._http, supported_transports=[self._binding])
            ).create(self._card)
            for streams in (False, True)
        )

    async def _keep_body(self, response: httpx.Response) -> None:
        if "json" in response.headers.get("content-type", ""):
            await response.aread()
            self.last_body = response.text

    async def card(self) -> Shown:
        skills = {skill.id: skill.description for skill in self._card.skills}
        return {"name": self._card.name, "skills": skills, "streaming": self._card.capabilities.streaming}

    async def send(self, parts: Parts, *, task: str | None = None) -> Shown:
        [(answer, _)] = [event async for event in self._whole.send_message(_message(parts, task))]
        return _shown(answer)

    async def stream(self, parts: Parts) -> AsyncIterator[Shown]:
        async for task, update in self._streaming.send_message(_message(parts, None)):
            yield _shown(task if update is None else update)

    async def get(self, task: str) -> Shown:
        return _shown(await self._whole.get_task(TaskQueryParams(id=task)))

    async def list(self, context: str) -> list[Shown] | None:
        return None  # came with 1.0

    async def cancel(self, task: str) -> Shown:
        return _shown(await self._whole.cancel_task(TaskIdParams(id=task)))

    async def subscribe(self, task: str) -> AsyncIterator[Shown]:
        async for known, update in self._streaming.resubscribe(TaskIdParams(id=task)):
            yield _shown(known if update is None else update)


def _message(parts: Parts, task: str | None) -> Message:
    whole = [Part.model_validate({"kind": next(iter(part)), **part}) for part in parts]
    return Message(message_id=fresh("m"), role="user", parts=whole, task_id=task)


def _shown(model: Any) -> Shown:
    value = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    match value["kind"]:
        case "task":
            return _task(value)
        case "status-update":
            return {"kind": "status", "task": value["taskId"], **_status(value["status"])}
        case "artifact-update":
            return {"kind": "artifact", "task": value["taskId"], "parts": _parts(value["artifact"]["parts"])}
        case _:
            raise ValueError(f"not an update of a task: {model}")


def _task(task: dict[str, Any]) -> Shown:
    made = [part for artifact in task.get("artifacts", ()) for part in artifact["parts"]]
    status = _status(task["status"])
    about = {"kind": "task", "task": task["id"], "context": task["contextId"], "said": status["parts"]}
    return {**status, **about, "parts": _parts(made)}


def _status(status: dict[str, Any]) -> Shown:
    state = status["state"].replace("-", "_")
    return {"state": state, "parts": _parts(status.get("message", {}).get("parts", []))}


def _parts(parts: Parts) -> Parts:
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["kind"] != "file":
        return {part["kind"]: part[part["kind"]]}
    file = part["file"]
    place = {"file": file["bytes"]} if "bytes" in file else {"url": file["uri"]}
    return {**place, "type": file.get("mimeType"), "name": file.get("name")}


async def main() -> None:
    """Run every step."""
    binding, url, token = sys.argv[1:]
    client = OfficialClient(url, binding)
    await client.connect()
    await run_steps(client, token)


if __name__ == "__main__":
    asyncio.run(main())
