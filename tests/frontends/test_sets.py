"""Sets: exactly the listed tools can be called, on every frontend, by path and for bound callers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import pytest_asyncio
from mcp import Client, ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from isthmus.library import ToolRequest, ToolService
from tests.fork_server import quick_isthmus
from tests.frontends.set_server import command
from tests.frontends.test_task_lists import SessionClient
from tests.frontends.wire import connected, until
from tests.hubs import PATIENT, TRUSTED, HubProcess, Raw, environment, run, serving, stdio, write_config
from tests.peers.client_sdk2 import Listener, client_over_http, client_over_stdio

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETS: dict[str, Any] = {
    "dev": {
        "tools": ["one.*", "two.search"],
        "exclude": ["one.search"],
        "prompts": ["one.brief"],
        "resources": ["one.memo://one"],
        "description": "For people who write programs.",
        "description_max": 40,
        "tool": {
            "one.create_issue": {"name": "new_issue", "fixed": {"repo": "acme/x"}, "hide": ["verbose"]},
            "one.combined": {"fixed": {"repo": "acme/x"}},
        },
        "prompt": {"one.brief": {"title": "Brief"}},
    },
    "finding": {"tools": ["one.search", "two.search", "two.create_issue"]},
    "reading": {"tools": ["hint:read-only", "tag:chosen"], "exclude": ["builtin"]},
    "papers": {
        "prompts": ["one.*", "two.brief"],
        "resources": ["one.*"],
        "description_max": 30,
        "prompt": {
            "one.review": {
                "name": "look_over",
                "title": "Look it over",
                "fixed": {"repo": "acme/x"},
                "hide": ["tone"],
            },
            "one.doubled": {"fixed": {"repo": "acme/x"}},
            "two.brief": {"name": "summary", "description": "Sum it up."},
        },
        "resource": {
            "one.memo://one": {"name": "first", "title": "The first memo", "description": "What was said."},
            "one.note://{id}": {"name": "a note", "description": "One note by its number."},
        },
    },
}
KEYS = {name: f"key-of-{name}-0123456789" for name in ("free", "bound", "strict", "stranded", "narrow", "reader")}
CALLERS: dict[str, Any] = {
    "free": {"key": KEYS["free"], "allow": ["*"], "operator": True},
    "bound": {"key": KEYS["bound"], "allow": ["*"], "set": "dev"},
    "strict": {"key": KEYS["strict"], "allow": ["*"], "deny": ["two.*"], "set": "dev"},
    "stranded": {"key": KEYS["stranded"], "allow": ["*"], "set": "gone"},
    "reader": {"key": KEYS["reader"], "allow": ["*"], "set": "papers"},
    "narrow": {"key": KEYS["narrow"], "allow": ["two.*"], "deny": ["two.serach"]},
}
SERVERS: dict[str, Any] = {
    "one": stdio(command(), tags={"create_issue": ["chosen"]}),
    "two": stdio(command(), trusted=True),
}
DEV = ["new_issue", "search"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(folder: Path) -> AsyncIterator[HubProcess]:
    async with serving(folder, SERVERS, sets=SETS, callers=CALLERS, limits=PATIENT) as running:
        yield running


@asynccontextmanager
async def at(hub: HubProcess, path: str, who: str = "free") -> AsyncIterator[Raw]:
    async with Raw(f"http://127.0.0.1:{hub.port}{path}", key=KEYS[who]) as raw:
        yield raw


async def listed(hub: HubProcess, path: str, who: str = "free") -> list[str]:
    async with at(hub, path, who) as raw:
        return await raw.names()


def reason(answer: dict[str, Any]) -> tuple[str, str]:
    data = answer["error"]["data"]
    return data["reason"], data["executed"]


def sent(answer: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the server received."""
    found: dict[str, Any] = answer["result"]["structuredContent"]
    return found


# -- MCP -----------------------------------------------------------------------------------------------------------


async def test_a_set_lists_its_tools_under_its_own_names(hub: HubProcess) -> None:
    assert await listed(hub, "/mcp/dev") == DEV
    assert sorted(await listed(hub, "/mcp/finding")) == ["create_issue", "one.search", "two.search"]


async def test_a_set_by_labels_uses_tags_and_hints_of_trusted_servers(hub: HubProcess) -> None:
    assert sorted(await listed(hub, "/mcp/reading")) == ["create_issue", "search"]
    async with at(hub, "/mcp/reading") as raw:
        # Only `two` is trusted to call its tool read-only; only `one` has the operator's tag.
        assert sent(await raw.call("search", {"query": "q"})) == {"query": "q"}


async def test_a_changed_tool_shows_no_trace_of_its_removed_arguments(hub: HubProcess) -> None:
    async with at(hub, "/mcp/dev") as raw:
        tool = (await raw.ask("tools/list"))["result"]["tools"][0]
    schema = tool["inputSchema"]
    assert (list(schema["properties"]), schema["required"]) == (["title", "options"], ["title"])
    assert schema["additionalProperties"] is False
    assert "acme/x" not in json.dumps(tool)
    assert "secret/repo" not in json.dumps(tool)
    assert tool["description"] == "Create an issue. It may take a while."


