"""A hub in front of a server whose list a test changes, and the lists of its callers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hubs import HubProcess, Raw, run, stdio

SERVER = Path(__file__).with_name("fickle_server.py")
SECONDS = 20.0
"""Longer than anything here takes: who waits for so long has found a hang."""


@dataclass(frozen=True, slots=True)
class Fickle:
    """What a server lists."""

    file: Path

    def lists(self, *tools: dict[str, Any], **more: Any) -> None:
        """From now on it lists these; it does not say so."""
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps({"tools": tools, **more}))
        draft.replace(self.file)

    @property
    def entry(self) -> dict[str, Any]:
        """The server as a hub's file has it."""
        return stdio([sys.executable, str(SERVER), str(self.file)])


async def announced(raw: Raw, server: str = "fickle") -> None:
    """Have the server say that its list has changed."""
    await raw.call(f"{server}.announce")


async def definitions(raw: Raw) -> dict[str, dict[str, Any]]:
    """What is listed, by name."""
    answer = await raw.ask("tools/list")
    return {each["name"]: each for each in answer["result"]["tools"]}


async def until(is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for something that must become so."""
    async with asyncio.timeout(SECONDS):
        while not await is_so():  # noqa: ASYNC110 - it becomes so in another process
            await asyncio.sleep(0.02)
    assert what


async def command(folder: Path, *words: str, code: int | None = 0, key: str = "") -> str:
    """Run the command line beside a hub; what it printed, both ways."""
    where = () if "--hub" in words else ("--config", str(folder / "isthmus.json"))
    ended = await run(*words, *where, folder=folder, env={"ISTHMUS_KEY": key} if key else {})
    assert code is None or ended.code == code, ended
    return ended.out + ended.err


def said(hub: HubProcess, words: str) -> list[str]:
    """The lines of the hub's log that have these words."""
    return [line for line in hub.said if words in line]
