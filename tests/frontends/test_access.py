"""Authentication, visible tools, and that hidden tools look missing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from isthmus.core.access.policy import Policy
from isthmus.model.callers import Grants
from isthmus.model.names import FeatureName, ServerName
from tests.conftest import Ledger
from tests.fork_server import quick_isthmus
from tests.frontends.wire import (
    BASE,
    PING,
    SECONDS,
    Headers,
    Reply,
    connected,
    encoded,
    key_header,
    legacy,
    modern,
    modern_headers,
    until,
)
from tests.hubs import HubProcess, environment, serving, stdio, write_config
from tests.peers.launch import command

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "a key for tests: {}".replace(" ", "-").replace(":", "")
PATTERNS = ("*", "alpha", "alpha.*", "alpha.pay", "alpha.echo", "beta.meta", "gamma.none", "builtin.echo")
ALLOWS: tuple[tuple[str, ...], ...] = (
    (),
    *((pattern,) for pattern in PATTERNS),
    ("alpha.pay", "beta.*"),
    ("alpha.echo", "beta.pay", "builtin"),
)
DENIES: tuple[tuple[str, ...], ...] = ((), ("*",), ("alpha",), ("alpha.pay",), ("beta.*", "builtin.chat_log"))
GRANTS = [Grants(allow, deny) for allow, deny in itertools.product(ALLOWS, DENIES)]
"""Every way to write a grant, alone and against every way to take it back."""

RAW_TOOLS = ("pay", "echo", "meta", "grow")
TOOLS = [
    *((server, tool) for server in ("alpha", "beta") for tool in RAW_TOOLS),
    *(("builtin", tool) for tool in ("echo", "timestamp", "chat_log")),
]


def key_of(at: int) -> str:
    return KEY.format(f"{at:04d}")


def callers() -> dict[str, Any]:
    return {
        f"caller{at}": {"key": key_of(at), "allow": list(grants.allow), "deny": list(grants.deny)}
        for at, grants in enumerate(GRANTS)
    }


ALL = GRANTS.index(Grants(("*",)))
ONLY_ALPHA_PAY = GRANTS.index(Grants(("alpha.pay",)))
NOTHING = GRANTS.index(Grants(()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory, ledger: Ledger) -> AsyncIterator[HubProcess]:
    servers = {name: stdio(command("raw_server", "--ledger", str(ledger.path))) for name in ("alpha", "beta")}
    servers["hidden"] = {**servers["beta"], "disabled": True}
    async with serving(tmp_path_factory.mktemp("hub"), servers, callers=callers()) as running:

        async def is_listed() -> bool:
            return len(await listed(running.port, key_of(ALL))) == len(TOOLS)

        await until(is_listed)
        yield running


async def ask(
    port: int, body: dict[str, Any], key: str | None, *, path: str = "/mcp", headers: Headers = BASE
) -> Reply:
    async with connected(port) as wire:
        return await wire.request(encoded(body), [*headers, *key_header(key)], path=path)


async def listed(port: int, key: str | None, path: str = "/mcp") -> list[str]:
    reply = await ask(port, legacy("tools/list"), key, path=path)
    return [tool["name"] for tool in reply.json["result"]["tools"]]


# -- keys ----------------------------------------------------------------------------------------------------------

GOOD, OTHER = key_of(ALL), key_of(NOTHING)

ADMITTED: dict[str, list[tuple[str, str]]] = {
    "a bearer": [("authorization", f"Bearer {GOOD}")],
    "a bearer in other letters": [("Authorization", f"bearer {GOOD}")],
    "an API key": [("X-Api-Key", GOOD)],
    "both, the same": [("authorization", f"Bearer {GOOD}"), ("x-api-key", GOOD)],
}
REFUSED: dict[str, list[tuple[str, str]]] = {
    "no key": [],
    "a wrong bearer": [("authorization", "Bearer wrong-key-wrong-key")],
    "a wrong API key": [("x-api-key", "wrong-key-wrong-key")],
    "an empty bearer": [("authorization", "Bearer ")],
    "an empty API key": [("x-api-key", "")],
    "the key without a scheme": [("authorization", GOOD)],
    "another scheme": [("authorization", f"Basic {GOOD}")],
    "a beginning of the key": [("x-api-key", GOOD[:-1])],
    "more than the key": [("x-api-key", GOOD + "x")],
    "the key in other letters": [("x-api-key", GOOD.upper())],
    "two bearers": [("authorization", f"Bearer {GOOD}"), ("authorization", f"Bearer {GOOD}")],
    "two API keys": [("x-api-key", OTHER), ("x-api-key", GOOD)],
    "both, different": [("authorization", f"Bearer {GOOD}"), ("x-api-key", OTHER)],
    "a key in the query": [],
    "a key in a cookie": [("cookie", f"key={GOOD}; authorization=Bearer {GOOD}")],
    "the digest of the key": [("x-api-key", "sha256:" + "0" * 64)],
}


@pytest.mark.parametrize("label", ADMITTED)
async def test_a_key_opens(hub: HubProcess, label: str) -> None:
    reply = await ask(hub.port, legacy("ping"), None, headers=[*BASE, *ADMITTED[label]])
    assert (reply.status, reply.body) == (200, b'{"jsonrpc":"2.0","id":1,"result":{}}')


@pytest.mark.parametrize("label", REFUSED)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "PUT"])
async def test_without_its_key_every_caller_is_rejected_alike(hub: HubProcess, label: str, method: str) -> None:
    path = f"/mcp?key={GOOD}&api_key={GOOD}" if label == "a key in the query" else "/mcp"
    async with connected(hub.port) as wire:
        reply = await wire.request(PING, [*BASE, *REFUSED[label]], method=method, path=path)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Bearer ")
        assert "send Authorization: Bearer KEY" in reply.json["error"]
        assert "isthmus token create NAME" in reply.json["error"]
        # The connection is not the culprit: the next request on it has its own key.
        assert (await wire.request(PING, [*BASE, *key_header(GOOD)])).status == 200


async def test_every_request_on_a_connection_shows_its_own_key(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        for key, status in [(GOOD, 200), (None, 401), (OTHER, 200), ("wrong", 401), (GOOD, 200)]:
            assert (await wire.request(PING, [*BASE, *key_header(key)])).status == status


@pytest.mark.parametrize("path", ["/mcp/alpha", "/mcp/hidden", "/mcp/nobody", "/mcp"])
async def test_without_a_key_no_server_names_are_exposed(hub: HubProcess, path: str) -> None:
    reply = await ask(hub.port, legacy("ping"), None, path=path)
    assert (reply.status, reply.body) == (401, (await ask(hub.port, legacy("ping"), None)).body)


# -- what is listed is what can be called --------------------------------------------------------------------------


def may(grants: Grants) -> set[tuple[str, str]]:
    """What a grant covers, by the rule as it is written down."""

    def covers(patterns: tuple[str, ...], server: str, tool: str) -> bool:
        return any(pattern in ("*", server, f"{server}.*", f"{server}.{tool}") for pattern in patterns)

    return {
        (server, tool)
        for server, tool in TOOLS
        if covers(grants.allow, server, tool) and not covers(grants.deny, server, tool)
    }


@pytest.mark.parametrize("at", range(len(GRANTS)), ids=lambda at: f"{GRANTS[at].allow} but {GRANTS[at].deny}")
async def test_a_caller_sees_exactly_its_granted_tools(hub: HubProcess, at: int) -> None:
    granted = may(GRANTS[at])
    assert set(await listed(hub.port, key_of(at))) == {f"{server}.{tool}" for server, tool in granted}
    for server in {server for server, _ in TOOLS}:
        reply = await ask(hub.port, legacy("tools/list"), key_of(at), path=f"/mcp/{server}")
        own = {tool for owner, tool in granted if owner == server}
        if reply.status == 200:
            assert {tool["name"] for tool in reply.json["result"]["tools"]} == own
        else:
            assert (reply.status, own) == (404, set())


def is_unknown(reply: Reply, name: str) -> bool:
    if reply.status == 404:
        return True
    error = reply.json.get("error", {})
    return (error.get("code"), error.get("message")) == (-32602, f"Unknown tool: {name}")


async def test_exactly_the_listed_tools_are_callable_for_every_caller(hub: HubProcess, ledger: Ledger) -> None:
    expected_nonces: set[str] = set()
    async with connected(hub.port) as wire:
        for at, (server, tool) in itertools.product(range(len(GRANTS)), TOOLS):
            if tool == "grow":
                continue  # it would change the list that this is about
            nonce = f"{at}.{server}.{tool}"
            is_granted = (server, tool) in may(GRANTS[at])
            for name, path in ((f"{server}.{tool}", "/mcp"), (tool, f"/mcp/{server}")):
                arguments = {"nonce": f"{nonce} at {path}", "text": "x"}
                body = legacy("tools/call", {"name": name, "arguments": arguments})
                reply = await wire.request(encoded(body), [*BASE, *key_header(key_of(at))], path=path)
                assert is_unknown(reply, name) != is_granted, f"caller {GRANTS[at]}, {path} {name}: {reply.body!r}"
                if is_granted:
                    assert "result" in reply.json, reply.body
                if is_granted and tool == "pay":
                    expected_nonces.add(arguments["nonce"])
    assert set(ledger.ran()) == expected_nonces


async def test_the_rule_above_is_the_rule_of_the_hub() -> None:
    """The model of this file and the compiled policy agree, so that neither is wrong alone."""
    for grants in GRANTS:
        policy = Policy(grants)
        assert may(grants) == {pair for pair in TOOLS if policy.allows(ServerName(pair[0]), FeatureName(pair[1]))}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("path", "denied", "unknown"),
    [
        ("/mcp", "alpha.echo", "alpha.ohce"),  # a tool beside one that it may call
        ("/mcp", "beta.echo", "beta.ohce"),  # a tool of a server that it may not see
        ("/mcp", "beta.echo", "ateb.echo"),  # the same against a server that is not there
        ("/mcp/alpha", "echo", "ohce"),
        ("/mcp/beta", "echo", "ohce"),
    ],
)
async def test_a_denied_tool_and_an_unknown_one_answer_alike_byte_for_byte(
    hub: HubProcess, era: str, path: str, denied: str, unknown: str
) -> None:
    replies = []
    for name in (denied, unknown):
        params = {"name": name, "arguments": {"text": 7}}  # not even its schema is disclosed
        made = modern("tools/call", params) if era == "modern" else legacy("tools/call", params)
        headers = modern_headers("tools/call", name) if era == "modern" else BASE
        reply = await ask(hub.port, made, key_of(ONLY_ALPHA_PAY), path=path, headers=headers)
        replies.append((reply.status, reply.headers, reply.body.replace(name.encode(), b"NAME")))
    assert replies[0] == replies[1]
    assert b"alpha" not in replies[0][2]
    assert b"beta" not in replies[0][2]


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "PUT"])
@pytest.mark.parametrize("hidden", ["beta", "builtin", "hidden"])
async def test_a_server_that_the_caller_may_not_see_and_one_that_is_not_there_answer_alike(
    hub: HubProcess, hidden: str, method: str
) -> None:
    replies = []
    async with connected(hub.port) as wire:
        for server in (hidden, "nobody", "no/such/path", "%2e%2e", "Alpha"):
            headers = [*BASE, *key_header(key_of(ONLY_ALPHA_PAY))]
            reply = await wire.request(encoded(legacy("tools/list")), headers, method=method, path=f"/mcp/{server}")
            replies.append(reply)
    assert [reply.status for reply in replies] == [404] * 5
    assert {(tuple(reply.headers.items()), reply.body) for reply in replies} == {
        (tuple(replies[0].headers.items()), replies[0].body)
    }


async def test_a_server_with_one_granted_tool_is_there(hub: HubProcess) -> None:
    assert await listed(hub.port, key_of(ONLY_ALPHA_PAY), "/mcp/alpha") == ["pay"]


async def test_a_caller_without_rights_sees_an_empty_list_and_no_missing_servers(hub: HubProcess) -> None:
    reply = await ask(hub.port, legacy("tools/list"), key_of(NOTHING))
    assert reply.body == b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}'


# -- where a request comes from ------------------------------------------------------------------------------------

HOSTS = {
    "localhost": 200,
    "LOCALHOST": 200,
    "localhost:1": 200,
    "127.0.0.1": 200,
    "[::1]": 200,
    "evil.test": 421,
    "localhost.evil.test": 421,
    "127.0.0.1.evil.test": 421,
    "127.1": 421,
    "2130706433": 421,
    "0.0.0.0": 421,
    "x/admin?": 400,
    "a#": 400,
    "[": 400,
    "localhost:80@evil.test": 400,
    "localhost evil.test": 400,
    "localhost:99999": 400,
    "": 400,
}
ORIGINS = {
    "http://localhost": 200,
    "http://localhost:3000": 200,
    "https://127.0.0.1": 200,
    "http://[::1]:5": 200,
    "http://evil.test": 403,
    "http://localhost.evil.test": 403,
    "http://evil.test/localhost": 403,
    "http://localhost:80@evil.test": 403,
    "http://localhost:80@evil": 403,
    "null": 403,
    "": 403,
    "localhost": 403,
    "file://": 403,
    "chrome-extension://abcdef": 403,
    "javascript://localhost": 403,
    "http://localhost, http://evil.test": 403,
}


def placed(hosts: list[str], origins: list[str]) -> list[tuple[str, str]]:
    rest = [pair for pair in BASE if pair[0] != "host"]
    return [*(("host", host) for host in hosts), *rest, *(("origin", origin) for origin in origins)]


@pytest.mark.parametrize("path", ["/mcp", "/mcp/alpha"])
@pytest.mark.parametrize("host", HOSTS)
async def test_only_the_hosts_of_this_machine_are_served(hub: HubProcess, host: str, path: str) -> None:
    reply = await ask(hub.port, legacy("ping"), GOOD, headers=placed([host], []), path=path)
    assert reply.status == HOSTS[host]


@pytest.mark.parametrize("path", ["/mcp", "/mcp/alpha"])
@pytest.mark.parametrize("origin", ORIGINS)
async def test_only_pages_of_this_machine_may_use_the_hub(hub: HubProcess, origin: str, path: str) -> None:
    for method in ("POST", "DELETE"):
        async with connected(hub.port) as wire:
            headers = [*placed(["localhost"], [origin]), *key_header(GOOD)]
            reply = await wire.request(PING, headers, method=method, path=path)
            assert (reply.status == 403) == (ORIGINS[origin] == 403)


@pytest.mark.parametrize(
    ("hosts", "origins", "status"),
    [
        ([], [], 400),
        (["localhost", "localhost"], [], 400),
        (["localhost", "evil.test"], [], 400),
        (["localhost"], ["http://localhost", "http://localhost"], 403),
        (["localhost"], ["http://localhost", "http://evil.test"], 403),
        (["localhost"], ["http://evil.test", "http://localhost"], 403),
        (["evil.test"], ["http://evil.test"], 421),
    ],
)
async def test_hosts_and_origins_that_could_be_read_two_ways_are_refused(
    hub: HubProcess, hosts: list[str], origins: list[str], status: int
) -> None:
    reply = await ask(hub.port, legacy("ping"), GOOD, headers=placed(hosts, origins))
    assert reply.status == status


async def test_a_good_key_does_not_make_a_foreign_page_welcome_nor_a_bad_one_name_the_reason(hub: HubProcess) -> None:
    foreign = placed(["localhost"], ["http://evil.test"])
    with_key = await ask(hub.port, legacy("ping"), GOOD, headers=foreign)
    without = await ask(hub.port, legacy("ping"), None, headers=foreign)
    assert (with_key.status, with_key.body) == (without.status, without.body)
    assert "access-control-allow-origin" not in with_key.headers


@pytest.mark.parametrize(
    "target", ["http://evil.test/mcp", "//evil.test/mcp", "/mcp%2falpha", "/mcp/%61lpha/..", "/./mcp"]
)
async def test_the_path_of_a_request_is_taken_as_it_is(hub: HubProcess, target: str) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(PING, BASE, path=target)
        assert reply.status in (400, 401, 404)


# -- health --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
async def test_health_needs_no_key_and_reveals_nothing(hub: HubProcess, path: str) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(b"", [("host", "probe.internal:8765")], method="GET", path=path)
        assert (reply.status, reply.json) == (200, {"status": "ok"})
        head = await wire.request(b"", [("host", "localhost")], method="HEAD", path=path)
        assert head.status == 200
        assert (await wire.request(PING, [*BASE, *key_header(GOOD)])).status == 200


# -- open on loopback, and nowhere else ----------------------------------------------------------------------------


async def test_without_callers_a_hub_on_loopback_is_open_to_this_machine(tmp_path: Path) -> None:
    async with serving(tmp_path) as open_hub:
        assert await listed(open_hub.port, None) == ["builtin.echo", "builtin.timestamp", "builtin.chat_log"]
        assert await listed(open_hub.port, "any key at all") == await listed(open_hub.port, None)
        foreign = await ask(open_hub.port, legacy("ping"), None, headers=placed(["localhost"], ["http://evil.test"]))
        assert foreign.status == 403
        rebound = await ask(open_hub.port, legacy("ping"), None, headers=placed(["evil.test"], []))
        assert rebound.status == 421


async def started(folder: Path, *words: str, env: dict[str, str] | None = None, **tables: Any) -> tuple[int, str]:
    """Start a hub that is not to start; its exit code and what it said."""
    config = write_config(folder, {}, **tables)
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("serve", "--config", str(config), "--port", "0", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(env),
    )
    try:
        async with asyncio.timeout(SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError("the hub started") from None
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_without_callers_a_hub_does_not_start_where_others_can_reach_it(tmp_path: Path, host: str) -> None:
    code, said = await started(tmp_path, "--host", host)
    assert code == 3
    assert "must be loopback while no caller is configured" in said
    code, said = await started(tmp_path, hub={"host": host})
    assert code == 3


async def test_a_caller_whose_key_is_short_does_not_open_a_hub(tmp_path: Path) -> None:
    code, said = await started(tmp_path, callers={"me": {"key": "changeme", "allow": ["*"]}})
    assert code == 3
    assert "callers.me.key must have 16 characters or more" in said
    assert "changeme" not in said


async def test_unusable_callers_do_not_leave_the_hub_open(tmp_path: Path) -> None:
    code, said = await started(tmp_path, callers={"me": {"key": "env:NOT_SET_ANYWHERE", "allow": ["*"]}})
    assert code == 3
    assert "NOT_SET_ANYWHERE" in said


async def test_with_callers_a_hub_may_listen_everywhere_and_asks_for_the_key(tmp_path: Path) -> None:
    caller = {"key": key_of(1), "allow": ["*"]}
    async with serving(tmp_path, hub={"host": "0.0.0.0"}, callers={"me": caller}) as everywhere:
        assert (await ask(everywhere.port, legacy("ping"), None)).status == 401
        assert (await ask(everywhere.port, legacy("ping"), key_of(1))).status == 200
        remote = placed(["hub.example"], [])
        assert (await ask(everywhere.port, legacy("ping"), key_of(1), headers=remote)).status == 200
        foreign = placed(["hub.example"], ["http://evil.test"])
        assert (await ask(everywhere.port, legacy("ping"), key_of(1), headers=foreign)).status == 403


async def test_a_key_is_nowhere_in_the_log(hub: HubProcess) -> None:
    assert not [line for line in hub.said if GOOD in line or OTHER in line]