async def test_a_fixed_argument_reaches_the_server(hub: HubProcess) -> None:
    async with at(hub, "/mcp/dev") as raw:
        assert sent(await raw.call("new_issue", {"title": "t"})) == {"title": "t", "repo": "acme/x"}


@pytest.mark.parametrize("name", ["one.create_issue", "create_issue", "one.new_issue", "two.search", "mcp_one_search"])
async def test_only_the_names_of_the_set_can_be_called(hub: HubProcess, name: str) -> None:
    for path, who in (("/mcp/dev", "free"), ("/mcp", "bound"), ("/mcp/one", "bound")):
        async with at(hub, path, who) as raw:
            assert reason(await raw.call(name, {"title": "t", "query": "q"})) == ("unknown_tool", "no")


async def test_arguments_are_checked_against_the_servers_own_schema(hub: HubProcess) -> None:
    async with at(hub, "/mcp/dev") as raw:
        assert reason(await raw.call("new_issue", {"title": 7})) == ("bad_arguments", "no")
        assert reason(await raw.call("new_issue")) == ("bad_arguments", "no")


async def test_a_tool_that_cannot_be_changed_safely_is_left_out_and_reported(hub: HubProcess) -> None:
    async with at(hub, "/mcp/dev") as raw:
        assert reason(await raw.call("combined", {})) == ("unknown_tool", "no")
    async with at(hub, "/v1/configuration") as raw:
        findings = (await raw.http.get(raw.url)).json()["findings"]
    by_path = {each["path"]: each for each in findings}
    assert by_path['sets.dev.tool."one.combined"']["code"] == "ISC-425"
    assert "allOf" in by_path['sets.dev.tool."one.combined"']["problem"]
    assert by_path["callers.stranded.set"]["code"] == "ISC-422"


async def test_the_description_of_a_set_is_its_instructions(hub: HubProcess) -> None:
    async with at(hub, "/mcp/dev") as raw:
        assert (await raw.ask("server/discover"))["result"]["instructions"] == "For people who write programs."
        legacy = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": legacy}
        assert (await raw.post(body)).json()["result"]["instructions"] == "For people who write programs."
    async with at(hub, "/mcp") as raw:
        assert "instructions" not in (await raw.ask("server/discover"))["result"]


async def test_prompts_and_resources_are_in_a_set_only_if_it_picks_them(hub: HubProcess) -> None:
    async with at(hub, "/mcp/dev") as raw:
        assert [each["name"] for each in (await raw.ask("prompts/list"))["result"]["prompts"]] == ["brief"]
        assert [each["uri"] for each in (await raw.ask("resources/list"))["result"]["resources"]] == ["memo://one"]
        named = {"ref": {"type": "ref/prompt", "name": "brief"}, "argument": {"name": "subject", "value": ""}}
        values = (await raw.ask("completion/complete", named))["result"]["completion"]["values"]
        assert values[0] == '{"type":"ref/prompt","name":"brief"}'
    async with at(hub, "/v1/prompts/brief?set=dev") as raw:
        assert (await raw.http.post(raw.url)).json()["messages"][0]["content"]["text"] == "brief {}"
    async with at(hub, "/v1/resources/read?set=dev&uri=memo://one") as raw:
        assert (await raw.http.get(raw.url)).json()["contents"][0]["text"] == "memo://one"
    for uri in ("memo://two", "isthmus://hub/one/memo://two", "isthmus://hub/two/memo://one", "memo:///two"):
        async with at(hub, f"/v1/resources/read?set=dev&uri={uri}") as raw:
            assert (await raw.http.get(raw.url)).json()["reason"] == "unknown_resource"
    async with at(hub, "/mcp/finding") as raw:
        assert (await raw.ask("prompts/list"))["result"]["prompts"] == []
        assert (await raw.ask("resources/list"))["result"]["resources"] == []
        capabilities = (await raw.ask("server/discover"))["result"]["capabilities"]
        assert "prompts" not in capabilities
        assert "resources" not in capabilities


async def test_a_set_never_widens_permissions(hub: HubProcess) -> None:
    assert await listed(hub, "/mcp/dev", "narrow") == ["search"]
    assert await listed(hub, "/mcp/finding", "narrow") == ["create_issue", "two.search"]
    assert await listed(hub, "/mcp", "strict") == ["new_issue"]


async def test_a_hidden_set_looks_like_a_missing_one(hub: HubProcess) -> None:
    for path, who in (("/mcp/finding", "bound"), ("/mcp/dev", "stranded"), ("/mcp/gone", "stranded")):
        async with at(hub, path, who) as raw, at(hub, "/mcp/nothing", who) as nothing:
            hidden, missing = await raw.post({}), await nothing.post({})
            assert (hidden.status_code, hidden.text) == (missing.status_code, missing.text) == (404, missing.text)
            assert "MCP is at /mcp, /mcp/{server} and /mcp/{set}" in missing.text


# -- no spelling gets around a fixed argument ----------------------------------------------------------------------

