"""The link over HTTP+SSE, with a server that the test scripts byte by byte, and with real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.credentials.server_logins import StaticCredentials
from isthmus.model.calls import LogMessage
from isthmus.model.fault_table import BadArguments, BadReply, Lost, NotConnected
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.upstream import base_link as link_module
from isthmus.upstream import http_shared
from isthmus.upstream.base_link import ConnectFailed, WrongCarrier
from isthmus.upstream.http_shared import CallerHeaders
from isthmus.upstream.sse import SseLink
from tests.conftest import Ledger, Spawn
from tests.faults.watching import eventually
from tests.unit.core.doubles import SERVER, Listener, call
from tests.unit.transport.doubles import Peer, Server
from tests.unit.upstream.doubles import (
    ACCEPTED,
    ME,
    SOMEBODY,
    STREAM,
    WELCOME,
    Scene,
    answer,
    event,
    message,
    over,
    posted,
    reply,
    text_of,
)

HEADERS = {ServerName("files"): {"Authorization": "Bearer secret", "ACCEPT": "nonsense"}}


def dial(url: str, background: BackgroundTasks, limits: Limits | None = None, max_calls: int = 8) -> SseLink:
    return SseLink(
        SERVER,
        ME,
        limits or Limits(),
        url=url,
        credentials=StaticCredentials(HEADERS),
        egress=Egress(),
        background=background,
        max_calls=max_calls,
    )


class Held(Scene):
    """A link to a server whose stream and connections the test holds."""

    link: SseLink

    def __init__(self, server: Server, background: BackgroundTasks) -> None:
        self.server = server
        self.background = background
        limits = Limits(reply_bytes=4096, connect_seconds=5.0)
        super().__init__(dial(f"{server.origin}/sse", background, limits))

    async def opened(self, endpoint: str = "/messages?s=1") -> Peer:
        """Wait for the stream to be asked for, and name the endpoint on it."""
        stream = await self.server.accept()
        self.asked = await stream.request()
        await stream.say(STREAM + b": hello\n\n" + event(b"too early") + event(endpoint.encode(), "endpoint"))
        return stream

    async def greeted(self) -> Peer:
        """Open the link as a good server does; returns its stream."""
        greeting = asyncio.ensure_future(self.link.handshake("auto"))
        stream = await self.opened()
        assert (await self.taken())["method"] == "initialize"
        await stream.say(event(message(id=1, result=WELCOME)))
        post = await self.server.accept()
        assert (await posted(post))["method"] == "notifications/initialized"
        assert not greeting.done()
        await post.say(ACCEPTED)
        async with asyncio.timeout(10):
            await greeting
        return stream

    async def taken(self) -> dict[str, Any]:
        """Take the next message and accept it."""
        post = await self.server.accept()
        taken = await posted(post)
        await post.say(ACCEPTED)
        return taken


@pytest_asyncio.fixture
async def held() -> AsyncIterator[Held]:
    background = BackgroundTasks("test")
    async with Server() as server:
        scene = Held(server, background)
        yield scene
        await scene.link.aclose()
    await background.aclose()


# -- opening ---------------------------------------------------------------------------------------------------------


async def test_the_stream_is_asked_for_and_messages_go_to_the_endpoint_it_names(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    await held.opened("/messages?s=1")
    head = (await (await held.server.accept()).request()).partition(b"\r\n\r\n")[0].split(b"\r\n")
    greeting.cancel()

    asked = held.asked.split(b"\r\n")
    assert asked[0] == b"GET /sse HTTP/1.1"
    assert {b"accept: text/event-stream", b"authorization: Bearer secret"} <= set(asked)
    assert head[0] == b"POST /messages?s=1 HTTP/1.1"
    assert {b"content-type: application/json", b"authorization: Bearer secret"} <= set(head)


async def test_the_servers_capabilities_are_known_after_initialize(held: Held) -> None:
    await held.greeted()
    assert (held.link.dialect.era, held.link.dialect.version) == ("legacy", "2024-11-05")
    assert held.link.abilities() == {"tools", "logging"}
    assert held.link.carrier == "sse"


@pytest.mark.parametrize("endpoint", ["messages?s=1", "{origin}/messages?s=1", "?s=1"])
async def test_an_endpoint_may_be_relative_or_whole(held: Held, endpoint: str) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    await held.opened(endpoint.format(origin=held.server.origin))
    request = await (await held.server.accept()).request()
    greeting.cancel()
    assert request.split(b" ")[1] == (b"/sse?s=1" if endpoint == "?s=1" else b"/messages?s=1")


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("http://evil.example/messages", "messages sent to http://evil.example, which is not http://127.0.0.1"),
        ("//evil.example/messages", "messages sent to http://evil.example"),
        ("https://127.0.0.1/messages", "messages sent to https://127.0.0.1"),
        ("file:///etc/passwd", "not an address"),
        ("/with a space", "not an address"),
    ],
)
async def test_an_endpoint_elsewhere_is_refused_and_nothing_is_sent(held: Held, endpoint: str, words: str) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    await held.opened(endpoint)
    with pytest.raises(ConnectFailed, match=words) as refused:
        await greeting
    assert not isinstance(refused.value, WrongCarrier)
    assert held.server.accepted == 1


@pytest.mark.parametrize(
    ("answered", "is_wrong", "words"),
    [
        (reply("404 Not Found"), True, "HTTP 404 with no content type"),
        (reply("405 Method Not Allowed", b"{}", "content-type: application/json"), True, "HTTP 405"),
        (reply("200 OK", b"<html>", "content-type: text/html; charset=utf-8"), True, "HTTP 200 with text/html"),
        (reply("401 Unauthorized"), False, "HTTP 401; check the credentials"),
        (reply("503 Service Unavailable"), False, "HTTP 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", False, "not valid HTTP"),
    ],
)
async def test_an_address_without_a_stream_is_distinguished(
    held: Held, answered: bytes, *, is_wrong: bool, words: str
) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    stream = await held.server.accept()
    await stream.request()
    await stream.say(answered)
    with pytest.raises(ConnectFailed, match=words) as refused:
        await greeting
    assert isinstance(refused.value, WrongCarrier) is is_wrong


async def test_a_server_that_wants_a_login_before_the_stream_says_where(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    stream = await held.server.accept()
    await stream.request()
    place = "https://a.example/in"
    await stream.say(reply("401 Unauthorized", b"", f'www-authenticate: Bearer resource_metadata="{place}"'))
    with pytest.raises(ConnectFailed) as refused:
        await greeting
    assert refused.value.login == place


async def test_a_stream_without_an_endpoint_is_not_waited_for_long(held: Held) -> None:
    held.link.start_seconds = 1.0  # long enough for the head to be read, which the words depend on
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    await (await held.server.accept()).say(STREAM + event(b"{}"))
    with pytest.raises(WrongCarrier, match="named no endpoint within"):
        await greeting


async def test_a_server_that_does_not_answer_at_all_may_be_of_any_carrier(held: Held) -> None:
    held.link.start_seconds = 0.05
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    with pytest.raises(ConnectFailed, match="did not answer within") as failed:
        await greeting
    assert not isinstance(failed.value, WrongCarrier)


async def test_a_stream_that_ends_before_its_endpoint_is_reported(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    stream = await held.server.accept()
    await stream.request()
    await stream.say(STREAM)
    stream.close()
    with pytest.raises(ConnectFailed, match="ended its event stream"):
        await greeting


async def test_an_endless_line_before_the_endpoint_is_refused(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    stream = await held.server.accept()
    await stream.say(STREAM + b"event: endpoint\ndata: /" + b"x" * 5000)
    with pytest.raises(ConnectFailed, match="event of over 4096 bytes"):
        await greeting
    await stream.rest()


async def test_an_unreachable_server_is_reported(held: Held) -> None:
    link = dial("http://127.0.0.1:1/sse", held.background)
    with pytest.raises(ConnectFailed, match="connection refused"):
        await link.handshake("auto")
    await link.aclose()


async def test_a_redirect_within_the_origin_is_followed(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    moved = await held.server.accept()
    await moved.request()
    await moved.say(reply("307 Temporary Redirect", b"", "location: /sse/"))
    assert (await moved.request()).startswith(b"GET /sse/ ")
    await moved.say(STREAM + event(b"here", "endpoint"))
    post = await held.server.accept()
    assert (await post.request()).startswith(b"POST /sse/here ")
    greeting.cancel()


@pytest.mark.parametrize(
    ("location", "words"), [("http://evil.example/", "redirects to http://evil.example"), ("/sse", "in circles")]
)
async def test_a_redirect_elsewhere_or_without_end_is_not(held: Held, location: str, words: str) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    moved = await held.server.accept()

    async def redirect() -> None:
        while True:
            await moved.request()
            await moved.say(reply("308 Permanent Redirect", b"", f"location: {location}"))

    redirecting = asyncio.ensure_future(redirect())
    with pytest.raises(ConnectFailed, match=words):
        await greeting
    redirecting.cancel()


# -- calls -----------------------------------------------------------------------------------------------------------


async def test_answers_find_their_calls_by_id_in_any_order(held: Held) -> None:
    stream = await held.greeted()
    first, second = held.start()[1], held.start()[1]
    await held.taken()
    await held.taken()
    await stream.say(event(answer(3, "second")) + event(answer(2, "first")))
    assert (text_of(await over(first)), text_of(await over(second))) == ("first", "second")


async def test_an_answer_may_come_before_its_post_is_accepted(held: Held) -> None:
    stream = await held.greeted()
    _, listener = held.start()
    post = await held.server.accept()
    await posted(post)
    await stream.say(event(answer(2)))
    assert text_of(await over(listener)) == "done"
    assert await post.rest() == b""  # and a server that never accepts it does not keep the connection
    assert held.callbacks == []


async def test_an_answer_cut_at_every_byte_is_read(held: Held) -> None:
    stream = await held.greeted()
    _, listener = held.start()
    await held.taken()
    for at in range(len(said := event(answer(2)))):
        await stream.say(said[at : at + 1])
        await asyncio.sleep(0)
    assert text_of(await over(listener)) == "done"


@pytest.mark.parametrize(
    ("status", "kind", "executed"),
    [(status, NotConnected, "no") for status in (307, 401, 403, 404, 405, 406, 415)]
    + [(status, BadReply, "unknown") for status in (400, 413, 429, 500, 503)],
)
async def test_a_refused_post_fails_its_call_alone(held: Held, status: int, kind: type, executed: str) -> None:
    stream = await held.greeted()
    other = held.start()[1]
    await held.taken()
    _, listener = held.start()
    post = await held.server.accept()
    await posted(post)
    held.link.redact = lambda text: text.replace("a-secret", "***")
    await post.say(reply(f"{status} No", message(id=None, error={"code": -32600, "message": "not with a-secret"})))
    fault = (await over(listener)).fault
    assert isinstance(fault, kind)
    assert fault.executed == executed
    assert f"HTTP {status} (not with ***)" in fault.message
    assert held.callbacks == ["doubt"]
    await stream.say(event(answer(2)))
    assert text_of(await over(other)) == "done"


async def test_a_refusal_without_end_is_not_read_for_ever(held: Held) -> None:
    await held.greeted()
    _, listener = held.start()
    post = await held.server.accept()
    await posted(post)
    await post.say(b"HTTP/1.1 500 No\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 5000)
    assert (await over(listener)).fault.executed == "unknown"
    await post.rest()


async def test_a_post_that_breaks_before_it_is_accepted_may_have_run(held: Held) -> None:
    await held.greeted()
    _, listener = held.start()
    post = await held.server.accept()
    await posted(post)
    post.reset()
    fault = (await over(listener)).fault
    assert isinstance(fault, Lost)
    assert fault.executed == "unknown"
    assert held.callbacks == ["doubt"]


async def test_a_post_that_breaks_after_it_was_accepted_changes_nothing(held: Held) -> None:
    stream = await held.greeted()
    _, listener = held.start()
    post = await held.server.accept()
    await posted(post)
    await post.say(b"HTTP/1.1 202 Accepted\r\ncontent-length: 8\r\n\r\nAcc")
    post.reset()
    await post.rest()
    await stream.say(event(answer(2)))
    assert text_of(await over(listener)) == "done"


async def test_a_withdrawn_call_is_cancelled_in_words(held: Held) -> None:
    await held.greeted()
    inflight, _ = held.start()
    await held.taken()
    inflight.cancel("changed my mind")
    notice = await held.taken()
    assert notice["method"] == "notifications/cancelled"
    assert notice["params"] == {"requestId": 2, "reason": "changed my mind"}


async def test_a_cancellation_that_may_overtake_its_call_is_sent_again(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_shared, "CANCEL_PAUSES", (0.0,))
    await held.greeted()
    inflight, _ = held.start()
    asked = await posted(await held.server.accept())
    inflight.cancel("changed my mind")
    received = [await held.taken() for _ in range(2)]
    assert [each["params"]["requestId"] for each in received] == [asked["id"]] * 2
    await held.link._one_way_posts.wait_sent()
    assert not held.server.waiting()


async def test_a_users_headers_go_with_the_call_and_its_cancellation_and_with_nothing_else(held: Held) -> None:
    held.link.caller_headers = CallerHeaders(["X-User-Id"])
    await held.greeted()
    inflight, _ = held.put(msgspec.structs.replace(call(), headers={"x-user-id": "ann", "X-Other": "1"}))
    post = await held.server.accept()
    head = (await post.request()).lower()
    await post.say(ACCEPTED)
    inflight.cancel("changed my mind")
    notice = (await (await held.server.accept()).request()).lower()
    assert b"\r\nx-user-id: ann\r\n" in head
    assert b"\r\nx-user-id: ann\r\n" in notice
    assert b"x-other" not in head + notice
    assert b"\r\nauthorization: bearer secret\r\n" in head
    assert b"x-user-id" not in held.asked.lower()


async def test_a_users_header_that_cannot_be_written_ends_the_call_unsent(held: Held) -> None:
    held.link.caller_headers = CallerHeaders(["X-User-Id"])
    stream = await held.greeted()
    _, listener = held.put(msgspec.structs.replace(call(), headers={"X-User-Id": "a\r\nb"}))
    assert isinstance(listener.fault, BadArguments)
    _, after = held.start()
    assert (await held.taken())["params"]["name"] == "read"
    await stream.say(event(answer(3)))
    assert text_of(await over(after)) == "done"


# -- the end ---------------------------------------------------------------------------------------------------------


async def test_a_lost_stream_is_reported_first_and_then_loses_its_calls(held: Held) -> None:
    stream = await held.greeted()
    inflight, listener = held.start()
    inflight.exchange = Order(held.callbacks)
    await held.taken()
    stream.close()
    async with asyncio.timeout(10):
        await held.link.lost
    await asyncio.sleep(0)
    assert held.callbacks == ["lost: it ended its event stream", "Lost unknown"]
    assert listener.ends == []
    assert held.start()[1].fault.executed == "no"


class Order(Listener):
    """A caller that writes its end down among the others' words."""

    def __init__(self, received: list[str]) -> None:
        super().__init__()
        self._told = received

    def end(self, outcome: object) -> None:
        assert isinstance(outcome, Lost)
        self._told.append(f"Lost {outcome.executed}")


