"""MCP callers of both eras and the hub itself: initialize, lists, sessions, streams of changes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.frontends import odd_server
from tests.frontends.wire import (
    BASE,
    SECONDS,
    Headers,
    Reply,
    Wire,
    connected,
    encoded,
    key_header,
    legacy,
    modern,
    modern_headers,
    rendered,
    until,
)
from tests.hubs import MODERN, PATIENT, HubProcess, serving, stdio
from tests.peers.launch import command

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ALL_KEY, SOME_KEY = "key-of-one-who-may-everything", "key-of-one-who-may-echo-only"
CALLERS = {
    "all": {"key": ALL_KEY, "allow": ["*"]},
    "some": {"key": SOME_KEY, "allow": ["raw.echo", "builtin.echo"]},
}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
CHANGED = "notifications/tools/list_changed"
SERVERS: dict[str, Any] = {
    "raw": stdio(command("raw_server")),
    "dead": stdio(["/no/such/program"], placement="node"),
    "deaf": {"url": "http://127.0.0.1:9/mcp"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with serving(tmp_path_factory.mktemp("hub"), SERVERS, callers=CALLERS, limits=PATIENT) as running:
        for node in running.each:
            await until_named("raw.pay", node.port)
        yield running
    assert not [line for line in running.said if "Traceback" in line]


async def ask(
    port: int, body: dict[str, Any], *, headers: Headers = BASE, key: str | None = ALL_KEY, path: str = "/mcp"
) -> Reply:
    async with connected(port) as wire:
        return await wire.request(encoded(body), [*headers, *key_header(key)], path=path)


async def ask_modern(
    port: int, method: str, params: dict[str, Any] | None = None, *, id: Any = 1, key: str | None = ALL_KEY
) -> Reply:
    name = (params or {}).get("name") if method == "tools/call" else None
    return await ask(port, modern(method, params, id=id), headers=modern_headers(method, name), key=key)


async def names(port: int, key: str | None = ALL_KEY) -> list[str]:
    return [tool["name"] for tool in (await ask(port, legacy("tools/list"), key=key)).json["result"]["tools"]]


async def until_named(name: str, port: int, key: str | None = ALL_KEY) -> None:
    async def is_named() -> bool:
        return name in await names(port, key)

    await until(is_named)


async def opened(port: int, *, key: str = ALL_KEY, path: str = "/mcp", version: str = LEGACY[-1]) -> str:
    """A session of a caller that has just been greeted."""
    reply = await ask(port, hello(version), key=key, path=path)
    return reply.headers["mcp-session-id"]


def hello(version: object) -> dict[str, Any]:
    info = {"name": "test", "version": "1"}
    return legacy("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": info})


# -- greetings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY)
async def test_a_version_that_is_spoken_is_agreed_to(hub: HubProcess, version: str) -> None:
    reply = await ask(hub.port, hello(version))
    result = reply.json["result"]
    assert result["protocolVersion"] == version
    tasks: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    own: dict[str, Any] = {"tasks": tasks} if version == LEGACY[-1] else {}
    assert result["capabilities"] == {"tools": {"listChanged": True}, **own}
    assert result["serverInfo"]["name"] == "isthmus"
    assert "resultType" not in result
    session = reply.headers["mcp-session-id"]
    assert len(session) >= 32
    assert session.isascii()
    assert session.isprintable()
    after = [*BASE, ("mcp-session-id", session), ("mcp-protocol-version", version)]
    noted = await ask(hub.port, legacy("notifications/initialized", id=None), headers=after)
    assert (noted.status, noted.body) == (202, b"")
    assert (await ask(hub.port, legacy("ping"), headers=after)).json["result"] == {}


@pytest.mark.parametrize("version", ["2099-01-01", "1.0", "", "2024-10-07", MODERN])
async def test_another_version_is_answered_with_the_newest_of_its_era(hub: HubProcess, version: str) -> None:
    assert (await ask(hub.port, hello(version))).json["result"]["protocolVersion"] == LEGACY[-1]


async def test_discover_returns_the_supported_versions(hub: HubProcess) -> None:
    result = (await ask_modern(hub.port, "server/discover")).json["result"]
    assert result["resultType"] == "complete"
    assert result["supportedVersions"] == [MODERN, *reversed(LEGACY)]
    own: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}
    assert result["capabilities"] == {"tools": {"listChanged": True}, "extensions": own}
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "isthmus"


async def test_a_modern_request_opens_no_session_and_ignores_a_session_id(hub: HubProcess) -> None:
    reply = await ask_modern(hub.port, "tools/list")
    assert "mcp-session-id" not in reply.headers
    stray = [*modern_headers("tools/list"), ("mcp-session-id", "of another time")]
    assert (await ask(hub.port, modern("tools/list"), headers=stray)).status == 200


# -- lists ---------------------------------------------------------------------------------------------------------


async def test_a_list_is_the_same_bytes_for_every_caller_and_request(hub: HubProcess) -> None:
    for headers, body in ((BASE, legacy("tools/list")), (modern_headers("tools/list"), modern("tools/list"))):
        bodies = {(await ask(hub.port, body, headers=headers)).body for _ in range(5)}
        assert len(bodies) == 1
    async with connected(hub.port) as one, connected(hub.port) as other:
        headers = [*BASE, *key_header(ALL_KEY)]
        both = [await wire.request(encoded(legacy("tools/list")), headers) for wire in (one, other)]
        assert both[0].body == both[1].body


async def test_a_list_says_which_servers_are_missing_and_why(hub: HubProcess) -> None:
    missing = (await ask(hub.port, legacy("tools/list"))).json["result"]["_meta"]["isthmus/missing"]
    assert set(missing) == {"dead", "deaf"}
    for server in ("dead", "deaf"):
        assert (missing[server]["state"], missing[server]["listed"]) == ("retrying", False)
        assert missing[server]["reason"]
    assert missing["dead"]["reason"] == "'…/program' could not be started: there is no such file"


async def test_a_caller_does_not_learn_of_missing_servers_that_it_may_not_see(hub: HubProcess) -> None:
    result = (await ask(hub.port, legacy("tools/list"), key=SOME_KEY)).json["result"]
    assert [tool["name"] for tool in result["tools"]] == ["builtin.echo", "raw.echo"]
    assert "_meta" not in result


async def test_the_list_of_one_server_is_under_its_own_names(hub: HubProcess) -> None:
    result = (await ask(hub.port, legacy("tools/list"), path="/mcp/raw")).json["result"]
    assert [tool["name"] for tool in result["tools"]][:4] == ["pay", "echo", "meta", "grow"]
    assert "_meta" not in result
    dead = (await ask(hub.port, legacy("tools/list"), path="/mcp/dead")).json["result"]
    assert (dead["tools"], set(dead["_meta"]["isthmus/missing"])) == ([], {"dead"})


async def test_a_modern_list_says_that_it_is_complete_and_not_to_be_kept(hub: HubProcess) -> None:
    result = (await ask_modern(hub.port, "tools/list")).json["result"]
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")
    assert "resultType" not in (await ask(hub.port, legacy("tools/list"))).json["result"]


async def test_calls_to_a_server_that_is_missing_say_why_and_that_nothing_ran(hub: HubProcess) -> None:
    error = (await ask(hub.port, legacy("tools/call", {"name": "run"}), path="/mcp/dead")).json["error"]
    assert error["code"] == -32011
    assert error["data"]["executed"] == "no"
    assert error["data"]["server"] == "dead"


# -- sessions ------------------------------------------------------------------------------------------------------


async def test_a_session_belongs_to_its_caller_and_its_path(hub: HubProcess) -> None:
    session = await opened(hub.port, path="/mcp/raw")
    mine = [*BASE, ("mcp-session-id", session)]
    assert (await ask(hub.port, legacy("ping"), headers=mine, path="/mcp/raw")).status == 200
    unknown = [*BASE, ("mcp-session-id", "x" * len(session))]
    gone = await ask(hub.port, legacy("ping"), headers=unknown)
    assert gone.status == 404
    for key, path in [(SOME_KEY, "/mcp/raw"), (ALL_KEY, "/mcp"), (ALL_KEY, "/mcp/builtin"), (SOME_KEY, "/mcp")]:
        reply = await ask(hub.port, legacy("ping"), headers=mine, key=key, path=path)
        assert (reply.status, reply.headers, reply.body) == (404, gone.headers, gone.body), (key, path)
        for method in ("GET", "DELETE"):
            async with connected(hub.port) as wire:
                other = await wire.request(b"", [*mine, *key_header(key)], method=method, path=path)
                assert other.status == 404
    assert (await ask(hub.port, legacy("ping"), headers=mine, path="/mcp/raw")).status == 200


async def test_a_session_is_no_credential(hub: HubProcess) -> None:
    session = await opened(hub.port)
    assert (await ask(hub.port, legacy("ping"), headers=[*BASE, ("mcp-session-id", session)], key=None)).status == 401


async def test_a_session_that_was_ended_is_unknown(hub: HubProcess) -> None:
    session = await opened(hub.port)
    headers = [*BASE, ("mcp-session-id", session), *key_header(ALL_KEY)]
    async with connected(hub.port) as wire:
        assert (await wire.request(b"", headers, method="DELETE")).status == 204
        assert (await wire.request(encoded(legacy("ping")), headers)).status == 404
        assert (await wire.request(b"", headers, method="DELETE")).status == 404
        # A greeting opens a new one, whatever the header still says.
        again = await wire.request(encoded(hello(LEGACY[-1])), headers)
        assert again.headers["mcp-session-id"] != session


async def test_ending_a_session_cancels_the_calls_in_it(hub: HubProcess) -> None:
    session = await opened(hub.port)
    headers = [*BASE, ("mcp-session-id", session), *key_header(ALL_KEY)]
    arguments = {"text": "x", "mode": "progress:1,sleep:60"}
    body = legacy("tools/call", {"name": "raw.echo", "arguments": arguments, "_meta": {"progressToken": "p"}}, id=7)
    async with connected(hub.port) as caller, connected(hub.port) as other:
        stream = await begun(caller, encoded(body), headers)
        assert (await anext(stream))["method"] == "notifications/progress"
        assert (await other.request(b"", headers, method="DELETE")).status == 204
        error = (await anext(stream))["error"]
    assert error["code"] == -32012
    assert (error["data"]["reason"], error["data"]["executed"]) == ("cancelled", "unknown")


async def test_a_call_is_cancelled_by_its_own_id_and_by_nothing_else(hub: HubProcess) -> None:
    session = await opened(hub.port)
    headers = [*BASE, ("mcp-session-id", session), *key_header(ALL_KEY)]
    arguments = {"text": "x", "mode": "progress:1,sleep:60"}
    params = {"name": "raw.echo", "arguments": arguments, "_meta": {"progressToken": "p"}}
    theirs = [*BASE, ("mcp-session-id", await opened(hub.port)), *key_header(ALL_KEY)]
    async with connected(hub.port) as caller, connected(hub.port) as other:
        stream = await begun(caller, encoded(legacy("tools/call", params, id=1)), headers)
        await anext(stream)
        for wrong in (2, "1", 1.0, None):
            note = legacy("notifications/cancelled", {"requestId": wrong}, id=None)
            assert (await other.request(encoded(note), headers)).status == 202
        mine = encoded(legacy("notifications/cancelled", {"requestId": 1}, id=None))
        assert (await other.request(mine, theirs)).status == 202
        assert (await other.request(encoded(legacy("ping")), headers)).status == 200
        waiting = asyncio.ensure_future(anext(stream))
        assert not waiting.done()
        assert (await other.request(mine, headers)).status == 202
        assert (await waiting)["error"]["data"]["reason"] == "cancelled"


# -- streams -------------------------------------------------------------------------------------------------------


class Stream:
    """An event stream, message by message; comments are counted."""

    def __init__(self, wire: Wire) -> None:
        self._chunks = wire.chunks()
        self._held = b""
        self.comments = 0

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        async with asyncio.timeout(SECONDS):
            while True:
                while b"\n\n" in self._held:
                    event, _, self._held = self._held.partition(b"\n\n")
                    if data := [
                        line[5:] for line in event.split(b"\n") if line.startswith(b"data:") and line[5:].strip()
                    ]:
                        return json.loads(b"\n".join(data))
                    self.comments += 1
                self._held += await anext(self._chunks)


async def begun(wire: Wire, body: bytes, headers: Headers, *, method: str = "POST", path: str = "/mcp") -> Stream:
    """Send a request whose answer is a stream, and read its head."""
    await wire.say(rendered(method, path, [*headers, ("content-length", str(len(body)))], body))
    status, received = await wire.head()
    assert (status, received["content-type"]) == (200, "text/event-stream")
    assert received["x-accel-buffering"] == "no"
    return Stream(wire)


LISTEN = {"notifications": {"toolsListChanged": True}}


@asynccontextmanager
async def subscribed(
    port: int, *, id: Any = "s", key: str = ALL_KEY, path: str = "/mcp", wanted: dict[str, Any] | None = None
) -> AsyncIterator[Stream]:
    """A modern caller's stream of changes, acknowledged."""
    body = modern("subscriptions/listen", LISTEN if wanted is None else {"notifications": wanted}, id=id)
    headers = [*modern_headers("subscriptions/listen"), *key_header(key)]
    async with connected(port) as wire:
        stream = await begun(wire, encoded(body), headers, path=path)
        yield stream