OVERRIDES = [
    b'{"title":"t","repo":"evil/x"}',
    b'{"repo":"evil/x","title":"t"}',
    b'{"title":"t","repo":"acme/x"}',
    b'{"title":"t","repo":null}',
    b'{"title":"t","Repo":"evil/x"}',
    b'{"title":"t","REPO":"evil/x"}',
    b'{"title":"t","re\\u0070o":"evil/x"}',
    '{"title":"t","ʀepo":"evil/x"}'.encode(),
    b'{"title":"t","repo ":"evil/x"}',
    b'{"title":"t","repo\\u0000":"evil/x"}',
    b'{"title":"t","repo":"evil/x","repo":"evil/y"}',
    b'{"title":"t","verbose":true}',
    b'{"title":"t","Verbose":true}',
    b'{"title":"t","arguments":{"repo":"evil/x"}}',
    b'{"title":"t","unknown":1}',
    b'["repo","evil/x"]',
]


@pytest.mark.parametrize("arguments", OVERRIDES, ids=lambda text: text.decode())
async def test_no_spelling_overrides_a_fixed_argument_on_any_frontend(hub: HubProcess, arguments: bytes) -> None:
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"new_issue","arguments":%b}}' % arguments
    for path, who in (("/mcp/dev", "free"), ("/mcp", "bound")):
        async with at(hub, path, who) as raw:
            answer = (await raw.post(call)).json()
            assert answer["error"]["code"] in (-32600, -32602, -32700), answer
    for path, who in (("/v1/tools/new_issue?set=dev", "free"), ("/v1/tools/new_issue", "bound")):
        async with at(hub, path, who) as raw:
            answered = await raw.post(arguments)
            assert (answered.status_code, answered.json()["executed"]) == (400, "no")
    for path, who in (("/a2a/sets/dev", "free"), ("/a2a", "bound")):
        body = send_message(b'{"tool":"new_issue","arguments":%b}' % arguments)
        async with at(hub, path, who) as raw:
            answer = (await raw.post(body, {"a2a-version": "1.0"})).json()
            task = answer.get("result", {}).get("task")
            assert "error" in answer or task["status"]["state"] == "TASK_STATE_FAILED", answer
            assert "evil" not in json.dumps(answer.get("result", {}).get("task", {}).get("artifacts", []))


async def test_a_nested_member_of_the_same_name_is_an_ordinary_argument(hub: HubProcess) -> None:
    given = {"title": "t", "options": {"repo": "other/x"}}
    async with at(hub, "/mcp/dev") as raw:
        assert sent(await raw.call("new_issue", given)) == {**given, "repo": "acme/x"}


# -- prompts and resources -----------------------------------------------------------------------------------------


async def test_a_set_lists_its_prompts_and_resources_as_it_says(hub: HubProcess) -> None:
    async with at(hub, "/mcp/papers") as raw:
        prompts = {each["name"]: each for each in (await raw.ask("prompts/list"))["result"]["prompts"]}
        resources = {each["uri"]: each for each in (await raw.ask("resources/list"))["result"]["resources"]}
        templates = (await raw.ask("resources/templates/list"))["result"]["resourceTemplates"]
    assert list(prompts) == ["brief", "look_over", "summary"], "doubled cannot be changed safely"
    assert prompts["look_over"] == {
        "name": "look_over",
        "title": "Look it over",
        "description": "Review a change.",
        "arguments": [{"name": "change", "description": "Its number.", "required": True}],
    }
    assert prompts["summary"]["description"] == "Sum it up."
    one = {"name": "first", "title": "The first memo", "description": "What was said."}
    assert resources["memo://one"] == {"uri": "memo://one", **one}
    assert resources["memo://two"]["description"] == "The second memo."
    assert templates == [{"uriTemplate": "note://{id}", "name": "a note", "description": "One note by its number."}]


COMPLETE = b"completion/complete"
FIXED_PROMPTS = [
    b'{"change":"7","repo":"evil/x"}',
    b'{"change":"7","repo":"acme/x"}',
    b'{"change":"7","Repo":"evil/x"}',
    b'{"change":"7","re\\u0070o":"evil/x"}',
    b'{"change":"7","repo":"evil/x","repo":"acme/x"}',
    b'{"change":"7","tone":"rude"}',
]


@pytest.mark.parametrize("arguments", FIXED_PROMPTS, ids=lambda text: text.decode())
async def test_no_spelling_overrides_a_fixed_argument_of_a_prompt(hub: HubProcess, arguments: bytes) -> None:
    call = b'{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"look_over","arguments":%b}}' % arguments
    named = b'{"ref":{"type":"ref/prompt","name":"look_over"},"argument":{"name":"change","value":""}'
    completion = b'%b,"context":{"arguments":%b}}' % (named, arguments)
    complete = b'{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":%b}' % completion
    async with at(hub, "/mcp/papers") as raw:
        for body in (call, complete):
            answer = (await raw.post(body)).json()
            assert answer["error"]["code"] in (-32600, -32602, -32700), answer
    for path, body in (("/v1/prompts/look_over?set=papers", arguments), ("/v1/completions?set=papers", completion)):
        async with at(hub, path) as raw:
            answered = await raw.post(body)
            assert (answered.status_code, answered.json()["executed"]) == (400, "no"), answered.text
    for method, params in (
        (b"prompts/get", b'{"name":"look_over","arguments":%b}' % arguments),
        (COMPLETE, completion),
    ):
        data = b'{"mcp_target_url":"one","mcp_method":"%b","mcp_params":%b}' % (method, params)
        async with at(hub, "/a2a/sets/papers") as raw:
            answer = (await raw.post(send_message(data), {"a2a-version": "1.0"})).json()
            assert "error" in answer or answer["result"]["task"]["status"]["state"] == "TASK_STATE_FAILED", answer


