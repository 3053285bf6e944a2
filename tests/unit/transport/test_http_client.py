from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Mapping

import pytest
import trustme

from isthmus.core.background import BackgroundTasks
from isthmus.transport import http_client as module
from isthmus.transport.egress import Egress, HttpOrigin
from isthmus.transport.flow_control import PORTION_BYTES
from isthmus.transport.http_client import HttpClient, Ticket, header_lines, media_type, request_head
from tests.unit.transport.doubles import OK, PATIENCE_SECONDS, Peer, Recorder, Server

BIG = b"x" * (32 * 1024 * 1024)
"""More than the sockets of both sides take on, so that the end stays in our buffer."""


def ask(client: HttpClient, sink: Recorder, body: bytes | None = b"{}") -> Ticket:
    method = "GET" if body is None else "POST"
    return client.send(request_head(method, "/mcp", client.origin, {}), body, sink)


async def turn() -> None:
    """Let everything that is ready run, and what that makes ready."""
    for _ in range(5):
        await asyncio.sleep(0)


def until_readable(client: HttpClient) -> None:
    """Wait, without a turn of the loop, until the end of the idle connection has arrived at its socket."""
    [connection] = client._idle
    ready, _, _ = select.select([connection._transport.get_extra_info("socket").fileno()], [], [], PATIENCE_SECONDS)
    assert ready


async def exchange(client: HttpClient, server: Server, reply: bytes = OK) -> tuple[Peer, Recorder]:
    """Make one request on a new connection and have it answered."""
    sink = Recorder()
    ask(client, sink)
    peer = await server.accept()
    await peer.request()
    await peer.say(reply)
    return peer, await sink.over()


async def test_a_request_is_written_as_prepared_and_its_reply_handed_over(client: HttpClient, server: Server) -> None:
    sink = Recorder()
    head = request_head("POST", "/mcp?a=b", client.origin, {"Accept": "text/event-stream"})
    client.send(head + header_lines({"Mcp-Session-Id": "7"}), b'{"id":1}', sink)
    peer = await server.accept()
    assert (
        await peer.request()
        == (
            f"POST /mcp?a=b HTTP/1.1\r\nhost: {client.origin.authority}\r\naccept-encoding: identity\r\n"
            'Accept: text/event-stream\r\nMcp-Session-Id: 7\r\ncontent-length: 8\r\n\r\n{"id":1}'
        ).encode()
    )
    await peer.say(b"HTTP/1.1 404 Gone\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 3\r\n\r\nabc")
    await sink.over()
    assert (sink.status, sink.headers, sink.body) == (404, {"x-a": "1, 2", "content-length": "3"}, b"abc")
    assert sink.events == ["head", "body", "end"]


async def test_a_request_without_a_body_has_no_length(client: HttpClient, server: Server) -> None:
    ask(client, Recorder(), body=None)
    assert b"content-length" not in await (await server.accept()).request()


async def test_requests_in_turn_share_one_connection(client: HttpClient, server: Server) -> None:
    peer, _ = await exchange(client, server)
    for body in (b"1", b"", b"333"):
        sink = Recorder()
        ask(client, sink, body)
        assert (await peer.request()).endswith(b"\r\n\r\n" + body)
        await peer.say(OK)
        assert (await sink.over()).body == b"ok"
    assert server.accepted == 1


async def test_the_end_of_a_reply_may_send_the_next_request_on_the_same_connection(
    client: HttpClient, server: Server
) -> None:
    second = Recorder()

    class Chained(Recorder):
        def on_end(self) -> None:
            ask(client, second)
            super().on_end()

    ask(client, Chained())
    peer = await server.accept()
    for _ in range(2):
        await peer.request()
        await peer.say(OK)
    assert (await second.over()).body == b"ok"
    assert server.accepted == 1


async def test_the_newest_idle_connection_is_used_first(client: HttpClient, server: Server) -> None:
    sinks = {b"1": Recorder(), b"2": Recorder()}
    for body, sink in sinks.items():
        ask(client, sink, body)
    older, newer = await server.accept(), await server.accept()
    for peer in (older, newer):
        asked = (await peer.request())[-1:]
        await peer.say(OK)
        await sinks[asked].over()
    ask(client, Recorder())
    await newer.request()


