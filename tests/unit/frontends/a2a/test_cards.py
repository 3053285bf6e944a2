"""The card: in each generation's form, with the tools that its reader may see."""

from __future__ import annotations

import asyncio
import json
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.frontends.a2a import cards
from isthmus.frontends.a2a.cards import REMEMBERED_MAX
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.model.names import ServerName
from isthmus.wire.a2a.cards import SCHEMAS
from tests.unit.core.doubles import ready, tool
from tests.unit.frontends.a2a.doubles import Hall, hall
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS

PATHS = ["/.well-known/agent-card.json", "/.well-known/agent.json", "/agent-card.json", "/a2a"]
OWN = ["/a2a/1.0/.well-known/agent-card.json", "/a2a/0.3/.well-known/agent-card.json"]
"""Where the cards of 1.0 and of 0.3 are alone."""


async def card(here: Hall, path: str, *lines: str) -> Any:
    answer = await here.ask(path, *lines)
    assert answer.status == 200
    return json.loads(answer.body)


@pytest.mark.parametrize("path", PATHS)
async def test_a_card_has_the_configured_address(path: str) -> None:
    async with hall() as here:
        answer = await here.ask(path)
        assert b"https://hub.example/a2a" in answer.body
        assert b"localhost" not in answer.body


async def test_a_card_can_be_read_and_nothing_else() -> None:
    async with hall() as here:
        refused = await here.ask(PATHS[0], method="DELETE")
        assert (refused.status, refused.header(b"allow")) == (405, b"GET, HEAD")


async def test_a_known_caller_sees_its_tools_and_a_stranger_none() -> None:
    async with hall() as here:

        async def skills(*lines: str) -> list[str]:
            return [skill["id"] for skill in (await card(here, PATHS[0], *lines))["skills"]]

        both = ["execute_mcp_command", "mcp.execute_tool"]
        assert await skills() == [*both, "files.read", "files.write", "files.hear"]
        assert await skills("X-Api-Key: some") == [*both, "files.read"]
        assert await skills("X-Api-Key: nobody") == both


async def test_a_card_that_is_still_right_is_not_sent_again() -> None:
    async with hall() as here:
        first = await here.ask(PATHS[0])
        tag = (first.header(b"etag") or b"").decode()
        for given in (tag, f'"other", {tag}', f"W/{tag}", "*"):
            again = await here.ask(PATHS[0], f"If-None-Match: {given}")
            assert (again.status, again.body) == (304, b"")
            assert again.header(b"etag") == first.header(b"etag")
        assert (await here.ask(PATHS[0], 'If-None-Match: "other"')).status == 200
        other = await here.ask(PATHS[0], f"If-None-Match: {tag}", "X-Api-Key: some")
        assert other.status == 200


async def test_a_client_that_revalidates_by_time_learns_of_changes() -> None:
    async with hall() as here:
        first = await here.ask(PATHS[0])
        seen = (first.header(b"last-modified") or b"").decode()
        assert (await here.ask(PATHS[0], f"If-Modified-Since: {seen}")).status == 304
        # A second later at the earliest, whatever the clock says: it is told in whole seconds.
        here.frontend.change(A2aSettings("Other"))
        changed = await here.ask(PATHS[0], f"If-Modified-Since: {seen}")
        assert changed.status == 200
        again = (changed.header(b"last-modified") or b"").decode()
        assert parsedate_to_datetime(again) > parsedate_to_datetime(seen)
        assert (await here.ask(PATHS[0], f"If-Modified-Since: {again}")).status == 304
        assert (await here.ask(PATHS[0], f"If-Modified-Since: {again}", 'If-None-Match: "x"')).status == 200


@pytest.mark.parametrize("given", ["yesterday", "", "Mon, 99 Foo 2026 00:00:00 GMT", "9" * 40])
async def test_an_invalid_modification_time_is_ignored(given: str) -> None:
    async with hall() as here:
        assert (await here.ask(PATHS[0], f"If-Modified-Since: {given}")).status == 200


