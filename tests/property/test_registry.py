"""The registry's six promises, for all names: with underscores, dots, in Chinese, and as long as they may be."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.catalog.names import LLM_LENGTH_MAX, llm_form
from isthmus.library.manager import MCPManager, ToolRegistry, _RegisteredTools
from isthmus.library.public_types import ToolResult, ToolStatus
from isthmus.library.server_clients import MCPClientWrapper
from isthmus.library.server_config import MCPConfigLoader, MCPServerConfig
from isthmus.model.names import FeatureName, ServerName, loses_letters
from tests.choices import IS_FULL
from tests.faults import light_server
from tests.unit.library.benches import Bench

SERVER_NAME = re.compile(r"(?!builtin$)[A-Za-z0-9_-]{1,50}")
LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Names that meet: few letters, the separators of every form, and some that must be cut.
SERVERS = st.one_of(
    st.sampled_from(["a", "a_b", "a-b", "web", "web_search", "web-search", "mcp", "x" * 50]),
    st.from_regex(r"[A-Za-z0-9_-]{1,50}", fullmatch=True),
).filter(lambda name: name != "builtin")
TOOLS = st.one_of(
    st.sampled_from(["b", "b_c", "b.c", "b-c", "search_query", "query", "读取_文件", "讀.取", "a/b c", "y" * 128]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=128),
)
PAIRS = st.lists(st.tuples(SERVERS, TOOLS), unique=True, max_size=8)

# Words that a shell would keep as they are; `$` begins a variable, and a path is seen from its file.
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="$/\\~"), max_size=8)
COMMANDS = st.one_of(WORDS.filter(str.strip), st.sampled_from(["npx", "/usr/bin/env", "uvx"]))
ADDRESSES = st.sampled_from(["http://localhost:8080/sse", "https://a.example/x?y=z"])
STDIO = st.fixed_dictionaries(
    {"transport": st.just("stdio"), "command": COMMANDS},
    optional={
        "url": ADDRESSES,
        "args": st.lists(WORDS, max_size=2),
        "env": st.dictionaries(WORDS.filter(lambda word: word and "=" not in word), WORDS, max_size=1),
        "timeout": st.integers(1, 300),
    },
)
SSE = st.fixed_dictionaries(
    {"transport": st.just("sse"), "url": ADDRESSES},
    optional={"command": COMMANDS, "timeout": st.integers(1, 300)},
)
VALID = st.one_of(STDIO, SSE)
INVALID = st.one_of(
    STDIO.map(lambda entry: {**entry, "command": ""}),
    STDIO.map(lambda entry: {key: value for key, value in entry.items() if key != "command"}),
    SSE.map(lambda entry: {key: value for key, value in entry.items() if key != "url"}),
    VALID.flatmap(lambda entry: st.sampled_from(["pigeon", "stdin", 7]).map(lambda word: {**entry, "transport": word})),
    STDIO.map(lambda entry: {**entry, "args": 5}),
    VALID.map(lambda entry: {**entry, "timeout": 0}),
    st.sampled_from([None, [], "npx", 3]),
)

steady = settings(deadline=None, derandomize=True, max_examples=100 if IS_FULL else 33)
"""The same examples every time, however busy the machine is."""


@pytest.fixture(scope="module", autouse=True)
def nothing_around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("EXCELMANUS_MCP_CONFIG", raising=False)
        yield


def clients_of(servers: set[str], bench: Bench) -> dict[str, MCPClientWrapper]:
    return {name: MCPClientWrapper(MCPServerConfig(name, command="x"), service=bench) for name in servers}


def filled(pairs: list[tuple[str, str]]) -> tuple[ToolRegistry, Bench]:
    """A registry that follows servers with these tools."""
    registry, bench = ToolRegistry(), Bench(*(f"{server}.{tool}" for server, tool in pairs))
    clients = clients_of({server for server, _ in pairs}, bench)
    _RegisteredTools(registry, bench, clients, MCPManager()._make_tool_def).open()
    return registry, bench


# Property 1: what is written down is what is read
@given(st.dictionaries(SERVERS, VALID, max_size=3))
@steady
def test_a_configuration_is_read_as_it_was_written(entries: dict[str, dict[str, Any]]) -> None:
    found = MCPConfigLoader._parse_config(json.loads(json.dumps({"mcpServers": entries})))
    assert [config.name for config in found] == list(entries)
    for config in found:
        entry = entries[config.name]
        for key in ("transport", "command", "args", "env", "url"):
            assert getattr(config, key) == entry.get(key)
        assert config.timeout == entry.get("timeout", 30)


@given(st.lists(st.one_of(SERVERS, st.text(st.characters(exclude_categories=["Cs"]))), unique=True, max_size=5))
@steady
def test_a_server_by_any_name_has_a_legal_one_of_its_own(names: list[str]) -> None:
    found = MCPConfigLoader._parse_config({"mcpServers": {name: {"command": "npx"} for name in names}})
    called = [config.name for config in found]
    assert len(set(called)) == len(names)
    assert all(SERVER_NAME.fullmatch(name) for name in called)
    assert all(new == old for new, old in zip(called, names, strict=True) if SERVER_NAME.fullmatch(old))


# Property 2: what cannot be used costs only itself
@given(st.dictionaries(SERVERS, st.tuples(st.booleans(), VALID, INVALID), max_size=3))
@steady
def test_of_a_mixed_configuration_exactly_the_valid_entries_are_read(chosen: dict[str, tuple[bool, Any, Any]]) -> None:
    entries = {name: good if is_good else bad for name, (is_good, good, bad) in chosen.items()}
    found = MCPConfigLoader._parse_config({"mcpServers": entries})
    assert [config.name for config in found] == [name for name, (is_good, _, _) in chosen.items() if is_good]


# Property 3: a definition says what the server said
@given(SERVERS, TOOLS, st.text(max_size=50), st.dictionaries(TOOLS, st.just({"type": "string"}), max_size=1))
@steady
def test_a_tool_keeps_its_name_its_description_and_its_schema(
    server: str, tool: str, description: str, properties: dict[str, Any]
) -> None:
    client = MCPClientWrapper(MCPServerConfig(server, command="x"))
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    made = MCPManager()._make_tool_def(
        server, client, {"name": tool, "description": description, "inputSchema": schema}
    )
    assert made is not None
    plain = llm_form((ServerName(server), FeatureName(tool)))
    assert LEGAL.fullmatch(made.name)
    is_whole = len(plain) <= LLM_LENGTH_MAX and not loses_letters(tool)
    assert made.name == plain if is_whole else made.name.startswith(plain[: LLM_LENGTH_MAX - 7].rstrip("_"))
    assert made.description == f"[MCP:{server}] {description}"
    assert made.input_schema == schema
    assert made.max_result_chars == 5000


# Property 4: every name leads back to its server and tool
@given(PAIRS)
@steady
def test_a_name_leads_back_to_the_server_and_the_tool(pairs: list[tuple[str, str]]) -> None:
    registry, bench = filled(pairs)
    assert len(registry) == len(pairs)
    assert {registry.original_of(name) for name in registry.names} == set(pairs)
    for name in registry.names:
        server, tool = registry.original_of(name)
        assert LEGAL.fullmatch(name)
        registry.call_tool(name, {})
        assert bench.requests[-1].tool_name == f"{server}.{tool}"


# Property 5: no text of an answer is lost
BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=60)),
    st.sampled_from([{"type": "image", "data": "AAAA", "mimeType": "image/png"}, {"type": "hologram"}, {}]),
)


@given(st.lists(BLOCKS, max_size=6))
@steady
def test_all_texts_of_an_answer_are_in_the_result(content: list[dict[str, Any]]) -> None:
    bench = Bench("a.b")
    bench.result = ToolResult("a.b", ToolStatus.SUCCESS, metadata={"content": content})
    text = clients_of({"a"}, bench)["a"].call_tool_blocking("b")
    at = 0
    for said in (block["text"] for block in content if block.get("type") == "text"):
        at = text.index(said, at) + len(said)


# Property 6: a server that fails costs only its own tools
@given(st.dictionaries(SERVERS, st.tuples(st.booleans(), st.lists(TOOLS, unique=True, max_size=2)), max_size=4))
@steady
def test_exactly_the_servers_that_came_are_connected_and_registered(servers: dict[str, tuple[bool, list[str]]]) -> None:
    came = {name: tools for name, (is_there, tools) in servers.items() if is_there}
    missing = {name: "it did not start" for name in servers if name not in came}
    bench = Bench(*(f"{name}.{tool}" for name, tools in came.items() for tool in tools), missing=missing)
    manager, registry = MCPManager(), ToolRegistry()
    configs = [MCPServerConfig(name, command="x") for name in servers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isthmus.library.manager.ToolService", lambda: bench)
        patch.setattr(MCPConfigLoader, "load", lambda *_: configs)
        asyncio.run(manager.initialize(registry))
    assert manager.connected_servers == list(came)
    assert manager.failures == missing if servers else manager.failures == {}
    originals = {registry.original_of(name) for name in registry.names}
    assert originals == {(name, tool) for name, tools in came.items() for tool in tools}


@given(st.dictionaries(SERVERS, st.booleans(), min_size=1, max_size=4))
@settings(steady, max_examples=10)
def test_the_same_holds_for_real_processes(servers: dict[str, bool]) -> None:
    async def begin_and_end() -> None:
        registry = ToolRegistry()
        async with MCPManager(folder) as manager:
            await manager.initialize(registry)
            assert manager.connected_servers == [name for name, is_there in servers.items() if is_there]
            for name in registry.names:
                assert await registry.acall_tool(name) == registry.original_of(name)[0]
            originals = {registry.original_of(name) for name in registry.names}
            assert originals == {(name, "pay") for name, is_there in servers.items() if is_there}

    folder = Path.home()
    entries = {
        name: dict(zip(("command", "args"), _words(name), strict=True)) if is_there else {"command": "/nowhere/at/all"}
        for name, is_there in servers.items()
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    asyncio.run(begin_and_end())


def _words(name: str) -> tuple[str, list[str]]:
    program, *words = light_server.command(name)
    return program, words
