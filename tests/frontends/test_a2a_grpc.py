"""The agent of a running hub over gRPC: found by its card, behind the same keys, and drained with the rest."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from google.protobuf import json_format

from isthmus.wire.a2a.protobuf import CLASSES, METHODS, SERVICE, STREAMS
from tests.faults.progress_server import ProgressServer
from tests.fork_server import quick_isthmus
from tests.frontends.test_a2a import SAID, SECONDS, Agent, run
from tests.frontends.test_keys import is_in, is_out, token
from tests.frontends.wire import until
from tests.hubs import PATIENT, HubProcess, environment, serving, write_config

KEY = "9f8a7b6c5d4e3f2a1b0c"
CALLERS = {"me": {"key": KEY, "allow": ["*"]}}
GUARDED = {**PATIENT, "wrong_keys_per_minute": 1}
GRPC = {"grpc_port": 0}


async def address(hub: HubProcess) -> str:
    """Where the card says that gRPC is spoken."""
    async with httpx2.AsyncClient() as http:
        card = (await http.get(f"http://127.0.0.1:{hub.port}/.well-known/agent-card.json")).json()
    (found,) = (each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
    return str(found)


def call(channel: Any, method: str, params: Any, key: str = KEY) -> Any:
    """A call under way."""
    given, got = (CLASSES[name] for name in METHODS[method])
    kind = channel.unary_stream if method in STREAMS else channel.unary_unary
    made = kind(f"/{SERVICE}/{method}", lambda sent: sent.SerializeToString(), got.FromString)
    metadata = (("authorization", f"Bearer {key}"), ("a2a-version", "1.0"))
    return made(json_format.ParseDict(params, given()), metadata=metadata, timeout=SECONDS)


async def test_a_caller_with_a_key_runs_a_tool_and_waits_for_it(tmp_path: Path) -> None:
    async with (
        ProgressServer() as server,
        serving(tmp_path, {"s": server.entry}, limits=GUARDED, callers=CALLERS, a2a=GRPC) as hub,
        grpc.aio.insecure_channel(await address(hub)) as channel,
        asyncio.timeout(SECONDS),
    ):
        for code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(channel, "ListTasks", {}, "9f8a7b6c5d4e3f2a1b0d")
            assert refused.value.code() is code
        stream = call(channel, "SendStreamingMessage", run("s.t"))
        assert (await stream.read()).WhichOneof("payload") == "task"
        server.may_work.set()
        assert (await stream.read()).WhichOneof("payload") == "status_update"
        hub.terminate()
        server.may_end.set()
        items = [item async for item in rest_of(stream)]
        assert [item.WhichOneof("payload") for item in items][-2:] == ["artifact_update", "status_update"]
        assert items[-1].status_update.status.state == 3


async def test_a_caller_that_is_bound_to_a_set_has_nothing_else(tmp_path: Path) -> None:
    said = {"builtin.echo": {"name": "say", "fixed": {"text": "always this"}}}
    sets = {"small": {"tools": ["builtin.echo"], "tool": said}}
    callers = {"me": {"key": KEY, "allow": ["*"], "set": "small"}}
    async with (
        serving(tmp_path, callers=callers, sets=sets, a2a=GRPC) as hub,
        grpc.aio.insecure_channel(await address(hub)) as channel,
        asyncio.timeout(SECONDS),
    ):
        card = await call(channel, "GetExtendedAgentCard", {})
        assert "say" in [skill.id for skill in card.skills]
        assert "builtin.timestamp" not in [skill.id for skill in card.skills]
        for tool, arguments, state in (("say", {}, 3), ("say", {"text": "x"}, 4), ("builtin.echo", {"text": "x"}, 4)):
            parts = [{"data": {"tool": tool, "arguments": arguments}}]
            done = await call(
                channel, "SendMessage", {"message": {**SAID, "messageId": f"{tool}{len(arguments)}", "parts": parts}}
            )
            assert done.task.status.state == state


async def test_a_hub_that_shuts_down_does_not_wait_for_followers_of_a_waiting_task(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, a2a=GRPC) as hub,
        Agent(hub) as agent,
        grpc.aio.insecure_channel(await address(hub)) as channel,
        asyncio.timeout(SECONDS),
    ):
        task = (await agent.ask("SendMessage", {"message": {**SAID, "parts": [{"text": "hello"}]}}))["task"]["id"]
        stream = call(channel, "SubscribeToTask", {"id": task})
        await stream.read()
        async with agent.following("SubscribeToTask", {"id": task}) as events:
            await anext(events)
            hub.terminate()
            assert [event async for event in events] == []
        assert await stream.read() is grpc.aio.EOF
        # Those that run would be waited for twice as long.
        await asyncio.wait_for(hub.process.wait(), 15.0)


async def test_a_subscription_ends_with_its_key(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, a2a=GRPC, callers=CALLERS) as hub,
        grpc.aio.insecure_channel(await address(hub)) as channel,
        asyncio.timeout(SECONDS),
    ):
        made = token(tmp_path, "create", "guest", "--allow", "*", "--json")["key"]
        await until(lambda: is_in(hub, made))
        task = (await call(channel, "SendMessage", {"message": {**SAID, "parts": [{"text": "hello"}]}}, made)).task.id
        stream = call(channel, "SubscribeToTask", {"id": task}, made)
        await stream.read()
        token(tmp_path, "revoke", "guest")
        with pytest.raises(grpc.aio.AioRpcError, match="identity or permissions have changed"):
            await stream.read()
        await until(lambda: is_out(hub, made))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(channel, "GetTask", {"id": task}, made)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def rest_of(stream: Any) -> Any:
    while (item := await stream.read()) is not grpc.aio.EOF:
        yield item


async def test_a_port_that_is_taken_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with serving(tmp_path / "one", a2a=GRPC) as hub:
        port = int((await address(hub)).rpartition(":")[2])
        config = write_config(tmp_path / "two", {}, a2a={"grpc_port": port})
        process = await asyncio.create_subprocess_exec(
            *quick_isthmus("serve", "--config", str(config), "--port", "0"),
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        _, said = await asyncio.wait_for(process.communicate(), SECONDS)
        assert process.returncode != 0
        assert f":{port}".encode() in said
        assert b"grpc_port" in said
        assert b"Traceback" not in said
