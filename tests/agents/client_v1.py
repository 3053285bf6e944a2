"""Every step with the official client of A2A 1.0 (a2a-sdk 1.x): `client_v1 BINDING URL TOKEN`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as wire
from google.protobuf.json_format import MessageToDict, ParseDict

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
        card = await A2ACardResolver(self._http, self._url).get_agent_card()
        self._card = card
        self._whole, self._streaming = (
            ClientFactory(self._config(streams=streams)).create(card) for streams in (False, True)
        )

    def _config(self, *, streams: bool) -> ClientConfig:
        return ClientConfig(
            streaming=streams,
            httpx_client=self._http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_protocol_bindings=[self._binding],
        )

    async def _keep_body(self, response: httpx.Response) -> None:
        if "json" in response.headers.get("content-type", ""):
            await response.aread()
            self.last_body = response.text

    async def card(self) -> Shown:
        skills = {skill.id: skill.description for skill in self._card.skills}
        return {"name": self._card.name, "skills": skills, "streaming": self._card.capabilities.streaming}

    async def send(self, parts: Parts, *, task: str | None = None) -> Shown:
        [answer] = [event async for event in self._whole.send_message(_message(parts, task))]
        return _update(answer)

    async def stream(self, parts: Parts) -> AsyncIterator[Shown]:
        async for event in self._streaming.send_message(_message(parts, None)):
            yield _update(event)

    async def get(self, task: str) -> Shown:
        return _task(_plain(await self._whole.get_task(wire.GetTaskRequest(id=task))))

    async def list(self, context: str) -> list[Shown] | None:
        asked = wire.ListTasksRequest(context_id=context, include_artifacts=True)
        return [_task(_plain(task)) for task in (await self._whole.list_tasks(asked)).tasks]

    async def cancel(self, task: str) -> Shown:
        return _task(_plain(await self._whole.cancel_task(wire.CancelTaskRequest(id=task))))

    async def subscribe(self, task: str) -> AsyncIterator[Shown]:
        async for event in self._streaming.subscribe(wire.SubscribeToTaskRequest(id=task)):
            yield _update(event)


def _message(parts: Parts, task: str | None) -> wire.SendMessageRequest:
    message = {"messageId": fresh("m"), "role": "ROLE_USER", "parts": parts, **({"taskId": task} if task else {})}
    return ParseDict({"message": message}, wire.SendMessageRequest())


def _plain(message: Any) -> dict[str, Any]:
    return MessageToDict(message)


def _update(event: Any) -> Shown:
    [(kind, value)] = _plain(event).items()
    match kind:
        case "task":
            return _task(value)
        case "statusUpdate":
            return {"kind": "status", "task": value["taskId"], **_status(value["status"])}
        case "artifactUpdate":
            return {"kind": "artifact", "task": value["taskId"], "parts": _parts(value["artifact"]["parts"])}
        case _:
            raise ValueError(f"not an update of a task: {event}")


def _task(task: dict[str, Any]) -> Shown:
    made = [part for artifact in task.get("artifacts", ()) for part in artifact["parts"]]
    status = _status(task["status"])
    about = {"kind": "task", "task": task["id"], "context": task["contextId"], "said": status["parts"]}
    return {**status, **about, "parts": _parts(made)}


def _status(status: dict[str, Any]) -> Shown:
    state = status["state"].removeprefix("TASK_STATE_").lower()
    return {"state": state, "parts": _parts(status.get("message", {}).get("parts", []))}


def _parts(parts: Parts) -> Parts:
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if "text" in part or "data" in part:
        return {key: part[key] for key in ("text", "data") if key in part}
    place = {"file": part["raw"]} if "raw" in part else {"url": part["url"]}
    return {**place, "type": part.get("mediaType"), "name": part.get("filename")}


async def main() -> None:
    """Run every step."""
    binding, url, token = sys.argv[1:]
    client = OfficialClient(url, binding)
    await client.connect()
    await run_steps(client, token)


if __name__ == "__main__":
    asyncio.run(main())
