"""Framing and writing of a response, and the response of a broken application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from isthmus.frontends.http.request_cycle import PEER, App, Message, Receive, RequestCycle, Send
from tests.unit.frontends.http.raw_client import Bell, Echo, connect_raw, opened, reply, request

OK = b"HTTP/1.1 200 OK\r\nx-content-type-options: nosniff\r\n"


class Line(asyncio.Transport):
    """A transport that only remembers having been cut."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False

    def abort(self) -> None:
        self.is_cut = True

    def get_write_buffer_size(self) -> int:
        return 7


@dataclass
class Carrying:
    """A connection that keeps every write apart."""

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    writes: list[bytes] = field(default_factory=list)
    completions: int = 0

    def put(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.writes.append(b"".join(pieces))

    def buffered_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def on_taken(self, callback: Callable[[], None]) -> None:
        callback()

    def read_on(self) -> None:
        pass

    def on_response_complete(self) -> None:
        self.completions += 1


def carrying() -> Carrying:
    line = Line()
    return Carrying(line, FlowControl(line), asyncio.get_running_loop())


def turn_on(
    carrier: Carrying, *, method: str = "POST", version: str = "1.1", is_kept_alive: bool = True
) -> RequestCycle:
    scope: Message = {"type": "http", "method": method, "path": "/", "http_version": version, "headers": []}
    turn = RequestCycle(carrier, scope, is_kept_alive=is_kept_alive, owes_continue=False)
    scope["extensions"] = {PEER: turn}
    return turn


async def start(turn: RequestCycle, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    await turn.send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def test_head_and_body_of_an_answer_leave_in_one_write() -> None:
    carrier = carrying()
    turn = turn_on(carrier)
    await reply(turn.send, b"hello")
    assert carrier.writes == [OK + b"content-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"]
    assert carrier.completions == 1


async def test_an_empty_piece_sends_the_head_of_a_stream_ahead() -> None:
    carrier = carrying()
    turn = turn_on(carrier)
    await start(turn)
    assert carrier.writes == []
    await turn.send({"type": "http.response.body", "body": b"", "more_body": True})
    turn.push(b"event")
    await turn.send({"type": "http.response.body"})
    head = OK + b"transfer-encoding: chunked\r\n\r\n"
    assert carrier.writes == [head, b"5\r\nevent\r\n", b"0\r\n\r\n"]


async def test_an_answer_of_known_length_may_come_in_pieces_and_is_not_chunked() -> None:
    carrier = carrying()
    turn = turn_on(carrier)
    await start(turn, (b"content-length", b"4"))
    await turn.send({"type": "http.response.body", "body": b"ab", "more_body": True})
    await turn.send({"type": "http.response.body", "body": b"cd"})
    assert carrier.writes == [OK + b"content-length: 4\r\n\r\nab", b"cd"]


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("GET", 304)])
async def test_an_answer_without_a_body_has_none(method: str, status: int) -> None:
    carrier = carrying()
    turn = turn_on(carrier, method=method)
    await start(turn, status=status)
    await turn.send({"type": "http.response.body", "body": b"ignored"})
    (written,) = carrier.writes
    assert written.endswith(b"\r\n\r\n")
    assert b"transfer-encoding" not in written


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection() -> None:
    carrier = carrying()
    turn = turn_on(carrier, version="1.0", is_kept_alive=False)
    await start(turn)
    await turn.send({"type": "http.response.body", "body": b"all"})
    assert carrier.writes == [OK + b"connection: close\r\n\r\nall"]


async def test_an_application_may_ask_to_close_and_it_is_said_once() -> None:
    carrier = carrying()
    turn = turn_on(carrier)
    await start(turn, (b"Connection", b"Close"), (b"content-length", b"0"))
    await turn.send({"type": "http.response.body"})
    assert carrier.writes[0].count(b"close") == 1
    assert not turn.is_kept_alive


async def test_a_body_that_is_here_can_be_taken_without_waiting_and_once() -> None:
    turn = turn_on(carrying())
    turn.add_body(b"ab")
    assert turn.take_body() is None
    turn.add_body(b"cd")
    turn.end_body()
    assert turn.take_body() == b"abcd"
    assert turn.take_body() is None


