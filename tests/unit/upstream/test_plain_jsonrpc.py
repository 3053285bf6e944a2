"""Plain JSON-RPC servers, over real sockets: the requests, and the outcome of each answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.settings import Limits
from isthmus.credentials.server_logins import StaticCredentials
from isthmus.model.calls import Call, Result
from isthmus.model.fault_table import BadArguments, BadReply, Cancelled, Lost, NotConnected, ServerError
from isthmus.transport.egress import Egress
from isthmus.upstream.http_shared import CallerHeaders
from isthmus.upstream.listing import Listing
from isthmus.upstream.plain_jsonrpc import CallerNamedRpcLink, RpcLink
from isthmus.upstream.response_waiters import OWN_IDS
from isthmus.upstream.server_settings import DeclaredTool, JsonRpcSettings
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import SERVER, Listener, Stage, call, ready, tool
from tests.unit.transport.doubles import Peer, Server

ADD = DeclaredTool("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})


class Scene:
    """A server whose connections the test holds, and a hub whose only server it is."""

    def __init__(self, server: Server, background: BackgroundTasks) -> None:
        self.server = server
        self._background = background
        self.link = self.dial(ADD)
        self.doubts = 0
        self.link.on_doubt = self._doubt
        self._stage = Stage(tool("add"), tool("send_it"))
        self._stage.server_queue.attach(self.link)

    def dial(self, *tools: DeclaredTool) -> RpcLink:
        reach = JsonRpcSettings(f"{self.server.origin}/rpc?v=1", {"X-Key": "secret"}, tools)
        limits = Limits(reply_bytes=4096, connect_seconds=5.0)
        return RpcLink(
            SERVER,
            Implementation("test", "1"),
            limits,
            reach=reach,
            credentials=StaticCredentials({SERVER: reach.headers}),
            egress=Egress(),
            background=self._background,
            max_calls=4,
        )

    def _doubt(self) -> None:
        self.doubts += 1

    def start(self, name: str = "files.add", arguments: dict[str, Any] | None = None) -> tuple[InFlight, Listener]:
        return self.put(call(name, arguments or {}))

    def put(self, asked: Call) -> tuple[InFlight, Listener]:
        return self._stage.start(asked)

    async def answered(self, status: str, body: bytes) -> Listener:
        """A call that was answered like this."""
        _, listener = self.start()
        peer = await self.server.accept()
        await peer.request()
        await peer.say(reply(body, status))
        await over(listener)
        return listener


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    background = BackgroundTasks("test")
    async with Server() as server:
        scene = Scene(server, background)
        yield scene
        await scene.link.aclose()
    await background.aclose()


def reply(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


def answer(id: int | None = 1, **members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, **members}).encode()


async def over(listener: Listener) -> None:
    async with asyncio.timeout(10):
        await listener.ended.wait()


def result_of(listener: Listener) -> Result:
    (outcome,) = listener.ends
    assert isinstance(outcome, Result), outcome
    return outcome


async def asked(peer: Peer) -> Any:
    return json.loads((await peer.request()).partition(b"\r\n\r\n")[2])


# -- calls -----------------------------------------------------------------------------------------------------------


async def test_a_call_is_a_post_whose_method_is_the_tool(scene: Scene) -> None:
    scene.start("files.send_it", {"to": "ann", "amount": 1.50})
    request = await (await scene.server.accept()).request()
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /rpc?v=1 http/1.1"
    assert {b"x-key: secret", b"content-type: application/json", b"accept: application/json"} <= set(lines)
    assert body == b'{"jsonrpc":"2.0","id":1,"method":"send_it","params":{"to": "ann", "amount": 1.5}}'


async def test_a_users_header_goes_with_the_call_if_the_server_receives_it(scene: Scene) -> None:
    scene.link.caller_headers = CallerHeaders(["X-User-Id"])
    scene.put(msgspec.structs.replace(call("files.add", {}), headers={"x-user-id": "ann", "X-Key": "forged"}))
    head = await (await scene.server.accept()).request()
    assert b"\r\nX-User-Id: ann\r\n" in head
    assert b"forged" not in head


async def test_a_users_header_that_cannot_be_written_ends_the_call_unsent(scene: Scene) -> None:
    scene.link.caller_headers = CallerHeaders(["X-User-Id"])
    _, listener = scene.put(msgspec.structs.replace(call("files.add", {}), headers={"X-User-Id": "a\nb"}))
    (fault,) = listener.ends
    assert isinstance(fault, BadArguments)


@pytest.mark.parametrize("value", [7, 'a "word"\n', None, [1, "é"], {"sum": 3}, {"content": "none"}])
async def test_a_value_comes_back_as_it_is(scene: Scene, value: Any) -> None:
    result = result_of(await scene.answered("200 OK", answer(result=value)))
    assert bytes(result.payload) == json.dumps(value).encode()
    assert (result.is_bare, result.is_error) == (True, False)


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_result_in_the_words_of_mcp_is_passed_on_as_it_is(scene: Scene, is_error: bool) -> None:  # noqa: FBT001
    value = {"content": [{"type": "text", "text": "x"}], "isError": is_error, "more": 1.0}
    result = result_of(await scene.answered("200 OK", answer(result=value)))
    assert bytes(result.payload) == json.dumps(value).encode()
    assert result.is_error is is_error


@pytest.mark.parametrize("is_error", [False, True])
async def test_content_that_mcp_does_not_have_comes_back_as_it_is(scene: Scene, is_error: bool) -> None:  # noqa: FBT001
    value = {"content": [{"type": "code_output", "stdout": "1"}], "isError": is_error}
    result = result_of(await scene.answered("200 OK", answer(result=value)))
    assert bytes(result.payload) == json.dumps(value).encode()
    assert (result.is_bare, result.is_error) == (True, is_error)


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found", "500 Oops"])
@pytest.mark.parametrize("id", [1, None])
async def test_an_error_is_the_servers_own(scene: Scene, status: str, id: Any) -> None:
    error = {"code": -32050, "message": "closed", "data": {"opens": "tomorrow"}}
    fault = (await scene.answered(status, answer(id, error=error))).fault
    assert isinstance(fault, ServerError)
    assert (fault.code, fault.message, fault.executed) == (-32050, "closed", "yes")
    assert json.loads(bytes(fault.data or b"")) == {"opens": "tomorrow"}


async def test_a_member_that_is_null_beside_the_other_is_no_member(scene: Scene) -> None:
    result = result_of(await scene.answered("200 OK", answer(result=7, error=None)))
    assert bytes(result.payload) == b"7"


async def test_a_null_result_beside_an_error_is_an_error(scene: Scene) -> None:
    fault = (await scene.answered("200 OK", answer(result=None, error={"code": 5, "message": "no"}))).fault
    assert isinstance(fault, ServerError)
    assert fault.code == 5


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("200 OK", b""),
        ("200 OK", b"hm"),
        ("200 OK", b"\xff"),
        ("200 OK", b"[%b]" % answer(result=1)),
        ("200 OK", b'{"result":1}'),
        ("200 OK", b'{"jsonrpc":"2.0","id":1,"result":1,"result":2}'),
        ("200 OK", answer(result=1, error={"code": 1, "message": ""})),
        ("200 OK", answer(2, result=1)),
        ("200 OK", answer(2, error={"code": 1, "message": ""})),
        ("200 OK", answer(result=json.loads("[" * 70 + "]" * 70))),
        ("200 OK", answer(result="x" * 5000)),
        ("500 Oops", b"<h1>Sorry</h1>"),
        ("422 No", b'{"detail":[]}'),
        ("500 Oops", answer(result=1)),
    ],
)
async def test_an_invalid_answer_leaves_executed_unknown(scene: Scene, status: str, body: bytes) -> None:
    fault = (await scene.answered(status, body)).fault
    assert isinstance(fault, BadReply)
    assert fault.executed == "unknown"


@pytest.mark.parametrize("status", [307, 308, 401, 403, 405, 406, 415])
async def test_a_server_that_turns_a_call_away_did_not_run_it(scene: Scene, status: int) -> None:
    fault = (await scene.answered(f"{status} No", answer(error={"code": 1, "message": "not you"}))).fault
    assert isinstance(fault, NotConnected)
    assert (fault.executed, fault.status) == ("no", status)
    assert "not you" in fault.message
    assert "secret" not in fault.message


async def test_a_connection_that_breaks_casts_doubt_on_the_server(scene: Scene) -> None:
    _, listener = scene.start()
    peer = await scene.server.accept()
    await peer.request()
    peer.close()
    await over(listener)
    assert isinstance(listener.fault, Lost)
    assert (listener.fault.executed, scene.doubts) == ("unknown", 1)


async def test_two_calls_share_one_connection_one_after_the_other(scene: Scene) -> None:
    _, first = scene.start()
    peer = await scene.server.accept()
    await peer.request()
    await peer.say(reply(answer(result=1)))
    await over(first)
    _, second = scene.start()
    assert (await asked(peer))["id"] == 2
    await peer.say(reply(answer(2, result=2)))
    await over(second)
    assert scene.server.accepted == 1


# -- giving up -------------------------------------------------------------------------------------------------------


async def test_a_call_given_up_before_it_left_did_not_run(scene: Scene) -> None:
    inflight, listener = scene.start()
    inflight.cancel("changed my mind")
    assert isinstance(listener.fault, Cancelled)
    assert listener.fault.executed == "no"
    _, later = scene.start()
    peer = await scene.server.accept()
    assert (await asked(peer))["id"] == 2
    await peer.say(reply(answer(2, result=1)))
    await over(later)


async def test_a_call_given_up_on_its_way_closes_its_connection(scene: Scene) -> None:
    inflight, listener = scene.start()
    peer = await scene.server.accept()
    await peer.request()
    inflight.cancel("changed my mind")
    assert listener.fault.executed == "unknown"
    assert await peer.rest() == b""


async def test_closing_the_link_ends_its_calls(scene: Scene) -> None:
    _, listener = scene.start()
    peer = await scene.server.accept()
    await peer.request()
    await scene.link.aclose()
    assert isinstance(listener.fault, Lost)
    assert scene.link.lost.result() == "closed by the hub"


# -- greeting and listing --------------------------------------------------------------------------------------------


async def test_declared_tools_cost_the_server_a_connection_and_no_request(scene: Scene) -> None:
    await scene.link.handshake("legacy")
    assert await (await scene.server.accept()).rest() == b""
    listing = await scene.link.list_features()
    assert [bytes(one.definition["inputSchema"]) for one in listing.tools] == [
        b'{"type":"object","properties":{"a":{"type":"integer"}}}'
    ]
    assert scene.link.abilities() == {"tools"}
    assert scene.server.accepted == 1


async def test_a_server_that_is_not_there_is_found_out_when_greeted(scene: Scene) -> None:
    await scene.server.__aexit__(None, None, None)
    with pytest.raises(NotConnected):
        await scene.link.handshake("legacy")
    with pytest.raises(NotConnected):
        await scene.link.ping(5)


async def listed(
    scene: Scene, link: RpcLink, body: bytes, status: str = "200 OK", known: Listing | None = None
) -> Listing:
    """What becomes of a listing that is answered like this."""
    async with asyncio.timeout(10):
        listing = asyncio.ensure_future(link.list_features(known=known))
        peer = await scene.server.accept()
        request = await asked(peer)
        assert request == {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        await peer.say(reply(body, status))
        return await listing


@pytest.mark.parametrize(
    "result",
    [
        {"tools": [{"name": "add", "description": "Add."}, {"name": "text"}]},
        {"tools": {"add": {"description": "Add."}, "text": None}},
        {"tools": {"add": "Add.", "text": {}}},
        {"tools": [{"name": "add", "description": "Add."}, "text"]},
        [{"name": "add", "description": "Add."}, "text"],
    ],
)
async def test_tools_are_read_in_any_shape_that_servers_use(scene: Scene, result: Any) -> None:
    link = scene.dial()
    await link.handshake("legacy")
    tools = (await listed(scene, link, answer(result=result))).tools
    assert [(one.name, bytes(one.definition.get("description", b"null"))) for one in tools] == [
        ("add", b'"Add."'),
        ("text", b"null"),
    ]
    known = Listing(tools)
    assert await link.list_features(frozenset(("prompts",)), known) is known
    await link.aclose()


NO_METHOD = answer(error={"code": -32601, "message": "Method not found: tools/list"})


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        ("200 OK", NO_METHOD, "Method not found: tools/list"),
        ("404 Not Found", NO_METHOD, "Method not found: tools/list"),
        ("405 No", NO_METHOD, "it answered HTTP 405"),
        ("500 Oops", answer(error={"code": -32603, "message": "KeyError"}), "KeyError"),
        ("200 OK", answer(None, error={"code": -32000, "message": "unknown"}), "unknown"),
        ("200 OK", answer(result={"isError": True, "content": []}), "it answered with a tool's error"),
        ("404 Not Found", b"", "it answered HTTP 404"),
        ("405 No", b"", "it answered HTTP 405"),
        ("501 No", b"", "it answered HTTP 501"),
        ("422 No", b'{"detail":[]}', "it answered HTTP 422"),
    ],
)
async def test_a_server_that_has_no_list_is_there_and_unlisted(
    scene: Scene, status: str, body: bytes, why: str
) -> None:
    link = scene.dial()
    listing = await listed(scene, link, body, status)
    assert (listing.tools, listing.is_unlisted) == ((), True)
    assert listing.notes["tools"][0].startswith(f"it has no tools/list ({why}): nothing is listed")
    await link.aclose()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("404 Not Found", b"<h1>Not Found</h1>"),
        ("404 Not Found", b'{"detail":"Not Found"}'),
        ("405 No", b'{"detail":"Method Not Allowed"}'),
        ("401 No", b""),
        ("401 No", NO_METHOD),
        ("500 Oops", b"Internal Server Error"),
        ("503 Busy", b""),
        ("200 OK", b"hm"),
    ],
)
async def test_a_server_that_is_elsewhere_or_down_is_not_taken_for_unlisted(
    scene: Scene, status: str, body: bytes
) -> None:
    link = scene.dial()
    with pytest.raises((BadReply, NotConnected)):
        await listed(scene, link, body, status)
    await link.aclose()


async def test_a_server_that_has_listed_before_and_refuses_now_keeps_its_list(scene: Scene) -> None:
    link = scene.dial()
    with pytest.raises(ServerError, match="busy"):
        await listed(scene, link, answer(error={"code": -32000, "message": "busy"}), known=Listing((tool("add"),)))
    await link.aclose()


@pytest.mark.parametrize("result", [7, {}, {"tools": 7}, {"result": "ok"}, "add"])
async def test_an_invalid_list_is_refused(scene: Scene, result: Any) -> None:
    link = scene.dial()
    with pytest.raises(BadReply, match=r"tools/list returned an invalid result"):
        await listed(scene, link, answer(result=result))
    await link.aclose()


async def test_a_server_that_lists_is_pinged_by_its_list_and_an_error_is_an_answer(scene: Scene) -> None:
    link = scene.dial()
    pinging = asyncio.ensure_future(link.ping(10))
    peer = await scene.server.accept()
    assert (await asked(peer))["method"] == "tools/list"
    await peer.say(reply(answer(error={"code": -32601, "message": "no"})))
    await pinging
    await link.aclose()


async def test_a_server_whose_tools_are_declared_is_pinged_without_a_request(scene: Scene) -> None:
    await scene.link.ping(10)
    assert await (await scene.server.accept()).rest() == b""


class PlainScene:
    """A server whose connections the test holds, and a hub whose only server it is."""

    def __init__(self, server: Server, background: BackgroundTasks) -> None:
        self.server = server
        self.link = CallerNamedRpcLink(
            SERVER,
            Implementation("test", "1"),
            Limits(reply_bytes=4096, connect_seconds=5.0),
            reach=JsonRpcSettings(f"{server.origin}/messages/"),
            credentials=StaticCredentials({SERVER: {"x-token": "secret"}}),
            egress=Egress(),
            background=background,
            max_calls=4,
        )
        self.link.requests.dedicate_to_caller()
        self.stage = Stage.of(ready(is_unlisted=True))
        self.stage.server_queue.attach(self.link)

    async def answer(self, **members: Any) -> tuple[bytes, Any]:
        """Answer the next request; its head, and what it said."""
        peer = await self.server.accept()
        head, _, body = (await peer.request()).partition(b"\r\n\r\n")
        response = json.loads(body)
        status, body = members.pop("status", 200), members.pop("body", None)
        reply = json.dumps({"jsonrpc": "2.0", "id": response["id"], **members}).encode() if body is None else body
        line = b"HTTP/1.1 %d Said\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(reply))
        await peer.say(line + reply)
        return head, response


@pytest_asyncio.fixture
async def plain_scene() -> AsyncIterator[PlainScene]:
    background = BackgroundTasks("test")
    async with Server() as server:
        made = PlainScene(server, background)
        yield made
        await made.link.aclose()
    await background.aclose()


@pytest.mark.parametrize("members", [{"result": {"tools": []}}, {"error": {"code": -32601, "message": "no"}}])
async def test_any_server_that_answers_in_json_rpc_speaks_it(plain_scene: PlainScene, members: dict[str, Any]) -> None:
    greeting = asyncio.ensure_future(plain_scene.link.handshake("auto"))
    _, received = await plain_scene.answer(**members)
    assert received["method"] == "tools/list"
    await greeting
    listing = await plain_scene.link.list_features()
    assert (listing.tools, listing.is_unlisted) == ((), True)


async def test_a_server_that_answers_otherwise_does_not(plain_scene: PlainScene) -> None:
    greeting = asyncio.ensure_future(plain_scene.link.handshake("auto"))
    await plain_scene.answer(body=b"<h1>Hello</h1>")
    with pytest.raises(BadReply):
        await greeting


async def test_an_http_status_alone_is_no_json_rpc_where_no_operator_says_so(plain_scene: PlainScene) -> None:
    greeting = asyncio.ensure_future(plain_scene.link.handshake("auto"))
    await plain_scene.answer(status=404, body=b"")
    with pytest.raises(BadReply):
        await greeting


async def test_the_next_place_is_tried_where_json_rpc_is_not_spoken(plain_scene: PlainScene) -> None:
    plain_scene.link.places = [f"{plain_scene.server.origin}/"]
    greeting = asyncio.ensure_future(plain_scene.link.handshake("auto"))
    elsewhere, _ = await plain_scene.answer(status=404, body=b"Not Found")
    head, _ = await plain_scene.answer(error={"code": -32601, "message": "no"})
    await greeting
    assert (elsewhere.split(b" ")[1], head.split(b" ")[1]) == (b"/messages/", b"/")
    _, listener = plain_scene.stage.start(call("files.pay", {}))
    head, _ = await plain_scene.answer(result=1)
    await ended(listener)
    assert head.split(b" ")[1] == b"/"


@pytest.mark.parametrize("id", ['"order-7"', "7", "-1", '"é\\n"', '""'])
async def test_a_caller_s_own_id_is_the_one_on_the_wire(plain_scene: PlainScene, id: str) -> None:
    _, listener = plain_scene.stage.start(
        msgspec.structs.replace(call("files.pay", {}), request_id=msgspec.Raw(id.encode()))
    )
    _, received = await plain_scene.answer(result=1)
    assert received["id"] == json.loads(id)
    assert isinstance(await ended(listener), Result)


@pytest.mark.parametrize("id", ["1.5", "1000000007", "9007199254740993", json.dumps("x" * 300)])
async def test_an_id_that_may_not_come_back_is_replaced(plain_scene: PlainScene, id: str) -> None:
    _, listener = plain_scene.stage.start(
        msgspec.structs.replace(call("files.pay", {}), request_id=msgspec.Raw(id.encode()))
    )
    _, received = await plain_scene.answer(result=1)
    assert received["id"] != json.loads(id)
    assert received["id"] > OWN_IDS
    assert isinstance(await ended(listener), Result)


async def test_of_two_requests_at_once_with_one_id_the_second_gets_another(plain_scene: PlainScene) -> None:
    asked = msgspec.structs.replace(call("files.pay", {}), request_id=msgspec.Raw(b'"same"'))
    _, first = plain_scene.stage.start(asked)
    _, second = plain_scene.stage.start(asked)
    ids = sorted([str((await plain_scene.answer(result=number))[1]["id"]) for number in (1, 2)])
    assert ids[1] == "same"
    assert int(ids[0]) > OWN_IDS
    assert {type(await ended(listener)) for listener in (first, second)} == {Result}
    _, third = plain_scene.stage.start(asked)
    assert (await plain_scene.answer(result=3))[1]["id"] == "same"
    await ended(third)


@pytest.mark.parametrize(
    ("value", "is_error"),
    [({"tools": [1.5]}, False), ("text", False), (None, False), ({"isError": True, "content": []}, True)],
)
async def test_a_method_goes_out_as_its_caller_named_it_and_comes_back_as_it_is(
    plain_scene: PlainScene, value: Any, *, is_error: bool
) -> None:
    _, listener = plain_scene.stage.start(call("files.tools/jump", {"b": 1, "a": 2}))
    head, received = await plain_scene.answer(result=value)
    assert (received["method"], list(received["params"].items())) == ("tools/jump", [("b", 1), ("a", 2)])
    assert b"x-token: secret" in head.lower()
    outcome = await ended(listener)
    assert isinstance(outcome, Result)
    assert (json.loads(bytes(outcome.payload)), outcome.is_error) == (value, is_error)


async def ended(listener: Listener) -> object:
    async with asyncio.timeout(10):
        await listener.ended.wait()
    return listener.ends[0]


async def test_its_error_is_the_caller_s(plain_scene: PlainScene) -> None:
    _, listener = plain_scene.stage.start(call("files.pay", {}))
    _, received = await plain_scene.answer(error={"code": -32050, "message": "closed"})
    assert received["params"] == {}
    outcome = await ended(listener)
    assert isinstance(outcome, ServerError)
    assert outcome.code == -32050
