"""Devices beyond their calls: names, other servers, progress, and the original's addresses."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx2
import pytest

from tests.faults.watching import eventually
from tests.hubs import HubProcess
from tests.relay.peers import (
    CallFailed,
    Device,
    Json,
    Manner,
    agent_call_url,
    agent_url,
    child,
    device,
    pipe,
    raw_server,
    sanitised,
    wired,
)
from tests.relay.test_points import lists_all
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]


# -- names -------------------------------------------------------------------------------------------------------------


async def test_the_first_keeps_a_name_and_each_is_called_by_its_own(hub: HubProcess, agent: str) -> None:
    async with AsyncExitStack() as stack:
        for server_id in ("one", "two", "three"):
            await stack.enter_async_context(raw_server(hub.port, agent, server_id, manner=Manner(name=server_id)))
            await (await stack.enter_async_context(device(hub.port, agent))).ready()  # so that they come in order
        it = await (await stack.enter_async_context(device(hub.port, agent))).ready()
        servers = {tool["name"]: tool["server_id"] for tool in it.tools.values()}
        assert servers == {"echo": "one", "two.echo": "two", "three.echo": "three"}
        for name in it.tools:
            assert await it.call(name, {"text": name}) == name


async def test_a_connected_server_takes_the_name_of_an_absent_one(hub: HubProcess, agent: str) -> None:
    async def answered(it: Device) -> bool:
        with suppress(CallFailed):  # the hub may not have noticed yet
            return await it.call_unlisted("echo", {"text": "again"}) == "again"
        return False

    async with AsyncExitStack() as stack:
        async with raw_server(hub.port, agent, "old"):
            await (await stack.enter_async_context(device(hub.port, agent))).ready()
            new = await stack.enter_async_context(raw_server(hub.port, agent, "new"))
            it = await (await stack.enter_async_context(device(hub.port, agent))).ready()
            await eventually(lambda: lists_all(it, {"echo", "new.echo"}), "both servers")
        await eventually(lambda: answered(it), "the other server's answer under the same name")
        assert new.asked.count("tools/call") == 1
        back = await stack.enter_async_context(raw_server(hub.port, agent, "old"))
        await eventually(lambda: lists_all(it, {"echo", "new.echo"}), "both servers again")
        assert await it.call_unlisted("echo", {"text": "home"}) == "home"
        assert back.asked.count("tools/call") == 1


async def test_no_two_names_are_one_to_the_device(hub: HubProcess, agent: str) -> None:
    names = ("a.b", "a_b", "a b", "a/b", "温度", "温度 ", "x" * 128)
    async with raw_server(hub.port, agent, manner=Manner(tools=names)), device(hub.port, agent) as it:
        await it.ready()
        listed = (await it.ask("tools/list", id=1000))["result"]["tools"]
        assert len({sanitised(tool["name"]) for tool in listed}) == len(listed) == len(it.tools)
        for name in it.tools:
            assert await it.call(name, {"text": name}) == name


# -- who is seen -------------------------------------------------------------------------------------------------------


async def test_other_servers_are_seen_where_the_agent_may_see_them(hub: HubProcess) -> None:
    async with raw_server(hub.port, "guest", "own") as server, device(hub.port, "guest") as it:
        await eventually(lambda: lists_all(it, {"echo", "builtin.echo"}), "its own and what it is allowed")
        assert await it.call_unlisted("echo", {"text": "own"}) == "own"
        assert await it.call_unlisted("builtin.echo", {"text": "built in"}) == "built in"
        assert server.asked.count("tools/call") == 1
        for hidden in ("builtin.timestamp", "timestamp"):
            assert (await it.ask("tools/call", {"name": hidden}, id=1001))["error"]["code"] == -32601


# -- during calls ------------------------------------------------------------------------------------------------------


async def test_progress_reaches_the_device_that_asked_for_it(hub: HubProcess, agent: str) -> None:
    async with (
        raw_server(hub.port, agent, manner=Manner(tools=("hold",))) as server,
        device(hub.port, agent) as it,
        device(hub.port, agent) as other,
    ):
        await it.ready()
        await other.ready()
        params = {"name": "hold", "arguments": {"text": "done"}, "_meta": {"progressToken": "mine"}}
        call = asyncio.ensure_future(it.ask("tools/call", params, id=3))
        await server.holds()
        token = server.held[0]["params"]["_meta"]["progressToken"]
        received = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
        await server.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": received})
        await it.until(lambda: "notifications/progress" in it.notified, "progress arrives")
        await server.release()
        assert (await call)["result"]["content"][0]["text"] == "done"
        notified = [message["params"] for message in it.messages if message.get("method") == "notifications/progress"]
        assert notified == [{"progressToken": "mine", "progress": 1, "total": 2, "message": "half"}]
        assert "notifications/progress" not in other.notified


async def test_a_call_that_the_device_takes_back_is_taken_back_at_the_server(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent, manner=Manner(tools=("hold",))) as server, device(hub.port, agent) as it:
        await it.ready()
        call = asyncio.ensure_future(it.ask("tools/call", {"name": "hold"}, id="mine"))
        await server.holds()
        await it.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "mine"}})
        await server.until(lambda: "notifications/cancelled" in server.asked, "the server is cancelled")
        cancelled = next(one for one in server.messages if one.get("method") == "notifications/cancelled")
        assert cancelled["params"]["requestId"] == server.held[0]["id"]
        answer = await call
        assert "result" not in answer
        await server.release()  # too late: a device would take it for the answer to something else
        assert (await it.ask("ping", id="after"))["id"] == "after"
        assert [message["id"] for message in it.messages if message.get("id") == "mine"] == ["mine"]


async def test_a_call_that_would_end_the_pipes_connection_is_not_sent(hub: HubProcess, agent: str) -> None:
    async with pipe(hub.port, agent, child("Calculator", "echo")) as piped, device(hub.port, agent) as it:
        await eventually(lambda: lists_all(it, {"echo"}), "it is listed")
        params = {"name": "echo", "arguments": {"text": "x" * (1200 << 10)}}
        answer = await it.ask("tools/call", params, id=1001)
        assert answer["error"]["code"] == -32602
        assert answer["error"]["data"]["executed"] == "no"
        assert await it.call_unlisted("echo", {"text": "so"}) == "so"
        assert piped.backoffs == []


async def test_an_answer_to_a_call_given_up_is_not_taken_for_another(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent, manner=Manner(tools=("hold", "echo"))) as server:
        async with device(hub.port, agent) as it:
            await it.ready()
            call = asyncio.ensure_future(it.call("hold", {"text": "late"}, within=20))
            await server.holds()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with device(hub.port, agent) as again:
            await again.ready()
            await server.release()
            assert await again.call("echo", {"text": "mine"}) == "mine"
            assert not again.errors


async def test_a_server_that_asks_a_device_is_refused_and_the_call_goes_on(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent, manner=Manner(tools=("hold",))) as server, device(hub.port, agent) as it:
        await it.ready()
        call = asyncio.ensure_future(it.call("hold", {"text": "done"}))
        await server.holds()
        for method in ("sampling/createMessage", "roots/list", "elicitation/create", "no/such"):
            answer = await server.ask(method, {"message": "?", "requestedSchema": {"type": "object"}}, id=method)
            assert "error" in answer or answer["result"].get("action") in {"decline", "cancel"}, answer
        assert "result" in await server.ask("ping", id="alive")
        await server.release()
        assert await call == "done"


# -- what is asked of all ----------------------------------------------------------------------------------------------


async def test_an_error_of_one_is_beside_the_answers_and_of_all_is_an_error(hub: HubProcess, agent: str) -> None:
    manner = Manner(results={"things/list": {"things": [1]}})
    async with (
        raw_server(hub.port, agent, "able", manner=manner),
        raw_server(hub.port, agent, "unable"),
        device(hub.port, agent) as it,
    ):
        await eventually(lambda: lists_all(it, {"echo", "unable.echo"}), "both are listed")
        result = (await it.ask("things/list", {}, id=1001))["result"]
        by_server = {entry["server_id"]: entry for entry in result["responses"]}
        assert by_server["able"]["things"] == [1]
        assert by_server["unable"]["error"]["code"] == -32601
        nobody = await it.ask("others/list", {}, id=1002)
        assert nobody["error"]["code"] == -32601
        assert "result" not in nobody


# -- addresses ---------------------------------------------------------------------------------------------------------


async def test_the_originals_addresses_answer_as_its_readers_expect(hub: HubProcess, agent: str) -> None:
    base = f"http://127.0.0.1:{hub.port}/mcp_endpoint"
    async with httpx2.AsyncClient(timeout=20) as http, raw_server(hub.port, agent, "s1"), device(hub.port, agent) as it:
        await it.ready()
        about: Json = (await http.get(f"{base}/")).json()
        assert about["result"]["message"] == "MCP Endpoint Server"
        assert about["result"]["status"] == "running"

        for params in ({}, {"key": ""}, {"key": KEY[:-1]}, {"key": KEY + "x"}):
            refused = await http.get(f"{base}/health", params=params)
            assert refused.status_code == 200
            assert "success" not in refused.text
            assert refused.json()["error"]["code"] == -32004
            assert refused.json()["error"]["message"] == "密钥验证失败"

        good = await http.get(f"{base}/health", params={"key": KEY})
        assert "success" in good.text
        response: dict[str, Any] = good.json()["result"]
        assert response["status"] == "success"
        connections = response["connections"]
        assert connections["robot_connections_by_agent"][agent] == 1
        assert connections["mcp_servers"][agent]["s1"]["tools"] == ["echo"]
        assert connections["mcp_servers"][agent]["s1"]["tools_count"] == 1
        assert agent in connections["available_agents"]
        total = connections["mcp_server_connections"] + connections["robot_connections"]
        assert connections["total_connections"] == total


async def test_an_address_without_its_last_slash_works_too(hub: HubProcess, agent: str) -> None:
    servers, devices = (url(hub.port, agent).replace("/?", "?") for url in (agent_url, agent_call_url))
    async with raw_server(hub.port, agent, url=servers), device(hub.port, agent, url=devices) as it:
        await it.ready()
        assert await it.call("echo", {"text": "so"}) == "so"


async def test_a_page_of_another_site_opens_nothing(hub: HubProcess, agent: str) -> None:
    with pytest.raises(Exception, match="HTTP 403"):
        async with wired(agent_call_url(hub.port, agent), origin="https://evil.example"):
            pass
