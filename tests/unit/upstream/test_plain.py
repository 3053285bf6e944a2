"""Plain JSON-RPC at addresses that callers named: what is said there, and what is made of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.credentials.memory import StaticCredentials
from isthmus.model.faults import BadReply, ServerError
from isthmus.model.outcomes import Result
from isthmus.transport.egress import Egress
from isthmus.upstream.link import OWN_IDS
from isthmus.upstream.plain import PlainLink
from isthmus.upstream.settings import RpcSettings
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import SERVER, Listener, Stage, call, ready
from tests.unit.transport.doubles import Server


class Scene:
    """A server whose connections the test holds, and a hub whose only server it is."""

    def __init__(self, server: Server, background: BackgroundTasks) -> None:
        self.server = server
        self.link = PlainLink(
            SERVER,
            Implementation("test", "1"),
            Limits(reply_bytes=4096, connect_seconds=5.0),
            reach=RpcSettings(f"{server.origin}/messages/"),
            credentials=StaticCredentials({SERVER: {"x-token": "secret"}}),
            egress=Egress(),
            background=background,
            max_calls=4,
        )
        self.link.belong_to_one_caller()
        self.stage = Stage.of(ready(is_unlisted=True))
        self.stage.server_queue.attach(self.link)

    async def answer(self, **members: Any) -> tuple[bytes, Any]:
        """Answer the next request; its head, and what it said."""
        peer = await self.server.accept()
        head, _, body = (await peer.request()).partition(b"\r\n\r\n")
        told = json.loads(body)
        status, body = members.pop("status", 200), members.pop("body", None)
        reply = json.dumps({"jsonrpc": "2.0", "id": told["id"], **members}).encode() if body is None else body
        line = b"HTTP/1.1 %d Said\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(reply))
        await peer.say(line + reply)
        return head, told


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    background = BackgroundTasks("test")
    async with Server() as server:
        made = Scene(server, background)
        yield made
        await made.link.aclose()
    await background.aclose()


@pytest.mark.parametrize("members", [{"result": {"tools": []}}, {"error": {"code": -32601, "message": "no"}}])
async def test_whoever_answers_in_json_rpc_speaks_it(scene: Scene, members: dict[str, Any]) -> None:
    greeting = asyncio.ensure_future(scene.link.greet("auto"))
    _, told = await scene.answer(**members)
    assert told["method"] == "tools/list"
    await greeting
    listing = await scene.link.list_features()
    assert (listing.tools, listing.is_unlisted) == ((), True)


async def test_who_answers_otherwise_does_not(scene: Scene) -> None:
    greeting = asyncio.ensure_future(scene.link.greet("auto"))
    await scene.answer(body=b"<h1>Hello</h1>")
    with pytest.raises(BadReply):
        await greeting


async def test_an_http_status_alone_is_no_json_rpc_where_no_operator_says_so(scene: Scene) -> None:
    greeting = asyncio.ensure_future(scene.link.greet("auto"))
    await scene.answer(status=404, body=b"")
    with pytest.raises(BadReply):
        await greeting


async def test_the_next_place_is_tried_where_json_rpc_is_not_spoken(scene: Scene) -> None:
    scene.link.places = [f"{scene.server.origin}/"]
    greeting = asyncio.ensure_future(scene.link.greet("auto"))
    elsewhere, _ = await scene.answer(status=404, body=b"Not Found")
    head, _ = await scene.answer(error={"code": -32601, "message": "no"})
    await greeting
    assert (elsewhere.split(b" ")[1], head.split(b" ")[1]) == (b"/messages/", b"/")
    _, listener = scene.stage.start(call("files.pay", {}))
    head, _ = await scene.answer(result=1)
    await ended(listener)
    assert head.split(b" ")[1] == b"/"


@pytest.mark.parametrize("id", ['"order-7"', "7", "-1", '"é\\n"', '""'])
async def test_a_caller_s_own_id_is_the_one_on_the_wire(scene: Scene, id: str) -> None:
    _, listener = scene.stage.start(msgspec.structs.replace(call("files.pay", {}), request_id=msgspec.Raw(id.encode())))
    _, told = await scene.answer(result=1)
    assert told["id"] == json.loads(id)
    assert isinstance(await ended(listener), Result)


@pytest.mark.parametrize("id", ["1.5", "1000000007", "9007199254740993", json.dumps("x" * 300)])
async def test_an_id_that_may_not_come_back_is_replaced(scene: Scene, id: str) -> None:
    _, listener = scene.stage.start(msgspec.structs.replace(call("files.pay", {}), request_id=msgspec.Raw(id.encode())))
    _, told = await scene.answer(result=1)
    assert told["id"] != json.loads(id)
    assert told["id"] > OWN_IDS
    assert isinstance(await ended(listener), Result)


async def test_of_two_requests_at_once_with_one_id_the_second_gets_another(scene: Scene) -> None:
    asked = msgspec.structs.replace(call("files.pay", {}), request_id=msgspec.Raw(b'"same"'))
    _, first = scene.stage.start(asked)
    _, second = scene.stage.start(asked)
    ids = sorted([str((await scene.answer(result=number))[1]["id"]) for number in (1, 2)])
    assert ids[1] == "same"
    assert int(ids[0]) > OWN_IDS
    assert {type(await ended(listener)) for listener in (first, second)} == {Result}
    _, third = scene.stage.start(asked)
    assert (await scene.answer(result=3))[1]["id"] == "same"
    await ended(third)


@pytest.mark.parametrize(
    ("value", "is_error"),
    [({"tools": [1.5]}, False), ("text", False), (None, False), ({"isError": True, "content": []}, True)],
)
async def test_a_method_goes_out_as_its_caller_named_it_and_comes_back_as_it_is(
    scene: Scene, value: Any, *, is_error: bool
) -> None:
    _, listener = scene.stage.start(call("files.tools/jump", {"b": 1, "a": 2}))
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
    _, listener = scene.stage.start(call("files.pay", {}))
    _, told = await scene.answer(error={"code": -32050, "message": "closed"})
    assert told["params"] == {}
    outcome = await ended(listener)
    assert isinstance(outcome, ServerError)
    assert outcome.code == -32050
