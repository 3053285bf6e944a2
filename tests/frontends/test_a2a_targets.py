"""Servers that callers name by their addresses: reached whatever they speak, refused where they must be, and let go."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.scripted import ReceivedRequest, Scripted, reply, tool
from tests.faults.watching import eventually
from tests.hubs import PATIENT, TRUSTED, HubProcess, Raw, serving, write_config
from tests.peers.launch import http_peer

SECONDS = 60.0
IDLE_SECONDS = 0.2
SECRET = "secret-7f3a9c1e"
OTHER_SECRET = "secret-b2d46f80"
KEYS = {"planner": "planner-key-0123456789abcdef", "writer": "writer-key-0123456789abcdef"}
CALLERS = {name: {"key": key, "allow": ["shop.add"], "targets": True} for name, key in KEYS.items()}
GUEST = "guest-key-0123456789abcdef0"


class Caller:
    """Who gives instructions in the words of `execute_mcp_command`."""

    def __init__(self, hub: HubProcess, key: str | None = None) -> None:
        headers = {} if key is None else {"x-api-key": key}
        self._http = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, headers=headers, verify=TRUSTED
        )
        self._said = 0

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, method: str, params: Any) -> Any:
        """The result of a request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self._http.post("/a2a", json=body)).json()
        assert "result" in answer, answer
        return answer["result"]

    async def task(self, target: str, method: str, params: Any = None, **more: Any) -> Any:
        """The task that an instruction comes to."""
        self._said += 1
        data = {"mcp_target_url": target, "mcp_method": method, "mcp_params": params or {}, **more}
        message = {"messageId": f"m{self._said}", "role": "ROLE_USER", "parts": [{"data": data}]}
        return (await self.ask("SendMessage", {"message": message}))["task"]

    async def call_target(self, target: str, method: str, params: Any = None, **more: Any) -> tuple[str, Any]:
        """How the task stands, and the data part of its answer."""
        task = await self.task(target, method, params, **more)
        return task["status"]["state"].removeprefix("TASK_STATE_"), task["artifacts"][0]["parts"][0]["data"]

    async def add(self, target: str, **more: Any) -> Any:
        """What two and three are, as a server says."""
        state, received = await self.call_target(
            target, "tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}}, **more
        )
        assert state == "COMPLETED", received
        return received["mcp_result"]

    async def may(self, target: str) -> bool:
        """Whether an address may be named now."""
        return (await self.call_target(target, "ping"))[0] == "COMPLETED"

    async def refused(self, target: str, **more: Any) -> str:
        """Why a target is refused."""
        state, received = await self.call_target(target, "tools/list", **more)
        data = received["mcp_error"]["data"]
        assert (state, data["kind"], data["reason"]) == ("REJECTED", "request", "target_refused"), received
        assert data["executed"] == "no"
        return str(received["mcp_error"]["message"])


def allowing(*addresses: str, **more: Any) -> dict[str, Any]:
    """A configuration in which these may be named."""
    return {
        "callers": {**CALLERS, "guest": {"key": GUEST, "allow": ["*"]}},
        "targets": {"allow": list(addresses), **more},
        "limits": {**PATIENT, "call_seconds": SECONDS},
    }


def origin(server: Scripted) -> str:
    """Where a server is, without a path."""
    return str(server.entry["url"]).removesuffix("/mcp")


def values(request: Iterable[ReceivedRequest], header: str) -> set[str]:
    """What a server was sent in a header."""
    return {value for each in request for value in each.headers.get(header, [])}


# -- every kind of server ----------------------------------------------------------------------------------------------


KINDS: dict[str, tuple[str, ...]] = {
    "stateful": ("server_sdk1",),
    "stateless": ("server_fastmcp", "--stateless"),
    "modern": ("server_sdk2",),
    "events": ("server_sdk1", "--transport", "sse"),
    "rpc": ("rpc_server", "--listed"),
}