@pytest.mark.parametrize(
    "argument",
    [
        b'{"name":"repo","value":""}',
        b'{"name":"Repo","value":""}',
        b'{"name":"tone","value":""}',
        b'{"name":"change","name":"repo","value":""}',
        b'{"value":""}',
    ],
    ids=lambda text: text.decode(),
)
async def test_a_fixed_or_hidden_argument_of_a_prompt_is_not_completed(hub: HubProcess, argument: bytes) -> None:
    body = b'{"ref":{"type":"ref/prompt","name":"look_over"},"argument":%b}' % argument
    async with at(hub, "/v1/completions?set=papers") as raw:
        answered = await raw.post(body)
        assert (answered.status_code, answered.json()["executed"]) == (400, "no"), answered.text


async def test_a_server_reads_only_the_completed_argument_that_was_checked(hub: HubProcess) -> None:
    """A server may read the first of repeated members, or ignore case."""
    body = (
        b'{"ref":{"type":"ref/prompt","name":"look_over"},'
        b'"argument":{"name":"repo","name":"change","Name":"repo","value":"7"},'
        b'"context":{"Arguments":{"repo":"evil/x"}},"Context":{"arguments":{"repo":"evil/x"}}}'
    )
    async with at(hub, "/v1/completions?set=papers") as raw:
        values = (await raw.post(body, {"accept": "application/json"})).json()["completion"]["values"]
    assert values == [
        '{"type":"ref/prompt","name":"review"}',
        '{"name":"change","value":"7"}',
        '{"arguments":{"repo":"acme/x"}}',
    ]


async def test_the_audit_log_has_the_servers_own_name_of_a_prompt(hub: HubProcess, folder: Path) -> None:
    async with at(hub, "/v1/prompts/look_over?set=papers") as raw:
        answered = (await raw.http.post(raw.url, json={"change": "7"})).json()
        assert answered["messages"][0]["content"]["text"] == 'review {"change":"7","repo":"acme/x"}'

    async def is_written() -> bool:
        _, out, _ = await command_line(folder, "audit", "export")
        records = [json.loads(line)["record"] for line in out.splitlines()]
        found = {tuple(each.get(key) for key in ("kind", "set", "name", "tool", "server")) for each in records}
        return ("prompt", "papers", "look_over", "review", "one") in found

    await until(is_written)


async def test_commands_have_prompts_and_resources_as_a_set_says(hub: HubProcess, folder: Path) -> None:
    options = ("--set", "papers")
    _, out, _ = await command_line(folder, "prompts", *options)
    assert [line.split()[0] for line in out.splitlines()] == ["brief", "look_over", "summary"]
    _, out, _ = await command_line(folder, "prompt", "look_over", "change=7", *options)
    assert 'review {"change":"7","repo":"acme/x"}' in out
    _, out, _ = await command_line(folder, "prompts", "look_over", *options)
    assert "\n  change  string  yes  Its number.\n" in out
    assert out.endswith("Example:\n  isthmus prompt --set papers look_over change=CHANGE\n")
    code, _, complained = await command_line(folder, "prompt", "look_over", "change=7", "repo=evil/x", *options)
    assert (code, "not accepted here: repo (accepted: change)" in complained) == (1, True)
    assert (await command_line(folder, "prompt", "one.review", "change=7", *options))[0] == 1
    _, out, _ = await command_line(folder, "resources", *options)
    assert [line.split(maxsplit=1) for line in out.splitlines()] == [
        ["memo://one", "What was said."],
        ["memo://two", "The second memo."],
    ]
    _, out, _ = await command_line(folder, "config", "check")
    assert 'sets.papers.prompt."one.doubled"' not in out, "only servers know"
    _, out, _ = await command_line(folder, "doctor")
    assert "sets.papers.prompt.\"one.doubled\": is left out: its argument 'Repo' differs" in out


# -- other frontends -----------------------------------------------------------------------------------------------


def send_message(data: bytes) -> bytes:
    part = b'{"data":%b}' % data
    message = b'{"messageId":"m","role":"ROLE_USER","parts":[%b]}' % part
    return b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":%b}}' % message


async def a2a(hub: HubProcess, path: str, who: str, instruction: dict[str, Any]) -> dict[str, Any]:
    async with at(hub, path, who) as raw:
        answer = (await raw.post(send_message(json.dumps(instruction).encode()), {"a2a-version": "1.0"})).json()
        task: dict[str, Any] = answer["result"]["task"]
        return task