async def test_an_empty_body_is_a_whole_body() -> None:
    turn = turn_on(carrying())
    turn.end_body()
    assert turn.take_body() == b""


async def test_the_body_of_a_client_that_has_gone_is_not_taken() -> None:
    turn = turn_on(carrying())
    turn.end_body()
    turn.leave()
    assert turn.take_body() is None
    assert turn.buffered_bytes() == 7


async def test_a_broken_callback_does_not_keep_the_others_from_being_called() -> None:
    def broken() -> None:
        raise LookupError("broken")

    bell = Bell()
    turn = turn_on(carrying())
    turn.on_disconnect(broken)
    turn.on_disconnect(bell)
    turn.leave()
    turn.leave()
    assert bell.rings == 1


async def test_a_sender_that_waits_for_a_slow_client_is_freed_when_it_goes() -> None:
    carrier = carrying()
    turn = turn_on(carrier)
    carrier.flow.pause_writing()
    sending = asyncio.get_running_loop().create_task(start(turn))
    await asyncio.sleep(0)
    turn.leave()
    carrier.flow.resume_writing()
    await sending
    assert not turn.is_started


@pytest.mark.parametrize(
    "header",
    [
        (b"x", b"a\r\nset-cookie: b"),
        (b"x\r\ny", b"a"),
        (b"x", b"a\x00"),
        (b"", b"a"),
        (b"x y", b"a"),
        (b"transfer-encoding", b"chunked"),
    ],
)
async def test_a_header_that_would_change_the_framing_is_refused(header: tuple[bytes, bytes]) -> None:
    carrier = carrying()
    with pytest.raises(RuntimeError, match=r"header|frames"):
        await start(turn_on(carrier), header)
    assert carrier.writes == []


@pytest.mark.parametrize("body", [b"", b"abc", b"abcde"])
async def test_a_body_of_another_length_than_promised_is_refused(body: bytes) -> None:
    turn = turn_on(carrying())
    await start(turn, (b"content-length", b"4"))
    with pytest.raises(RuntimeError, match="length"):
        await turn.send({"type": "http.response.body", "body": body})


async def test_messages_out_of_order_are_refused() -> None:
    turn = turn_on(carrying())
    with pytest.raises(RuntimeError, match="not been started"):
        await turn.send({"type": "http.response.body"})
    await start(turn)
    with pytest.raises(RuntimeError, match="twice"):
        await start(turn)
    with pytest.raises(RuntimeError, match="trailers"):
        await turn.send({"type": "http.response.trailers"})
    await turn.send({"type": "http.response.body"})
    with pytest.raises(RuntimeError, match="not been started"):
        await turn.send({"type": "http.response.body"})


# Broken applications


async def raises_at_once(scope: Message, receive: Receive, send: Send) -> None:
    raise LookupError("secret")


async def raises_after_the_start(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise LookupError("secret")


async def says_nothing(scope: Message, receive: Receive, send: Send) -> None:
    pass


@pytest.mark.parametrize("app", [raises_at_once, raises_after_the_start, says_nothing])
async def test_a_broken_application_answers_500_without_saying_why_and_closes(app: App) -> None:
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        answer = await raw_client.receive()
        assert (answer.status, answer.header(b"connection")) == (500, b"close")
        assert b"secret" not in answer.body
        assert await raw_client.hear_rest() == b""


async def raises_in_the_middle(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise LookupError("secret")


async def stops_in_the_middle(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})


@pytest.mark.parametrize("app", [raises_in_the_middle, stops_in_the_middle])
async def test_half_an_answer_is_cut_so_that_it_is_not_taken_for_a_whole_one(app: App) -> None:
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        assert b"0\r\n\r\n" not in await raw_client.hear_rest()


async def test_an_application_that_fails_after_its_answer_affects_no_other() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await Echo()(scope, receive, send)
        raise LookupError("late")

    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        for number in range(2):
            raw_client.say(request(f"/{number}"))
            assert (await raw_client.receive()).status == 200


async def test_a_cancelled_request_is_cut() -> None:
    carrier = carrying()
    turn = turn_on(carrier)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await receive()

    running = asyncio.get_running_loop().create_task(turn.run(app))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert isinstance(carrier.transport, Line)
    assert carrier.transport.is_cut
