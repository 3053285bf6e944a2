"""Whatever is sent to the relay, it is never taken for something good, and the neighbour's next call is right."""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection

from isthmus.identity.relay_tokens import RelayTokens, TokenSettings
from isthmus.model.relay import Claim
from tests.hubs import HubProcess
from tests.relay.peers import (
    Device,
    Json,
    Manner,
    RawServer,
    agent_call_url,
    agent_url,
    device,
    device_url,
    raw_server,
    server_url,
    wired,
)
from tests.relay.raw_socket import BINARY, CLOSE, PING, PONG, TEXT, RawSocket, frame, raw_socket
from tests.relay.tokens import KEY, python_quoted, python_token, sealed

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]

CONTINUED = 0x0
REFUSED = 1008
CALL: Json = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}


class Neighbour:
    """A well-behaved caller of another agent."""

    def __init__(self, server: RawServer, caller: Device) -> None:
        self._server = server
        self._caller = caller
        self._numbers = count()

    async def is_well(self) -> bool:
        """Whether its next call is right, on the sockets that it has had from the beginning."""
        text = f"call {next(self._numbers)}"
        return await self._caller.call("secret", {"text": text}, within=10) == text and self._server.is_open


@asynccontextmanager
async def living_next_door(hub: HubProcess, agent: str) -> AsyncIterator[Neighbour]:
    async with raw_server(hub.port, agent, manner=Manner(tools=("secret",))) as server, device(hub.port, agent) as it:
        await it.ready()
        yield Neighbour(server, it)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def neighbour(hub: HubProcess) -> AsyncIterator[Neighbour]:
    async with living_next_door(hub, "nextdoor") as it:
        yield it


@pytest.fixture
def tokens() -> RelayTokens:
    """Makes tokens as the hub does."""
    return RelayTokens(KEY, TokenSettings(), time.time, lambda _: False)


# -- messages ----------------------------------------------------------------------------------------------------------


def broken_json() -> Iterator[str]:
    """A call cut off at each place, and without each of its signs."""
    whole = json.dumps(CALL)
    candidates = [whole[:end] for end in range(len(whole))]
    candidates += [whole[:at] + whole[at + 1 :] for at, sign in enumerate(whole) if sign in '{}[]:,"']
    candidates += [whole + whole, whole + "}", "\ufeff" + whole, whole.replace('"x"', "NaN"), whole.replace("7", "07")]
    candidates += [whole.replace('"x"', "'x'"), whole.replace('"x"', '"\n"'), whole.replace('"x"', '"\\q"')]
    return (text for text in candidates if text != whole)


async def test_a_message_that_is_not_json_is_never_a_success(hub: HubProcess, agent: str, neighbour: Neighbour) -> None:
    async with raw_server(hub.port, agent) as server, device(hub.port, agent) as it:
        await it.ready()
        for text in broken_json():
            expected = len(it.frames)
            await it.say(text)
            answer = await it.frame(expected)
            assert "error" in answer, (text, answer)
            assert "result" not in answer, (text, answer)
        assert "tools/call" not in server.asked
        assert await it.call("echo", {"text": "so"}) == "so"
        assert await neighbour.is_well()


def wrong_calls() -> Iterator[Json]:
    """Calls with a member of a wrong kind."""
    wrong: dict[tuple[str, ...], list[Any]] = {
        ("method",): [None, 1, [], {}, True, "", "tools/Call", "no/such/method", "x" * 5000],
        ("params",): [1, "x", [], ["echo"], True, 1.5],
        ("params", "name"): [None, 1, [], {}, True, "", "x" * 5000, "echo\x00", "ECHO", " echo"],
        ("params", "arguments"): [1, "x", [], True, 1.5],
    }
    for path, values in wrong.items():
        for value in values:
            call: Json = json.loads(json.dumps(CALL))
            inner = call if len(path) == 1 else call["params"]
            inner[path[-1]] = value
            yield call


async def answer_from(it: Device, expected: int) -> Json:
    """The next answer, whatever its id; a change of the list may be told before."""
    while "method" in (answer := await it.frame(expected)):
        expected += 1
    return answer


