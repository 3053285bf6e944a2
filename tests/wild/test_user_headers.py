"""Headers of users: each reaches the servers that are configured to receive it, with the user's own calls alone."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.hub import LOCAL, RunningHub
from isthmus.config.load import load
from isthmus.model.calls import EVERYTHING, Call, Outcome, Result
from isthmus.model.fault_table import BadArguments
from tests.conftest import Ledger, Spawn
from tests.hubs import stdio, write_config
from tests.peers.launch import command
from tests.unit.core.doubles import Listener, raw

SECONDS = 30.0
"""Longer than anything here takes: who waits for so long has found a hang."""


class Inside:
    """A hub in this process, and calls to it with headers."""

    def __init__(self, running: RunningHub) -> None:
        self.running = running

    async def ask(
        self, name: str, headers: dict[str, str], arguments: Mapping[str, str] | None = None, session: str = ""
    ) -> Outcome:
        """Call a tool, and wait for its end."""
        listener = Listener()
        asked = Call(LOCAL, EVERYTHING, name, raw(arguments or {}), session=session, headers=headers)
        self.running.hub.start(asked, listener)
        async with asyncio.timeout(SECONDS):
            await listener.ended.wait()
        (outcome,) = listener.ends
        return outcome

    async def shown(self, server: str, headers: dict[str, str]) -> dict[str, str]:
        """The headers that a server saw of a call."""
        outcome = await self.ask(f"{server}.meta", headers)
        assert isinstance(outcome, Result), outcome
        seen: dict[str, str] = json.loads(json.loads(bytes(outcome.payload))["content"][0]["text"])["headers"]
        return seen


@asynccontextmanager
async def inside(folder: Path, servers: dict[str, Any]) -> AsyncIterator[Inside]:
    """A hub of a configuration file, with its servers there."""
    file = write_config(folder, servers, hub={"limits": {"listing_seconds": SECONDS}})
    running = RunningHub(load(file, os.environ, folder, folder), os.environ)
    try:
        await running.hub.wait_connected(EVERYTHING)
        yield Inside(running)
    finally:
        await running.aclose()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_users_header_reaches_the_server_that_receives_it_and_no_other(
    tmp_path: Path, spawn: Spawn, era: str
) -> None:
    peer = await spawn("raw_server", "--era", era)
    receiving = {"url": peer.url, "headers": {"X-Team": "blue"}, "user_headers": ["X-User-Id", "X-Tenant"]}
    async with inside(tmp_path, {"told": receiving, "untold": {"url": peer.url}}) as hub:
        given = {"x-user-id": "ann", "Authorization": "Bearer hers", "X-Team": "red", "Mcp-Session-Id": "forged"}
        received, untold = await hub.shown("told", given), await hub.shown("untold", given)
        other, nobody = await hub.shown("told", {"X-User-Id": "bob"}), await hub.shown("told", {})
        refused = await hub.ask("told.meta", {"X-User-Id": "ann\r\nX-Admin: yes"})

    assert received["x-user-id"] == "ann"
    assert received["x-team"] == "blue"
    assert received.get("mcp-session-id") != "forged"
    assert not received.keys() & {"authorization", "x-tenant"}
    assert not untold.keys() & {"x-user-id", "authorization", "x-team"}
    assert other["x-user-id"] == "bob"
    assert "x-user-id" not in nobody
    assert isinstance(refused, BadArguments)
    assert refused.executed == "no"


async def test_conversations_of_callers_without_capabilities_share_one_process(tmp_path: Path, ledger: Ledger) -> None:
    async with inside(tmp_path, {"own": stdio(command("raw_server", "--ledger", str(ledger.path)))}) as hub:
        for number in range(3):
            outcome = await hub.ask("own.pay", {}, {"nonce": f"n{number}"}, session=f"conversation {number}")
            assert isinstance(outcome, Result), outcome
    notes = [json.loads(line) for line in ledger.lines()]
    paid = [note["pid"] for note in notes if "nonce" in note]
    assert len(paid) == 3
    assert len(set(paid)) == 1