async def test_rest_serves_a_set_by_a_parameter(hub: HubProcess) -> None:
    async with at(hub, "/v1/tools?set=dev") as raw:
        assert [each["name"] for each in (await raw.http.get(raw.url)).json()["tools"]] == DEV
    async with at(hub, "/v1/tools/new_issue?set=dev") as raw:
        assert "repo" not in (await raw.http.get(raw.url)).json()["inputSchema"]["properties"]
        assert (await raw.http.post(raw.url, json={"title": "t"})).json()["structuredContent"] == {
            "title": "t",
            "repo": "acme/x",
        }
    async with at(hub, "/v1/tools?set=dev&server=two") as raw:
        assert [each["name"] for each in (await raw.http.get(raw.url)).json()["tools"]] == ["search"]
    for path in ("/v1/tools/one.create_issue?set=dev", "/v1/tools/new_issue"):
        async with at(hub, path) as raw:
            assert (await raw.post({"title": "t"})).json()["reason"] == "unknown_tool"
    async with at(hub, "/v1/tools?set=none") as raw:
        answered = await raw.http.get(raw.url)
        assert (answered.status_code, answered.json()["reason"]) == (404, "unknown_set")


async def test_commands_see_a_set_by_an_option(hub: HubProcess, folder: Path) -> None:
    options = ("--set", "dev")
    _, out, _ = await command_line(folder, "tools", *options)
    assert [line.split()[0] for line in out.splitlines()] == DEV
    _, out, _ = await command_line(folder, "tools", "new_issue", *options)
    assert "isthmus call --set dev new_issue title=TITLE" in out
    code, _, complained = await command_line(folder, "call", "one.create_issue", "title=t", *options)
    assert (code, "there is no tool 'one.create_issue'" in complained) == (1, True)
    assert "`isthmus tools --set dev` lists all tools of the set" in complained
    _, _, complained = await command_line(folder, "call", "new_issue", *options)
    assert "isthmus call --set dev new_issue title=TEXT" in complained
    assert "`isthmus tools --set dev new_issue` shows its arguments" in complained
    _, out, _ = await command_line(folder, "prompts", *options)
    assert out.split() == ["brief", "Brief"]
    assert (await command_line(folder, "prompt", "brief", *options))[0] == 0
    _, out, _ = await command_line(folder, "resources", "--json", *options)
    assert [each["uri"] for each in json.loads(out)["resources"]] == ["memo://one"]
    assert (await command_line(folder, "read", "memo://one", *options))[1].strip() == "memo://one"
    assert (await command_line(folder, "read", "memo://two", *options))[0] == 1
    code, _, complained = await command_line(folder, "tools", "--server", "one", *options)
    assert (code, "--server and --set exclude each other" in complained) == (2, True)


@pytest.mark.parametrize("more", [(), ("--private",)], ids=["running", "private"])
async def test_a_command_calls_a_tool_of_a_set(hub: HubProcess, folder: Path, more: tuple[str, ...]) -> None:
    code, out, _ = await command_line(folder, "call", "new_issue", "title=t", "--json", "--set", "dev", *more)
    assert (code, json.loads(out)["structuredContent"]) == (0, {"title": "t", "repo": "acme/x"})
    code, _, complained = await command_line(folder, "tools", "--set", "gone", *more)
    assert (code, "there is no set 'gone'" in complained) == (2, True)


async def test_a_set_is_an_agent_with_a_card_of_its_own(hub: HubProcess) -> None:
    async with at(hub, "/a2a/sets/dev/.well-known/agent-card.json") as raw:
        card = (await raw.http.get(raw.url)).json()
    tools = [skill["id"] for skill in card["skills"] if skill["tags"] and skill["tags"][0] in ("one", "two")]
    assert (card["name"], card["description"], tools) == ("Isthmus (dev)", "For people who write programs.", DEV)
    addresses = {urlsplit(each["url"]).path for each in card["supportedInterfaces"]}
    assert addresses == {"/a2a/sets/dev", "/a2a/sets/dev/rest"}
    done = await a2a(hub, "/a2a/sets/dev", "free", {"tool": "new_issue", "arguments": {"title": "t"}})
    assert done["artifacts"][0]["parts"][0]["data"] == {"title": "t", "repo": "acme/x"}
    async with at(hub, "/a2a/sets/dev/rest/message:send") as raw:
        message = json.loads(send_message(b'{"tool":"search","arguments":{"query":"q"}}'))["params"]
        answered = (await raw.post(message, {"a2a-version": "1.0"})).json()
        assert answered["task"]["artifacts"][0]["parts"][0]["data"] == {"query": "q"}


@pytest.mark.parametrize("path", ["/a2a/sets/dev/x", "/a2a/sets/dev/sets/dev", "/a2a/sets/", "/a2a/sets/none"])
async def test_other_paths_below_a_set_do_not_exist(hub: HubProcess, path: str) -> None:
    async with at(hub, path) as raw:
        assert (await raw.post(send_message(b'{"tool":"search"}'), {"a2a-version": "1.0"})).status_code == 404


@pytest.mark.parametrize(("path", "who"), [("/a2a/sets/dev", "free"), ("/a2a", "bound")])
@pytest.mark.parametrize(
    "instruction",
    [
        {"tool": "one.create_issue", "arguments": {"title": "t", "repo": "a/b"}},
        {"tool": "create_issue", "arguments": {"title": "t", "repo": "a/b"}},
        {"tool": "mcp_one_create_issue", "arguments": {"title": "t", "repo": "a/b"}},
        {"target_mcp_server_id": "one", "tool_name": "create_issue", "arguments": {"title": "t", "repo": "a/b"}},
        {"mcp_target_url": "one", "mcp_method": "tools/call", "mcp_params": {"name": "create_issue", "arguments": {}}},
        {"mcp_target_url": "two", "mcp_method": "tools/call", "mcp_params": {"name": "new_issue", "arguments": {}}},
        {"mcp_target_url": "builtin", "mcp_method": "tools/list"},
        {"mcp_target_url": "http://127.0.0.1:9/mcp", "mcp_method": "tools/list"},
    ],
    ids=lambda given: json.dumps(given)[:60] if isinstance(given, dict) else given,
)
async def test_no_instruction_reaches_beyond_a_set(
    hub: HubProcess, path: str, who: str, instruction: dict[str, Any]
) -> None:
    done = await a2a(hub, path, who, instruction)
    assert done["status"]["state"] in ("TASK_STATE_FAILED", "TASK_STATE_REJECTED")