async def test_a_call_of_a_wrong_kind_is_never_a_success(hub: HubProcess, agent: str, neighbour: Neighbour) -> None:
    async with raw_server(hub.port, agent) as server, device(hub.port, agent) as it:
        await it.ready()
        for call in wrong_calls():
            expected = len(it.frames)
            await it.say(call)
            answer = await answer_from(it, expected)
            assert "error" in answer, (call, answer)
            assert "result" not in answer, (call, answer)
        assert "tools/call" not in server.asked
        assert await it.call("echo", {"text": "so"}) == "so"
        assert await neighbour.is_well()


async def test_an_id_that_is_too_long_is_not_repeated(hub: HubProcess, agent: str, neighbour: Neighbour) -> None:
    async with raw_server(hub.port, agent), device(hub.port, agent) as it:
        await it.ready()
        for method in ("ping", "tools/list", "tools/call", "no/such"):
            expected = len(it.frames)
            await it.say({**CALL, "id": "x" * (2 << 20), "method": method})
            answer = await answer_from(it, expected)
            assert "error" in answer, method
            assert "result" not in answer
        assert await it.call("echo", {"text": "so"}) == "so"
        assert await neighbour.is_well()


MANY: Json = dict.fromkeys(map(str, range(1001)), 0)


def crowded() -> Iterator[Json | list[Any]]:
    """Messages with too many members, and one that is not a message."""
    yield {**CALL, **MANY}
    yield {**CALL, "params": {**CALL["params"], **MANY}}
    yield {**CALL, "params": {**CALL["params"], "_meta": MANY}}
    yield {**CALL, "method": "no/such", "params": MANY}
    yield [CALL] * 1001


async def test_a_message_with_very_many_members_is_refused(hub: HubProcess, agent: str, neighbour: Neighbour) -> None:
    async with raw_server(hub.port, agent) as server, device(hub.port, agent) as it:
        await it.ready()
        for message in crowded():
            expected = len(it.frames)
            await it.say(json.dumps(message))
            answer = await it.frame(expected)
            assert answer["error"]["code"] == -32600
            assert "result" not in answer
        assert server.asked[-1] == "tools/list"
        for message in crowded():
            await server.say(json.dumps(message))
        assert await it.call("echo", {"text": "so", **MANY}) == "so"
        assert await neighbour.is_well()


async def test_an_unknown_tool_is_not_called_even_if_another_agent_has_it(
    hub: HubProcess, agent: str, neighbour: Neighbour
) -> None:
    names = [
        "secret",
        "nextdoor_raw.secret",
        "raw.secret",
        "builtin.echo",
        "mcp.echo",
        f"{agent}_raw.echo",
        "ech",
        "工具",
    ]
    names += ["../echo", "echo%00", "agent:nextdoor", "*", "raw.*"]
    async with raw_server(hub.port, agent) as server, device(hub.port, agent) as it:
        await it.ready()
        for name in names:
            answer = await it.ask("tools/call", {"name": name, "arguments": {}})
            assert answer["error"]["code"] == -32601, (name, answer)
            assert answer["error"]["message"] == f"工具 '{name}' 不存在"
            assert "result" not in answer
        assert "tools/call" not in server.asked
        assert await neighbour.is_well()


