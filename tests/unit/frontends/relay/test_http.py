"""The relay's listener: WebSockets with valid tokens, and the documents beside them. Over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from isthmus.core.background import BackgroundTasks
from isthmus.frontends.http.auth import Authenticator, OriginGuard
from isthmus.frontends.http.websocket_upgrade import WebSocketOffer
from isthmus.frontends.relay.http import (
    Counts,
    Query,
    RefusedSocket,
    RelayHttp,
    bad_key,
    choose_subprotocol,
    health,
    index,
    read_query,
    read_server_id,
    read_token,
)
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.callers import Caller
from isthmus.model.names import ServerName
from isthmus.model.relay import AgentRules, Claim, DialledServer, RelayDevice
from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.websocket import MessageReceiver
from tests.hubs import TRUSTED
from tests.unit.frontends.http.raw_client import opened
from tests.unit.frontends.relay.doubles import KITCHEN, ME, SECONDS, Room, answer, until

KEY = "the relay's own key"
TOKENS = {
    "both": Claim(KITCHEN),
    "server": Claim(KITCHEN, role="server"),
    "device": Claim(KITCHEN, role="device", id="d1"),
    "a+b": Claim(KITCHEN, id="plus"),
}


class Ring:
    """Tokens that are known by heart."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    def read(self, token: str) -> Claim | str:
        return TOKENS.get(token.replace(" ", "+"), "token解密失败") if token else "缺少token参数"

    def is_key(self, text: str) -> bool:
        return text == KEY

    def is_valid(self, claim: Claim) -> bool:
        return claim.id not in self.revoked


class Hears:
    """A server's socket that answers what it hears."""

    def __init__(self, socket: AcceptedSocket, said: str) -> None:
        self.socket = socket
        self.said = said

    def read(self, text: bytes | memoryview) -> None:
        self.socket.send(self.said.encode() + b" " + text)

    def flush(self) -> None:
        pass

    def connection_ended(self, reason: str) -> None:
        pass