@asynccontextmanager
async def listening(
    port: int, *, key: str = ALL_KEY, path: str = "/mcp", session: str | None = None
) -> AsyncIterator[Stream]:
    """A legacy caller's stream of changes."""
    of_session = [] if session is None else [("mcp-session-id", session)]
    async with connected(port) as wire:
        headers = [*BASE, *of_session, *key_header(key)]
        yield await begun(wire, b"", headers, method="GET", path=path)


async def grow(port: int, name: str) -> None:
    """Have the server get another tool, and the hub hear of it: late news would be taken for the next test's."""
    await announce(port, name)
    await until_named(f"raw.{name}", port)


async def announce(port: int, name: str) -> None:
    """Have the server get another tool and say so."""
    reply = await ask(port, legacy("tools/call", {"name": "raw.grow", "arguments": {"name": name}}))
    assert "result" in reply.json


@pytest.mark.parametrize("id", ["s", 0, "", 9007199254740993])
async def test_a_subscription_is_acknowledged_first_and_everything_on_it_is_marked(hub: HubProcess, id: Any) -> None:
    async with subscribed(hub.port, id=id) as stream:
        assert await anext(stream) == {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {"_meta": {SUBSCRIPTION: id}, "notifications": {"toolsListChanged": True}},
        }
        await grow(hub.port, f"grown for {id!r}")
        assert await anext(stream) == {"jsonrpc": "2.0", "method": CHANGED, "params": {"_meta": {SUBSCRIPTION: id}}}
    assert f"raw.grown for {id!r}" in await names(hub.port)