@pytest.mark.parametrize(
    "reply",
    [
        OK,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\ntail: t\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_a_reply_may_be_cut_anywhere(client: HttpClient, server: Server, reply: bytes) -> None:
    peer, whole = await exchange(client, server, reply)
    for cut in range(1, len(reply)):
        sink = Recorder()
        ask(client, sink)
        await peer.request()
        await peer.say(reply[:cut])
        await turn()
        await peer.say(reply[cut:])
        await sink.over()
        assert (sink.status, sink.headers, sink.body) == (200, whole.headers, b"ok")
    assert "tail" not in whole.headers
    assert server.accepted == 1


async def test_a_reply_without_a_length_ends_with_the_stream(client: HttpClient, server: Server) -> None:
    sink = Recorder()
    ask(client, sink)
    peer = await server.accept()
    await peer.request()
    await peer.say(b"HTTP/1.0 200 OK\r\n\r\nall of it")
    peer.close()
    assert (await sink.over()).body == b"all of it"
    assert sink.events[-1] == "end"


async def test_a_reply_without_a_body_ends_at_once(client: HttpClient, server: Server) -> None:
    peer, sink = await exchange(client, server, b"HTTP/1.1 204 No Content\r\n\r\n")
    assert sink.events == ["head", "end"]
    ask(client, Recorder())
    await peer.request()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=1\r\ncontent-length: 2\r\n\r\nok",
        OK + OK,
        OK + b"more than was said",
    ],
    ids=["close", "1.0", "too short a time", "two replies", "trailing bytes"],
)
async def test_a_connection_is_not_kept_after(client: HttpClient, server: Server, reply: bytes) -> None:
    peer, sink = await exchange(client, server, reply)
    assert (sink.events, sink.body) == (["head", "body", "end"], b"ok")
    assert await peer.rest() == b""
    await exchange(client, server)
    assert server.accepted == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "not valid HTTP"),
        (b"HTTP/1.1 101 Go\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", "switched protocols"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n", "encoded as gzip, which was not requested"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", "transferred as gzip, chunked"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", "more than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 700_000, "more than 65536 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 30_000, "more than 65536 bytes"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: " + b"y" * 700_000,
            "more than 65536 bytes",
        ),
    ],
)
async def test_a_reply_that_cannot_be_trusted_is_lost(
    client: HttpClient, server: Server, reply: bytes, reason: str
) -> None:
    sink = Recorder()
    ask(client, sink)
    peer = await server.accept()
    await peer.request()
    peer.writer.write(reply)
    lost = await sink.loss()
    assert reason in lost.reason
    assert lost.may_have_left
    assert await peer.rest() == b""
    assert sink.events.count("lost") == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"", "closed the connection without answering"),
        (b"HTTP/1.1 200 OK\r\n", "closed the connection without answering"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", "in the middle of its reply"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", "in the middle of its reply"),
    ],
)
async def test_a_connection_closed_too_early_loses_the_reply(
    client: HttpClient, server: Server, reply: bytes, reason: str
) -> None:
    sink = Recorder()
    ask(client, sink)
    peer = await server.accept()
    await peer.request()
    await peer.say(reply)
    peer.close()
    lost = await sink.loss()
    assert reason in lost.reason
    assert lost.may_have_left


async def test_a_reset_connection_loses_the_reply(client: HttpClient, server: Server) -> None:
    sink = Recorder()
    ask(client, sink)
    peer = await server.accept()
    await peer.request()
    peer.reset()
    assert (await sink.loss()).may_have_left


async def test_an_early_refusal_is_read_and_the_connection_not_used_again(client: HttpClient, server: Server) -> None:
    sink = Recorder()
    ask(client, sink, BIG)
    peer = await server.accept()
    await peer.receive()
    await peer.say(b"HTTP/1.1 413 Too Much\r\ncontent-length: 2\r\n\r\nno")
    await sink.over()
    assert (sink.status, sink.events[-1]) == (413, "end")
    await exchange(client, server)
    assert server.accepted == 2


async def test_an_early_success_is_not_believed(client: HttpClient, server: Server) -> None:
    sink = Recorder()
    ask(client, sink, BIG)
    peer = await server.accept()
    await peer.receive()
    await peer.say(OK)
    lost = await sink.loss()
    assert "before it had the whole request" in lost.reason
    assert not lost.may_have_left


async def test_words_on_an_idle_connection_do_not_answer_the_next_request(client: HttpClient, server: Server) -> None:
    peer, _ = await exchange(client, server)
    await peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
    assert await peer.rest() == b""
    _, sink = await exchange(client, server)
    assert sink.body == b"ok"