@pytest.mark.parametrize(("path", "who"), [("/a2a/sets/dev", "free"), ("/a2a", "bound")])
async def test_instructions_for_a_server_use_the_names_of_the_set(hub: HubProcess, path: str, who: str) -> None:
    named = {"target_mcp_server_id": "one", "tool_name": "new_issue", "arguments": {"title": "t"}}
    done = await a2a(hub, path, who, named)
    assert done["artifacts"][0]["parts"][0]["data"]["mcp_result"]["structuredContent"]["repo"] == "acme/x"
    listed = await a2a(hub, path, who, {"mcp_target_url": "one", "mcp_method": "tools/list"})
    tools = listed["artifacts"][0]["parts"][0]["data"]["mcp_result"]["tools"]
    assert [tool["name"] for tool in tools] == ["new_issue"]


async def test_without_a_key_set_names_are_hidden(hub: HubProcess) -> None:
    async with httpx2.AsyncClient(verify=TRUSTED) as http:
        cards = {}
        for name in ("dev", "other"):
            url = f"http://127.0.0.1:{hub.port}/a2a/sets/{name}/.well-known/agent-card.json"
            answered = await http.get(url)
            # A node without a public address names its own, and each has an id.
            text = re.sub(r"localhost:\d+|[0-9a-f]{16}", "", answered.text)
            cards[name] = (answered.status_code, text.replace(f"({name})", "()").replace(f"/{name}", "/"))
            assert (await http.post(f"http://127.0.0.1:{hub.port}/mcp/{name}", json={})).status_code == 401
        assert cards["dev"] == cards["other"]


# -- bound callers -------------------------------------------------------------------------------------------------


async def test_a_bound_caller_sees_its_set_on_every_path(hub: HubProcess) -> None:
    assert await listed(hub, "/mcp", "bound") == await listed(hub, "/mcp/dev", "bound") == DEV
    assert await listed(hub, "/mcp/one", "bound") == ["new_issue"]
    assert await listed(hub, "/mcp", "stranded") == []
    async with at(hub, "/v1/tools", "bound") as raw:
        assert [each["name"] for each in (await raw.http.get(raw.url)).json()["tools"]] == DEV
    async with at(hub, "/v1/servers", "bound") as raw:
        assert [each["name"] for each in (await raw.http.get(raw.url)).json()["servers"]] == ["one", "two"]
    async with at(hub, "/v1/tools?set=finding", "bound") as raw:
        assert (await raw.http.get(raw.url)).status_code == 404
    async with at(hub, "/.well-known/agent-card.json", "bound") as raw:
        card = (await raw.http.get(raw.url)).json()
        assert [skill["id"] for skill in card["skills"] if skill["tags"][:1] in (["one"], ["two"])] == DEV
    async with at(hub, "/mcp", "bound") as raw:
        assert sent(await raw.call("new_issue", {"title": "t"})) == {"title": "t", "repo": "acme/x"}


async def test_a_bound_caller_has_its_set_over_sse(hub: HubProcess) -> None:
    headers = {"authorization": f"Bearer {KEYS['bound']}"}
    async with (
        asyncio.timeout(30),
        sse_client(f"http://127.0.0.1:{hub.port}/sse", headers=headers) as streams,
        ClientSession(*streams) as session,
    ):
        await session.initialize()
        assert [tool.name for tool in (await session.list_tools()).tools] == DEV
        result = await session.call_tool("new_issue", {"title": "t"})
        assert result.structured_content == {"title": "t", "repo": "acme/x"}


async def test_a_program_uses_a_set_of_a_running_hub(hub: HubProcess) -> None:
    service = ToolService()
    await service.initialize(hub=f"{hub.url}/dev", key=KEYS["free"])
    async with service:
        result = await service.execute_tool(ToolRequest("new_issue", parameters={"title": "t"}))
        assert result.data == {"title": "t", "repo": "acme/x"}


async def test_the_audit_log_names_the_set_and_the_servers_own_tool(hub: HubProcess, folder: Path) -> None:
    async with at(hub, "/mcp/dev") as raw:
        await raw.call("new_issue", {"title": "audited"})
        await raw.call("search", {"query": "audited"})

    async def is_written() -> bool:
        _, out, _ = await command_line(folder, "audit", "export")
        records = [json.loads(line)["record"] for line in out.splitlines()]
        found = {tuple(each.get(key) for key in ("set", "name", "tool", "server")) for each in records}
        return {("dev", "new_issue", "create_issue", "one"), ("dev", "search", None, "two")} <= found

    await until(is_written)


