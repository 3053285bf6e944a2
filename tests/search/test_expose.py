"""`expose = "search"`: lists have two tools of the hub, and exactly the caller's own view can be called."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from fastmcp import Client as FastMcpClient
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from isthmus.library import ToolRequest, ToolService, UserContext, UserPermissions
from tests.fork_server import quick_isthmus
from tests.frontends.set_server import command
from tests.frontends.test_sets import command_line, send_message
from tests.frontends.test_task_lists import SessionClient
from tests.frontends.wire import connected, until
from tests.hubs import CHECKOUT, PATIENT, TRUSTED, HubProcess, Raw, environment, serving, stdio, write_config
from tests.peers.client_sdk2 import Listener, Mode, call_with_progress, client_over_http, client_over_stdio

pytestmark = pytest.mark.asyncio(loop_scope="module")

DESK = '''
import asyncio

from isthmus.upstream.python.context import Context


async def confirm(title: str, context: Context) -> str:
    """Ask whether a title is right."""
    form = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
    return f"{title}, {await context.ask(f'is it {title}?', form)}"


async def count(steps: int, context: Context) -> str:
    """Count slowly and say how far it is."""
    for step in range(steps):
        context.progress(step + 1, steps)
    return "counted"


async def wait() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""
'''
SERVERS: dict[str, Any] = {
    "one": stdio(command(), tags={"create_issue": ["chosen"]}),
    "two": stdio(command()),
    "desk": {"python": "desk", "path": "."},
}
SETS: dict[str, Any] = {
    "plain": {"tools": ["one.*"]},
    "whole": {"tools": ["one.*"], "expose": "all"},
    "found": {"tools": ["one.*"], "expose": "search", "tool": {"one.search": {"name": "call_tool"}}},
}
KEYS = {name: f"key-of-{name}-0123456789" for name in ("plain", "whole", "narrow", "bound", "nothing")}
CALLERS: dict[str, Any] = {
    "plain": {"key": KEYS["plain"], "allow": ["*"], "operator": True},
    "whole": {"key": KEYS["whole"], "allow": ["*"], "expose": "all"},
    "narrow": {"key": KEYS["narrow"], "allow": ["one.search"]},
    "bound": {"key": KEYS["bound"], "allow": ["*"], "set": "whole"},
    "nothing": {"key": KEYS["nothing"], "allow": []},
}
VIRTUAL = ["search_tools", "call_tool"]
MODES: tuple[Mode, ...] = ("legacy", "2026-07-28")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "desk.py").write_text(DESK)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(folder: Path) -> AsyncIterator[HubProcess]:
    tables: dict[str, Any] = {"hub": {"expose": "search"}, "sets": SETS, "callers": CALLERS, "limits": PATIENT}
    async with serving(folder, SERVERS, **tables) as running:
        yield running


@asynccontextmanager
async def at(hub: HubProcess, path: str = "/mcp", who: str = "plain") -> AsyncIterator[Raw]:
    async with Raw(f"http://127.0.0.1:{hub.port}{path}", key=KEYS[who]) as raw:
        yield raw


async def listed(hub: HubProcess, path: str = "/mcp", who: str = "plain") -> list[str]:
    async with at(hub, path, who) as raw:
        return await raw.names()


def key_of(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[who]}"}


def found(answer: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in answer["result"]["structuredContent"]["tools"]]


# -- which exposure holds ----------------------------------------------------------------------------------------------


async def test_the_hub_exposes_two_tools_to_all_callers(hub: HubProcess) -> None:
    assert await listed(hub) == VIRTUAL
    assert await listed(hub, who="narrow") == VIRTUAL
    assert await listed(hub, "/mcp/one") == VIRTUAL


async def test_a_set_wins_over_the_hub_and_a_caller_over_its_set(hub: HubProcess) -> None:
    assert await listed(hub, "/mcp/plain") == VIRTUAL
    assert "search" in await listed(hub, "/mcp/whole")
    assert "search" in await listed(hub, who="bound")
    assert "one.search" in await listed(hub, who="whole")
    assert "combined" in await listed(hub, "/mcp/found", who="whole")


async def test_access_reports_the_content_of_a_callers_lists(hub: HubProcess, folder: Path) -> None:
    _, out, _ = await command_line(folder, "access", "narrow")
    assert 'its lists have tools of the hub that find and call those below (expose = "search")' in out
    assert "one.search" in out
    _, out, _ = await command_line(folder, "access", "whole", "--json")
    assert [each["expose"] for each in json.loads(out)] == ["all"]


async def test_a_mistake_in_expose_is_a_finding(tmp_path: Path) -> None:
    write_config(tmp_path, {}, hub={"expose": "some"})
    code, out, complained = await command_line(tmp_path, "config", "check")
    assert code != 0
    assert "hub.expose must be one of all, search, code, not 'some'" in out + complained
    write_config(tmp_path, {}, sets={"dev": {"tools": ["*"], "expose": "few"}})
    _, out, complained = await command_line(tmp_path, "config", "check")
    assert "sets.dev.expose must be one of all, search, code, not 'few'" in out + complained


async def test_a_reload_changes_lists_and_notifies(tmp_path: Path) -> None:
    listener = Listener()
    async with (
        serving(tmp_path, {"one": SERVERS["one"]}, limits=PATIENT) as running,
        client_over_http(running.url, mode="legacy", listener=listener) as client,
    ):
        assert "one.search" in [tool.name for tool in (await client.list_tools()).tools]
        write_config(tmp_path, {"one": SERVERS["one"]}, limits=PATIENT, hub={"expose": "search"})
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert [tool.name for tool in (await client.list_tools()).tools] == VIRTUAL


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_every_tool_of_the_view_can_be_called_by_name(hub: HubProcess) -> None:
    async with at(hub) as raw:
        assert (await raw.call("one.search", {"query": "q"}))["result"]["structuredContent"] == {"query": "q"}


async def test_call_tool_calls_the_tool_that_it_names(hub: HubProcess) -> None:
    async with at(hub) as raw:
        answer = await raw.call("call_tool", {"name": "two.search", "arguments": {"query": "q"}})
        assert answer["result"]["structuredContent"] == {"query": "q"}
        refused = await raw.call("call_tool", {"name": "two.search", "arguments": {"query": 1}})
        assert refused["error"]["data"] == {"reason": "bad_arguments", "executed": "no"}
        assert "two.search" in refused["error"]["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"name": 1},
        {"name": "one.search", "arguments": []},
        {"name": "one.search", "more": 1},
        {"name": "call_tool"},
    ],
    ids=str,
)
async def test_call_tool_refuses_arguments_without_another_tools_name(
    hub: HubProcess, arguments: dict[str, Any]
) -> None:
    async with at(hub) as raw:
        refused = await raw.call("call_tool", arguments)
        assert refused["error"]["data"] == {"reason": "bad_arguments", "executed": "no"}


async def test_call_tool_can_search_too(hub: HubProcess) -> None:
    async with at(hub) as raw:
        answer = await raw.call("call_tool", {"name": "search_tools", "arguments": {"query": "make an issue"}})
        assert "one.create_issue" in found(answer)


async def test_a_tool_with_the_name_of_a_tool_of_the_hub_is_called_by_its_full_name(hub: HubProcess) -> None:
    async with at(hub, "/mcp/found") as raw:
        assert await raw.names() == VIRTUAL
        assert (await raw.call("one.search", {"query": "q"}))["result"]["structuredContent"] == {"query": "q"}
        assert "one.search" in found(await raw.call("search_tools", {"query": "search"}))


async def test_an_unknown_name_is_answered_with_the_nearest_names(hub: HubProcess) -> None:
    async with at(hub) as raw:
        refused = await raw.call("call_tool", {"name": "one.create_isue"})
        assert refused["error"]["data"] == {"reason": "unknown_tool", "executed": "no"}
        assert "did you mean one.create_issue or" in refused["error"]["message"]
        assert (await raw.call("call_tool", {"name": "zzz"}))["error"]["message"] == "Unknown tool: zzz"


async def test_a_hub_that_exposes_all_has_neither_tool(tmp_path: Path) -> None:
    async with serving(tmp_path, {"one": SERVERS["one"]}, limits=PATIENT) as running, Raw(running.url) as raw:
        for name in VIRTUAL:
            assert name not in await raw.names()
            assert (await raw.call(name, {"query": "q"}))["error"]["message"] == (
                f'Unknown tool: {name}; it is a tool of the hub, for callers with expose = "search" (of [hub], a set or'
                " the caller)"
            )
        code, _, complained = await command_line(tmp_path, "call", "run_code", "code=1")
        assert (code, """the hub's own tool 'run_code' needs expose = "code" """[:-1] in complained) == (1, True)
        assert "of [hub], of the set or of the caller" in complained