async def test_only_public_cards_may_be_cached_publicly() -> None:
    async with hall() as here:

        async def scope(*lines: str) -> bytes | None:
            return (await here.ask(PATHS[0], *lines)).header(b"cache-control")

        assert await scope("X-Api-Key: nobody") == b"public, max-age=60"
        assert await scope("X-Api-Key: some") == b"private, max-age=60"
    async with hall(needs_key=False) as here:
        assert (await here.ask(PATHS[0])).header(b"cache-control") == b"public, max-age=60"


async def test_a_card_without_a_server_that_starts_is_soon_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "SETTLE_SECONDS", 0.0)
    async with hall(needs_key=False) as here:
        late = ServerQueue(ServerName("late"), here.office.hub.limits)
        here.office.hub.open_server_queue(late, ServerStatus(late.server, "starting"), is_awaited=True)
        assert (await here.ask(PATHS[0])).header(b"cache-control") == b"public, max-age=1"
        here.office.hub.publish(ready(tool("wake", "late"), server="late"))
        here.office.hub.settled(late.server)
        assert (await here.ask(PATHS[0])).header(b"cache-control") == b"public, max-age=60"


async def test_no_more_cards_are_remembered_than_a_few() -> None:
    async with hall() as here:
        for number in range(REMEMBERED_MAX + 10):
            here.frontend.cards._unchanged_since((str(number), None), b"tag")
        assert len(here.frontend.cards._since) == REMEMBERED_MAX