async def test_subscriptions_that_the_hub_cannot_serve_are_not_acknowledged(hub: HubProcess) -> None:
    lists = {"toolsListChanged": True, "promptsListChanged": True}  # of which no server here has the second
    wanted = {**lists, "resourceSubscriptions": ["file:///x"], "somethingNew": True}
    async with subscribed(hub.port, wanted=wanted) as stream:
        assert (await anext(stream))["params"]["notifications"] == {"toolsListChanged": True}
    async with subscribed(hub.port, wanted={}) as stream:
        assert (await anext(stream))["params"]["notifications"] == {}


async def test_a_legacy_caller_gets_changes_on_its_own_stream(hub: HubProcess) -> None:
    session = await opened(hub.port)
    async with listening(hub.port, session=session) as stream, listening(hub.port) as without:
        await grow(hub.port, "grown for a stream")
        assert await anext(stream) == {"jsonrpc": "2.0", "method": CHANGED}
        assert await anext(without) == {"jsonrpc": "2.0", "method": CHANGED}


async def test_a_session_with_an_old_list_is_notified_when_it_listens(hub: HubProcess) -> None:
    session = await opened(hub.port)
    headers = [*BASE, ("mcp-session-id", session)]
    await ask(hub.port, legacy("tools/list"), headers=headers)
    await grow(hub.port, "grown before anybody listened")
    await until_named("raw.grown before anybody listened", hub.port)
    async with listening(hub.port, session=session) as stream:
        assert (await anext(stream))["method"] == CHANGED


