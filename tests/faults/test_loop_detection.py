"""Hubs that are servers of each other: their lists stay the same over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import light_server
from tests.faults.watching import eventually
from tests.hubs import HubProcess, Raw, serving, stdio, write_config

pytestmark = pytest.mark.usefixtures("no_leftovers")

SECONDS = 90.0
"""Two hubs that give each other up at the same moment try again after pauses that may grow to half a minute."""


def light(**more: Any) -> dict[str, Any]:
    return {"light": stdio(light_server.command("here")), **more}


async def listed(hub: HubProcess) -> list[str]:
    async with Raw(hub.url) as caller:
        return [name for name in await caller.names() if "builtin." not in name]


async def missing(hub: HubProcess) -> dict[str, str]:
    """Why servers are not there."""
    async with Raw(hub.url) as caller:
        meta = (await caller.ask("tools/list"))["result"].get("_meta", {})
    return {server: how["reason"] for server, how in meta.get("isthmus/missing", {}).items()}


async def test_a_hub_that_is_its_own_server_lists_nothing_twice(tmp_path: Path) -> None:
    async with serving(tmp_path, light()) as hub:
        write_config(tmp_path, light(me={"url": hub.url}, one={"url": hub.url_of("light"), "era": "legacy"}))

        async def is_known() -> bool:
            return await missing(hub) == {"me": "it is this hub itself", "one": "it is this hub itself"}

        await eventually(is_known, "the hub knows itself", SECONDS)
        assert await listed(hub) == ["light.pay"]


async def test_of_two_hubs_that_are_each_others_servers_one_serves_the_other(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with serving(here, light()) as one, serving(there, light()) as two:
        write_config(here, light(two={"url": two.url}))
        write_config(there, light(one={"url": one.url}))

        async def is_settled() -> bool:
            seen = sorted([await listed(one), await listed(two)], key=len)
            reasons = [*(await missing(one)).values(), *(await missing(two)).values()]
            served = [["light.pay", "two.light.pay"], ["light.pay", "one.light.pay"]]
            return seen[0] == ["light.pay"] and seen[1] in served and reasons == ["it leads back to this hub"]

        await eventually(is_settled, "one of them serves the other", SECONDS)
