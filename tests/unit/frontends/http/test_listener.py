"""Opening, draining and closing: no request is dropped early, and none delays the end."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest

from isthmus.frontends.http.listener import CLOSE_SECONDS, HttpListener, HttpListenerSettings, ListenError, bind_all
from isthmus.frontends.http.request_cycle import Message, Receive, Send
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS, Bell, Echo, Held, connect_raw, opened, request


async def test_a_listener_serves_on_the_port_it_returns_and_touches_no_signal() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with opened(Echo()) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/here"))
        assert (await raw_client.receive()).body == b"/here "
        assert not http_listener.is_draining
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_a_taken_port_is_an_error_and_not_an_exit() -> None:
    async with opened(Echo()) as (_, port):
        second = HttpListener(Echo(), HttpListenerSettings(port=port))
        with pytest.raises(ListenError, match=str(port)):
            await second.open()
        await second.close()


async def test_an_empty_listener_drains_at_once() -> None:
    async with opened(Echo()) as (http_listener, _):
        assert await http_listener.drain(within=0.0)
        assert await http_listener.drain(within=PATIENCE_SECONDS)


async def test_draining_refuses_new_connections_and_lets_running_requests_end() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        draining = asyncio.get_running_loop().create_task(http_listener.drain(within=PATIENCE_SECONDS))
        await asyncio.sleep(0)
        assert http_listener.is_draining
        with pytest.raises(ConnectionRefusedError):
            async with connect_raw(port):
                pass
        await asgi_request.answer(b"done")
        answer = await raw_client.receive()
        assert (answer.body, answer.header(b"connection")) == (b"done", b"close")
        assert await draining


async def test_draining_closes_idle_and_silent_connections() -> None:
    async with opened(Echo()) as (http_listener, port), connect_raw(port) as idle, connect_raw(port) as silent:
        idle.say(request())
        assert (await idle.receive()).status == 200
        assert await http_listener.drain(within=PATIENCE_SECONDS)
        assert await idle.hear_rest() == b""
        assert await silent.hear_rest() == b""


async def test_a_request_that_was_on_its_way_when_draining_began_is_answered() -> None:
    async with opened(Echo()) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1"))
        assert (await raw_client.receive()).status == 200
        draining = asyncio.get_running_loop().create_task(http_listener.drain(within=PATIENCE_SECONDS))
        raw_client.say(request("/2"))  # Before the drain's first step, and read after it: idle ones are closed soon.
        answer = await raw_client.receive()
        assert (answer.body, answer.header(b"connection")) == (b"/2 ", b"close")
        assert await draining


async def test_pipelined_requests_are_all_answered_by_a_drain() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1") + request("/2"))
        first = await app.next_request()
        draining = asyncio.get_running_loop().create_task(http_listener.drain(within=PATIENCE_SECONDS))
        await asyncio.sleep(0)
        await first.answer(b"1")
        await (await app.next_request()).answer(b"2")
        assert [(await raw_client.receive()).body for _ in range(2)] == [b"1", b"2"]
        assert await draining


async def test_a_drain_ends_with_open_streams_because_their_frontend_is_notified() -> None:
    ending = asyncio.Event()
    started = asyncio.Semaphore(0)

    async def stream(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"open", "more_body": True})
        started.release()
        await ending.wait()
        await send({"type": "http.response.body", "body": b"bye"})

    def broken() -> None:
        raise LookupError("a frontend's bug")

    async with opened(stream) as (http_listener, port), AsyncExitStack() as stack:
        http_listener.on_drain(broken)
        http_listener.on_drain(ending.set)
        listeners = [await stack.enter_async_context(connect_raw(port)) for _ in range(20)]
        for listener in listeners:
            listener.say(request(method="GET"))
            await started.acquire()
        assert await http_listener.drain(within=PATIENCE_SECONDS)
        assert {(await listener.receive()).body for listener in listeners} == {b"openbye"}


async def test_a_request_that_outlives_the_drain_is_cut_by_closing() -> None:
    app, bell = Held(), Bell()
    async with opened(app, drain_seconds=0.05) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        assert not await http_listener.drain()
        await http_listener.close()
        assert await raw_client.hear_rest() == b""
        await bell.wait()


async def test_a_request_whose_client_has_gone_still_counts_as_running() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        raw_client.leave()
        await bell.wait()
        assert not await http_listener.drain(within=0.05)
        asgi_request.released.set()
        assert await http_listener.drain(within=PATIENCE_SECONDS)


async def test_closing_ends_a_drain_under_way_even_if_a_request_ignores_it() -> None:
    refused = asyncio.Event()
    entered = asyncio.Event()

    async def stubborn(scope: Message, receive: Receive, send: Send) -> None:
        entered.set()
        while not refused.is_set():
            try:
                await refused.wait()
            except asyncio.CancelledError:
                continue

    loop = asyncio.get_running_loop()
    async with opened(stubborn) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        await entered.wait()
        draining = loop.create_task(http_listener.drain(within=600.0))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await http_listener.close()
            assert await draining is False
        refused.set()
    assert CLOSE_SECONDS < 1.0  # A second signal must end the hub within a second.


async def test_a_listener_may_be_closed_twice_and_without_being_opened() -> None:
    async with opened(Echo()) as (http_listener, _):
        await http_listener.close()
    never_opened = HttpListener(Echo(), HttpListenerSettings())
    assert await never_opened.drain()
    await never_opened.close()


@pytest.mark.parametrize("host", ["x" * 64, "a..b"])
async def test_an_impossible_host_name_is_refused_with_advice(host: str) -> None:
    with pytest.raises(ListenError, match="the host name is not known here"):
        await bind_all(host, 0)