async def test_a_device_cannot_play_the_server(hub: HubProcess, agent: str, neighbour: Neighbour) -> None:
    listing = {"tools": [{"name": "mine", "inputSchema": {"type": "object"}}]}
    async with raw_server(hub.port, agent), device(hub.port, agent) as it:
        await it.ready()
        for id in (0, 1, 2, 3, "1"):
            await it.say({"jsonrpc": "2.0", "id": id, "result": listing})
            await it.say({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "x"}})
        await it.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        listed = (await it.ask("tools/list", id=9))["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["echo"]
        assert (await it.ask("tools/call", {"name": "mine"}))["error"]["code"] == -32601
        assert await neighbour.is_well()


async def test_a_server_cannot_play_the_device(hub: HubProcess, agent: str, neighbour: Neighbour) -> None:
    async with raw_server(hub.port, agent) as server, device(hub.port, agent) as it:
        await it.ready()
        before = server.asked.count("tools/call")
        for name in ("echo", "secret", "nextdoor_raw.secret"):
            answer = await server.ask("tools/call", {"name": name, "arguments": {"text": "x"}}, id=f"to {name}")
            assert "error" in answer
            assert "result" not in answer
        assert server.asked.count("tools/call") == before
        assert await it.call("echo", {"text": "so"}) == "so"
        assert await neighbour.is_well()


NONSENSE: list[Any] = [None, 5, "x", [], {}, True, {"protocolVersion": 5}, {"protocolVersion": "1999-01-01"}]
NO_TOOLS: list[Any] = [
    None,
    5,
    {"tools": None},
    {"tools": {"name": "echo"}},
    {"tools": [None, 5, "echo", [], {}, {"name": 5}, {"name": ""}, {"name": "x" * 10_000}]},
    {"tools": [{"name": "bad", "inputSchema": 5}, {"name": "worse", "inputSchema": []}]},
    {"tools": [], "nextCursor": "the same for ever"},
    {"tools": [], "nextCursor": 5},
]


class Liar(RawServer):
    """Answers one method with something else than what is asked for."""

    def __init__(self, socket: ClientConnection, method: str, lie: Any) -> None:
        super().__init__(socket)
        self._method = method
        self._lie = lie

    def answer_of(self, method: str, message: Json) -> Json | None:
        return {"result": self._lie} if method == self._method else super().answer_of(method, message)


@pytest.mark.parametrize(
    ("method", "lies"), [("initialize", NONSENSE), ("tools/list", NO_TOOLS)], ids=["initialize", "tools"]
)
async def test_a_server_that_answers_nonsense_shows_nothing(
    hub: HubProcess, agent: str, neighbour: Neighbour, method: str, lies: list[Any]
) -> None:
    async with raw_server(hub.port, agent, "good"), device(hub.port, agent) as it, AsyncExitStack() as stack:
        await it.ready()
        for number, lie in enumerate(lies):
            make = partial(Liar, method=method, lie=lie)
            liar = await stack.enter_async_context(wired(agent_url(hub.port, agent, f"liar{number}"), make))
            await liar.until(lambda liar=liar: method in str(liar.frames) or not liar.is_open, "it is asked")  # type: ignore[misc]
            listed = (await it.ask("tools/list", id=3000 + number))["result"]["tools"]
            assert [tool["name"] for tool in listed] == ["echo"], lie
            assert await it.call("echo", {"text": "so"}) == "so"
            assert await neighbour.is_well()


async def test_a_server_that_answers_calls_with_nonsense_is_never_a_success(
    hub: HubProcess, agent: str, neighbour: Neighbour
) -> None:
    def liar(socket: ClientConnection) -> Liar:
        return Liar(socket, "tools/call", None)

    async with wired(agent_url(hub.port, agent), liar) as server, device(hub.port, agent) as it:
        assert isinstance(server, Liar)
        await server.until(lambda: server.is_listed, "it is listed")
        await it.ready()
        lies: list[Any] = [None, 5, "x", [], True]
        for lie in lies:
            server._lie = lie
            answer = await it.ask("tools/call", {"name": "echo", "arguments": {}}, id=4000)
            assert "error" in answer, (lie, answer)
            assert "result" not in answer
        assert await neighbour.is_well()


# -- tokens ------------------------------------------------------------------------------------------------------------


async def refusal(url: str) -> tuple[int, str]:
    """The code and reason with which a socket is closed before a word is said on it."""
    async with raw_socket(url) as it:
        got = await it.read_frame()
        assert got is not None, "it was closed without a word"
        opcode, payload = got
        assert opcode == CLOSE, f"something was said: {payload!r}"
        return struct.unpack("!H", payload[:2])[0], payload[2:].decode()


def both_ends(port: int, token: str) -> list[str]:
    """A token at both ends."""
    return [server_url(port, python_quoted(token)), device_url(port, python_quoted(token))]


async def test_no_token_opens_nothing(hub: HubProcess, neighbour: Neighbour) -> None:
    for url in (server_url(hub.port, None), device_url(hub.port, None), *both_ends(hub.port, "")):
        assert await refusal(url) == (REFUSED, "缺少token参数")
    assert await neighbour.is_well()


async def test_a_token_that_says_nothing_good_opens_nothing(hub: HubProcess, neighbour: Neighbour) -> None:
    wrong = {
        "token解密失败": [
            "x",
            "====",
            "AAAA",
            python_token("nextdoor")[:-6],
            sealed(b'{"agentId":"nextdoor"}', "k" * 32),
        ],
        "token数据格式错误": [
            sealed(b"nextdoor"),
            sealed(b'["nextdoor"]'),
            sealed(b'{"agentId":'),
            sealed(b'{"agentId":5}'),
        ],
        "无对应agentId": [
            sealed(b"{}"),
            sealed(b'{"agentId":""}'),
            sealed(b'{"agentId":null}'),
            sealed(b'{"agent":"x"}'),
        ],
    }
    for reason, listed in wrong.items():
        for token in listed:
            for url in both_ends(hub.port, token):
                assert await refusal(url) == (REFUSED, reason), token
    assert await neighbour.is_well()


async def test_the_originals_token_with_any_byte_changed_opens_nothing(hub: HubProcess, neighbour: Neighbour) -> None:
    whole = base64.b64decode(python_token("nextdoor"))
    for at in range(len(whole)):
        forged = base64.b64encode(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]).decode()
        code, _ = await refusal(both_ends(hub.port, forged)[at % 2])
        assert code == REFUSED
    assert await neighbour.is_well()


