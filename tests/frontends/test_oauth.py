"""OAuth as clients live it: the official one finds the issuer by the challenge and logs in; keys give tokens."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import jwt
import pytest
import pytest_asyncio
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)

from tests.faults import quick_server
from tests.frontends.wire import until
from tests.hubs import NODES, TRUSTED, HubProcess, serving, stdio, write_config
from tests.security.issuer_hub import KEY, IssuerHub, Tap, issuer_hub

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("oauth")]

SCOPES = {"files:read": ["quick.pay"], "files:write": ["quick.*"]}


class Memory:
    """What a client remembers between its requests."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Goes where it is sent and comes back with the code."""

    def __init__(self) -> None:
        self._back = ""

    async def go(self, url: str) -> None:
        async with httpx2.AsyncClient(verify=TRUSTED) as http:
            self._back = (await http.get(url)).headers["location"]

    async def come_back(self) -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(self._back).query)
        return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[IssuerHub]:
    """A hub behind another address, by which it is known; that address is what tokens are made for."""
    folder = tmp_path_factory.mktemp("oauth")
    servers = {"quick": stdio(quick_server.command(folder / "paid"))}
    async with Tap(0).opened() as tap:
        public = {"public_url": f"http://127.0.0.1:{tap.own_port}"}
        async with issuer_hub(folder, servers, public, allow=None, scopes=SCOPES, audience=None) as running:
            tap.port = running.hub.port
            yield replace(running, public=public["public_url"])


async def _paid(url: str, auth: httpx2.Auth) -> str:
    """Call a tool with whatever the client does to be let in."""
    async with (
        httpx2.AsyncClient(auth=auth, verify=TRUSTED, timeout=30.0) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        name = "pay" if url.endswith("/quick") else "quick.pay"
        result: Any = await session.call_tool(name, {"nonce": "well"})
        return str(result.content[0].text)


@pytest.mark.parametrize("path", ["/mcp", "/mcp/quick"])
async def test_the_official_client_finds_the_issuer_and_logs_in(here: IssuerHub, path: str) -> None:
    memory, browser = Memory(), Browser()
    url = here.public + path
    metadata = OAuthClientMetadata(redirect_uris=["http://127.0.0.1:1/back"], client_name="a test")  # type: ignore[list-item]
    auth = OAuthClientProvider(url, metadata, memory, browser.go, browser.come_back)

    assert await _paid(url, auth) == "well"
    assert memory.tokens is not None
    claims = jwt.decode(memory.tokens.access_token, options={"verify_signature": False})
    assert claims["iss"] == here.issuer.url
    assert claims["aud"] == f"{here.public}/mcp"
    assert claims["scope"] == "files:read files:write", "as the metadata of the resource say"


@pytest.mark.parametrize("path", ["/mcp", "/mcp/quick"])
async def test_the_official_client_logs_in_with_a_key(here: IssuerHub, path: str) -> None:
    memory = Memory()
    url = here.public + path
    auth = ClientCredentialsOAuthProvider(url, memory, client_id="planner", client_secret=KEY, issuer=here.public)
    assert await _paid(url, auth) == "well"
    assert memory.tokens is not None
    assert memory.tokens.access_token.startswith("ist1_")


async def test_a_scope_allows_only_its_own_tools(here: IssuerHub) -> None:
    listed = (await here.ask(here.token(aud=here.public, scope="files:read"))).json()["tools"]
    assert [tool["name"] for tool in listed] == ["quick.pay"]
    listed = (await here.ask(here.token(aud=here.public, scope="files:write files:read"))).json()["tools"]
    assert [tool["name"] for tool in listed] == ["quick.pay", "quick.hold"]

    answer = await here.ask(here.token(aud=here.public, scope="elsewhere"))
    assert answer.status_code == 403
    challenge = answer.headers["www-authenticate"]
    assert 'error="insufficient_scope"' in challenge
    assert 'scope="files:read files:write"' in challenge


async def _token(base: str, http: httpx2.AsyncClient, key: str = KEY) -> str:
    form = {"grant_type": "client_credentials", "client_id": "planner", "client_secret": key}
    answer = await http.post(f"{base}/oauth/token", data=form)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["access_token"])


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/v1/tools", "GET", 200), ("/mcp", "POST", 400), ("/a2a", "POST", 200)]
)
async def test_a_token_is_as_good_as_its_key_on_every_frontend(
    here: IssuerHub, path: str, method: str, status: int
) -> None:
    token = await _token(here.base, here.http)
    kinds = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    answers = [
        await here.http.request(method, here.base + path, content=b"{}", headers={**kinds, **shown})
        for shown in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}, {"x-api-key": KEY})
    ]
    assert [answer.status_code for answer in answers] == [status] * 3
    assert len({answer.content for answer in answers}) == 1


async def test_a_token_is_no_key_for_another(here: IssuerHub) -> None:
    token = await _token(here.base, here.http)
    form = {"grant_type": "client_credentials", "client_id": "planner", "client_secret": token}
    assert (await here.http.post(f"{here.base}/oauth/token", data=form)).status_code == 401


async def test_a_token_outlasts_the_hub_and_ends_with_its_key(tmp_path: Path) -> None:
    callers = {"planner": {"key": KEY, "allow": ["*"]}}
    async with httpx2.AsyncClient(verify=TRUSTED, timeout=30.0) as http:
        async with serving(tmp_path, callers=callers) as hub:
            token = await _token(_base(hub), http)
        if NODES == 1:  # nodes have it in their database
            secret = tmp_path / "state" / "oauth" / "secret"
            assert stat.S_IMODE(secret.stat().st_mode) == 0o600

        async with serving(tmp_path, callers=callers) as hub:
            assert await _status(hub, http, token) == 200
            write_config(tmp_path, {}, callers={"planner": {"key": f"{KEY}-new", "allow": ["*"]}})

            async def is_refused() -> bool:
                return {await _status(node, http, token) for node in hub.each} == {401}

            await until(is_refused)
            assert await _status(hub, http, await _token(_base(hub), http, f"{KEY}-new")) == 200
            assert token not in "".join(hub.said)


def _base(hub: HubProcess) -> str:
    return f"http://127.0.0.1:{hub.port}"


async def _status(hub: HubProcess, http: httpx2.AsyncClient, token: str) -> int:
    return (await http.get(f"{_base(hub)}/v1/tools", headers={"authorization": f"Bearer {token}"})).status_code
