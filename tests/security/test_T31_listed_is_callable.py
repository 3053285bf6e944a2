"""T31: a caller reaches a tool that no list shows it, or learns from an answer that it exists.

Answer: there is one table for each permission set (`Snapshot.view`), which lists are written from and calls are looked
up in, by every way in. Here each caller × entry × tool is tried: everything that is listed runs, and everything else is
answered as what does not exist, to the byte. What a caller should see is worked out a second time (`permitted`), from
the rules as they are documented. That no more time is taken for one than for the other follows from the one lookup, and
is not measured. Over standard streams (`isthmus stdio`) there is one caller, who started the hub and may do everything.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from isthmus.library import ToolRequest, ToolService, UserContext, UserPermissions
from isthmus.model.callers import FrontendName
from tests.frontends.wire import Reply, connected, encoded, key_header, legacy, modern, modern_headers, rendered
from tests.hubs import HubProcess, serving
from tests.library.services import with_servers
from tests.relay.peers import CallFailed, device
from tests.relay.tokens import KEY as RELAY_KEY
from tests.security.entries import (
    ENTRIES,
    CallerConnection,
    VisibleReply,
    connected_caller,
    lengthless,
    names_in,
    visible_reply,
)
from tests.security.permitted import (
    CALLERS,
    GUEST,
    PROMPTS,
    RESOURCES,
    SERVERS,
    TEMPLATES,
    TENANT,
    TOOLS,
    Feature,
    key_of,
    may,
    server,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

# -- the hub ---------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder: Path = tmp_path_factory.mktemp("hub")
    callers = {name: {"key": key_of(name), **entry} for name, entry in CALLERS.items()}
    servers = {name: server(name) for name in SERVERS}
    relay = {"key": RELAY_KEY, "agents": {"guest": GUEST}}
    tables: dict[str, Any] = {"callers": callers, "tenants": {"acme": TENANT}, "a2a": {"grpc_port": 0}, "relay": relay}
    async with serving(folder, servers, limits={"listing_seconds": 30.0}, **tables) as running:
        yield running


@pytest.mark.parametrize("caller", CALLERS)
async def test_on_every_entry_exactly_the_listed_tools_run(hub: HubProcess, caller: str) -> None:
    async with connected_caller(hub, caller) as connection:
        for entry, (frontend, calling, listing) in ENTRIES.items():
            expected = {f"{tool.server}.{tool.name}" for tool in TOOLS if may(caller, frontend, tool)}
            assert await listing(connection) == expected, entry
            unknown = {
                await calling(connection, *name) for name in (("alpha", "zork"), ("gamma", "zork"), ("sigma", "look"))
            }
            unknown |= {lengthless(each) for each in unknown}
            ran: set[str] = set()
            for tool in TOOLS:
                answer = await calling(connection, tool.server, tool.name)
                if answer.has_run:
                    ran.add(f"{tool.server}.{tool.name}")
                else:
                    assert answer in unknown or lengthless(answer) in unknown, (entry, tool)
                    assert {name for name in answer.meant if name.partition(".")[0] in SERVERS} <= expected, entry
            assert ran == expected, entry


# -- what is no tool -------------------------------------------------------------------------------------------------

Asking: TypeAlias = Callable[[CallerConnection, str, dict[str, Any]], Awaitable[Reply]]
"""Asks by a method of MCP."""


async def ask_modern(connection: CallerConnection, method: str, params: dict[str, Any]) -> Reply:
    name = params.get("name", params.get("uri"))
    return await connection.post(modern(method, params), headers=modern_headers(method, name))


async def ask_legacy(connection: CallerConnection, method: str, params: dict[str, Any]) -> Reply:
    return await connection.post(legacy(method, params))


async def ask_rest(connection: CallerConnection, method: str, params: dict[str, Any]) -> Reply:
    match method:
        case "prompts/get":
            return await connection.post({}, path=f"/v1/prompts/{params['name']}")
        case "resources/read":
            return await connection.get(f"/v1/resources/read?uri={params['uri']}")
        case "completion/complete":
            return await connection.post(params, path="/v1/completions")
        case _:
            paths = {"resources/templates/list": "resources/templates"}
            return await connection.get(f"/v1/{paths.get(method, method.removesuffix('/list'))}")


WAYS: dict[str, tuple[FrontendName, Asking]] = {
    "MCP, modern": ("mcp", ask_modern),
    "MCP, legacy": ("mcp", ask_legacy),
    "REST": ("rest", ask_rest),
}

LISTS: tuple[tuple[str, str, str, list[Feature]], ...] = (
    ("prompts/list", "prompts", "name", PROMPTS),
    ("resources/list", "resources", "uri", RESOURCES),
    ("resources/templates/list", "resourceTemplates", "uriTemplate", TEMPLATES),
)


def shown_name(feature: Feature) -> str:
    return feature.name if ":" in feature.name else f"{feature.server}.{feature.name}"


def uses(feature: Feature) -> list[tuple[str, dict[str, Any]]]:
    """All that can be asked about a feature."""
    name, argument = shown_name(feature), {"name": "who", "value": "x"}
    if feature in PROMPTS:
        ref = {"type": "ref/prompt", "name": name}
        return [("prompts/get", {"name": name}), ("completion/complete", {"ref": ref, "argument": argument})]
    if feature in RESOURCES:
        return [("resources/read", {"uri": name})]
    ref = {"type": "ref/resource", "uri": name}
    member = name.replace("{n}", "1")
    return [("resources/read", {"uri": member}), ("completion/complete", {"ref": ref, "argument": argument})]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("caller", CALLERS)
async def test_the_same_holds_for_prompts_resources_templates_and_completions(
    hub: HubProcess, caller: str, way: str
) -> None:
    frontend, ask = WAYS[way]
    async with connected(hub.port) as wire:
        connection = CallerConnection(hub, wire, caller, None)
        for method, member, key, offered in LISTS:
            expected = {shown_name(each) for each in offered if may(caller, frontend, each)}
            assert names_in(await ask(connection, method, {}), member, key) == expected
            for feature, (using, params) in ((each, use) for each in offered for use in uses(each)):
                await _used_as_listed(
                    connection, ask, feature, using, params, is_listed=shown_name(feature) in expected
                )


async def _used_as_listed(
    connection: CallerConnection, ask: Asking, feature: Feature, using: str, params: dict[str, Any], *, is_listed: bool
) -> None:
    reply = await ask(connection, using, params)
    did = (f"wrote {feature.server}.", f"{feature.server} read ", f"{feature.server} completed ")
    is_answered = any(words in reply.body.decode() for words in did)
    assert is_answered == is_listed, (using, params, reply.body)
    if not is_listed and not any(f"{server} read " in reply.body.decode() for server in SERVERS):
        text = json.dumps(params)
        for word in ("open", "shut", "greet", "scold"):
            text = text.replace(word, "z" * len(word))
        unknown = await ask(connection, using, json.loads(text))
        assert _nameless(reply) == _nameless(unknown), (using, params)


def _nameless(reply: Reply) -> VisibleReply:
    words = [
        f"{server}{mark}{word}" for server in SERVERS for mark in ".:" for word in ("open", "shut", "greet", "scold")
    ]
    return visible_reply(
        reply, *words, *(f"{server}{mark}{'z' * n}" for server in SERVERS for mark in ".:" for n in (5, 4))
    )


@pytest.mark.parametrize("caller", CALLERS)
async def test_a_caller_that_cannot_read_a_resource_cannot_subscribe_to_it(hub: HubProcess, caller: str) -> None:
    async with connected(hub.port) as wire:
        connection = CallerConnection(hub, wire, caller, None)
        await connection.begin_session()

        async def watch(uri: str) -> Reply:
            return await connection.post(legacy("resources/subscribe", {"uri": uri}), headers=connection.session)

        seen = {each.server for each in (*TOOLS, *PROMPTS, *RESOURCES, *TEMPLATES) if may(caller, "mcp", each)}
        for feature in RESOURCES:
            reply = await watch(feature.name)
            if may(caller, "mcp", feature):
                assert "result" in reply.json, (feature, reply.body)
            elif seen != set(SERVERS) - {feature.server}:  # else the one server that is seen may know such a URI
                unknown = await watch(feature.name[:-4] + "zzzz")
                assert visible_reply(reply, feature.name) == visible_reply(unknown, feature.name[:-4] + "zzzz")


@pytest.mark.parametrize("caller", CALLERS)
async def test_a_modern_caller_gets_acknowledged_exactly_the_resources_that_it_may_read(
    hub: HubProcess, caller: str
) -> None:
    uris = [feature.name for feature in RESOURCES]
    body = encoded(modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}}))
    lines = [*modern_headers("subscriptions/listen"), *key_header(key_of(caller)), ("content-length", str(len(body)))]
    async with connected(hub.port) as wire:
        await wire.say(rendered("POST", "/mcp", lines, body))
        assert (await wire.head())[0] == 200
        first = (await anext(wire.chunks())).partition(b"data: ")[2]
        honoured = set(json.loads(first)["params"]["notifications"].get("resourceSubscriptions", []))
    seen = {each.server for each in (*TOOLS, *PROMPTS, *RESOURCES, *TEMPLATES) if may(caller, "mcp", each)}
    # A server that alone is seen may know what it does not list, and so is asked about it.
    asked = {each.name for each in RESOURCES if len(seen) == 1 and each.server not in seen}
    assert honoured - asked == {each.name for each in RESOURCES if may(caller, "mcp", each)}


@pytest.mark.parametrize("caller", CALLERS)
async def test_a_server_exists_for_callers_that_may_use_something_of_it(hub: HubProcess, caller: str) -> None:
    offered = (*TOOLS, *PROMPTS, *RESOURCES, *TEMPLATES)
    async with connected(hub.port) as wire:
        connection = CallerConnection(hub, wire, caller, None)
        by_rest = {each.server for each in offered if may(caller, "rest", each)}
        assert {name for name in names_in(await connection.get("/v1/servers"), "servers") if name in SERVERS} == by_rest
        by_mcp = {each.server for each in offered if may(caller, "mcp", each)}
        for server in SERVERS:
            for path, is_seen in ((f"/v1/servers/{server}", server in by_rest), (f"/mcp/{server}", server in by_mcp)):
                reply = await (
                    connection.get(path) if path.startswith("/v1") else connection.post(legacy("ping"), path=path)
                )
                unknown = path.replace(server, "sigma")
                other = await (
                    connection.get(unknown) if path.startswith("/v1") else connection.post(legacy("ping"), path=unknown)
                )
                assert (reply.status == 200) == is_seen, path
                if not is_seen:
                    assert visible_reply(reply, server) == visible_reply(other, "sigma")


# -- devices, and programs -------------------------------------------------------------------------------------------


async def test_a_relay_device_can_call_exactly_its_listed_tools(hub: HubProcess) -> None:
    expected = {("alpha", "look"), ("gamma", "drop")}
    async with device(hub.port, "guest") as it:
        await it.ready()
        names = {tool["name"] for tool in it.tools.values()}
        assert len(names) == len(expected)
        forms = ("{1}", "{0}.{1}", "{0}_{1}", "{1}_{0}", "{0}-{1}")
        every = {form.format(tool.server, tool.name) for tool in TOOLS for form in forms}
        ran: set[tuple[str, ...]] = set()
        refused: set[str] = set()
        for name in {*every, *names, "zork"}:
            try:
                said = await it.call_unlisted(name)
            except CallFailed as failed:
                assert name not in names
                refused.add(str(failed).replace(name, "NAME"))
            else:
                ran.add(tuple(said.removeprefix("ran ").split(".")))
        assert ran == expected
        assert len(refused) == 1, "one answer to all that is not there"


USERS = {
    "nobody's": (["gamma.none"], {}),
    "one": (["alpha.drop"], {}),
    "a server": (["gamma.*"], {"tools": ["gamma.tell"]}),
    "everything but": (["*"], {"tools": ["alpha", "gamma.look"]}),
    "a label, which is no name": (["tag:safe"], {}),
    "denied a label, which is no name": (["*"], {"tools": ["tag:safe"]}),
}


async def test_a_programs_user_can_call_exactly_its_listed_tools() -> None:
    servers = [{"name": name, **{key: server(name)[key] for key in ("command", "args")}} for name in SERVERS]
    every = {f"{tool.server}.{tool.name}" for tool in TOOLS}
    counts: dict[str, int] = {}
    service = ToolService()
    await service.initialize(with_servers(*servers))
    try:
        assert every <= set(await service.list_tools())
        for label, (allowed, restrictions) in USERS.items():
            permissions = UserPermissions(permissions=allowed, restrictions=restrictions)
            user = UserContext(user_id=label, permissions=permissions)
            listed = {name for name in await service.list_tools(user) if name in every}
            results = {name: await service.execute_tool(ToolRequest(name, user_context=user)) for name in every}
            assert {name for name, result in results.items() if result.is_success} == listed, label
            counts[label] = len(listed)
    finally:
        await service.shutdown()
    assert list(counts.values()) == [0, 1, 2, 2, 0, 0]