async def test_unsent_calls_did_not_run_when_the_stream_broke(held: Held) -> None:
    stream = await held.greeted()
    _, listener = held.start(arguments={"text": "x" * 20_000_000})
    post = await held.server.accept()
    await post.receive()
    stream.reset()
    fault = (await over(listener)).fault
    assert isinstance(fault, Lost)
    assert fault.executed == "no"
    assert len(await post.rest()) < 20_000_000


async def test_closing_ends_the_stream_and_its_calls(held: Held) -> None:
    stream = await held.greeted()
    _, listener = held.start()
    await held.taken()
    await held.link.aclose()
    assert (await over(listener)).fault.executed == "unknown"
    assert await stream.rest() == b""


async def test_an_oversized_event_loses_the_link(held: Held) -> None:
    stream = await held.greeted()
    _, listener = held.start()
    await held.taken()
    await stream.say(b"data: " + b"x" * 5000)
    assert (await over(listener)).fault.executed == "unknown"
    assert held.callbacks == ["lost: it sent an event of over 4096 bytes"]
    assert await stream.rest() == b""


async def test_a_flood_of_nonsense_loses_the_link(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "GARBAGE_MAX", 100)
    stream = await held.greeted()
    await stream.say(event(b"nonsense") * 100 + event(message(method="notifications/nothing")) + event(b"nonsense"))
    await stream.say(event(b"no") * 100)
    async with asyncio.timeout(10):
        assert "not messages" in await held.link.lost
    assert await stream.rest() == b""


