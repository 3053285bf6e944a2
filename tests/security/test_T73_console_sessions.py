"""T73: another site sends requests with the session of a person who is signed in to the console.

The cookie is `SameSite=Strict`, a request that changes something needs the session's token in a header, and requests of
other origins are refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
import pytest_asyncio

from tests.browser import site, visited
from tests.hubs import TRUSTED, HubProcess, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "the-key-of-ops-0123456789"
CALLERS = {"ops": {"key": KEY, "allow": ["*"], "operator": True}}
ECHO = "/v1/tools/builtin.echo"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with serving(tmp_path_factory.mktemp("hub"), callers=CALLERS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def http(hub: HubProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=30.0, verify=TRUSTED) as client:
        yield client


async def test_a_cookie_alone_changes_nothing(http: httpx2.AsyncClient) -> None:
    session = (await http.post("/console/session", json={"key": KEY})).json()
    assert (await http.get("/v1/servers")).status_code == 200
    for token in (None, "", "wrong", session["csrf"][:-1], session["csrf"] + "x"):
        headers = {} if token is None else {"x-csrf-token": token}
        denied = await http.post(ECHO, json={"text": "a"}, headers=headers)
        assert (denied.status_code, denied.json()["executed"]) == (403, "no"), token
        assert (await http.delete("/console/session", headers=headers)).status_code == 403
    allowed = await http.post(ECHO, json={"text": "a"}, headers={"x-csrf-token": session["csrf"]})
    assert allowed.status_code == 200


async def test_the_token_of_another_session_does_not_help(hub: HubProcess, http: httpx2.AsyncClient) -> None:
    mine = (await http.post("/console/session", json={"key": KEY})).json()
    async with httpx2.AsyncClient(base_url=str(http.base_url), timeout=30.0, verify=TRUSTED) as other:
        theirs = (await other.post("/console/session", json={"key": KEY})).json()
    assert mine["csrf"] != theirs["csrf"]
    assert (await http.post(ECHO, json={"text": "a"}, headers={"x-csrf-token": theirs["csrf"]})).status_code == 403


async def test_another_site_gets_nothing_from_a_browser(hub: HubProcess) -> None:
    script = f"""
      const base = "http://127.0.0.1:{hub.port}";
      const tries = await Promise.all([
        fetch(base + "/console/session", {{credentials: "include"}}),
        fetch(base + "/v1/servers", {{credentials: "include"}}),
        fetch(base + "{ECHO}", {{method: "POST", credentials: "include", body: "{{}}"}}),
        fetch(base + "/console/session", {{method: "POST", credentials: "include", body: '{{"key": "{KEY}"}}'}}),
      ].map(each => each.then(answer => answer.status).catch(() => "blocked")));
      return tries;
    """
    with site() as evil:
        assert await visited(evil, "evil.test", script) == ["blocked"] * 4
