"""Levels of logs: a server of the legacy era has one for everybody, and no caller may notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import pytest
from mcp_types import LoggingLevel

from tests.conftest import Spawn
from tests.faults.watching import eventually
from tests.hubs import serving
from tests.matrix.field import until_complete
from tests.peers import content
from tests.peers.client_sdk2 import client_over_http
from tests.peers.forms import Form
from tests.peers.surveyor import LOG_LEVEL, MessageListener, level_set

ROUNDS = 20
"""A level that arrives after the call it was set for is a race, which one round would seldom lose."""

CHOSEN: tuple[LoggingLevel, ...] = ("error", "debug")

carriers = pytest.mark.parametrize("carrier", ["sse", "stateful", "stateless"])


def levels_in(ear: MessageListener) -> list[str]:
    return [line["level"] for line in ear.logs]


@carriers
async def test_a_level_holds_from_the_next_call_on(
    carrier: Literal["sse", "stateful", "stateless"], tmp_path: Path, spawn: Spawn
) -> None:
    form = Form("sdk2", "legacy", carrier)
    peer = await spawn(form.peer, *form.options)
    ear, received = MessageListener(), []
    async with serving(tmp_path, {"full": {"url": form.url(peer.port)}}) as hub:
        await until_complete(hub.url)
        async with client_over_http(hub.url_of("full"), mode="legacy", listener=ear) as client:
            for _ in range(ROUNDS):
                for level in CHOSEN:
                    await level_set(client, level)
                    ear.logs.clear()
                    await client.call_tool("log_some", {})
                    received.append(levels_in(ear))

    assert received == [["error"], list(content.LEVELS)] * ROUNDS


async def test_one_callers_log_level_does_not_affect_another(tmp_path: Path, spawn: Spawn) -> None:
    form = Form("sdk2", "legacy", "stateful")
    peer = await spawn(form.peer, *form.options)
    quiet, curious, late = MessageListener(), MessageListener(), MessageListener()
    async with serving(tmp_path, {"full": {"url": form.url(peer.port)}}) as hub:
        await until_complete(hub.url)
        url = hub.url_of("full")
        async with (
            client_over_http(url, mode="legacy", listener=curious) as never_chose,
            client_over_http(url, mode="legacy", listener=quiet) as chose,
        ):
            await level_set(chose, "error")
            await never_chose.call_tool("log_some", {})
            await chose.call_tool("log_some", {})
        async with client_over_http(url, mode="legacy", listener=late) as came_later:
            await came_later.call_tool("log_some", {})

    assert levels_in(quiet) == ["error"]
    assert levels_in(curious) == list(content.LEVELS)
    assert levels_in(late) == list(content.LEVELS)


async def test_a_modern_call_gets_its_log_level_from_a_server_that_has_one_level_for_all(
    tmp_path: Path, spawn: Spawn
) -> None:
    form = Form("sdk2", "legacy", "stateful")
    peer = await spawn(form.peer, *form.options)
    quiet, ear = MessageListener(), MessageListener()
    async with serving(tmp_path, {"full": {"url": form.url(peer.port)}}) as hub:
        await until_complete(hub.url)
        url = hub.url_of("full")
        async with (
            client_over_http(url, mode="legacy", listener=quiet) as chose,
            client_over_http(url, mode="2026-07-28", listener=ear) as client,
        ):

            async def heard(level: str) -> list[str]:
                ear.logs.clear()
                await client.call_tool("log_some", {}, meta=cast("Any", {LOG_LEVEL: level}))
                return levels_in(ear)

            async def hears_everything() -> bool:
                return await heard("debug") == list(content.LEVELS)

            await level_set(chose, "error")
            await eventually(hears_everything, "the server has the level")  # the first call may overtake its level
            assert await heard("error") == ["error"]
            assert await hears_everything()
            await chose.call_tool("log_some", {})

    assert levels_in(quiet) == ["error"]