NAMED: list[tuple[str, str | None]] = [
    ("stateful", None),
    ("stateful", "/mcp"),
    ("stateless", None),
    ("modern", None),
    ("events", None),
    ("events", "sse"),
    ("events", "/messages/"),
]


async def test_a_target_is_called_over_every_protocol(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        peers = {kind: await stack.enter_async_context(http_peer(*words)) for kind, words in KINDS.items()}
        tables = allowing(*(peer.at("") for peer in peers.values()))
        hub = await stack.enter_async_context(serving(tmp_path, **tables))
        caller = await stack.enter_async_context(Caller(hub, KEYS["planner"]))
        for kind, path in NAMED:
            target, where = peers[kind].at(""), {} if path is None else {"mcp_request_path": path}
            assert "5" in json.dumps(await caller.add(target, **where)), (kind, path)
            state, received = await caller.call_target(target, "tools/list", mcp_request_id=7, **where)
            assert (state, received["mcp_request_id_echo"], received["mcp_response_id"]) == ("COMPLETED", 7, 7), (
                kind,
                path,
            )
            assert "add" in [tool["name"] for tool in received["mcp_result"]["tools"]], (kind, path)
            state, received = await caller.call_target(target, "initialize", {"protocolVersion": "2025-06-18"}, **where)
            assert (state, received["mcp_result"]["capabilities"]["tools"] is not None) == ("COMPLETED", True), (
                kind,
                path,
            )
            assert received["mcp_result"].keys() >= {"protocolVersion", "serverInfo"}, (kind, path)
            state, received = await caller.call_target(target, "tools/jump", **where)
            assert (state, received["mcp_error"]["data"]["reason"]) == ("FAILED", "server_error"), (kind, path)
            assert (await caller.call_target(target, "notifications/initialized", **where))[0] == "COMPLETED"
        await _check_plain(caller, peers["rpc"].at("/rpc"))
        state, received = await caller.call_target(
            peers["stateful"].at("/mcp"), "tools/call", {"name": "gone", "arguments": {}}
        )
        assert (state, received["mcp_error"]["data"]["reason"]) == ("FAILED", "unknown_tool")


async def _check_plain(caller: Caller, target: str) -> None:
    """A server without MCP receives the caller's request, and the caller gets its answer unchanged."""
    state, received = await caller.call_target(target, "add", {"a": 2, "b": 3})
    assert (state, received["mcp_result"]) == ("COMPLETED", {"sum": 5})
    state, received = await caller.call_target(target, "tools/list")
    assert "add" in [tool["name"] for tool in received["mcp_result"]["tools"]]
    state, received = await caller.call_target(target, "refuse")
    assert (state, received["mcp_error"]["code"]) == ("FAILED", -32050)
    assert received["mcp_error"]["data"]["kind"] == "mcp"


async def test_a_request_has_its_caller_s_id_on_the_wire(tmp_path: Path) -> None:
    async with http_peer("rpc_server") as plain, Scripted() as server:
        tables = allowing(plain.at(""), origin(server))
        async with serving(tmp_path, **tables) as hub, Caller(hub, KEYS["planner"]) as caller:
            for id in ("order-7", 7, "é"):
                _, received = await caller.call_target(plain.at("/rpc"), "envelope", mcp_request_id=id)
                assert (received["mcp_result"]["id"], received["mcp_request_id_echo"]) == (id, id)
                state, _ = await caller.call_target(
                    origin(server), "tools/call", {"name": "t", "arguments": {}}, mcp_request_id=id
                )
                assert (state, server.heard[-1].message["id"]) == ("COMPLETED", id)
            _, received = await caller.call_target(plain.at("/rpc"), "envelope")
            assert isinstance(received["mcp_result"]["id"], int)


async def test_a_request_over_an_event_stream_has_its_caller_s_id_and_finds_its_answer(tmp_path: Path) -> None:
    async with (
        http_peer("raw_server", "--transport", "sse") as server,
        serving(tmp_path, **allowing(server.at(""))) as hub,
        Caller(hub, KEYS["planner"]) as caller,
    ):
        call = {"name": "echo", "arguments": {"text": "hi"}}
        ids: list[Any] = ["same", "same", 7, "other"]
        asked = (caller.call_target(server.at("/sse"), "tools/call", call, mcp_request_id=id) for id in ids)
        results = await asyncio.gather(*asked)
        assert [state for state, _ in results] == ["COMPLETED"] * 4, results


async def test_a_method_that_the_hub_does_not_know_is_the_server_s(tmp_path: Path) -> None:
    class Jumping(Scripted):
        async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
            if request.method in ("tools/jump", "logging/setLevel"):
                out.write(reply(request.result({"jumped": request.message["params"]})))
            else:
                await super().on(request, out)

    async with (
        Jumping() as server,
        serving(tmp_path, **allowing(origin(server))) as hub,
        Caller(hub, KEYS["planner"]) as caller,
    ):
        for method, params in (("tools/jump", {"high": 1.5}), ("logging/setLevel", {"level": "debug"})):
            state, received = await caller.call_target(origin(server), method, params)
            said = received["mcp_result"]["jumped"]
            assert (state, {key: said[key] for key in params}) == ("COMPLETED", params)
        greetings = server.greetings
        state, received = await caller.call_target(origin(server), "initialize")
        assert (state, received["mcp_result"]["serverInfo"]["name"]) == ("COMPLETED", "x")
        assert server.greetings < greetings + len(hub.each)  # each node greets it once


async def test_a_plain_server_is_found_at_the_root_where_no_path_is_given(tmp_path: Path) -> None:
    async with (
        http_peer("rpc_server", "--path", "/", "--statuses") as plain,
        serving(tmp_path, **allowing(plain.at(""))) as hub,
        Caller(hub, KEYS["planner"]) as caller,
    ):
        state, received = await caller.call_target(plain.at(""), "code.run", {"code": "2"})
        assert (state, received["mcp_result"]) == (
            "COMPLETED",
            {"content": [{"type": "code_output", "stdout": "2\n", "stderr": ""}]},
        )


class Messages(Scripted):
    """A server that takes MCP's methods by plain JSON-RPC at `/messages/`, without a greeting."""

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if (request.verb, request.path) != ("POST", "/messages/"):
            out.write(reply(None, status=404))
        elif request.method == "tools/call":
            out.write(reply(request.result({"content": [], "isError": True})))
        else:
            unknown = {"code": -32601, "message": "Method not found"}
            out.write(reply({"jsonrpc": "2.0", "id": request.message["id"], "error": unknown}))


@pytest.mark.one_process("each node finds out by itself how a server is spoken to")
async def test_a_server_that_answers_only_at_messages_is_called_there_and_remembered(tmp_path: Path) -> None:
    async with (
        Messages() as server,
        serving(tmp_path, **allowing(origin(server), idle=0.05)) as hub,
        Caller(hub, KEYS["planner"]) as caller,
    ):
        params = {"name": "t", "arguments": {"n": 12345678901234567890}}
        state, received = await caller.call_target(origin(server), "tools/call", params)
        assert (state, received["mcp_result"]) == ("FAILED", {"content": [], "isError": True})
        assert server.heard[-1].message["params"] == params
        assert {request.path for request in server.heard} == {"/mcp", "/sse", "/messages/"}
        await eventually(lambda: has_logged(hub, "closed an unused server named by a caller"), "the server is let go")
        server.heard.clear()
        assert (await caller.call_target(origin(server), "tools/call", params))[0] == "FAILED"
        assert {request.path for request in server.heard} == {"/messages/"}


def has_logged(hub: HubProcess, words: str) -> bool:
    """Whether the hub's log has such a line."""
    return any(words in line for line in hub.said)


# -- who may name what -------------------------------------------------------------------------------------------------


async def test_a_forbidden_target_is_refused_with_the_setting_that_would_allow_it(tmp_path: Path) -> None:
    async with (
        Scripted() as server,
        serving(tmp_path, **allowing(f"{origin(server)}/mcp", "http://*.example.com", "http://*")) as hub,
        Caller(hub, KEYS["planner"]) as planner,
        Caller(hub, GUEST) as guest,
    ):
        port = origin(server).rpartition(":")[2]
        assert (await planner.call_target(origin(server), "ping"))[0] == "COMPLETED"
        server.heard.clear()
        refusals: list[tuple[str, dict[str, Any], str]] = [
            (f"http://localhost:{port}", {}, "[targets] allow would have to list it"),
            (origin(server), {"mcp_request_path": "/other"}, "[targets] allow would have to list it"),
            (origin(server), {"mcp_request_path": "/mcp/../other"}, "no usable address"),
            (origin(server), {"mcp_request_path": "mcp/%2e%2e/other"}, "no usable address"),
            (f"http://planner@127.0.0.1:{port}/mcp", {}, "no usable address"),
            (f"http://127.0.0.1:{port}\\@h/mcp", {}, "no usable address"),
            (f"http://127.1:{port}/mcp", {}, "no usable address"),
            (f"http://127.0.0.1.:{port}/mcp", {}, "no usable address"),
            ("http://127.0.0.1", {}, "127.0.0.1 may not be dialled: its address is loopback"),
            ("http://localhost", {}, "localhost may not be dialled: its name belongs to a private network"),
            ("http://[::ffff:127.0.0.1]", {}, "may not be dialled: its address is loopback"),
            ("http://169.254.169.254", {}, "may not be dialled: its address is link-local"),
            (origin(server), {"mcp_headers": {"X-Token": SECRET}}, "[targets] headers would have to list it"),
        ]
        for target, more, words in refusals:
            assert words in await planner.refused(target, **more), target
        assert "with targets = true it could" in await guest.refused(origin(server))
        assert server.heard == []
        state, received = await planner.call_target("nobody", "tools/list")
        assert (state, received["mcp_error"]["data"]["reason"]) == ("FAILED", "unknown_server")


async def test_the_address_of_a_configured_server_is_that_server_as_far_as_its_caller_may_see_it(
    tmp_path: Path,
) -> None:
    async with Scripted() as shop, Scripted() as vault:
        for server in (shop, vault):
            server.tools = [tool("add"), tool("pay")]
        servers = {"shop": shop.entry, "vault": vault.entry}
        tables = allowing(origin(shop), origin(vault), headers=["X-Token"])
        async with serving(tmp_path, servers, **tables) as hub, Caller(hub, KEYS["planner"]) as caller:
            for target in (origin(shop), shop.entry["url"], f"{shop.entry['url']}/", "shop"):
                _, received = await caller.call_target(target, "tools/list")
                assert [tool["name"] for tool in received["mcp_result"]["tools"]] == ["add"], target
                state, received = await caller.call_target(target, "tools/call", {"name": "pay", "arguments": {}})
                assert (state, received["mcp_error"]["data"]["reason"]) == ("FAILED", "unknown_tool"), target
                assert "configured here" in await caller.refused(target, mcp_headers={"X-Token": SECRET})
            unlisted = (await caller.refused("http://127.0.0.1:9")).replace("http://127.0.0.1:9", origin(vault))
            for target in (vault.entry["url"], origin(vault), f"{vault.entry['url']}?x=1"):
                assert await caller.refused(target) == unlisted
            assert shop.count("tools/call") == vault.count("tools/call") == 0


async def test_on_an_open_hub_the_local_caller_may_name_configured_servers_and_nothing_else(tmp_path: Path) -> None:
    async with Scripted() as server, Scripted() as other:
        tables: dict[str, Any] = {"targets": {"allow": [origin(other)]}, "limits": PATIENT}
        async with serving(tmp_path, {"s": server.entry}, **tables) as hub, Caller(hub) as caller:
            for target in ("s", server.entry["url"], origin(server)):
                assert (await caller.call_target(target, "tools/call", {"name": "t", "arguments": {}}))[
                    0
                ] == "COMPLETED"
            assert "targets = true" in await caller.refused(origin(other))
            assert other.heard == []


# -- secrets -----------------------------------------------------------------------------------------------------------


async def test_an_open_hub_may_let_everybody_name_addresses_but_not_of_private_networks(tmp_path: Path) -> None:
    async with http_peer("server_sdk1") as peer:
        configuration: dict[str, Any] = {"targets": {"open": True, "allow": [peer.at("")]}, "limits": PATIENT}
        async with serving(tmp_path, **configuration) as hub, Caller(hub) as caller:
            # As the first client sends it: without headers, and null for what it does not say.
            data = {"mcp_target_url": peer.at(""), "mcp_method": "tools/call", "mcp_request_id": 3}
            call = {**data, "mcp_params": {"name": "add", "arguments": {"a": 2, "b": 3}}}
            message = {"role": "user", "parts": [{"type": "data", "data": call, "metadata": None}], "metadata": None}
            named = {"id": "t1", "sessionId": "s1", "pushNotification": None, "historyLength": None, "metadata": None}
            task = await caller.ask("tasks/send", {**named, "message": message, "acceptedOutputModes": ["data"]})
            received = task["artifacts"][0]["parts"][0]["data"]
            assert (task["status"]["state"], received["mcp_request_id_echo"]) == ("completed", 3)
            assert "5" in json.dumps(received["mcp_result"])
            assert "[targets] allow would have to list it" in await caller.refused("https://198.41.0.4")
            write_config(tmp_path, {}, targets={"open": True})
            hub.process.send_signal(signal.SIGHUP)
            await eventually(lambda: any("configuration reloaded" in line for line in hub.said), "the file is taken")
            assert not await caller.may(peer.at(""))
            # What is public is not refused; nobody is there.
            task = await caller.task("https://nowhere.invalid", "ping")
            assert task["status"]["state"] == "TASK_STATE_FAILED"


@pytest.mark.one_process("it counts the connections of a hub to a server; each node has its own")
async def test_headers_go_to_their_target_alone_and_are_written_nowhere(tmp_path: Path) -> None:
    async with Scripted() as server, Scripted() as other:
        tables = allowing(origin(server), origin(other), headers=["x-token"])
        async with (
            serving(tmp_path, hub={"state": str(tmp_path / "state")}, log={"level": "debug"}, **tables) as hub,
            Caller(hub, KEYS["planner"]) as planner,
            Caller(hub, KEYS["writer"]) as writer,
        ):
            call = {"name": "t", "arguments": {}}
            with_secret = {"mcp_headers": {"X-Token": SECRET}}
            task = await planner.task(origin(server), "tools/call", call, **with_secret)
            assert task["status"]["state"] == "TASK_STATE_COMPLETED"
            greetings = server.greetings
            await planner.call_target(origin(server), "tools/call", call, **with_secret)
            assert server.greetings < greetings + len(hub.each)  # each node greets it once
            assert values(server.heard, "x-token") == {SECRET}
            assert all(request.headers.get("x-token") == [SECRET] for request in server.heard)
            await planner.call_target(origin(other), "tools/call", call)
            assert values(other.heard, "x-token") == set()
            for caller, headers in ((planner, {"X-Token": OTHER_SECRET}), (writer, {"X-Token": SECRET}), (planner, {})):
                before = server.greetings
                await caller.call_target(origin(server), "tools/call", call, mcp_headers=headers)
                assert server.greetings > before
            kept = await planner.ask("GetTask", {"id": task["id"]})
            assert kept["history"][0]["parts"][0]["data"]["mcp_headers"] == {"X-Token": None}
            await planner.call_target(origin(server), "tools/call", call, mcp_headers={"X-Token": [SECRET]})
        assert "".join(hub.said).count("a caller named a server") == 5
    assert "secret-" not in "".join(hub.said)
    assert secrets_in(tmp_path) == set()


def secrets_in(folder: Path) -> set[bytes]:
    """What looks like a secret in files that were written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name.startswith("journal") for path in files)
    return {found for path in files for found in re.findall(rb"secret-[0-9a-f]{8}", path.read_bytes())}


class Elsewhere(Scripted):
    """A server that sends its callers to another one, or to another path of its own."""

    def __init__(self, location: str) -> None:
        super().__init__()
        self.location = location

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        out.write(reply(None, status=307, headers={"location": self.location}))


class Slashed(Scripted):
    """A server that is found behind a slash."""

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if request.path.endswith("/"):
            await super().on(request, out)
        else:
            out.write(reply(None, status=307, headers={"location": f"{request.path}/"}))


async def test_redirects_are_not_followed(tmp_path: Path) -> None:
    async with (
        Scripted() as other,
        Elsewhere(other.entry["url"]) as away,
        Elsewhere("/admin") as within,
        Slashed() as near,
    ):
        servers = (other, away, within, near)
        tables = allowing(*(origin(server) for server in servers), headers=["X-Token"])
        async with serving(tmp_path, **tables) as hub, Caller(hub, KEYS["planner"]) as caller:
            for server in (away, within):
                state, received = await caller.call_target(
                    origin(server), "tools/list", mcp_request_path="/mcp", mcp_headers={"X-Token": SECRET}
                )
                assert (state, received["mcp_error"]["data"]["kind"]) == ("FAILED", "network")
                assert {request.path for request in server.heard} == {"/mcp"}
            assert other.heard == []
            assert (await caller.call_target(near.entry["url"], "tools/list"))[0] == "COMPLETED"


# -- coming and going --------------------------------------------------------------------------------------------------


async def test_an_unused_server_is_dropped_and_reached_again(tmp_path: Path) -> None:
    async with (
        Scripted() as server,
        serving(tmp_path, **allowing(origin(server), idle=IDLE_SECONDS)) as hub,
        Caller(hub, KEYS["planner"]) as caller,
    ):
        running = asyncio.ensure_future(
            caller.call_target(origin(server), "tools/call", {"name": "t", "arguments": {"hang": True}})
        )
        await eventually(lambda: server.hung == 1, "the server is called")
        until = asyncio.get_running_loop().time() + 3 * IDLE_SECONDS
        while asyncio.get_running_loop().time() < until:
            await caller.refused("http://127.0.0.1:9")
        assert not any(request.verb == "DELETE" for request in server.heard)
        (task,) = (await caller.ask("ListTasks", {"status": "TASK_STATE_WORKING"}))["tasks"]
        await caller.ask("CancelTask", {"id": task["id"]})
        assert (await running)[0] == "CANCELED"
        await eventually(lambda: any(request.verb == "DELETE" for request in server.heard), "the session is ended")
        greetings = server.greetings
        assert (await caller.call_target(origin(server), "ping"))[0] == "COMPLETED"
        assert server.greetings > greetings


@pytest.mark.one_process("`max` limits the servers of each node")
async def test_one_more_server_than_there_may_be_is_refused_while_the_others_are_used(tmp_path: Path) -> None:
    async with Scripted() as busy, Scripted() as second, Scripted() as third:
        tables = allowing(*(origin(server) for server in (busy, second, third)), max=2)
        async with (
            serving(tmp_path, **tables) as hub,
            Caller(hub, KEYS["planner"]) as caller,
            Caller(hub, KEYS["writer"]) as writer,
        ):
            hang = {"name": "t", "arguments": {"hang": True}}
            running = asyncio.ensure_future(caller.call_target(origin(busy), "tools/call", hang))
            await eventually(lambda: busy.hung == 1, "the server is called")
            state, received = await caller.call_target(origin(second), "ping")
            assert (state, received["mcp_error"]["data"]["reason"]) == ("REJECTED", "too_many_targets")
            assert (await writer.call_target(origin(second), "ping"))[0] == "COMPLETED"
            assert (await writer.call_target(origin(third), "ping"))[0] == "COMPLETED"
            (task,) = (await caller.ask("ListTasks", {"status": "TASK_STATE_WORKING"}))["tasks"]
            await caller.ask("CancelTask", {"id": task["id"]})
            assert (await running)[0] == "CANCELED"
            assert (await caller.call_target(origin(second), "ping"))[0] == "COMPLETED"


class Silent(Scripted):
    """A server that never answers."""

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()


async def test_unreachable_targets_fail_and_a_connecting_one_can_be_cancelled(tmp_path: Path) -> None:
    async with Scripted() as gone:
        address = origin(gone)
    async with (
        Silent() as server,
        serving(tmp_path, **allowing(address, origin(server))) as hub,
        Caller(hub, KEYS["planner"]) as caller,
    ):
        state, received = await caller.call_target(address, "tools/list")
        data = received["mcp_error"]["data"]
        assert (state, data["kind"], data["reason"], data["executed"]) == ("FAILED", "network", "not_connected", "no")
        assert "connection refused" in received["mcp_error"]["message"]
        running = asyncio.ensure_future(caller.call_target(origin(server), "tools/list"))
        await eventually(lambda: bool(server.heard), "the server is spoken to")
        (task,) = (await caller.ask("ListTasks", {"status": "TASK_STATE_WORKING"}))["tasks"]
        await caller.ask("CancelTask", {"id": task["id"]})
        state, received = await running
        assert (state, received["mcp_error"]["data"]["executed"]) == ("CANCELED", "no")


async def test_only_its_caller_sees_a_server_that_it_named(tmp_path: Path) -> None:
    async with Scripted() as server:
        server.tools = [tool("hidden_tool")]
        async with (
            serving(tmp_path, hub={"public_url": "https://hub.example"}, **allowing(origin(server))) as hub,
            Caller(hub, KEYS["planner"]) as caller,
            Raw(hub.url, key=GUEST) as guest,
        ):
            assert (await caller.call_target(origin(server), "tools/call", {"name": "hidden_tool"}))[0] == "COMPLETED"
            name = next(word for line in hub.said for word in line.split() if "127.0.0.1" in word and "#" in word)
            pages = ["/v1/tools", "/v1/servers", "/.well-known/agent-card.json", "/.well-known/ai-catalog.json"]
            for key in (KEYS["planner"], GUEST):
                for page in pages:
                    shown = await guest.http.get(
                        f"http://127.0.0.1:{hub.port}{page}", headers={"authorization": f"Bearer {key}"}
                    )
                    assert shown.status_code == 200, page
                    assert "hidden_tool" not in shown.text, page
                    assert origin(server).removeprefix("http://") not in shown.text, page
            assert "hidden_tool" not in json.dumps(await guest.ask("tools/list"))
            assert name


def reloads(hub: HubProcess) -> int:
    """How often the file was read; of a cluster, a line counts when the last node has said it."""
    return sum("configuration reloaded" in line for line in hub.said)


async def test_targets_can_be_allowed_and_taken_back_while_the_hub_runs(tmp_path: Path) -> None:
    async with Scripted() as server, serving(tmp_path, **allowing()) as hub, Caller(hub, KEYS["planner"]) as caller:
        await caller.refused(origin(server))
        write_config(tmp_path, {}, **allowing(origin(server)))
        await eventually(lambda: caller.may(origin(server)), "the address may be named")
        await eventually(lambda: reloads(hub) == 1, "every node has read the file")
        write_config(tmp_path, {}, **allowing())
        await eventually(lambda: any(request.verb == "DELETE" for request in server.heard), "the server is let go")
        await eventually(lambda: reloads(hub) == 2, "every node has read the file again")
        await caller.refused(origin(server))
