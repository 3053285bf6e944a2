"""Clients that need a key: each puts it where the card says, and sees what is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.agents.errands import QUICK, fresh
from tests.agents.field import run
from tests.faults import quick_server
from tests.hubs import PATIENT, HubProcess, serving, stdio
from tests.peers.launch import Sdk

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("agents")]

MINE, YOURS = "a-key-for-tests-of-mine", "a-key-for-tests-of-yours"
CALLERS = {"me": {"key": MINE, "allow": ["*"]}, "you": {"key": YOURS, "allow": ["*"]}}
SERVICE = "AGENTVAULT_KEY_ISTHMUS"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("keys")
    servers = {QUICK: stdio(quick_server.command(folder / "paid"))}
    async with serving(folder, servers, limits=PATIENT, callers=CALLERS, a2a={"grpc_port": 0}) as running:
        yield running


def _url(hub: HubProcess) -> str:
    return f"http://localhost:{hub.port}"


@pytest.mark.parametrize(
    ("sdk", "binding"),
    [("a2a10", "JSONRPC"), ("a2a10", "HTTP+JSON"), ("a2a10", "GRPC"), ("a2a03", "JSONRPC")],
)
async def test_a_key_is_put_where_the_card_says_and_another_key_sees_nothing(
    hub: HubProcess, sdk: Sdk, binding: str
) -> None:
    program = {"a2a10": "keys_v1", "a2a03": "keys_v03"}[sdk]
    stranger, *known = await run(sdk, program, binding, _url(hub), MINE, YOURS)

    assert "answer" not in stranger
    assert f"{QUICK}.pay" not in stranger["skills"]
    assert len(known) == 2, "a bearer and a header"
    for found in known:
        assert f"{QUICK}.pay" in found["skills"]
        assert "Task not found" in found["other"]["message"]


async def test_agentvault_finds_its_key_by_the_name_that_the_card_gives_it(
    hub: HubProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVICE, MINE)
    reports: list[dict[str, Any]] = await run("agentvault", "client_agentvault", "3", _url(hub), fresh("keys"))

    assert reports == [{"server": QUICK, "step": "paid", "told": 3}]
