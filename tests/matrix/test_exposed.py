"""Official clients, TypeScript and the first Python SDK, use sets, search and code; TypeScript in both eras."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from tests.code.script_server import command as script_server
from tests.frontends.set_server import command as set_server
from tests.hubs import PATIENT, HubProcess, serving, stdio
from tests.matrix.session_steps import NOTIFICATION_SECONDS
from tests.matrix.test_typescript import CLIENTS, TypeScriptClient, call
from tests.peers.sdk1_steps import Answer, Step, run_sdk1
from tests.peers.typescript import SessionPlan, run_typescript

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("exposed")]

SETS: dict[str, Any] = {
    "dev": {
        "tools": ["one.create_issue", "shop.pay"],
        "prompts": ["one.brief"],
        "tool": {"one.create_issue": {"name": "new_issue", "fixed": {"repo": "acme/x"}, "hide": ["verbose"]}},
    },
    "found": {"tools": ["one.*", "shop.*"], "expose": "search"},
    "coded": {"tools": ["one.*", "shop.*"], "expose": "code"},
}
SET_STEPS: dict[str, Step] = {
    "tools": {"do": "list"},
    "prompts": {"do": "prompts"},
    "called": call("new_issue", {"title": "t"}),
    "overridden": call("new_issue", {"title": "t", "repo": "evil/x"}),
    "outside": call("one.create_issue", {"title": "t", "repo": "evil/x"}),
    "other": call("search", {"query": "q"}),
}
SEARCH_STEPS: dict[str, Step] = {
    "listening": {"do": "listen"},
    "tools": {"do": "list"},
    "found": call("search_tools", {"query": "make an issue", "limit": 1, "detail": "full"}),
    "called": call("call_tool", {"name": "create_issue", "arguments": {"title": "t", "repo": "a/b"}}),
    "wrong": call("call_tool", {"name": "create_issue", "arguments": {"title": 1, "repo": "a/b"}}),
    "direct": call("add", {"a": 1, "b": 2}),
}
SCRIPT = """
import asyncio
sums = await asyncio.gather(*[add(a=number, b=1) for number in range(3)])
made = await create_issue(title='t', repo='a/b')
await report()
[sum(each['sum'] for each in sums), made]
"""
CODE_STEPS: dict[str, Step] = {
    "tools": {"do": "list"},
    "found": call("search_tools", {"query": "add two numbers", "limit": 1}),
    "signatures": call("tool_signatures", {"names": ["add"]}),
    "ran": {**call("run_code", {"code": SCRIPT}), "progress": True},
    "refused": call("run_code", {"code": "await add(a=1, b='two')"}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("exposed")
    servers = {"one": stdio(set_server()), "shop": stdio(script_server(folder / "ledger"))}
    async with serving(folder, servers, sets=SETS, limits=PATIENT) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_typescript_uses_sets_search_and_code_in_both_eras(hub: HubProcess, client: TypeScriptClient) -> None:
    searching = dict(SEARCH_STEPS)
    if client.speaks == "2025-11-25":
        # Only a session remembers what was found; its list then has that, too.
        searching["changed"] = {"do": "changed", "within": NOTIFICATION_SECONDS, "lists": "create_issue"}
    hello: dict[str, Step] = {"hello": {"do": "hello"}}
    paths: dict[str, dict[str, Step]] = {"dev": SET_STEPS, "found": searching, "coded": CODE_STEPS}
    plans = [SessionPlan({**hello, **steps}, hub.url_of(path)) for path, steps in paths.items()]
    in_set, in_search, in_code = await run_typescript(client.major, client.mode, plans)

    for found in (in_set, in_search, in_code):
        assert found["hello"]["hello"]["protocolVersion"] == client.speaks
    assert_set(in_set)
    assert_search(in_search)
    assert_code(in_code)
    assert in_code["ran"]["progress"][0][2] == "half way"
    if client.speaks == "2025-11-25":
        assert names(in_search["changed"]) == ["search_tools", "call_tool", "create_issue"]


async def test_the_first_python_sdk_uses_sets_search_and_code(hub: HubProcess) -> None:
    assert_set(await by_sdk1(hub, "dev", {name: step for name, step in SET_STEPS.items() if name != "prompts"}))
    searching = {name: step for name, step in SEARCH_STEPS.items() if name != "listening"}
    assert_search(await by_sdk1(hub, "found", searching))
    assert_code(await by_sdk1(hub, "coded", CODE_STEPS))


async def by_sdk1(hub: HubProcess, path: str, steps: Mapping[str, Step]) -> dict[str, Answer]:
    return dict(zip(steps, await run_sdk1(list(steps.values()), url=hub.url_of(path)), strict=True))


def assert_set(found: Mapping[str, Answer]) -> None:
    assert names(found["tools"]) == ["new_issue", "pay"]
    assert set(found["tools"]["tools"][0]["inputSchema"]["properties"]) == {"title", "options"}
    if "prompts" in found:
        assert [each["name"] for each in found["prompts"]["prompts"]] == ["brief"]
    assert data(found["called"]) == {"title": "t", "repo": "acme/x"}
    for step in ("overridden", "outside", "other"):
        assert is_refused(found[step]), found[step]


def assert_search(found: Mapping[str, Answer]) -> None:
    assert names(found["tools"]) == ["search_tools", "call_tool"]
    [first] = data(found["found"])["tools"]
    assert (first["name"], first["inputSchema"]["required"]) == ("create_issue", ["title", "repo"])
    assert data(found["called"]) == {"title": "t", "repo": "a/b"}
    assert is_refused(found["wrong"])
    assert data(found["direct"]) == {"sum": 3}


def assert_code(found: Mapping[str, Answer]) -> None:
    assert names(found["tools"]) == ["search_tools", "tool_signatures", "run_code"]
    assert [each["name"] for each in data(found["found"])["tools"]] == ["add"]
    assert "async def add(*, a: int, b: int) -> AddResult:" in found["signatures"]["result"]["content"][0]["text"]
    ran = data(found["ran"])
    assert (ran["result"], ran["calls"]) == ([6, {"title": "t", "repo": "a/b"}], 5)
    refused = found["refused"]["result"]
    assert refused["isError"]
    assert "script.py:1:16: error[invalid-argument-type]" in refused["content"][0]["text"]


def names(listing: Answer) -> list[str]:
    return [tool["name"] for tool in listing["tools"]]


def data(answer: Answer) -> Any:
    """What a call returned."""
    assert answer["ok"], answer
    assert not answer["result"].get("isError"), answer
    return answer["result"]["structuredContent"]


def is_refused(answer: Answer) -> bool:
    return not answer["ok"] and answer["error"]["code"] == -32602
