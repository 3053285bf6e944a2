"""Plain JSON-RPC at addresses that callers named: what is said there, and what is made of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from isthmus.core.crew import Crew
from isthmus.core.ports.targets import REQUEST
from isthmus.core.settings import Limits
from isthmus.credentials.memory import StaticCredentials
from isthmus.model.faults import BadReply, ServerError
from isthmus.model.outcomes import Result
from isthmus.transport.egress import Egress
from isthmus.upstream.plain import PlainLink
from isthmus.upstream.settings import RpcSettings
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import SERVER, Listener, Stage, call, tool
from tests.unit.transport.doubles import Server


class Scene:
    """A server whose connections the test holds, and a hub whose only server it is."""

    def __init__(self, server: Server, crew: Crew) -> None:
        self.server = server
        self.link = PlainLink(
            SERVER,
            Implementation("test", "1"),
            Limits(reply_bytes=4096, connect_seconds=5.0),
            reach=RpcSettings(f"{server.origin}/messages/"),
            credentials=StaticCredentials({SERVER: {"x-token": "secret"}}),
            egress=Egress(),
            crew=crew,
            max_calls=4,
        )
        self.stage = Stage(tool(REQUEST))
        self.stage.lane.attach(self.link)

    async def answer(self, **members: Any) -> tuple[bytes, Any]:
        """Answer the next request; its head, and what it said."""
        peer = await self.server.accept()
        head, _, body = (await peer.request()).partition(b"\r\n\r\n")
        told = json.loads(body)
        reply = members.pop("body", None) or json.dumps({"jsonrpc": "2.0", "id": told["id"], **members}).encode()
        await peer.say(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(reply), reply))
        return head, told


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    crew = Crew("test")
    async with Server() as server:
        made = Scene(server, crew)
        yield made
        await made.link.aclose()
    await crew.aclose()


@pytest.mark.parametrize("members", [{"result": {"tools": []}}, {"error": {"code": -32601, "message": "no"}}])
async def test_whoever_answers_in_json_rpc_speaks_it(scene: Scene, members: dict[str, Any]) -> None:
    greeting = asyncio.ensure_future(scene.link.greet("auto"))
    _, told = await scene.answer(**members)
    assert told["method"] == "tools/list"
    await greeting
    assert [tool.name for tool in (await scene.link.list_features()).tools] == [REQUEST]


async def test_who_answers_otherwise_does_not(scene: Scene) -> None:
    greeting = asyncio.ensure_future(scene.link.greet("auto"))
    await scene.answer(body=b"<h1>Hello</h1>")
    with pytest.raises(BadReply):
        await greeting


@pytest.mark.parametrize(
    ("value", "is_error"),
    [({"tools": [1.5]}, False), ("text", False), (None, False), ({"isError": True, "content": []}, True)],
)
async def test_a_method_goes_out_as_its_caller_named_it_and_comes_back_as_it_is(
    scene: Scene, value: Any, *, is_error: bool
) -> None:
    _, listener = scene.stage.start(call(f"files.{REQUEST}", {"method": "tools/jump", "params": {"b": 1, "a": 2}}))
    head, told = await scene.answer(result=value)
    assert (told["method"], list(told["params"].items())) == ("tools/jump", [("b", 1), ("a", 2)])
    assert b"x-token: secret" in head.lower()
    outcome = await ended(listener)
    assert isinstance(outcome, Result)
    assert (json.loads(bytes(outcome.payload)), outcome.is_error) == (value, is_error)


async def ended(listener: Listener) -> object:
    async with asyncio.timeout(10):
        await listener.ended.wait()
    return listener.ends[0]


async def test_its_error_is_the_caller_s(scene: Scene) -> None:
    _, listener = scene.stage.start(call(f"files.{REQUEST}", {"method": "pay"}))
    _, told = await scene.answer(error={"code": -32050, "message": "closed"})
    assert told["params"] == {}
    outcome = await ended(listener)
    assert isinstance(outcome, ServerError)
    assert outcome.code == -32050