async def test_only_callers_that_see_a_change_are_notified(hub: HubProcess) -> None:
    async with (
        subscribed(hub.port, key=SOME_KEY) as blind,
        subscribed(hub.port, path="/mcp/builtin") as elsewhere,
        subscribed(hub.port, wanted={}) as indifferent,
        subscribed(hub.port) as sees,
        listening(hub.port, path="/mcp/raw") as beside,
    ):
        for stream in (blind, elsewhere, indifferent, sees):
            await anext(stream)
        await grow(hub.port, "grown in secret")
        assert (await anext(sees))["method"] == CHANGED
        assert (await anext(beside))["method"] == CHANGED
        # The right listeners are notified: others would have been notified at the same moment.
        for stream in (blind, elsewhere, indifferent):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.05)


async def test_many_changes_make_at_most_one_notification_a_second(hub: HubProcess) -> None:
    clock = asyncio.get_running_loop().time
    received = 0

    async def note(stream: Stream) -> None:
        nonlocal received
        async for message in stream:
            assert message["method"] == CHANGED
            received += 1

    async with subscribed(hub.port) as stream:
        await anext(stream)
        started, count = clock(), 0
        noting = asyncio.ensure_future(note(stream))
        while (count < 20 or received < 2) and not noting.done():
            count += 1
            await announce(hub.port, f"grown often {count}")
            await asyncio.sleep(0.05)  # a server has a thousand tools at most
        assert noting.cancel()
        await until_named(f"raw.grown often {count}", hub.port)
    # The first at once, and however late it was read, each of the others a second after the one before it.
    assert 2 <= received <= clock() - started + 1.5