async def test_a_connection_that_the_server_closed_is_not_used(client: HttpClient, server: Server) -> None:
    peer, _ = await exchange(client, server)
    peer.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while client._idle:  # noqa: ASYNC110 - a connection that closes while idle has no notification
            await asyncio.sleep(0)
    await exchange(client, server)
    assert server.accepted == 2


async def test_after_a_while_a_connection_is_asked_before_it_is_written_to(
    background: BackgroundTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PEEK_AFTER_SECONDS", 0.0)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        client = HttpClient(
            HttpOrigin("http", "127.0.0.1", listener.getsockname()[1]), Egress(), background, is_configured=True
        )
        sink = Recorder()
        ask(client, sink)
        first, _ = await loop.sock_accept(listener)
        first.setblocking(False)
        await loop.sock_recv(first, 4096)
        first.sendall(OK)
        assert (await sink.over()).body == b"ok"
        # No turn of the loop lies between these lines, so only the socket itself can know.
        first.close()
        until_readable(client)
        ask(client, Recorder())
        second, _ = await loop.sock_accept(listener)
        second.close()
        await client.aclose()


async def test_a_write_that_fails_at_once_is_known_not_to_have_left(background: BackgroundTasks) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        client = HttpClient(
            HttpOrigin("http", "127.0.0.1", listener.getsockname()[1]), Egress(), background, is_configured=True
        )
        sink = Recorder()
        ask(client, sink)
        peer, _ = await loop.sock_accept(listener)
        peer.setblocking(False)
        await loop.sock_recv(peer, 4096)
        peer.sendall(OK)
        assert (await sink.over()).body == b"ok"
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        until_readable(client)
        late = Recorder()
        ticket = ask(client, late)
        assert not ticket.may_have_left
        assert not (await late.loss()).may_have_left
        await client.aclose()


async def test_a_connection_idle_too_long_is_closed(server: Server, background: BackgroundTasks) -> None:
    client = HttpClient(server.origin, Egress(), background, is_configured=True, idle_seconds=0.05)
    peer, _ = await exchange(client, server)
    assert await peer.rest() == b""
    await client.aclose()


async def test_a_connection_idle_longer_than_the_server_says_is_not_used(
    server: Server, background: BackgroundTasks
) -> None:
    client = HttpClient(server.origin, Egress(), background, is_configured=True, idle_seconds=600)
    reply = b"HTTP/1.1 200 OK\r\nKeep-Alive: max=9, Timeout=5\r\ncontent-length: 2\r\n\r\nok"
    await exchange(client, server, reply)
    (connection,) = client._idle
    assert connection.is_fit(connection.idle_since + 3.9)
    assert not connection.is_fit(connection.idle_since + 4.1)
    await client.aclose()


async def test_a_keep_alive_without_a_time_changes_nothing(client: HttpClient, server: Server) -> None:
    reply = b"HTTP/1.1 200 OK\r\nkeep-alive: max=9\r\ncontent-length: 2\r\n\r\nok"
    peer, _ = await exchange(client, server, reply)
    ask(client, Recorder())
    await peer.request()


async def test_a_dial_whose_request_was_cancelled_may_fail_silently(
    server: Server, background: BackgroundTasks
) -> None:
    client = HttpClient(server.origin, Egress(), background, is_configured=False)
    sink = Recorder()
    ask(client, sink).abort()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(background):  # noqa: ASYNC110 - a dial that nobody waits for has no notification
            await asyncio.sleep(0)
    assert not sink.events
    await client.aclose()


async def test_requests_beyond_the_limit_wait_their_turn(server: Server, background: BackgroundTasks) -> None:
    client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=2)
    sinks = [Recorder() for _ in range(6)]
    tickets = [ask(client, sink, str(number).encode()) for number, sink in enumerate(sinks)]
    tickets[3].abort()
    peers = [await server.accept(), await server.accept()]
    order = sorted([(await peer.request())[-1:] for peer in peers])  # who is accepted first is the system's choice
    for peer in (peers[0], peers[1], peers[0]):
        await peer.say(OK)
        await turn()
        if peer is not peers[0] or len(order) < 4:
            order.append((await peer.request())[-1:])
    assert order == [b"0", b"1", b"2", b"4", b"5"][: len(order)]
    assert server.accepted == 2
    assert not sinks[3].events
    await client.aclose()