@pytest.mark.parametrize("more", [(), ("--private",)], ids=["running", "private"])
async def test_commands_call_tools_of_the_hub_that_it_exposes(
    hub: HubProcess, folder: Path, more: tuple[str, ...]
) -> None:
    code, out, complained = await command_line(folder, "call", "search_tools", "query=create issue", *more)
    assert (code, "one.create_issue" in out) == (0, True), complained
    _, out, _ = await command_line(folder, "tools", "call_tool", *more)
    assert "isthmus call call_tool name=NAME" in out
    code, _, complained = await command_line(folder, "call", "run_code", "code=1", *more)
    assert (code, 'needs expose = "code"' in complained) == (1, True)


async def test_the_command_ranks_tools_as_the_hub_does(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(DESK)
    servers = {**SERVERS, "one": stdio(command())}  # a tag makes its tool rank after an equal one, and no list has it
    async with serving(tmp_path, servers, hub={"expose": "search"}, limits=PATIENT) as running:
        for query in ("file an issue", "crate isue", "find something", "confirm title"):
            async with Raw(running.url) as raw:
                ranked = found(await raw.call("search_tools", {"query": query}))
            _, out, _ = await command_line(tmp_path, "tools", "search", *query.split())
            assert [line.split()[0] for line in out.splitlines()] == ranked
            _, out, _ = await command_line(tmp_path, "tools", "search", *query.split(), "--limit", "1", "--json")
            assert [tool["name"] for tool in json.loads(out)["tools"]] == ranked[:1]


async def test_a_limit_needs_a_search(hub: HubProcess, folder: Path) -> None:
    code, _, complained = await command_line(folder, "tools", "--limit", "3")
    assert (code, "--limit is for `isthmus tools search WORDS`" in complained) == (2, True)


async def test_the_audit_log_names_the_tool_that_was_called(hub: HubProcess, folder: Path) -> None:
    async with at(hub) as raw:
        await raw.call("call_tool", {"name": "two.combined", "arguments": {"repo": "audited"}})

    async def is_written() -> bool:
        _, out, _ = await command_line(folder, "audit", "export")
        records = [json.loads(line)["record"] for line in out.splitlines()]
        return ("two.combined", "two") in {(each.get("name"), each.get("server")) for each in records}

    await until(is_written)


async def test_a_call_by_call_tool_can_run_as_a_task(hub: HubProcess) -> None:
    async with connected(hub.port) as wire, connected(hub.port) as ear:
        client = SessionClient(wire, ear, KEYS["plain"], "/mcp")
        await client.open()
        named = {"name": "one.search", "arguments": {"query": "q"}}
        params: dict[str, Any] = {"name": "call_tool", "arguments": named, "task": {"ttl": 600_000}}
        task = (await client.ask("tools/call", params))["result"]["task"]["taskId"]
        result = (await client.ask("tasks/result", {"taskId": task}))["result"]
        assert result["structuredContent"] == {"query": "q"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_and_progress_reach_the_caller_of_call_tool(hub: HubProcess, mode: Mode) -> None:
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"sure": True})

    async with httpx2.AsyncClient(verify=TRUSTED, timeout=30, headers=key_of("plain")) as http:
        answers: dict[str, Any] = {"elicitation_callback": answer}
        transport = streamable_http_client(hub.url, http_client=http)
        async with Client(transport, mode=mode, **answers) as client:
            result = await client.call_tool("call_tool", {"name": "desk.confirm", "arguments": {"title": "t"}})
            assert result.content[0].text == "t, {'sure': True}"  # type: ignore[union-attr]
            counting = {"name": "desk.count", "arguments": {"steps": 3}}
            counted, steps = await call_with_progress(client, "call_tool", counting)
    assert asked == ["is it t?"]
    assert counted.content[0].text == "counted"  # type: ignore[union-attr]
    assert steps
    assert steps[0][1] == 3