async def test_a_change_that_leaves_the_list_equal_makes_no_notification(hub: HubProcess) -> None:
    async with subscribed(hub.port) as stream:
        await anext(stream)
        for _ in range(2):  # the second is a tool of a name that is there already
            await grow(hub.port, "grown twice")
        assert (await anext(stream))["method"] == CHANGED
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 1.5)


async def test_when_the_hub_ends_a_subscription_ends_with_its_result_and_a_stream_with_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, callers=CALLERS) as ending:
        async with subscribed(ending.port, id="last") as modern_stream, listening(ending.port) as legacy_stream:
            await anext(modern_stream)
            ending.terminate()
            assert await anext(modern_stream) == {
                "jsonrpc": "2.0",
                "id": "last",
                "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: "last"}},
            }
            for stream in (modern_stream, legacy_stream):
                with pytest.raises(StopAsyncIteration):
                    await anext(stream)
        async with asyncio.timeout(SECONDS):
            assert await ending.process.wait() == 0


async def test_a_subscription_needs_a_reader_of_events(hub: HubProcess) -> None:
    headers = [pair for pair in modern_headers("subscriptions/listen") if pair[0] != "accept"]
    reply = await ask(
        hub.port, modern("subscriptions/listen", LISTEN), headers=[*headers, ("accept", "application/json")]
    )
    assert reply.status == 406


# -- calls ---------------------------------------------------------------------------------------------------------


def echo(mode: str | None = None, *, token: Any = None, id: Any = 1) -> dict[str, Any]:
    arguments = {"text": "hi", **({} if mode is None else {"mode": mode})}
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return legacy("tools/call", {"name": "raw.echo", "arguments": arguments, **meta}, id=id)


async def test_an_answer_is_plain_json_unless_an_event_precedes_it(hub: HubProcess) -> None:
    plain = await ask(hub.port, echo())
    silent = await ask(hub.port, echo(token="t"))
    unwanted = await ask(hub.port, echo("progress:3"))
    for reply in (plain, silent, unwanted):
        assert reply.headers["content-type"] == "application/json"
        assert reply.json["result"]["content"][0]["text"] == "hi"