# -- what belongs to no call -----------------------------------------------------------------------------------------


async def test_changes_and_questions_come_on_the_stream(held: Held) -> None:
    stream = await held.greeted()
    await stream.say(event(message(method="notifications/tools/list_changed")))
    await stream.say(event(message(id="a", method="ping")) + event(message(id=7, method="sampling/createMessage")))
    first, second = await held.server.accept(), await held.server.accept()
    replies = [await posted(first), await posted(second)]
    assert {"jsonrpc": "2.0", "id": "a", "result": {}} in replies
    assert any(reply.get("error", {}).get("code") == -32601 and reply["id"] == 7 for reply in replies)
    assert held.callbacks == ["changed: tools"]


async def test_a_log_line_goes_to_the_only_caller_and_else_to_the_operator(held: Held) -> None:
    stream = await held.greeted()
    line = event(message(method="notifications/message", params={"level": "info", "data": "hm"}))
    mine = held.start()[1]
    await held.taken()
    await stream.say(line)
    await eventually(lambda: bool(mine.events), "the line is received")
    theirs = held.start(caller=SOMEBODY)[1]
    await held.taken()
    await stream.say(line + event(answer(2)) + event(answer(3)))
    await over(mine)
    await over(theirs)
    assert [type(seen) for seen in mine.events] == [LogMessage]
    assert theirs.events == []
    assert len(held.logs) == 1