async def test_our_token_with_any_character_changed_or_missing_opens_nothing(
    hub: HubProcess, neighbour: Neighbour, tokens: RelayTokens
) -> None:
    whole = tokens.mint(Claim("nextdoor"))
    changed = [whole[:at] + ("A" if whole[at] != "A" else "B") + whole[at + 1 :] for at in range(len(whole))]
    cut = [whole[:end] for end in range(1, len(whole), 3)]
    for number, token in enumerate([*changed, *cut, whole + "A", whole + ".", "." + whole, whole * 2]):
        code, reason = await refusal(both_ends(hub.port, token)[number % 2])
        assert code == REFUSED, token
        assert reason
    assert await neighbour.is_well()


async def test_expired_foreign_and_misplaced_tokens_open_nothing(
    hub: HubProcess, neighbour: Neighbour, tokens: RelayTokens
) -> None:
    foreign = RelayTokens("another key of the same length!!", TokenSettings(), time.time, lambda _: False)
    for url in both_ends(hub.port, tokens.mint(Claim("nextdoor", expires_at=time.time() - 1))):
        assert await refusal(url) == (REFUSED, "token已过期")
    for url in both_ends(hub.port, foreign.mint(Claim("nextdoor"))):
        assert await refusal(url) == (REFUSED, "token无效")
    for_servers, for_devices = (
        tokens.mint(Claim("nextdoor", role="server")),
        tokens.mint(Claim("nextdoor", role="device")),
    )
    assert await refusal(device_url(hub.port, for_servers)) == (REFUSED, "token角色不符")
    assert await refusal(server_url(hub.port, for_devices)) == (REFUSED, "token角色不符")
    assert await neighbour.is_well()


async def test_a_huge_token_opens_nothing(hub: HubProcess, neighbour: Neighbour) -> None:
    long, longer = (base64.b64encode(b"\0" * size).decode() for size in (6_000, 60_000))
    assert await refusal(device_url(hub.port, long)) == (REFUSED, "token解密失败")
    with pytest.raises(AssertionError, match=r"HTTP/1\.1 4"):  # a head that is too long is no request at all
        await refusal(device_url(hub.port, longer))
    assert await neighbour.is_well()