@pytest.mark.parametrize("token", ["t", 0, "", 9007199254740993])
async def test_progress_comes_first_in_order_and_under_the_callers_own_token(hub: HubProcess, token: Any) -> None:
    reply = await ask(hub.port, echo("progress:3", token=token, id="call"))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
    *progress, result = reply.events
    assert [event["params"]["progress"] for event in progress] == [1, 2, 3]
    assert {json.dumps(event["params"]["progressToken"]) for event in progress} == {json.dumps(token)}
    assert (result["id"], result["result"]["content"][0]["text"]) == ("call", "hi")


async def test_a_client_that_does_not_accept_events_gets_the_answer_without_them(hub: HubProcess) -> None:
    headers = [*(pair for pair in BASE if pair[0] != "accept"), ("accept", "application/json")]
    reply = await ask(hub.port, echo("progress:3", token="t"), headers=headers)
    assert reply.json["result"]["content"][0]["text"] == "hi"


async def test_a_connection_serves_many_requests_of_both_eras_and_kinds(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        for at in range(20):
            key = key_header(ALL_KEY)
            assert (await wire.request(encoded(echo(id=at)), [*BASE, *key])).json["id"] == at
            stream = await wire.request(encoded(echo("progress:1", token=at, id=at)), [*BASE, *key])
            assert [event.get("id") for event in stream.events] == [None, at]
            call = modern("tools/call", {"name": "builtin.echo", "arguments": {"text": "x"}}, id=f"m{at}")
            reply = await wire.request(encoded(call), [*modern_headers("tools/call", "builtin.echo"), *key])
            assert (reply.json["id"], reply.json["result"]["resultType"]) == (f"m{at}", "complete")


# -- what a server says arrives as it said it ----------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def odd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    servers = {"odd": stdio([sys.executable, odd_server.__file__])}
    async with serving(tmp_path_factory.mktemp("odd"), servers, hub={"names": "llm"}) as running:
        await until_named("mcp_odd_odd_tool", running.port, None)
        yield running


async def test_a_tool_is_described_in_its_servers_own_words(odd: HubProcess) -> None:
    for path, name in (("/mcp", "mcp_odd_odd_tool"), ("/mcp/odd", "odd.tool")):
        shown = odd_server.TOOL.replace('"odd.tool"', json.dumps(name)).encode()
        assert shown in (await ask(odd.port, legacy("tools/list"), key=None, path=path)).body
        headers = modern_headers("tools/list")
        assert shown in (await ask(odd.port, modern("tools/list"), key=None, path=path, headers=headers)).body


async def test_a_result_arrives_in_its_servers_own_words(odd: HubProcess) -> None:
    called = legacy("tools/call", {"name": "mcp_odd_odd_tool", "arguments": {}})
    reply = await ask(odd.port, called, key=None)
    assert reply.body == f'{{"jsonrpc":"2.0","id":1,"result":{odd_server.RESULT}}}'.encode()
    headers = modern_headers("tools/call", "mcp_odd_odd_tool")
    made = await ask(odd.port, modern("tools/call", {"name": "mcp_odd_odd_tool"}), key=None, headers=headers)
    assert made.json["result"].pop("resultType") == "complete"
    assert odd_server.RESULT[1:].encode() in made.body


async def test_names_for_language_models_are_listed_and_called_and_the_others_are_not(odd: HubProcess) -> None:
    assert await names(odd.port, None) == [
        "mcp_builtin_echo",
        "mcp_builtin_timestamp",
        "mcp_builtin_chat_log",
        "mcp_odd_odd_tool",
    ]
    for name in ("builtin.echo", "echo", "odd.odd.tool", "mcp_odd_odd.tool", "MCP_BUILTIN_ECHO"):
        reply = await ask(odd.port, legacy("tools/call", {"name": name, "arguments": {"text": "x"}}), key=None)
        assert reply.code == -32602
    called = legacy("tools/call", {"name": "mcp_builtin_echo", "arguments": {"text": "x"}})
    reply = await ask(odd.port, called, key=None)
    assert reply.json["result"]["structuredContent"] == {"text": "x"}
    own = await ask(odd.port, legacy("tools/call", {"name": "odd.tool"}), key=None, path="/mcp/odd")
    assert "result" in own.json