# -- real servers ----------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def background() -> AsyncIterator[BackgroundTasks]:
    background = BackgroundTasks("test")
    yield background
    await background.aclose()


@pytest.mark.parametrize("peer", ["full_sdk1", "full_sdk2"])
async def test_the_official_servers_are_greeted_listed_and_called(
    spawn: Spawn, background: BackgroundTasks, peer: str
) -> None:
    running = await spawn(peer, "--transport", "sse")
    scene = Scene(dial(running.at("/sse"), background))
    await scene.link.handshake("auto")
    listing = await scene.link.list_features()
    await scene.link.ping(5.0)
    assert {"add", "slow"} <= {tool.name for tool in listing.tools}
    assert listing.prompts
    assert listing.resources
    assert listing.templates
    assert listing.all_notes() == ()
    assert text_of(await scene.call("slow", seconds=0.01, steps=2)) == "2 steps"
    await scene.link.aclose()


async def test_a_server_killed_during_calls_loses_the_link_with_executed_unknown(
    spawn: Spawn, background: BackgroundTasks, ledger: Ledger
) -> None:
    running = await spawn("raw_server", "--transport", "sse", "--ledger", str(ledger.path), "--mode", "sleep:60")
    scene = Scene(dial(running.at("/sse"), background))
    await scene.link.handshake("auto")
    listeners = [scene.start("pay", {"nonce": f"n{at}"})[1] for at in range(5)]
    await eventually(lambda: len(ledger.ran()) == 5, "all calls run")
    await running.kill()
    for listener in listeners:
        assert (await over(listener)).fault.executed == "unknown"
    assert [received[:5] for received in scene.callbacks] == ["lost:"]
    await scene.link.aclose()


async def test_a_foreign_endpoint_of_a_real_server_gets_nothing(
    spawn: Spawn, background: BackgroundTasks, ledger: Ledger
) -> None:
    mode = "foreign_endpoint:http://127.0.0.1:9"
    running = await spawn("raw_server", "--transport", "sse", "--ledger", str(ledger.path), "--mode", mode)
    link = dial(running.at("/sse"), background)
    with pytest.raises(ConnectFailed, match="which is not"):
        await link.handshake("auto")
    assert ledger.lines() == []
    await link.aclose()
