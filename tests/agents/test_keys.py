"""Clients that need a key: each sends it as the card says, and sees only its own tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.agents.field import run
from tests.agents.tool_requests import QUICK, fresh
from tests.faults import quick_server
from tests.hubs import CARD_LEADS_HERE, PATIENT, TRUSTED, HubProcess, serving, stdio
from tests.issuer import Issuer
from tests.matrix.field import until_complete
from tests.peers.launch import Sdk

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("agents")]

MINE, YOURS = "a-key-for-tests-of-mine", "a-key-for-tests-of-yours"
CALLERS = {"me": {"key": MINE, "allow": ["*"]}, "you": {"key": YOURS, "allow": ["*"]}}
SERVICE = "AGENTVAULT_KEY_ISTHMUS"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("keys")
    servers = {QUICK: stdio(quick_server.command(folder / "paid"))}
    tables: dict[str, Any] = {"limits": PATIENT, "callers": CALLERS, "hub": CARD_LEADS_HERE, "a2a": {"grpc_port": 0}}
    async with serving(folder, servers, **tables) as running:
        # A card waits for a second only.
        await until_complete(running.url, key=MINE)
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
    assert len(known) == 3, "a bearer, a header and a token, for which a key will do"
    for found in known:
        assert f"{QUICK}.pay" in found["skills"]
        assert "Task not found" in found["other"]["message"]


async def test_agentvault_finds_its_key_by_the_name_that_the_card_gives_it(
    hub: HubProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVICE, MINE)
    reports: list[dict[str, Any]] = await run("agentvault", "client_agentvault", "3", _url(hub), fresh("keys"))

    assert reports == [{"server": QUICK, "step": "paid", "whole": 3}]


async def test_agentvault_logs_in_with_the_name_and_the_key_of_a_caller(
    hub: HubProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTVAULT_OAUTH_ISTHMUS_CLIENT_ID", "me")
    monkeypatch.setenv("AGENTVAULT_OAUTH_ISTHMUS_CLIENT_SECRET", MINE)
    card = f"{_url(hub)}/agent-card.json?auth=oauth2"
    reports: list[dict[str, Any]] = await run("agentvault", "login_agentvault", card, fresh("tokens"))

    assert reports == [{"server": QUICK, "step": "paid", "whole": 3}]


async def test_agentvault_logs_in_at_the_issuer_on_a_hub_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer()
    issuer.start()
    trusted = {"issuer": issuer.url, "audience": "hub", "token_url": f"{issuer.url}/token", "allow": ["*"]}
    servers = {QUICK: stdio(quick_server.command(tmp_path / "paid"))}
    monkeypatch.setenv("AGENTVAULT_OAUTH_ISTHMUS_CLIENT_ID", "alice")
    monkeypatch.setenv("AGENTVAULT_OAUTH_ISTHMUS_CLIENT_SECRET", "a-secret")
    try:
        tables: dict[str, Any] = {"limits": PATIENT, "issuers": {"corp": trusted}, "hub": CARD_LEADS_HERE}
        async with serving(tmp_path, servers, **tables) as hub:
            reports = await run("agentvault", "login_agentvault", f"{_url(hub)}/agent-card.json", fresh("issued"))
    finally:
        issuer.stop()

    assert reports == [{"server": QUICK, "step": "paid", "whole": 3}]
    assert "/token" in issuer.asked


async def test_a_token_for_a_key_is_as_good_wherever_the_card_has_it_put(hub: HubProcess) -> None:
    async with httpx2.AsyncClient(verify=TRUSTED, timeout=30.0) as http:
        tokens = [await _token(http, hub, name, key) for name, key in (("me", MINE), ("you", YOURS))]
    _, *known = await run("a2a10", "keys_v1", "GRPC", _url(hub), *tokens)

    assert [f"{QUICK}.pay" in found["skills"] for found in known] == [True] * 3


async def _token(http: httpx2.AsyncClient, hub: HubProcess, name: str, key: str) -> str:
    card = (await http.get(f"{_url(hub)}/.well-known/agent-card.json")).json()
    place = card["securitySchemes"]["oauth"]["oauth2SecurityScheme"]["flows"]["clientCredentials"]["tokenUrl"]
    answer = await http.post(place, data={"grant_type": "client_credentials"}, auth=(name, key))
    return str(answer.json()["access_token"])