async def test_a_freed_place_is_dialled_for_the_next_waiter(server: Server, background: BackgroundTasks) -> None:
    client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=1)
    first, second = Recorder(), Recorder()
    ticket = ask(client, first)
    await (await server.accept()).request()
    ask(client, second)
    ticket.abort()
    peer = await server.accept()
    await peer.request()
    await peer.say(OK)
    assert (await second.over()).body == b"ok"
    assert not first.events
    await client.aclose()


async def test_a_failed_dial_fails_its_waiting_requests(background: BackgroundTasks) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        origin = HttpOrigin("http", "127.0.0.1", taken.getsockname()[1])
        client = HttpClient(origin, Egress(), background, is_configured=True, limit=2)
        sinks = [Recorder() for _ in range(5)]
        for sink in sinks:
            ask(client, sink)
            assert not sink.events
        for sink in sinks:
            lost = await sink.loss()
            assert lost.reason == f"connection refused by 127.0.0.1:{origin.port}"
            assert not lost.may_have_left
        await client.aclose()


async def test_a_target_that_may_not_be_dialled_is_lost_unsent(server: Server, background: BackgroundTasks) -> None:
    client = HttpClient(server.origin, Egress(), background, is_configured=False)
    sink = Recorder()
    ask(client, sink)
    assert "may not be dialled" in (await sink.loss()).reason
    assert server.accepted == 0
    await client.aclose()


async def test_a_dial_that_crashes_loses_its_request(server: Server, background: BackgroundTasks) -> None:
    async def broken(origin: HttpOrigin) -> list[module.ClientConnection]:
        raise ZeroDivisionError

    client = HttpClient(server.origin, Egress(resolver=broken), background, is_configured=True)  # type: ignore[arg-type]
    sink = Recorder()
    ask(client, sink)
    assert "ZeroDivisionError" in (await sink.loss()).reason
    await client.aclose()


async def test_a_request_given_up_while_it_waits_leaves_the_queue(client: HttpClient, server: Server) -> None:
    given_up, kept = Recorder(), Recorder()
    ticket = ask(client, given_up, b"given up")
    ask(client, kept, b"kept")
    ticket.abort()
    ticket.abort()
    assert not ticket.may_have_left
    peer = await server.accept()
    assert (await peer.request()).endswith(b"kept")
    await peer.say(OK)
    await kept.over()
    assert not given_up.events


async def test_a_sink_may_give_up_in_the_middle_of_a_chunk(client: HttpClient, server: Server) -> None:
    class Sated(Recorder):
        def on_body(self, chunk: bytes) -> None:
            super().on_body(chunk)
            ticket.abort()

    sink = Sated()
    ticket = ask(client, sink)
    peer = await server.accept()
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
    assert await peer.rest() == b""
    assert sink.events == ["head", "body"]
    assert ticket.may_have_left


