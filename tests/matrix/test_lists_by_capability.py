"""Servers list different things to clients that they can ask something: through the hub, each caller gets its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, TextContent

from tests.faults.watching import eventually
from tests.hubs import META, MODERN, PATIENT, HubProcess, Raw, serving, stdio
from tests.matrix.field import until_complete
from tests.peers.npm_servers import everything_over_http, npm_command
from tests.peers.surveyor import MessageListener

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("profiles")]

SERVER = Path(__file__).with_name("profiled_server.py")
ERAS = ("legacy", "modern")
ABLE: dict[str, Any] = {"elicitation": {}}
EVERYBODYS = {"plain", "grow"}
QUESTIONING = {"trigger-sampling-request", "trigger-elicitation-request"}
NOTIFICATION_SECONDS = 30.0


async def answer_form(*_: Any) -> ElicitResult:
    return ElicitResult(action="decline")


async def answer_prompt(*_: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(text="Paris"), model="test")


async def name_roots(*_: Any) -> ListRootsResult:
    return ListRootsResult(roots=[])


ANSWERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "sampling": {"sampling_callback": answer_prompt},
    "everything": {
        "sampling_callback": answer_prompt,
        "elicitation_callback": answer_form,
        "list_roots_callback": name_roots,
    },
}


@asynccontextmanager
async def connected(
    target: str | StdioServerParameters, client_caps: str, ear: MessageListener | None = None
) -> AsyncIterator[Client]:
    """A client of the earlier era that can be asked so much."""
    async with AsyncExitStack() as stack:
        transport: Any = target
        if isinstance(target, str) and target.endswith("/sse"):
            transport = sse_client(target, timeout=NOTIFICATION_SECONDS)
        elif isinstance(target, str):
            http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=NOTIFICATION_SECONDS))
            transport = streamable_http_client(target, http_client=http)
        made = Client(transport, mode="legacy", message_handler=ear, cache=None, **ANSWERS[client_caps])
        yield await stack.enter_async_context(made)


async def tools_of(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


# -- the reference server ------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everything(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[HubProcess, Mapping[str, str | StdioServerParameters]]]:
    """The hub, and where each form of the server is without it."""
    words = npm_command("everything")
    async with everything_over_http("sse") as sse, everything_over_http("streamableHttp") as http:
        direct: dict[str, str | StdioServerParameters] = {
            "by-stdio": StdioServerParameters(command=words[0], args=words[1:]),
            "by-sse": sse.at("/sse"),
            "by-http": http.url,
        }
        servers = {"by-stdio": stdio(words), "by-sse": {"url": sse.at("/sse")}, "by-http": {"url": http.url}}
        async with serving(tmp_path_factory.mktemp("profiles"), servers, limits=PATIENT) as hub:
            await until_complete(hub.url)
            yield hub, direct


@pytest.mark.parametrize("client_caps", ANSWERS)
@pytest.mark.parametrize("form", ["by-stdio", "by-sse", "by-http"])
async def test_a_caller_gets_the_servers_list_for_its_capabilities(
    everything: tuple[HubProcess, Mapping[str, str | StdioServerParameters]], form: str, client_caps: str
) -> None:
    hub, direct = everything
    expected = {"everything": QUESTIONING, "sampling": {"trigger-sampling-request"}}.get(client_caps, set())
    async with (
        asyncio.timeout(2 * NOTIFICATION_SECONDS),
        connected(direct[form], client_caps) as at_server,
        connected(hub.url_of(form), client_caps) as at_hub,
    ):

        async def is_the_same() -> bool:
            # The server adds some of its tools only after it was greeted, and announces them.
            listed = await tools_of(at_hub)
            return QUESTIONING & listed == expected and listed == await tools_of(at_server)

        await eventually(is_the_same, f"the same tools, {expected} among them")


async def test_tools_listed_only_to_some_cannot_be_called_by_others(
    everything: tuple[HubProcess, Mapping[str, str | StdioServerParameters]],
) -> None:
    hub, _ = everything
    asked = ("trigger-sampling-request", {"prompt": "What is the capital of France?"})
    async with (
        connected(hub.url_of("by-stdio"), "everything") as able,
        connected(hub.url_of("by-stdio"), "nothing") as other,
    ):
        answered = await able.call_tool(*asked)
        with pytest.raises(MCPError, match="Unknown tool"):
            await other.call_tool(*asked)

    assert isinstance(answered.content[0], TextContent)
    assert "Paris" in answered.content[0].text


# -- both eras, one by one -----------------------------------------------------------------------------------------


@asynccontextmanager
async def profiled(folder: Path, era: str, **more: Any) -> AsyncIterator[tuple[HubProcess, Path]]:
    """A hub before such a server, and the file in which its processes are counted."""
    ledger = folder / "processes"
    entry = stdio([sys.executable, str(SERVER), era, str(ledger)], **more)
    async with serving(folder, {"one": entry}, limits=PATIENT) as hub:
        await until_complete(hub.url_of("one"))
        yield hub, ledger


def processes(ledger: Path) -> int:
    return len(ledger.read_text().splitlines())


async def ask(caller: Raw, method: str, capabilities: Mapping[str, Any], **params: Any) -> dict[str, Any]:
    """Ask in the modern era, as a client with these capabilities."""
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities}
    named = {"mcp-name": params["name"]} if "name" in params else {}
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method, **named}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    answer: dict[str, Any] = (await caller.post(body, headers)).json()
    return answer


async def names(caller: Raw, capabilities: Mapping[str, Any]) -> set[str]:
    listed = await ask(caller, "tools/list", capabilities)
    return {tool["name"] for tool in listed["result"]["tools"]}


@pytest.mark.parametrize("era", ERAS)
async def test_each_modern_request_is_answered_by_its_own_capabilities(tmp_path: Path, era: str) -> None:
    async with profiled(tmp_path, era) as (hub, _), Raw(hub.url_of("one")) as caller:
        assert await names(caller, {}) == EVERYBODYS
        assert await names(caller, ABLE) == {*EVERYBODYS, "ask"}
        assert await names(caller, {}) == EVERYBODYS
        assert await names(caller, {"roots": {}}) == EVERYBODYS
        called = [await ask(caller, "tools/call", can, name="ask", arguments={}) for can in (ABLE, {})]

    assert called[0]["result"]["content"][0]["text"] == "ask"
    assert called[1]["error"]["data"] == {"executed": "no", "reason": "unknown_tool"}


@pytest.mark.parametrize("era", ERAS)
async def test_a_caller_can_call_its_tools_before_listing(tmp_path: Path, era: str) -> None:
    async with profiled(tmp_path, era) as (hub, _), Raw(hub.url) as caller:
        called = await ask(caller, "tools/call", ABLE, name="one.ask", arguments={})
        unknown = await ask(caller, "tools/call", ABLE, name="one.nothing", arguments={})

    assert called["result"]["content"][0]["text"] == "ask"
    assert unknown["error"]["message"] == "Unknown tool: one.nothing"


@pytest.mark.parametrize("era", ERAS)
async def test_a_change_is_announced_to_callers_with_another_list(tmp_path: Path, era: str) -> None:
    able, other = MessageListener(), MessageListener()
    async with (
        profiled(tmp_path, era) as (hub, _),
        asyncio.timeout(NOTIFICATION_SECONDS),
        connected(hub.url_of("one"), "everything", able) as asked,
        connected(hub.url_of("one"), "nothing", other) as unasked,
    ):
        assert await tools_of(asked) == {*EVERYBODYS, "ask"}
        assert await tools_of(unasked) == EVERYBODYS
        await asked.call_tool("grow", {})
        await able.wait_for("tools", 0)
        assert await tools_of(asked) == {*EVERYBODYS, "ask", "grown0"}
        assert await tools_of(unasked) == EVERYBODYS
        await unasked.call_tool("plain", {})

    assert other.announced == []


async def test_one_callers_lists_and_calls_share_a_process_and_a_modern_server_needs_no_other(tmp_path: Path) -> None:
    for era, count in (("legacy", 2), ("modern", 1)):
        folder = tmp_path / era
        folder.mkdir()
        async with profiled(folder, era) as (hub, ledger), connected(hub.url_of("one"), "everything") as caller:
            for _ in range(3):
                assert "ask" in await tools_of(caller)
                await caller.call_tool("ask", {})
            assert processes(ledger) == count
