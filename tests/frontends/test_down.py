"""Calling a tool of a server that was never reached: permitted callers get the reason, others an unknown tool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.frontends.wire import BASE, connected, encoded, key_header, legacy, modern, modern_headers, until
from tests.hubs import HubProcess, serving
from tests.relay.peers import agent_call_url, wired
from tests.relay.tokens import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = {
    name: f"{name}-key-0123456789abcdef" for name in ("everything", "server", "tool", "denied", "tagged", "nothing")
}
NO_PROGRAM = {"command": "/opt/no-such-program", "placement": "node"}
SERVERS: dict[str, Any] = {
    "down": {**NO_PROGRAM, "exclude_tools": ["secret-door"], "tags": {"wipe": ["danger"]}},
    "down_under": NO_PROGRAM,
}
CALLERS: dict[str, Any] = {
    "everything": {"allow": ["*"]},
    "server": {"allow": ["down"]},
    "tool": {"allow": ["down.read"]},
    "denied": {"allow": ["*"], "deny": ["down.read"]},
    "tagged": {"allow": ["down"], "deny": ["tag:danger"]},
    "nothing": {"allow": ["builtin"]},
}
WHY = "Server down is not connected: '…/no-such-program' could not be started: there is no such file"


async def started(folder: Any, **hub: Any) -> AsyncIterator[HubProcess]:
    callers = {name: {"key": KEYS[name], **rules} for name, rules in CALLERS.items()}
    relay = {"key": KEY, "agents": {"guest": {"allow": ["down"]}, "stranger": {"allow": ["builtin"]}}}
    async with serving(folder, SERVERS, callers=callers, relay=relay, hub=hub) as running:

        async def has_failed() -> bool:
            shown = [await rest(node, "everything", "GET", "/v1/servers") for node in running.each]
            servers = [each for found in shown for each in found["servers"]]
            return {each["state"] for each in servers if each["name"] in SERVERS} == {"retrying"}

        await until(has_failed)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async for running in started(tmp_path_factory.mktemp("hub")):
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def flat(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub that gives its tools the names that language models are given."""
    async for running in started(tmp_path_factory.mktemp("flat"), names="llm"):
        yield running


# -- asking ------------------------------------------------------------------------------------------------------------


async def post(hub: HubProcess, caller: str, path: str, body: Any, headers: Any = BASE, method: str = "POST") -> Any:
    async with connected(hub.port) as wire:
        data = b"" if body is None else encoded(body)
        return (await wire.request(data, [*headers, *key_header(KEYS[caller])], path=path, method=method)).json


async def rest(hub: HubProcess, caller: str, method: str, path: str, body: Any = None) -> Any:
    return await post(hub, caller, path, body, method=method)


async def by_mcp(hub: HubProcess, caller: str, name: str, path: str = "/mcp") -> tuple[Any, ...]:
    answer = await post(hub, caller, path, legacy("tools/call", {"name": name, "arguments": {}}))
    return _error(answer["error"])


async def by_modern_mcp(hub: HubProcess, caller: str, name: str) -> tuple[Any, ...]:
    body = modern("tools/call", {"name": name, "arguments": {}})
    return _error((await post(hub, caller, "/mcp", body, modern_headers("tools/call", name)))["error"])


async def by_server(hub: HubProcess, caller: str, name: str) -> tuple[Any, ...]:
    return await by_mcp(hub, caller, name.partition(".")[2], f"/mcp/{name.partition('.')[0]}")


def _error(error: Any) -> tuple[Any, ...]:
    data = error["data"]
    return data["reason"], error["message"], data["executed"], data.get("server")


async def by_rest(hub: HubProcess, caller: str, name: str) -> tuple[Any, ...]:
    return _problem(await rest(hub, caller, "POST", f"/v1/tools/{name}", {}))


async def by_rest_get(hub: HubProcess, caller: str, name: str) -> tuple[Any, ...]:
    return _problem(await rest(hub, caller, "GET", f"/v1/tools/{name}"))


def _problem(received: Any) -> tuple[Any, ...]:
    return received["reason"], received["detail"], received["executed"], received.get("server")


async def by_a2a(hub: HubProcess, caller: str, name: str) -> tuple[Any, ...]:
    return await _by_message(hub, caller, {"tool": name, "arguments": {}})