async def test_a_deadline_holds_for_call_tool(hub: HubProcess) -> None:
    async with at(hub, "/v1/tools/call_tool?timeout=0.2") as raw:
        response = await raw.http.post(raw.url, json={"name": "desk.wait"}, headers={"accept": "application/json"})
        answer = response.json()
        assert (answer["reason"], answer["server"]) == ("timed_out", "desk")


# -- official clients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("path", "who"), [("/mcp", "plain"), ("/mcp/found", "plain"), ("/mcp", "narrow")])
async def test_the_official_client_searches_and_calls_in_both_eras(
    hub: HubProcess, mode: Mode, path: str, who: str
) -> None:
    async with client_over_http(f"http://127.0.0.1:{hub.port}{path}", mode=mode, headers=key_of(who)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == VIRTUAL
        result = await client.call_tool("search_tools", {"query": "search", "detail": "full", "server": "one"})
        assert result.structured_content is not None
        first = result.structured_content["tools"][0]
        assert first["inputSchema"]["required"] == ["query"]
        called = await client.call_tool("call_tool", {"name": first["name"], "arguments": {"query": "q"}})
        assert called.structured_content == {"query": "q"}
        direct = await client.call_tool(first["name"], {"query": "q"})
        assert direct.structured_content == {"query": "q"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("path", "who"), [("/mcp", "plain"), ("/mcp/found", "plain"), ("/mcp", "narrow")])
async def test_fastmcp_searches_and_calls_in_both_eras(hub: HubProcess, mode: Mode, path: str, who: str) -> None:
    async with FastMcpClient(f"http://127.0.0.1:{hub.port}{path}", auth=KEYS[who], mode=mode) as client:
        assert [tool.name for tool in await client.list_tools()] == VIRTUAL
        result = await client.call_tool("search_tools", {"query": "search"})
        name = result.structured_content["tools"][0]["name"]
        called = await client.call_tool("call_tool", {"name": name, "arguments": {"query": "q"}})
        assert called.structured_content == {"query": "q"}


async def test_a_legacy_session_is_notified_and_lists_found_tools(hub: HubProcess) -> None:
    listener = Listener()
    async with (
        client_over_http(hub.url, mode="legacy", headers=key_of("plain"), listener=listener) as client,
        client_over_http(hub.url, mode="legacy", headers=key_of("plain")) as other,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == VIRTUAL
        assert [tool.name for tool in (await other.list_tools()).tools] == VIRTUAL
        await client.call_tool("search_tools", {"query": "create issue", "limit": 1, "server": "one"})
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert [tool.name for tool in (await client.list_tools()).tools] == [*VIRTUAL, "one.create_issue"]
        assert [tool.name for tool in (await other.list_tools()).tools] == VIRTUAL


@pytest.mark.parametrize("mode", MODES)
async def test_stdio_searches_and_lists_found_tools_in_a_legacy_session(tmp_path: Path, mode: Mode) -> None:
    config = write_config(tmp_path, {"one": SERVERS["one"]}, limits=PATIENT, hub={"expose": "search"})
    listener = Listener()
    words = quick_isthmus("stdio", "--config", str(config))
    async with client_over_stdio(words, mode=mode, env=environment(), listener=listener) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == VIRTUAL
        await client.call_tool("search_tools", {"query": "create issue", "limit": 1})
        if mode == "legacy":
            await asyncio.wait_for(listener.changed.wait(), 30)
            assert [tool.name for tool in (await client.list_tools()).tools] == [*VIRTUAL, "one.create_issue"]
        else:
            assert [tool.name for tool in (await client.list_tools()).tools] == VIRTUAL


# -- what a search returns ---------------------------------------------------------------------------------------------


async def test_a_search_returns_one_line_for_each_tool(hub: HubProcess) -> None:
    async with at(hub) as raw:
        answer = await raw.call("search_tools", {"query": "make an issue"})
        assert sorted(found(answer)[:2]) == ["one.create_issue", "two.create_issue"]
        text = answer["result"]["content"][0]["text"]
        assert text.splitlines()[0].startswith(f"{found(answer)[0]}: Create an issue.")
        assert "inputSchema" not in json.dumps(answer)


async def test_a_search_can_be_limited_to_a_server_and_a_tag(hub: HubProcess) -> None:
    async with at(hub) as raw:
        assert set(found(await raw.call("search_tools", {"query": "", "server": "two"}))) == {
            "two.combined",
            "two.create_issue",
            "two.search",
        }
        assert found(await raw.call("search_tools", {"query": "", "tag": "chosen"})) == ["one.create_issue"]
        assert found(await raw.call("search_tools", {"query": "issue", "tag": "none"})) == []
        assert found(await raw.call("search_tools", {"query": "issue", "limit": 1, "server": "two"})) == [
            "two.create_issue"
        ]


async def test_a_search_without_a_match_says_where_tools_are(hub: HubProcess) -> None:
    async with at(hub, who="narrow") as raw:
        answer = await raw.call("search_tools", {"query": "xylophone"})
        assert answer["result"]["content"][0]["text"] == (
            "No tool matches. Use other words, or fewer. Servers with tools: one."
        )
    async with at(hub) as raw:
        answer = await raw.call("search_tools", {"query": "issue", "server": "onne"})
        assert answer["result"]["content"][0]["text"] == (
            "No server 'onne' has tools here. Servers with tools: builtin, desk, one, two."
        )
        answer = await raw.call("search_tools", {"query": "issue", "tag": "chozen"})
        assert answer["result"]["content"][0]["text"] == (
            "No tool with the tag 'chozen' matches. Leave the tag out, or use other words."
        )
        answer = await raw.call("search_tools", {"query": "xylophone", "server": "one"})
        assert answer["result"]["content"][0]["text"] == "No tool of one matches. Use other words, or fewer."
    async with at(hub, who="nothing") as raw:
        answer = await raw.call("search_tools", {"query": "search"})
        assert answer["result"]["content"][0]["text"].endswith("Servers with tools: none.")


async def test_ten_thousand_tools_are_searched_while_they_change(tmp_path: Path) -> None:
    many = stdio([sys.executable, str(CHECKOUT / "tests" / "console" / "many_server.py"), "10000"])
    limits = {**PATIENT, "tools_per_server": 10_000}
    async with (
        serving(tmp_path, {"many": many}, hub={"expose": "search"}, limits=limits) as running,
        client_over_http(running.url) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == VIRTUAL
        searches = [client.call_tool("search_tools", {"query": f"thing {number}"}) for number in (7, 777, 7777)]
        for number, result in zip((7, 777, 7777), await asyncio.gather(*searches), strict=True):
            assert result.structured_content is not None
            assert result.structured_content["tools"][0]["name"] == f"many.tool-{number:05}"
        write_config(tmp_path, {"many": many, "one": SERVERS["one"]}, hub={"expose": "search"}, limits=limits)

        async def is_found() -> bool:
            result = await client.call_tool("search_tools", {"query": "make an issue"})
            assert result.structured_content is not None
            return [tool["name"] for tool in result.structured_content["tools"]][:1] == ["one.create_issue"]

        await until(is_found)


# -- REST, A2A and the library -----------------------------------------------------------------------------------------


async def test_rest_lists_and_calls_like_mcp(hub: HubProcess) -> None:
    async with at(hub, "/v1/tools", "narrow") as raw:
        names = [each["name"] for each in (await raw.http.get(raw.url)).json()["tools"]]
        assert names == VIRTUAL
        everything = (await raw.http.get(f"{raw.url}?expose=all")).json()["tools"]
        assert [each["name"] for each in everything] == ["one.search"]
        assert (await raw.http.get(f"{raw.url}?expose=search")).status_code == 400
        assert (await raw.http.get(f"{raw.url}/one.search")).json()["name"] == "one.search"
        assert (await raw.http.get(f"{raw.url}/two.search")).status_code == 404
        answer = (await raw.http.post(f"{raw.url}/search_tools", json={"query": "search"})).json()
        assert [each["name"] for each in answer["structuredContent"]["tools"]] == ["one.search"]
        named = {"name": "one.search", "arguments": {"query": "q"}}
        called = (await raw.http.post(f"{raw.url}/call_tool", json=named)).json()
        assert called["structuredContent"] == {"query": "q"}


async def a2a(hub: HubProcess, who: str, instruction: dict[str, Any]) -> dict[str, Any]:
    async with at(hub, "/a2a", who) as raw:
        body = send_message(json.dumps(instruction).encode())
        answer = (await raw.post(body, {"a2a-version": "1.0"})).json()
        task: dict[str, Any] = answer["result"]["task"]
        return task


async def test_an_agent_searches_and_calls_by_tasks(hub: HubProcess) -> None:
    done = await a2a(hub, "narrow", {"tool": "search_tools", "arguments": {"query": "search"}})
    assert done["status"]["state"] == "TASK_STATE_COMPLETED", done
    assert "one.search" in json.dumps(done["artifacts"])
    named = {"name": "one.search", "arguments": {"query": "q"}}
    done = await a2a(hub, "narrow", {"tool": "call_tool", "arguments": named})
    assert done["status"]["state"] == "TASK_STATE_COMPLETED", done
    failed = await a2a(hub, "narrow", {"tool": "call_tool", "arguments": {**named, "name": "two.search"}})
    assert failed["status"]["state"] == "TASK_STATE_FAILED", failed


async def test_the_library_lists_searches_and_calls(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"one": SERVERS["one"]}, hub={"expose": "search"})
    async with ToolService(str(config)) as service:
        assert await service.list_tools() == VIRTUAL
        answer = await service.execute_tool(ToolRequest("search_tools", parameters={"query": "make an issue"}))
        assert answer.data["tools"][0]["name"] == "one.create_issue"
        named = {"name": "one.search", "arguments": {"query": "q"}}
        assert (await service.execute_tool(ToolRequest("call_tool", parameters=named))).data == {"query": "q"}
        assert (await service.execute_tool(ToolRequest("search", parameters={"query": "q"}))).data == {"query": "q"}


async def test_a_user_of_the_library_finds_and_calls_permitted_tools(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"one": SERVERS["one"]}, hub={"expose": "search"})
    restricted = UserPermissions(permissions=["one.*"], restrictions={"tools": ["create_issue"]})
    user = UserContext(user_id="ann", permissions=restricted)
    async with ToolService(str(config)) as service:
        assert await service.list_tools(user) == VIRTUAL
        searching = ToolRequest("search_tools", parameters={"query": ""}, user_context=user)
        found = (await service.execute_tool(searching)).data["tools"]
        assert [each["name"] for each in found] == ["one.combined", "one.search"]
        for name in ("one.create_issue", "builtin.echo"):
            calling = ToolRequest("call_tool", parameters={"name": name}, user_context=user)
            assert not (await service.execute_tool(calling)).is_success


async def test_a_card_has_the_tools_of_the_hub_as_skills_and_a_message_names_any_tool(hub: HubProcess) -> None:
    async with at(hub, "/a2a/sets/found/.well-known/agent-card.json") as raw:
        skills = [skill["id"] for skill in (await raw.http.get(raw.url)).json()["skills"]]
    assert skills[-2:] == VIRTUAL
    assert not {"one.search", "create_issue", "combined"} & set(skills)
    done = await a2a(hub, "narrow", {"tool": "one.search", "arguments": {"query": "q"}})
    assert done["status"]["state"] == "TASK_STATE_COMPLETED", done


async def test_an_attached_program_lets_only_unrestricted_users_search_at_its_hub(hub: HubProcess) -> None:
    free = UserContext(user_id="ann", permissions=UserPermissions(permissions=["*"]))
    denied = UserPermissions(permissions=["*"], restrictions={"tools": ["one.create_issue"]})
    some = UserPermissions(permissions=["one.*", "search_tools", "call_tool"])
    service = ToolService()
    await service.initialize(hub=hub.url, key=KEYS["plain"])
    async with service:
        named = {"name": "one.search", "arguments": {"query": "q"}}
        result = await service.execute_tool(ToolRequest("call_tool", parameters=named, user_context=free))
        assert result.data == {"query": "q"}
        for permissions in (denied, some):
            user = UserContext(user_id="bob", permissions=permissions)
            for name, parameters in (("call_tool", named), ("search_tools", {"query": "issue"})):
                assert name not in await service.list_tools(user)
                refused = await service.execute_tool(ToolRequest(name, parameters=parameters, user_context=user))
                assert not refused.is_success
