"""Starts tasks as an A2A client does, and holds them where a test wants them."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import httpx2

from tests.hubs import TRUSTED, HubProcess


def client(hub: HubProcess, key: str | None = None) -> httpx2.AsyncClient:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", headers=headers, timeout=30.0, verify=TRUSTED)


async def say(http: httpx2.AsyncClient, *parts: dict[str, Any], task: str | None = None) -> dict[str, Any]:
    """Send a message of A2A 0.3, and return the task without waiting for its end."""
    message: dict[str, Any] = {
        "kind": "message",
        "role": "user",
        "messageId": secrets.token_hex(8),
        "parts": list(parts),
    }
    if task is not None:
        message["taskId"] = task
    params = {"message": message, "configuration": {"blocking": False}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
    answer = (await http.post("/a2a", json=body)).json()
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


async def start(http: httpx2.AsyncClient, tool: str, **arguments: Any) -> str:
    """Start a task that calls this tool; returns its id."""
    begun = await say(http, {"kind": "data", "data": {"tool": tool, "arguments": arguments}})
    id: str = begun["id"]
    return id


@asynccontextmanager
async def gate(folder: Path) -> AsyncIterator[Path]:
    """A pipe that holds `desk.steps`; a reader that still waits at the end is released."""
    path = folder / f"gate-{secrets.token_hex(4)}"
    os.mkfifo(path)
    try:
        yield path
    finally:
        keeper = os.open(path, os.O_RDWR)
        os.write(keeper, b"..")
        os.close(keeper)


async def opened(path: Path) -> IO[bytes]:
    """The writing end, once the tool has opened the pipe; each byte lets one step pass."""
    return await asyncio.to_thread(open, path, "wb", 0)
