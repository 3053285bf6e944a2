"""Plain JSON-RPC servers without a list: callers name methods directly, on every frontend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from isthmus.library import ToolRequest, ToolService, ToolStatus, UserContext, UserPermissions
from tests.faults.watching import eventually
from tests.fork_server import quick_isthmus
from tests.hubs import PATIENT, TRUSTED, HubProcess, environment, serving, write_config
from tests.peers.launch import HttpPeer, http_peer

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = {name: f"{name}-key-0123456789abcdef" for name in ("all", "server", "part", "but", "tagged", "narrow")}
CALLERS: dict[str, dict[str, Any]] = {
    "all": {"allow": ["*"]},
    "server": {"allow": ["shop.*"]},
    "part": {"allow": ["shop.add"]},
    "but": {"allow": ["*"], "deny": ["shop.pay"]},
    "tagged": {"allow": ["tag:till"]},
    "narrow": {"allow": ["other.*"]},
}
OUTPUT = {"content": [{"type": "code_output", "stdout": "2\n", "stderr": ""}]}
"""What a method of the server returns that is no content of MCP."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def peer() -> AsyncIterator[HttpPeer]:
    async with http_peer("rpc_server", "--statuses") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory, peer: HttpPeer) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    callers = {name: {"key": KEYS[name], **entry} for name, entry in CALLERS.items()}
    shop = {"rpc": peer.at("/rpc"), "tags": {"*": ["till"]}, "exclude_tools": ["crash"]}
    async with serving(folder, {"shop": shop}, callers=callers, limits=PATIENT) as running:
        await eventually(lambda: is_ready(running), "the server is there")
        yield running


async def is_ready(hub: HubProcess) -> bool:
    async with Client(hub, "all") as client:
        servers = (await client.get("/v1/servers")).json()["servers"]
    return ("shop", "ready", True, 0) in [
        (server["name"], server["state"], server["unlisted"], server["tools"]) for server in servers
    ]


