"""A set as an A2A agent, for the official client: by the card at its address, in both bindings over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.agents.field import run
from tests.frontends.set_server import command
from tests.hubs import CARD_LEADS_HERE, PATIENT, HubProcess, Raw, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("agents")]

DEV = {"tools": ["one.create_issue"], "tool": {"one.create_issue": {"name": "new_issue", "fixed": {"repo": "acme/x"}}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    tables: dict[str, Any] = {"limits": PATIENT, "sets": {"dev": DEV}, "hub": CARD_LEADS_HERE}
    async with serving(tmp_path_factory.mktemp("sets"), {"one": stdio(command())}, **tables) as running:
        for node in running.each:  # a card waits a second for servers that start; a list waits until they have
            async with Raw(node.url) as caller:
                assert "one.create_issue" in await caller.names()
        yield running


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_the_official_client_uses_a_set_by_its_card(hub: HubProcess, binding: str) -> None:
    url = f"http://localhost:{hub.port}/a2a/sets/dev"
    card, called, unknown = await run("a2a10", "set_v1", binding, url)
    assert card["name"] == "Isthmus (dev)"
    assert "new_issue" in card["skills"]
    assert "one.search" not in card["skills"]
    assert called["task"]["artifacts"][0]["parts"][0]["data"] == {"title": "t", "repo": "acme/x"}
    assert unknown["task"]["status"]["state"] == "TASK_STATE_FAILED"