async def test_a_sink_that_breaks_loses_only_its_own_reply(client: HttpClient, server: Server) -> None:
    reported: list[Mapping[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    class Broken(Recorder):
        def on_head(self, status: int, headers: Mapping[str, str]) -> None:
            raise ZeroDivisionError

    broken, sound = Broken(), Recorder()
    ask(client, broken)
    ask(client, sound)
    for peer in (await server.accept(), await server.accept()):
        await peer.request()
        await peer.say(OK)
    assert (await broken.loss()).may_have_left
    assert (await sound.over()).body == b"ok"
    assert len(reported) == 1


async def test_a_small_request_may_have_left_once_it_is_written(client: HttpClient, server: Server) -> None:
    sink = Recorder()
    ticket = ask(client, sink)
    answers = [ticket.may_have_left]
    peer = await server.accept()
    await peer.request()
    answers.append(ticket.may_have_left)
    ticket.abort()
    answers.append(ticket.may_have_left)
    assert answers == [False, True, True]
    assert await peer.rest() == b""
    assert not sink.events


@pytest.mark.parametrize("turns", [0, 5])
async def test_a_request_aborted_before_its_end_was_taken_never_arrives_whole(
    client: HttpClient, server: Server, turns: int
) -> None:
    peer, _ = await exchange(client, server)
    sink = Recorder()
    ticket = ask(client, sink, BIG)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not ticket.may_have_left
    ticket.abort()
    assert not ticket.may_have_left
    assert len(await peer.rest()) < len(BIG)
    assert not sink.events


async def test_nothing_is_written_after_an_abort_in_the_same_turn(background: BackgroundTasks) -> None:
    """The loop finds two sockets ready: one makes us abort, the other could take more of the request."""
    loop = asyncio.get_running_loop()
    bell, rope = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener, bell, rope:
        listener.setblocking(False)
        client = HttpClient(
            HttpOrigin("http", "127.0.0.1", listener.getsockname()[1]), Egress(), background, is_configured=True
        )
        first = ask(client, Recorder(), BIG)
        with (await loop.sock_accept(listener))[0] as peer:
            await turn()
            peer.setblocking(False)
            taken = drain(peer)
        first.abort()

        body = b"x" * (taken + 50_000)
        second = ask(client, Recorder(), body)
        with (await loop.sock_accept(listener))[0] as peer:
            await turn()
            peer.setblocking(False)
            assert not second.may_have_left
            loop.add_reader(bell, second.abort)
            await turn()
            rope.send(b"!")
            received = drain(peer)
            await turn()
            loop.remove_reader(bell)
            assert not second.may_have_left
            assert received + drain(peer) < len(body)
        await client.aclose()


def drain(sock: socket.socket) -> int:
    received = 0
    try:
        while chunk := sock.recv(1 << 20):
            received += len(chunk)
    except (BlockingIOError, ConnectionError):
        pass
    return received


async def test_closing_the_client_fails_all_its_requests(server: Server, background: BackgroundTasks) -> None:
    client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=2)
    idle, _ = await exchange(client, server)
    sinks = [Recorder() for _ in range(3)]
    for sink in sinks:
        ask(client, sink)
    await idle.request()
    await client.aclose()
    losses = [await sink.loss() for sink in sinks]
    assert [lost.may_have_left for lost in losses] == [True, False, False]
    late = Recorder()
    ask(client, late)
    assert not late.events
    assert (await late.loss()).reason == "the client is closed"
    assert await idle.rest() == b""
    await client.aclose()


async def test_over_tls_a_request_may_have_left_as_soon_as_it_is_written(background: BackgroundTasks) -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(theirs)
    authority.configure_trust(ours)
    async with Server(theirs) as server:
        client = HttpClient(server.origin, Egress(ours), background, is_configured=True)
        peer, sink = await exchange(client, server)
        assert sink.body == b"ok"
        big = ask(client, Recorder(), BIG)
        await asyncio.sleep(0)  # it is held until the end of this turn of the loop
        assert big.may_have_left
        big.abort()
        assert big.may_have_left
        await exchange(client, server, b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        assert len(await peer.rest()) < len(BIG)
        await client.aclose()


async def test_a_certificate_that_does_not_fit_is_reported(background: BackgroundTasks) -> None:
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(theirs)
    async with Server(theirs) as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
        sink = Recorder()
        ask(client, sink)
        lost = await sink.loss()
        assert "TLS: certificate verify failed" in lost.reason
        assert not lost.may_have_left
        await client.aclose()


@pytest.mark.parametrize(
    "headers",
    [
        {"a": "b\r\nevil: 1"},
        {"a": "b\nevil"},
        {"a": "\0"},
        {"a": "\u20ac"},
        {"a\r\nevil": "b"},
        {"a b": "c"},
        {"": "c"},
        {"a:": "c"},
        {"Content-Length": "9"},
        {"transfer-encoding": "chunked"},
        {"Connection": "close"},
    ],
)
def test_a_header_cannot_break_out_of_its_line(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        header_lines(headers)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/a b"),
        ("GET", "/a\r\nb"),
        ("GET", ""),
        ("GET /", "/"),
        ("HEAD", "/"),
        ("CONNECT", "/"),
        ("", "/"),
    ],
)
def test_a_request_line_cannot_be_broken(method: str, target: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        request_head(method, target, HttpOrigin("http", "h", 80), {})


def test_a_media_type_excludes_its_parameters() -> None:
    assert media_type({"content-type": "Text/Event-Stream; charset=utf-8"}) == "text/event-stream"
    assert media_type({}) == ""


@pytest.mark.parametrize(
    ("kind", "handed_on"), [("application/json", 70_000), (module.EVENT_STREAM, None)], ids=["JSON", "events"]
)
async def test_a_long_body_of_known_length_is_handed_on_in_one_turn(
    client: HttpClient, server: Server, kind: str, handed_on: int | None
) -> None:
    peer, _ = await exchange(client, server)
    [connection] = client._idle
    sink = Recorder()
    ask(client, sink)
    await peer.request()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 70000\r\n\r\n".encode()
    connection.data_received(head + b"x" * 70_000)
    assert len(sink.body) == (handed_on or PORTION_BYTES - len(head))
    assert len((await sink.over()).body) == 70_000