async def by_command(hub: HubProcess, caller: str, name: str) -> tuple[Any, ...]:
    server, _, tool = name.partition(".")
    params = {"name": tool, "arguments": {}}
    return await _by_message(hub, caller, {"mcp_target_url": server, "mcp_method": "tools/call", "mcp_params": params})


async def by_vault(hub: HubProcess, caller: str, name: str) -> tuple[Any, ...]:
    server, _, tool = name.partition(".")
    return await _by_message(hub, caller, {"target_mcp_server_id": server, "tool_name": tool, "arguments": {}})


async def _by_message(hub: HubProcess, caller: str, data: Any) -> tuple[Any, ...]:
    message = {"messageId": f"{caller} {data}", "role": "ROLE_USER", "parts": [{"data": data}]}
    task = (await post(hub, caller, "/a2a", legacy("SendMessage", {"message": message})))["result"]["task"]
    received = task["status"]["message"]
    data = received["metadata"]
    text = received["parts"][0]["text"].rpartition("] ")[2]
    return data["reason"], text, data["executed"], data.get("server")


Ask = Callable[[HubProcess, str, str], Awaitable[tuple[Any, ...]]]
FRONTENDS: list[Ask] = [by_mcp, by_modern_mcp, by_server, by_rest, by_rest_get, by_a2a, by_command, by_vault]


@pytest.mark.parametrize("ask", FRONTENDS)
async def test_a_caller_that_could_use_the_tool_learns_that_its_server_is_down(hub: HubProcess, ask: Ask) -> None:
    down = ("not_connected", WHY, "no", "down")
    assert await ask(hub, "everything", "down.read") == down
    assert await ask(hub, "server", "down.anything") == down
    assert await ask(hub, "tool", "down.read") == down
    assert await ask(hub, "tagged", "down.read") == down


@pytest.mark.parametrize("ask", FRONTENDS)
@pytest.mark.parametrize(
    ("caller", "name"),
    [
        ("everything", "down.secret-door"),  # the operator hides it
        ("tool", "down.write"),
        ("denied", "down.read"),
        ("tagged", "down.wipe"),
        ("nothing", "down.read"),
    ],
)
async def test_any_other_caller_gets_unknown_tool(hub: HubProcess, ask: Ask, caller: str, name: str) -> None:
    if ask is by_server and caller == "nothing":
        return  # nothing is at that address for it: 404, as of any other server that it may not use
    response = await ask(hub, caller, name)
    assert "not connected" not in str(response)
    if ask in (by_server, by_command, by_vault):  # at a server that there is, or is not, for this caller
        assert (
            response[0] in ("unknown_tool", "unknown_server") if caller == "nothing" else response[0] == "unknown_tool"
        )
    else:
        same = await ask(hub, caller, name.replace("down", "nope"))
        assert str(response).replace("down", "nope") == str(same)


async def test_names_for_language_models_name_the_longest_server_that_fits(flat: HubProcess) -> None:
    assert await by_mcp(flat, "everything", "mcp_down_read") == ("not_connected", WHY, "no", "down")
    assert await by_modern_mcp(flat, "tool", "mcp_down_read") == ("not_connected", WHY, "no", "down")
    under = await by_mcp(flat, "everything", "mcp_down_under_read")
    assert (under[0], under[3]) == ("not_connected", "down_under")
    one = await by_mcp(flat, "server", "mcp_down_under_read")
    assert (one[0], one[3]) == ("not_connected", "down"), "a server that is hidden makes no difference"
    for caller, name in (
        ("everything", "mcp_down_secret_door"),
        ("tool", "mcp_down_write"),
        ("denied", "mcp_down_read"),
        ("nothing", "mcp_down_read"),
    ):
        assert await by_mcp(flat, caller, name) == ("unknown_tool", f"Unknown tool: {name}", "no", None)
    assert (await by_a2a(flat, "everything", "mcp_down_read"))[:1] == ("not_connected",)


async def test_devices_learn_it_too(hub: HubProcess) -> None:
    async with wired(agent_call_url(hub.port, "guest")) as it:
        error = (await it.ask("tools/call", {"name": "down.read"}))["error"]
        assert (error["code"], error["data"]["details"], error["data"]["executed"]) == (-32001, WHY, "no")
    async with wired(agent_call_url(hub.port, "stranger")) as it:
        error = (await it.ask("tools/call", {"name": "down.read"}))["error"]
        assert error == {"code": -32601, "message": "工具 'down.read' 不存在"}