# -- programs ------------------------------------------------------------------------------------------------------


async def command_line(folder: Path, *words: str, **env: str) -> tuple[int, str, str]:
    ended = await run(*words, "--config", str(folder / "isthmus.json"), folder=folder, env=env)
    return ended.code, ended.out, ended.err


async def test_access_shows_a_bound_caller_with_its_names(hub: HubProcess, folder: Path) -> None:
    _, out, complained = await command_line(folder, "access", "bound")
    assert "bound to the set dev" in out
    assert "one.create_issue in the set dev" in out
    assert "left out of the set dev: its inputSchema has allOf" in out
    assert 'sets.dev.tool."one.combined" is left out' in complained
    _, out, complained = await command_line(folder, "access", "reader")
    assert re.search(r"look_over .*\n +one.review in the set papers", out), out
    assert "left out of the set papers: its argument 'Repo' differs from a fixed or hidden one" in out
    assert 'sets.papers.prompt."one.doubled" is left out' in complained
    _, out, complained = await command_line(folder, "access", "stranded")
    assert "It can reach nothing." in out
    assert "The set gone does not exist" in complained


async def test_access_says_that_a_fixed_value_does_not_fit_the_schema(tmp_path: Path) -> None:
    wrong = {"tools": ["one.*"], "tool": {"one.create_issue": {"fixed": {"title": 7}}}}
    bot = {"key": KEYS["bound"], "set": "wrong", "allow": ["*"]}
    write_config(tmp_path, {"one": stdio(command())}, sets={"wrong": wrong}, callers={"bot": bot}, limits=PATIENT)
    _, out, _ = await command_line(tmp_path, "access", "bot")
    assert "left out of the set wrong: its inputSchema does not accept the value of fixed.title" in out


async def test_a_caller_that_is_bound_to_a_missing_set_learns_why_it_has_no_tools(
    hub: HubProcess, folder: Path
) -> None:
    async with at(hub, "/v1/tools", "stranded") as raw:
        answered = await raw.http.get(raw.url)
        assert (answered.status_code, answered.json()["reason"]) == (404, "unknown_set")
    ended = await run("tools", folder=folder, env={"ISTHMUS_HUB": hub.url, "ISTHMUS_KEY": KEYS["stranded"]})
    assert (ended.code, "stranded is bound to the set gone, which does not exist" in ended.err) == (5, True), ended


async def test_access_at_a_hub_needs_a_key_that_is_bound_to_no_set(hub: HubProcess, folder: Path) -> None:
    url = f"http://127.0.0.1:{hub.port}"
    code, _, complained = await command_line(folder, "access", "bound", "--hub", url, ISTHMUS_KEY=KEYS["bound"])
    assert code == 2
    assert "the key in ISTHMUS_KEY is bound to a set" in complained
    _, out, _ = await command_line(folder, "access", "bound", "--hub", url, ISTHMUS_KEY=KEYS["free"])
    assert "one.create_issue in the set dev" in out


async def test_doctor_and_check_report_problems_of_sets_and_patterns(hub: HubProcess, folder: Path) -> None:
    _, out, _ = await command_line(folder, "doctor")
    assert "ISD-405 3 findings" in out
    assert 'sets.dev.tool."one.combined": is left out: ' in out
    assert "callers.narrow.deny: has two.serach, which matches nothing" in out
    code, out, complained = await command_line(folder, "config", "check")
    assert "callers.stranded.set must be the name of a set, not 'gone'" in out + complained
    assert code != 0


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_stdio_serves_a_set(tmp_path: Path, mode: Any) -> None:
    config = write_config(tmp_path, SERVERS, sets=SETS, limits=PATIENT)
    words = quick_isthmus("stdio", "--config", str(config), "--set", "dev")
    async with client_over_stdio(words, mode=mode, env=environment()) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == DEV
        result = await client.call_tool("new_issue", {"title": "t"})
        assert result.structured_content == {"title": "t", "repo": "acme/x"}
        assert [prompt.title for prompt in (await client.list_prompts()).prompts] == ["Brief"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_stdio_serves_a_set_of_a_running_hub(hub: HubProcess, mode: Any) -> None:
    words = quick_isthmus("stdio", "--hub", f"http://127.0.0.1:{hub.port}", "--set", "dev")
    env = environment({"ISTHMUS_KEY": KEYS["free"]})
    async with client_over_stdio(words, mode=mode, env=env) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == DEV
        assert client.instructions == "For people who write programs."
        assert [prompt.title for prompt in (await client.list_prompts()).prompts] == ["Brief"]


async def test_stdio_refuses_a_set_that_does_not_exist(tmp_path: Path) -> None:
    write_config(tmp_path, SERVERS, sets=SETS)
    code, _, complained = await command_line(tmp_path, "stdio", "--set", "dve")
    assert code == 2
    assert "the configuration has no set 'dve'" in complained
    assert "dev, finding, reading" in complained


@pytest.mark.one_process("the key is made in the state folder, before the hub is a node")
async def test_a_key_can_be_made_for_a_set(tmp_path: Path) -> None:
    write_config(tmp_path, SERVERS, sets=SETS, limits=PATIENT)
    _, out, _ = await command_line(tmp_path, "token", "create", "ann", "--allow", "*", "--set", "dev", "--json")
    made = json.loads(out)
    assert made["set"] == "dev"
    for option, problem in (
        ("--set=dve", "--set must be one of dev, finding, reading, papers, got 'dve'"),
        ("--targets", "excludes"),
    ):
        code, _, complained = await command_line(
            tmp_path, "token", "create", "bob", "--allow", "*", "--set=dev", option
        )
        assert code == 2
        assert problem in complained
    async with (
        serving(tmp_path, SERVERS, sets=SETS, limits=PATIENT) as running,
        Raw(running.url, key=made["key"]) as raw,
    ):
        assert await raw.names() == DEV


# -- questions and tasks -------------------------------------------------------------------------------------------

DESK = """
from isthmus.upstream.python.context import Context


async def confirm(title: str, repo: str, context: Context) -> str:
    form = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
    answer = await context.ask(f"file {title} in {repo}?", form)
    return f"{repo}: {title}, {answer}"
"""
DESK_SET: dict[str, Any] = {"tools": ["desk.*"], "tool": {"desk.confirm": {"name": "ask", "fixed": {"repo": "acme/x"}}}}


@asynccontextmanager
async def desk(folder: Path) -> AsyncIterator[HubProcess]:
    (folder / "desk.py").write_text(DESK)
    entry = {"python": "desk:confirm", "path": "."}
    async with serving(folder, {"desk": entry}, sets={"dev": DESK_SET}, limits=PATIENT) as running:
        yield running


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_question_during_a_call_of_a_set_is_answered_in_both_eras(tmp_path: Path, mode: Any) -> None:
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"sure": True})

    async with desk(tmp_path) as running, httpx2.AsyncClient(verify=TRUSTED, timeout=30) as http:
        transport = streamable_http_client(f"{running.url}/dev", http_client=http)
        answers: dict[str, Any] = {"elicitation_callback": answer}
        async with Client(transport, mode=mode, **answers) as client:
            result = await client.call_tool("ask", {"title": "t"})
    assert asked == ["file t in acme/x?"]
    assert result.content[0].text == "acme/x: t, {'sure': True}"  # type: ignore[union-attr]