class Hall:
    """Takes sockets of servers and says whose they are."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.full: str | None = None
        self.asked: list[tuple[str, int, int]] = []

    def accept(self, socket: AcceptedSocket, claim: Claim, server_id: str | None) -> MessageReceiver:
        return Hears(socket, f"{claim.key} {server_id}")

    def accept_mux(self, socket: AcceptedSocket, claim: Claim) -> MessageReceiver:
        return Hears(socket, f"{claim.key} mux")

    def roster(self, agent: str) -> Room:
        assert agent == self.room.agent
        return self.room

    def servers(self) -> tuple[DialledServer, ...]:
        return (DialledServer(KITCHEN, "s1", ServerName("kitchen_s1"), "ready", 1.0, ("add",)),)

    def connections(self) -> int:
        return 3

    def connections_of(self, agent: str) -> int:
        return 3

    def room_for(self, agent: str, others: int, others_of_agent: int) -> str | None:
        self.asked.append((agent, others, others_of_agent))
        return self.full


def no_caller(_: object) -> Caller | None:
    return None


class House:
    """The frontend behind an open listener."""

    def __init__(self, room: Room, background: BackgroundTasks, settings: RelaySettings) -> None:
        self.room = room
        self.ring = Ring()
        self.hall = Hall(room)
        auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), no_caller)
        self.frontend = RelayHttp(room.hub, background, auth, self.ring, self.hall, settings, ME, now=lambda: 7.0)
        self.port = 0

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=SECONDS, verify=TRUSTED)

    @asynccontextmanager
    async def socket(self, path: str, **more: Any) -> AsyncIterator[ClientConnection]:
        url = f"ws://127.0.0.1:{self.port}{path}"
        async with connect(url, open_timeout=SECONDS, proxy=None, **more) as socket, asyncio.timeout(SECONDS):
            yield socket

    async def turned_away(self, path: str, **more: Any) -> tuple[int, str]:
        """With which code and words a socket was closed as soon as it was open."""
        async with self.socket(path, **more) as socket:
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            return closed.value.rcvd.code, closed.value.rcvd.reason


@asynccontextmanager
async def housed(settings: RelaySettings | None = None) -> AsyncIterator[House]:
    background = BackgroundTasks()
    house = House(Room(), background, settings or RelaySettings())
    async with opened(house.frontend.serve) as (http_listener, port):
        http_listener.offer_sockets(house.frontend.upgrade)
        house.port = port
        yield house
    await background.aclose()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with housed() as house:
        yield house


async def ask(socket: ClientConnection, method: str, params: Any = None, id: Any = 1) -> Any:
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    await socket.send(json.dumps(message if params is None else {**message, "params": params}))
    return json.loads(await socket.recv())


# -- plain HTTP --------------------------------------------------------------------------------------------------------


async def test_the_documents_of_the_original(house: House) -> None:
    async with house.http() as http:
        for path in ("/mcp_endpoint/", "/mcp_endpoint"):
            index = await http.get(path)
            assert index.json()["result"] == {"message": "MCP Endpoint Server", "version": "1.2.3", "status": "running"}
            assert (index.headers["content-type"], index.headers["cache-control"]) == ("application/json", "no-store")
        health = await http.get("/mcp_endpoint/health", params={"key": KEY})
        assert (health.status_code, health.json()["result"]["status"]) == (200, "success")
        assert health.json()["result"]["connections"]["total_connections"] == 3
        for wrong in ("", "?key=", "?key=wrong", f"?key={KEY}&key={KEY}", "?" + "&".join("a=1" for _ in range(20))):
            refused = await http.get(f"/mcp_endpoint/health{wrong}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (200, -32004)
            assert "success" not in refused.text
        head = await http.head("/mcp_endpoint/health", params={"key": KEY})
        assert (head.status_code, head.content) == (200, b"")


async def test_socket_paths_explain_themselves_to_plain_requests(house: House) -> None:
    async with house.http() as http:
        for path in ("/mcp_endpoint/mcp/", "/mcp_endpoint/call", "/mcp_endpoint/call/?token=both"):
            response = await http.get(path)
            assert response.status_code == 426
            assert "WebSocket" in response.json()["error"]
        assert (await http.get("/mcp_endpoint/else")).status_code == 404
        assert (await http.post("/mcp_endpoint/")).status_code == 405
        assert (await http.get("/mcp_endpoint/", headers={"host": "evil.test"})).status_code == 421
    assert house.frontend.is_at("/mcp_endpoint/else")
    assert not house.frontend.is_at("/mcp_endpoints")
    assert not house.frontend.is_at("/")


# -- opening -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["mcp", "call"])
@pytest.mark.parametrize(
    ("query", "reason"), [("", "缺少token参数"), ("?token=", "缺少token参数"), ("?token=forged", "token解密失败")]
)
async def test_a_bad_token_opens_a_socket_and_has_it_closed(house: House, end: str, query: str, reason: str) -> None:
    with capture_logs() as logs:
        assert await house.turned_away(f"/mcp_endpoint/{end}/{query}") == (1008, reason)
    assert "forged" not in str(logs)
    assert any(entry.get("reason") == reason for entry in logs)


async def test_endless_attempts_do_not_fill_the_log(house: House) -> None:
    with capture_logs() as logs:
        for _ in range(25):
            assert await house.turned_away("/mcp_endpoint/call/") == (1008, "缺少token参数")
    assert len([entry for entry in logs if "reason" in entry]) == 20


async def test_a_token_of_the_other_role_opens_nothing(house: House) -> None:
    assert await house.turned_away("/mcp_endpoint/mcp/?token=device") == (1008, "token角色不符")
    assert await house.turned_away("/mcp_endpoint/call/?token=server") == (1008, "token角色不符")
    assert house.frontend.devices() == ()


async def test_an_address_of_endless_parameters_opens_nothing(house: House) -> None:
    code, _ = await house.turned_away("/mcp_endpoint/call/?token=both&" + "&".join("a=1" for _ in range(20)))
    assert code == 1008


async def test_two_different_tokens_open_nothing(house: House) -> None:
    code, reason = await house.turned_away(
        "/mcp_endpoint/call/?token=device", additional_headers={"authorization": "Bearer both"}
    )
    assert code == 1008
    assert "both" not in reason


@pytest.mark.parametrize("path", ["/mcp_endpoint/call/?token=a+b", "/mcp_endpoint/call?token=a%2Bb"])
async def test_a_token_with_a_plus_sign_opens_in_either_spelling(house: House, path: str) -> None:
    async with house.socket(path) as socket:
        assert (await ask(socket, "ping"))["id"] == 1


async def test_a_token_may_come_in_a_header_or_as_a_subprotocol(house: House) -> None:
    async with house.socket("/mcp_endpoint/call/", additional_headers={"authorization": "Bearer device"}) as socket:
        assert socket.subprotocol is None
        assert (await ask(socket, "ping"))["id"] == 1
    offered = [Subprotocol("isthmus.relay.v1"), Subprotocol("isthmus.bearer.device")]
    async with house.socket("/mcp_endpoint/call/", subprotocols=offered) as socket:
        assert socket.subprotocol == "isthmus.relay.v1"
        assert (await ask(socket, "ping"))["id"] == 1


async def test_a_servers_socket_is_handed_on_with_its_claim_and_its_id(house: House) -> None:
    for path, said in (("?token=server", "None"), ("?token=both&server_id=calc%20one", "calc one")):
        async with house.socket(f"/mcp_endpoint/mcp/{path}") as socket:
            await socket.send("hello")
            assert await socket.recv() == f"{KITCHEN} {said} hello"
    offered = [Subprotocol("mcp"), Subprotocol("isthmus.mux.v1")]
    async with house.socket("/mcp_endpoint/mcp/?token=server", subprotocols=offered) as socket:
        assert socket.subprotocol == "isthmus.mux.v1"
        await socket.send("hello")
        assert await socket.recv() == f"{KITCHEN} mux hello"


async def test_a_server_id_that_cannot_be_is_refused(house: House) -> None:
    for bad in ("", "%0A", "x" * 65):
        code, reason = await house.turned_away(f"/mcp_endpoint/mcp/?token=server&server_id={bad}")
        assert (code, "server_id" in reason) == (1008, True)


async def test_when_there_is_no_room_it_is_said_why(house: House) -> None:
    async with house.socket("/mcp_endpoint/call/?token=both") as socket:
        await ask(socket, "ping")
        house.hall.full = "as many as it may have"
        assert await house.turned_away("/mcp_endpoint/call/?token=both") == (1013, "as many as it may have")
        assert await house.turned_away("/mcp_endpoint/mcp/?token=both") == (1013, "as many as it may have")
        assert house.hall.asked[-1] == (KITCHEN, 1, 1)


async def test_a_page_elsewhere_and_a_path_that_is_not_there_open_nothing(house: House) -> None:
    cases: list[tuple[str, dict[str, str], int]] = [
        ("/mcp_endpoint/call/?token=both", {"origin": "https://evil.test"}, 403),
        ("/mcp_endpoint/other/?token=both", {}, 404),
        ("/mcp", {}, 404),
    ]
    for path, headers, status in cases:
        with pytest.raises(InvalidStatus) as refused:
            async with house.socket(path, additional_headers=headers):
                pass
        assert refused.value.response.status_code == status


async def test_servers_may_send_more_than_devices(house: House) -> None:
    limits = house.room.hub.limits
    for end, limit_bytes in (("mcp", limits.reply_bytes), ("call", limits.request_bytes)):
        scope = {"path": f"/mcp_endpoint/{end}/", "headers": [(b"host", b"localhost")]}
        opening = house.frontend.upgrade(scope | {"query_string": b"token=both"})
        assert isinstance(opening, WebSocketOffer)
        assert (opening.limit_bytes, opening.group) == (limit_bytes, KITCHEN)
        refused = house.frontend.upgrade(scope | {"query_string": b""})
        assert isinstance(refused, WebSocketOffer)
        assert (refused.limit_bytes, refused.group) == (1024, None)


# -- devices -----------------------------------------------------------------------------------------------------------


async def test_a_device_calls_over_its_socket_and_is_shown(house: House) -> None:
    agent_server = house.room.sit("s1", "add")
    agent_server.link.at_once = lambda inflight: inflight.finish(answer("3"))
    async with house.socket("/mcp_endpoint/call/?token=device") as socket:
        called = await ask(socket, "tools/call", {"name": "add"}, id=0)
        assert called == {"jsonrpc": "2.0", "id": 0, "result": {"content": [{"type": "text", "text": "3"}]}}
        (device,) = house.frontend.devices()
        assert (device.agent, device.since, device.answered) == (KITCHEN, 7.0, 1)
        assert device.client
        await socket.send(b"\x00\x01")
        assert json.loads(await socket.recv())["error"]["code"] == -32600
        assert (await ask(socket, "ping"))["id"] == 1
    await until(house.frontend.is_idle)
    assert house.room.watchers == 0, "an agent without devices is forgotten"


async def test_devices_of_one_agent_do_not_answer_for_each_other(house: House) -> None:
    agent_server = house.room.sit("s1", "add")
    async with (
        house.socket("/mcp_endpoint/call/?token=both") as one,
        house.socket("/mcp_endpoint/call/?token=both") as two,
    ):
        await one.send('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add"}}')
        await until(lambda: len(agent_server.link.sent) == 1)
        await two.send('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add"}}')
        await until(lambda: len(agent_server.link.sent) == 2)
        agent_server.link.sent[1].finish(answer("two"))
        agent_server.link.sent[0].finish(answer("one"))
        assert json.loads(await one.recv())["result"]["content"][0]["text"] == "one"
        assert json.loads(await two.recv())["result"]["content"][0]["text"] == "two"


async def test_a_device_with_a_revoked_token_is_disconnected(house: House) -> None:
    async with (
        house.socket("/mcp_endpoint/call/?token=device") as cut,
        house.socket("/mcp_endpoint/call/?token=both") as kept,
    ):
        await ask(cut, "ping")
        await ask(kept, "ping")
        house.ring.revoked.add("d1")
        house.frontend.recheck()
        with pytest.raises(ConnectionClosed) as closed:
            await cut.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "token已失效")
        assert (await ask(kept, "ping"))["id"] == 1
        assert len(house.frontend.devices()) == 1


async def test_other_settings_hold_for_devices_that_are_connected(house: House) -> None:
    house.room.sit("clock", "now", is_own=False)
    async with house.socket("/mcp_endpoint/call/?token=device") as socket:
        assert (await ask(socket, "tools/list"))["result"]["tools"] == []
        house.frontend.change(RelaySettings(agents={KITCHEN: AgentRules(allow=("clock",))}), house.ring)
        assert [entry["name"] for entry in (await ask(socket, "tools/list"))["result"]["tools"]] == ["now"]


async def test_draining_lets_each_device_finish_and_then_says_goodbye_once(house: House) -> None:
    agent_server = house.room.sit("s1", "add")
    async with (
        house.socket("/mcp_endpoint/call/?token=both") as idle,
        house.socket("/mcp_endpoint/call/?token=both") as busy,
    ):
        await ask(idle, "ping")
        await busy.send('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add"}}')
        await until(lambda: bool(agent_server.link.sent))
        house.frontend.end_streams()
        with pytest.raises(ConnectionClosed) as closed:
            await idle.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert not house.frontend.is_idle()
        agent_server.call.finish(answer("done"))
        assert json.loads(await busy.recv())["result"]["content"][0]["text"] == "done"
        with pytest.raises(ConnectionClosed) as closed:
            await busy.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    await house.frontend.wait_idle()
    assert house.frontend.is_idle()
    with pytest.raises(InvalidStatus) as refused:
        async with house.socket("/mcp_endpoint/call/?token=both"):
            pass
    assert refused.value.response.status_code == 503


async def test_a_list_waits_for_configured_servers_that_are_only_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with housed(RelaySettings(agents={KITCHEN: AgentRules(allow=("clock",))})) as house:
        is_started = asyncio.Event()
        starting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(house.room.hub, "settling", {"starting": starting})
        monkeypatch.setattr(house.room.hub, "wait_connected", lambda _: is_started.wait())
        async with house.socket("/mcp_endpoint/call/?token=device") as socket:
            await socket.send('{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
            await socket.send('{"jsonrpc":"2.0","id":2,"method":"ping"}')
            assert json.loads(await socket.recv())["id"] == 2
            house.room.sit("clock", "now", is_own=False)
            is_started.set()
            listed = json.loads(await socket.recv())
            assert [entry["name"] for entry in listed["result"]["tools"]] == ["now"]


def query(text: bytes) -> Query:
    read = read_query(text)
    assert not isinstance(read, RefusedSocket)
    return read


@pytest.mark.parametrize(
    ("headers", "address", "token"),
    [
        ({}, b"", ""),
        ({}, b"token=", ""),
        ({}, b"token=abc%2Bd%3D", "abc+d="),
        ({}, b"token=abc+d/e", "abc d/e"),
        ({b"authorization": b"Bearer isr1.x.y"}, b"", "isr1.x.y"),
        ({b"authorization": b"bearer isr1.x.y"}, b"token=isr1.x.y", "isr1.x.y"),
        ({b"authorization": b"Basic eDp5"}, b"token=t", "t"),
        ({b"sec-websocket-protocol": b"isthmus.relay.v1, isthmus.bearer.isr1.x.y"}, b"", "isr1.x.y"),
        ({b"authorization": b"Bearer a+b"}, b"token=a+b", "a+b"),
        ({}, b"token=t&token=t", "t"),
    ],
)
def test_a_token_is_in_a_header_a_subprotocol_or_the_address(
    headers: dict[bytes, bytes], address: bytes, token: str
) -> None:
    assert read_token(headers, query(address)) == token


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({b"authorization": b"Bearer one"}, b"token=two"),
        ({b"authorization": b"Bearer one", b"sec-websocket-protocol": b"isthmus.bearer.two"}, b""),
        ({b"sec-websocket-protocol": b"isthmus.bearer.one,isthmus.bearer.two"}, b""),
        ({}, b"token=one&token=two"),
        ({}, b"token=one&token="),
    ],
)
def test_two_different_tokens_are_refused(headers: dict[bytes, bytes], address: bytes) -> None:
    refused = read_token(headers, query(address))
    assert isinstance(refused, RefusedSocket)
    assert (refused.code, "one" in refused.reason, "two" in refused.reason) == (1008, False, False)


@pytest.mark.parametrize(
    ("address", "server_id"),
    [
        (b"token=t", None),
        (b"server_id=calculator", "calculator"),
        (b"server_id=%E5%8E%A8%E6%88%BF", "厨房"),
        ("server_id=厨房".encode(), "厨房"),
        (b"server_id=a+b", "a b"),
        (b"server_id=" + b"x" * 64, "x" * 64),
    ],
)
def test_a_server_may_name_itself_in_its_address(address: bytes, server_id: str | None) -> None:
    assert read_server_id(query(address)) == server_id


@pytest.mark.parametrize(
    "address",
    [b"server_id=", b"server_id=%00", b"server_id=a%0Ab", b"server_id=" + b"x" * 65, b"server_id=a&server_id=b"],
)
def test_an_id_that_cannot_be_shown_is_refused(address: bytes) -> None:
    assert isinstance(read_server_id(query(address)), RefusedSocket)


@pytest.mark.parametrize("address", [b"server_id=%ff", b"server_id=\xff", b"server_id=%ed%a0%80", b"token=%fe"])
def test_ids_that_are_not_utf8_are_refused(address: bytes) -> None:
    assert isinstance(read_query(address), RefusedSocket)


def test_a_query_of_endless_parameters_is_refused() -> None:
    assert isinstance(read_query(b"&".join(b"a=1" for _ in range(17))), RefusedSocket)


@pytest.mark.parametrize(
    ("offered", "for_servers", "for_devices"),
    [
        (b"", None, None),
        (b"mcp", "mcp", "mcp"),
        (b"mcp, isthmus.relay.v1", "isthmus.relay.v1", "isthmus.relay.v1"),
        (b"isthmus.relay.v1,isthmus.mux.v1", "isthmus.mux.v1", "isthmus.relay.v1"),
        (b"isthmus.mux.v1", "isthmus.mux.v1", None),
        (b"isthmus.bearer.t", None, None),
        (b"graphql-ws", None, None),
    ],
)
def test_the_best_known_subprotocol_is_chosen_and_never_a_token(
    offered: bytes, for_servers: str | None, for_devices: str | None
) -> None:
    fields = {b"sec-websocket-protocol": offered}
    assert choose_subprotocol(fields, can_mux=True) == for_servers
    assert choose_subprotocol(fields, can_mux=False) == for_devices


CALC = DialledServer(
    "my_agent", "calculator", ServerName("my_agent_calculator"), "ready", 10.0, ("add", "sub"), "Calculator 3.4.10"
)
WEATHER = DialledServer(
    "my_agent", "weather", ServerName("my_agent_weather"), "away", 20.0, ("weather",), reason="it is not connected"
)
ROBOT = RelayDevice("d1", "my_agent", 30.0)


def test_the_index_says_that_it_runs_and_has_no_error() -> None:
    assert index("1.2.3") == {
        "result": {"message": "MCP Endpoint Server", "version": "1.2.3", "status": "running"},
        "id": None,
        "jsonrpc": "2.0",
    }


def test_a_bad_key_is_reported_as_the_original_does() -> None:
    error = {"code": -32004, "message": "密钥验证失败", "data": {"details": "提供的密钥无效或缺失"}}
    assert bad_key() == {"result": None, "error": error, "id": None, "jsonrpc": "2.0"}
    assert "success" not in str(bad_key())


def test_the_statistics_are_the_originals_with_ours_beside_them() -> None:
    received = health([CALC, WEATHER], [ROBOT, ROBOT], Counts(1, 4, 9, 12.3456, "1.2.3"))
    info = {"title": "Calculator 3.4.10", "name": "my_agent_calculator", "state": "ready", "since": 10.0}
    described = {"tools_count": 2, "tools": ("add", "sub"), "server_info": info}
    assert received["result"]["status"] == "success"
    assert received["result"]["connections"] == {
        "mcp_server_connections": 1,
        "robot_connections": 2,
        "total_connections": 3,
        "robot_connections_by_agent": {"my_agent": 2},
        "mcp_servers": {"my_agent": {"calculator": described}},
        "total_tools": 2,
        "multi_server_support": True,
        "available_agents": ["my_agent"],
    }
    away = {"weather": {"since": 20.0, "reason": "it is not connected", "tools_count": 1}}
    own = {"version": "1.2.3", "away": {"my_agent": away}, "calls": 4, "tasks": 9, "uptime": 12.346}
    assert received["result"]["isthmus"] == own
    assert received.keys() == {"result", "id", "jsonrpc"}