async def test_an_agents_devices_see_nothing_of_another_agent(
    hub: HubProcess, new_agent: Callable[[], str], neighbour: Neighbour, tokens: RelayTokens
) -> None:
    one, other = new_agent(), new_agent()
    tenant = tokens.mint(Claim(one, tenant="elsewhere"))
    async with (
        raw_server(hub.port, one, manner=Manner(tools=("mine",))),
        device(hub.port, other) as stranger,
        device(hub.port, one, url=device_url(hub.port, tenant)) as namesake,
    ):
        for it in (stranger, namesake):
            await it.ready()
            assert not it.tools
            assert (await it.ask("tools/call", {"name": "mine"}))["error"]["code"] == -32601
    assert await neighbour.is_well()


async def test_an_invalid_server_id_is_refused(hub: HubProcess, agent: str, neighbour: Neighbour) -> None:
    for server_id in ("x" * 65, "a\nb", "\x00"):
        async with wired(agent_url(hub.port, agent, server_id)) as wire:
            ending = await wire.ended()
            assert ending.code == REFUSED, server_id
            assert ending.reason, server_id
            assert not wire.frames
    assert await neighbour.is_well()


# -- frames ------------------------------------------------------------------------------------------------------------

PING_CALL = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'

BROKEN_FRAMES = {
    "unmasked": frame(TEXT, PING_CALL, is_masked=False),
    "reserved bit": frame(TEXT, PING_CALL, reserved=4),
    "reserved opcode": frame(0x3, PING_CALL),
    "reserved control": frame(0xB, b""),
    "control in pieces": frame(PING, b"x", is_final=False),
    "long control": frame(PING, b"x" * 126),
    "nothing to continue": frame(CONTINUED, PING_CALL),
    "text within text": frame(TEXT, b"{", is_final=False) + frame(TEXT, b"}"),
    "impossible length": bytes([0x81, 0xFF]) + struct.pack("!Q", 1 << 63) + b"\0\0\0\0",
    "huge length": bytes([0x81, 0xFF]) + struct.pack("!Q", 1 << 40) + b"\0\0\0\0",
    "bad closing code": frame(CLOSE, struct.pack("!H", 999)),
    "short closing": frame(CLOSE, b"\x03"),
    "closing with no text": frame(CLOSE, struct.pack("!H", 1000) + b"\xff\xfe"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("end", ["server", "device"])
async def test_broken_frames_end_the_one_connection(
    hub: HubProcess, agent: str, neighbour: Neighbour, end: str
) -> None:
    url = agent_url(hub.port, agent) if end == "server" else agent_call_url(hub.port, agent)
    for what, data in BROKEN_FRAMES.items():
        async with raw_socket(url) as it:
            await it.send(data)
            closing = await it.closing()
            assert closing is None or closing[0] in {1000, 1002, 1003, 1007, 1008, 1009}, what
        assert await neighbour.is_well(), what


async def answered(it: RawSocket) -> Json:
    """The next text as a document."""
    while (got := await it.read_frame()) is not None:
        opcode, payload = got
        if opcode == TEXT:
            document: Json = json.loads(payload)
            return document
    raise AssertionError("the connection ended")


async def test_odd_but_right_frames_are_understood(hub: HubProcess, agent: str, neighbour: Neighbour) -> None:
    pieces = frame(TEXT, PING_CALL[:5], is_final=False) + frame(PING, b"now") + frame(CONTINUED, b"", is_final=False)
    async with raw_server(hub.port, agent), raw_socket(agent_call_url(hub.port, agent)) as it:
        await it.send(pieces + frame(CONTINUED, PING_CALL[5:]))
        got = {one[0]: one[1] for one in (await it.read_frame(), await it.read_frame()) if one is not None}
        assert got[PONG] == b"now"
        assert "result" in json.loads(got[TEXT])
        await it.send(
            frame(PONG, b"unasked") + frame(BINARY, b"\0") + frame(TEXT, b"\xff\xff") + frame(TEXT, PING_CALL)
        )
        assert "error" in await answered(it)
        assert "error" in await answered(it)
        assert "result" in await answered(it)
        assert await neighbour.is_well()