class Client:
    """A caller of the hub, by the frontends that are HTTP."""

    def __init__(self, hub: HubProcess, name: str) -> None:
        self._http = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{hub.port}",
            headers={"authorization": f"Bearer {KEYS[name]}", "accept": "application/json, text/event-stream"},
            timeout=60.0,
            verify=TRUSTED,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> httpx2.Response:
        return await self._http.get(path)

    async def rest(self, method: str, arguments: dict[str, Any]) -> httpx2.Response:
        return await self._http.post(f"/v1/tools/{method}", json=arguments, headers={"accept": "application/json"})

    async def ask(self, path: str, method: str, params: Any, **headers: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return (await self._http.post(path, json=body, headers=headers)).json()

    async def mcp(self, tool: str, arguments: dict[str, Any]) -> Any:
        return await self.ask("/mcp", "tools/call", {"name": tool, "arguments": arguments})

    async def a2a(self, data: Any) -> Any:
        """The parts of the answer to an instruction, over A2A 1.0."""
        self.said = getattr(self, "said", 0) + 1
        message = {"messageId": f"m{self.said}", "role": "ROLE_USER", "parts": [{"data": data}]}
        headers = {"a2a-version": "1.0"}
        task = (await self.ask("/a2a", "SendMessage", {"message": message}, **headers))["result"]["task"]
        return task["status"]["state"], [part for each in task["artifacts"] for part in each["parts"]]

    async def agentvault(self, server: str | None, tool: str, arguments: Any) -> Any:
        """What AgentVault's proxy would return."""
        content = {"target_mcp_server_id": server, "tool_name": tool, "arguments": arguments}
        message = {"role": "user", "parts": [{"type": "data", "content": content}]}
        id = (await self.ask("/a2a", "tasks/send", {"message": message}))["result"]["id"]
        task: Any = None

        async def is_done() -> bool:
            nonlocal task
            task = (await self.ask("/a2a", "tasks/get", {"id": id}))["result"]
            return task["state"] in ("COMPLETED", "FAILED")

        await eventually(is_done, "the task is over")
        return task["messages"][-1]["parts"][0]["content"]


async def test_nothing_of_it_is_listed_anywhere(hub: HubProcess) -> None:
    async with Client(hub, "all") as client:
        tools = (await client.get("/v1/tools")).json()
        assert not [tool for tool in tools["tools"] if tool["name"].startswith("shop")]
        assert "shop" not in tools["missing"]
        listed = await client.ask("/mcp/shop", "tools/list", {})
        assert listed["result"]["tools"] == []
        response = await client.a2a({"mcp_target_url": "shop", "mcp_method": "tools/list"})
        assert response[1][0]["data"]["mcp_result"] == {"tools": []}


@pytest.mark.parametrize("caller", ["all", "server", "tagged"])
async def test_a_caller_with_all_permissions_calls_any_method_and_gets_the_result_unchanged(
    hub: HubProcess, caller: str
) -> None:
    async with Client(hub, caller) as client:
        assert (await client.rest("shop.code.run", {"code": "2"})).json() == OUTPUT
        assert (await client.rest("shop.text", {"text": "hi"})).json() == "hi"
        assert (await client.rest("shop.add", {"a": 2, "b": 3})).json() == {"sum": 5}
        response = await client.agentvault("shop", "code.run", {"code": "2"})
        assert response == {"success": True, "mcp_result": OUTPUT}
        state, parts = await client.a2a({"tool": "shop.code.run", "arguments": {"code": "2"}})
        assert (state, [part["data"] for part in parts]) == ("TASK_STATE_COMPLETED", OUTPUT["content"])
        _, parts = await client.a2a({"tool": "shop.add", "arguments": {"a": 2, "b": 3}})
        assert [part["data"] for part in parts] == [{"sum": 5}]
        _, parts = await client.a2a({"tool": "shop.text", "arguments": {"text": "hi"}})
        assert [part["text"] for part in parts] == ["hi"]
        _, parts = await client.a2a({"mcp_target_url": "shop", "mcp_method": "text", "mcp_params": {"text": "hi"}})
        assert parts[0]["data"]["mcp_result"] == "hi"
        call = {"name": "code.run", "arguments": {"code": "2"}}
        _, parts = await client.a2a({"mcp_target_url": "shop", "mcp_method": "tools/call", "mcp_params": call})
        assert parts[0]["data"]["mcp_result"] == OUTPUT


async def test_agentvault_says_an_object_where_the_method_returned_another_value(hub: HubProcess) -> None:
    async with Client(hub, "all") as client:
        response = await client.agentvault("shop", "text", {"text": "hi"})
        assert response["mcp_result"]["structuredContent"] == {"result": "hi"}
        assert response["mcp_result"]["content"] == [{"type": "text", "text": "hi"}]


async def test_a_tool_name_alone_names_its_server_and_is_the_method(hub: HubProcess) -> None:
    async with Client(hub, "all") as client:
        response = await client.agentvault(None, "shop.nothing", {})
        assert (response["error"]["source"], response["error"]["code"]) == ("MCP_PROTOCOL", "-32601")
        assert response["error"]["message"] == "Method not found: shop.nothing"


async def test_mcp_gets_plain_values_as_text_and_structured_content(hub: HubProcess) -> None:
    async with Client(hub, "all") as client:
        result = (await client.mcp("shop.code.run", {"code": "2"}))["result"]
        (block,) = result["content"]
        assert (block["type"], json.loads(block["text"]), result["structuredContent"]) == ("text", OUTPUT, OUTPUT)
        result = (await client.mcp("shop.text", {"text": "hi"}))["result"]
        assert (result["content"], result["structuredContent"]) == ([{"type": "text", "text": "hi"}], {"result": "hi"})


async def test_an_unknown_method_and_the_servers_own_errors_are_passed_on_unchanged(hub: HubProcess) -> None:
    async with Client(hub, "all") as client:
        problem = (await client.rest("shop.nothing", {})).json()
        assert (problem["reason"], problem["detail"]) == ("server_error", "Method not found: nothing")
        response = await client.agentvault("shop", "refuse", {})
        assert (response["error"]["source"], response["error"]["code"]) == ("MCP_PROTOCOL", "-32050")


@pytest.mark.parametrize(
    ("caller", "method"),
    [
        ("part", "add"),
        ("part", "text"),
        ("but", "add"),
        ("but", "pay"),
        ("narrow", "add"),
        ("all", "crash"),
        ("all", ""),
        ("all", "add\u2028"),
        ("all", "a" * 300),
    ],
)
async def test_a_caller_without_all_permissions_gets_unknown_tool(hub: HubProcess, caller: str, method: str) -> None:
    async with Client(hub, caller) as client:
        name = f"shop.{method}"
        response = (await client.mcp(name, {"a": 1, "b": 1}))["error"]
        unknown = (await client.mcp("nowhere.x", {"a": 1, "b": 1}))["error"]
        assert response == {**unknown, "message": unknown["message"].replace("nowhere.x", name)}
        state, parts = await client.a2a({"tool": name, "arguments": {"a": 1, "b": 1}})
        assert (state, parts[0]["data"]["error"]["reason"]) == ("TASK_STATE_FAILED", "unknown_tool")


async def test_the_command_line_calls_a_method_by_name(hub: HubProcess) -> None:
    env = environment({"ISTHMUS_KEY": KEYS["all"], "ISTHMUS_HUB": hub.url})
    out = await run(*quick_isthmus("call", "shop.text", "text=hi"), env=env)
    assert out == "hi\n"
    out = await run(*quick_isthmus("call", "shop.code.run", "code=2", "--json"), env=env)
    assert json.loads(out) == OUTPUT


async def run(*words: str, env: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env=env)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return out.decode()


async def test_the_library_calls_a_method_by_name_and_gives_its_value(peer: HttpPeer, tmp_path: Path) -> None:
    service = ToolService()
    await service.initialize(write_config(tmp_path, {"shop": {"rpc": peer.at("/rpc")}}))
    async with service:
        assert not [tool for tool in await service.list_tools() if tool.startswith("shop")]
        response = await service.execute_tool(ToolRequest("shop.code.run", parameters={"code": "2"}))
        assert (response.status, response.result_data) == (ToolStatus.SUCCESS, OUTPUT)
        assert (await service.execute_tool(ToolRequest("text", "shop", {"text": "hi"}))).result_data == "hi"
        whole = UserContext("ann", permissions=UserPermissions(["shop.*"]))
        part = UserContext("bob", permissions=UserPermissions(["shop.text"]))
        asked = {"text": "hi"}
        assert (
            await service.execute_tool(ToolRequest("shop.text", parameters=asked, user_context=whole))
        ).result_data == "hi"
        refused = await service.execute_tool(ToolRequest("shop.text", parameters=asked, user_context=part))
        assert refused.status is ToolStatus.UNAUTHORIZED
        assert (await service.execute_tool(ToolRequest("nowhere.text"))).status is ToolStatus.NOT_FOUND


async def test_a_map_of_servers_and_nothing_else_makes_a_hub(peer: HttpPeer, tmp_path: Path) -> None:
    env = {"MCP_SERVER_MAP": json.dumps({"shop": peer.at("")})}
    async with serving(tmp_path, env=env, limits=PATIENT) as hub, Client(hub, "all") as client:
        response = await client.agentvault("shop", "code.run", {"code": "2"})
    assert response == {"success": True, "mcp_result": OUTPUT}


async def test_where_changed_tools_are_withheld_a_server_needs_a_list(peer: HttpPeer, tmp_path: Path) -> None:
    servers = {"shop": {"rpc": peer.at("/rpc")}}
    async with serving(tmp_path, servers, limits=PATIENT, hub={"pin": "strict"}) as hub, Client(hub, "all") as client:
        response = await client.agentvault("shop", "code.run", {"code": "2"})
    assert response["error"]["code"] == "MCP_CONNECTION_ERROR"
    assert "declare its tools" in response["error"]["message"]