async def test_a_strict_card_has_nothing_of_earlier_generations() -> None:
    async with hall(A2aSettings(card="strict")) as here:
        strict = await card(here, PATHS[0])
        assert "url" not in strict
        assert (await here.rpc("GetExtendedAgentCard", {}))["result"]["supportedInterfaces"] == [
            {"url": "https://hub.example/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": "https://hub.example/a2a/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
        ]
        assert {each["protocolVersion"] for each in strict["supportedInterfaces"]} == {"1.0"}
        assert (await here.rpc("agent/getAuthenticatedExtendedCard", {}))["result"]["url"] == "https://hub.example/a2a"
    async with hall() as here:
        assert (await card(here, PATHS[0]))["url"] == "https://hub.example/a2a"


async def test_a_card_is_in_the_form_of_the_version_that_is_asked_for() -> None:
    async with hall() as here:
        both, latest, earlier = [await card(here, path) for path in (PATHS[0], *OWN)]
        for path in (PATHS[0], "/a2a/.well-known/agent-card.json", "/a2a"):
            assert await card(here, path) == both
            assert await card(here, path, "A2A-Version: 1.0") == latest
            assert await card(here, f"{path}?A2A-Version=1.0") == latest
            assert await card(here, path, "A2A-Version: 0.3") == earlier
            assert await card(here, path, "A2A-Version: 0.2.6") == earlier
            # Which versions there are is what such a client has to find out.
            assert await card(here, path, "A2A-Version: 9.0") == both
        assert await card(here, OWN[0], "A2A-Version: 0.3") == latest
        assert {each["protocolVersion"] for each in latest["supportedInterfaces"]} == {"1.0"}
        assert ("url" in latest, "url" in earlier, "supportedInterfaces" in earlier) == (False, True, False)
        answer = await here.ask(PATHS[0])
        assert answer.header(b"vary") == b"authorization, x-api-key, a2a-version, origin"


async def test_the_extended_card_is_for_callers_and_in_their_words() -> None:
    async with hall() as here:
        assert (await card(here, PATHS[0]))["capabilities"]["extendedAgentCard"] is True
        latest = (await here.rpc("GetExtendedAgentCard", {}))["result"]
        earlier = (await here.rpc("agent/getAuthenticatedExtendedCard", {}))["result"]
        plain = json.loads((await here.ask("/a2a/rest/extendedAgentCard")).body)
        for received in (latest, earlier, plain):
            assert any(skill["id"] == "files.read" for skill in received["skills"])
        assert ("url" in latest, "url" in earlier) == (False, True)
        assert plain == latest


@pytest.mark.parametrize("method", ["GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"])
async def test_the_extended_card_waits_for_a_server_that_is_only_starting(method: str) -> None:
    async with hall() as here:
        late = ServerQueue(ServerName("late"), here.office.hub.limits)
        here.office.hub.open_server_queue(late, ServerStatus(late.server, "starting"))
        asked = asyncio.create_task(here.rpc(method, {}))
        # What is asked after it is answered before it.
        assert (await here.rpc("GetTask", {"id": "nope"}))["error"]
        assert not asked.done()
        here.office.hub.publish(ready(tool("wake", "late"), server="late"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert "late.wake" in {skill["id"] for skill in (await asked)["result"]["skills"]}


async def test_on_an_open_hub_there_is_no_other_card() -> None:
    async with hall(needs_key=False) as here:
        response = await card(here, PATHS[0])
        assert response["capabilities"]["extendedAgentCard"] is False
        assert "securitySchemes" not in response
        assert (await here.rpc("GetExtendedAgentCard", {}))["error"]["code"] == -32004
        assert (await here.rpc("agent/getAuthenticatedExtendedCard", {}))["error"]["code"] == -32007


async def test_the_card_lists_the_credentials_that_the_authenticator_accepts() -> None:
    async with hall() as here:
        response = await card(here, PATHS[0])
        assert response["securityRequirements"] == [
            {"schemes": {"bearer": {"list": []}}},
            {"schemes": {"key": {"list": []}}},
            {"schemes": {"oauth": {"list": []}}},
        ]
        assert response["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "Bearer"
        assert response["securitySchemes"]["key"]["apiKeySecurityScheme"] == {"location": "header", "name": "X-Api-Key"}
        flow = response["securitySchemes"]["oauth"]["oauth2SecurityScheme"]["flows"]["clientCredentials"]
        assert flow == {
            "tokenUrl": f"{response['supportedInterfaces'][0]['url'].removesuffix('/a2a')}/oauth/token",
            "scopes": {},
        }
        assert (await card(here, PATHS[1]))["authentication"] == {"schemes": ["Bearer", "apiKey", "oauth2"]}
        [way] = [each for each in (await card(here, PATHS[2]))["authSchemes"] if each["scheme"] == "oauth2"]
        assert way["tokenUrl"] == flow["tokenUrl"]


async def test_the_first_generation_s_card_is_that_of_an_mcp_gateway() -> None:
    async with hall() as here:
        response = await card(here, PATHS[1])
        assert (response["name"], response["defaultInputModes"], response["defaultOutputModes"]) == (
            "MCP Gateway Agent",
            ["data"],
            ["data"],
        )
        assert (response["skills"][0]["id"], response["skills"][0]["name"]) == (
            "execute_mcp_command",
            "Execute MCP Command",
        )


async def test_the_schemas_of_skills_are_in_an_extension() -> None:
    async with hall() as here:
        (extension,) = (
            each for each in (await card(here, PATHS[0]))["capabilities"]["extensions"] if each["uri"] == SCHEMAS
        )
        schemas = extension["params"]["skills"]
        assert schemas["files.read"]["inputSchema"]["properties"] == {"path": {"type": "string"}}
        assert schemas["mcp.execute_tool"]["outputSchema"]["required"] == ["success"]


@pytest.mark.parametrize(("given", "url"), [(None, "hub.example:9000"), ("grpc.example:443", "grpc.example:443")])
async def test_grpc_is_in_the_card_where_it_is_spoken(given: str | None, url: str) -> None:
    async with hall(A2aSettings(grpc_url=given)) as here:

        async def bindings() -> dict[str, str]:
            return {
                each["protocolBinding"]: each["url"] for each in (await card(here, PATHS[0]))["supportedInterfaces"]
            }

        assert "GRPC" not in await bindings()
        here.frontend.cards.grpc_address = "hub.example:9000"
        assert (await bindings())["GRPC"] == url