@pytest.mark.parametrize(("path", "who"), [("/mcp/dev", "free"), ("/mcp", "bound"), ("/mcp/one", "bound")])
async def test_a_task_of_a_set_runs_with_its_fixed_arguments(hub: HubProcess, path: str, who: str) -> None:
    async with connected(hub.port) as wire, connected(hub.port) as ear:
        client = SessionClient(wire, ear, KEYS[who], path)
        await client.open()
        params: dict[str, Any] = {"name": "new_issue", "arguments": {"title": "t"}, "task": {"ttl": 600_000}}
        task = (await client.ask("tools/call", params))["result"]["task"]["taskId"]
        result = (await client.ask("tasks/result", {"taskId": task}))["result"]
        assert result["structuredContent"] == {"title": "t", "repo": "acme/x"}
        assert (await client.ask("tasks/get", {"taskId": task}))["result"]["status"] == "completed"
        assert task in [id for id, _ in await client.listed()]
        evil = {**params, "arguments": {"title": "t", "repo": "evil/x"}}
        assert reason(await client.ask("tools/call", evil)) == ("bad_arguments", "no")
        other = {**params, "name": "one.create_issue"}
        assert reason(await client.ask("tools/call", other)) == ("unknown_tool", "no")


async def test_a_bound_callers_subscription_is_to_its_set(hub: HubProcess) -> None:
    async with connected(hub.port) as wire, connected(hub.port) as ear:
        client = SessionClient(wire, ear, KEYS["bound"], "/mcp")
        await client.open()
        for uri in ("memo://two", "isthmus://hub/two/memo://one"):
            assert reason(await client.ask("resources/subscribe", {"uri": uri})) == ("unknown_resource", "no")


# -- changes -------------------------------------------------------------------------------------------------------


async def test_an_edit_changes_a_set_live_and_notifies_only_its_clients(tmp_path: Path) -> None:
    mine, others = Listener(), Listener()
    async with (
        serving(tmp_path, SERVERS, sets=SETS, limits=PATIENT) as running,
        client_over_http(f"{running.url}/dev", mode="legacy", listener=mine) as client,
        client_over_http(f"{running.url}/finding", mode="legacy", listener=others) as other,
        Raw(f"{running.url}/dev") as raw,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == DEV
        before = await other.list_tools()
        mine.changed.clear()
        others.changed.clear()
        dev = {**SETS["dev"], "tools": ["one.*"], "tool": {"one.create_issue": {"fixed": {"repo": "new/repo"}}}}
        write_config(tmp_path, SERVERS, sets={**SETS, "dev": dev}, limits=PATIENT)
        async with asyncio.timeout(30):
            await mine.changed.wait()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["create_issue", "combined"]
        result = await client.call_tool("create_issue", {"title": "t"})
        assert result.structured_content == {"title": "t", "repo": "new/repo"}
        write_config(tmp_path, SERVERS, sets={"finding": SETS["finding"]}, limits=PATIENT)

        async def is_gone() -> bool:
            return (await raw.post({})).status_code == 404

        await until(is_gone)
        assert await other.list_tools() == before
        assert not others.changed.is_set()
