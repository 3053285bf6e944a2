"""The link over Streamable HTTP: detection of the transport, and the stream of notifications."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.settings import Limits
from isthmus.credentials.server_logins import StaticCredentials
from isthmus.model.calls import UNSURE, Answered, LogMessage, Progress, Result, Surface
from isthmus.model.fault_table import BadReply, Cancelled, Fault, Lost, ServerError
from isthmus.transport.egress import Egress
from isthmus.upstream import http_shared, questions, subscriptions
from isthmus.upstream.base_link import ConnectFailed, WrongCarrier
from isthmus.upstream.http_shared import CallerHeaders
from isthmus.upstream.response_waiters import CallWaiter
from isthmus.upstream.server_settings import Era
from isthmus.upstream.streamable_http import Post, StreamableLink
from tests.conftest import Spawn
from tests.faults.watching import eventually
from tests.unit.core.doubles import SERVER, Listener, call, raw
from tests.unit.transport.doubles import Peer, Server
from tests.unit.upstream.doubles import (
    ACCEPTED,
    DISCOVERY,
    ME,
    SOMEBODY,
    STREAM,
    WELCOME,
    Scene,
    answer,
    event,
    message,
    over,
    reply,
    text_of,
)

JSON = ("connection: close", "content-type: application/json")


def dial(url: str, background: BackgroundTasks) -> StreamableLink:
    return StreamableLink(
        SERVER,
        ME,
        Limits(connect_seconds=5.0),
        url=url,
        credentials=StaticCredentials({}),
        egress=Egress(),
        background=background,
        max_calls=8,
    )


class Held(Scene):
    """A link to a server that answers greetings and leaves every other request to the test."""

    link: StreamableLink

    def __init__(self, server: Server, background: BackgroundTasks) -> None:
        self.server = server
        super().__init__(dial(f"{server.origin}/mcp", background))

    async def request(self) -> tuple[Peer, dict[str, Any]]:
        """The next request: who asks, and what; a GET asks nothing."""
        peer = await self.server.accept()
        body = (await peer.request()).partition(b"\r\n\r\n")[2]
        return peer, json.loads(body) if body else {}

    async def answered(self, *answers: bytes) -> None:
        """Give these replies to the next requests, one each."""
        for said in answers:
            peer, _ = await self.request()
            await peer.say(said)

    async def greeted(self, *, is_modern: bool, session: str = "") -> None:
        """Open the link as a good server does."""
        greeting = asyncio.ensure_future(self.link.handshake("modern" if is_modern else "legacy"))
        welcome = message(id=1, result=DISCOVERY if is_modern else WELCOME)
        await self.answered(reply("200 OK", welcome, *JSON, *([f"mcp-session-id: {session}"] if session else [])))
        if not is_modern:
            await self.answered(ACCEPTED)
        async with asyncio.timeout(10):
            await greeting


@pytest_asyncio.fixture
async def background() -> AsyncIterator[BackgroundTasks]:
    background = BackgroundTasks("test")
    yield background
    await background.aclose()


@pytest_asyncio.fixture
async def held(background: BackgroundTasks) -> AsyncIterator[Held]:
    async with Server() as server:
        scene = Held(server, background)
        yield scene
        closing = asyncio.ensure_future(scene.link.aclose())
        await asyncio.wait({closing}, timeout=0.01)
        for _ in range(server.waiting()):
            (await server.accept()).close()
        await closing


# -- is it the right carrier? ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "405 Method Not Allowed"])
async def test_an_address_that_knows_no_posts_is_another_carriers(held: Held, era: Era, status: str) -> None:
    greeting = asyncio.ensure_future(held.link.handshake(era))
    refusal = reply(status, b"Not here", "connection: close", "content-type: text/plain")
    await held.answered(*[refusal] * (1 if era == "legacy" else 2))
    with pytest.raises(WrongCarrier, match=f"answered a POST of MCP with HTTP {status[:3]}"):
        await greeting


@pytest.mark.parametrize(
    "answers",
    [
        [reply("401 Unauthorized", b"", "connection: close")],
        [reply("404 Not Found", b"", "connection: close"), reply("500 No", b"", "connection: close")],
        [reply("400 No", message(id=None, error={"code": -32000, "message": "no"}), *JSON)] * 2,
        [
            reply("400 No", message(id=None, error={"code": -32000, "message": "no"}), *JSON),
            reply("404 Not Found", b"", "connection: close"),
        ],
    ],
    ids=["401", "500", "json", "both"],
)
async def test_an_error_that_an_endpoint_may_send_is_not_the_wrong_transport(held: Held, answers: list[bytes]) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    await held.answered(*answers)
    with pytest.raises((Fault, ConnectFailed)) as failed:
        await greeting
    assert not isinstance(failed.value, WrongCarrier)


async def test_an_unreachable_server_is_not_a_wrong_transport(background: BackgroundTasks) -> None:
    link = dial("http://127.0.0.1:1/mcp", background)
    with pytest.raises(Fault):
        await link.handshake("auto")
    await link.aclose()


async def test_a_stream_of_the_earlier_transport_is_recognised_by_its_first_event(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    await held.answered(*[STREAM + event(b"/messages?s=1", "endpoint")] * 2)
    with pytest.raises(WrongCarrier, match="a stream of HTTP\\+SSE"):
        await greeting


@pytest.mark.parametrize("peer", ["full_sdk1", "full_sdk2", "raw_server"])
async def test_real_servers_of_the_earlier_transport_are_recognised(
    spawn: Spawn, background: BackgroundTasks, peer: str
) -> None:
    running = await spawn(peer, "--transport", "sse")
    link = dial(running.at("/sse"), background)
    with pytest.raises(WrongCarrier):
        await link.handshake("auto")
    await link.aclose()


# -- the stream of changes -------------------------------------------------------------------------------------------


def acknowledged(id: int, *uris: str) -> bytes:
    meta = {"io.modelcontextprotocol/subscriptionId": id}
    honoured = {"toolsListChanged": True, "resourceSubscriptions": uris} if uris else {}
    params = {"notifications": honoured, "_meta": meta}
    return event(message(method="notifications/subscriptions/acknowledged", params=params))


def updated(uri: str) -> bytes:
    return event(message(method="notifications/resources/updated", params={"uri": uri}))


async def test_the_stream_before_is_kept_until_the_next_one_is_acknowledged(held: Held) -> None:
    await held.greeted(is_modern=True)
    held.link.listen()
    first, asked = await held.request()
    assert asked["params"]["notifications"] == {"toolsListChanged": True, "resourcesListChanged": True}
    await first.say(STREAM + acknowledged(asked["id"]))

    subscribing = asyncio.ensure_future(held.link.subscribe("file:///a"))
    second, asked = await held.request()
    assert asked["params"]["notifications"]["resourceSubscriptions"] == ["file:///a"]
    await second.say(STREAM)
    await first.say(updated("file:///b"))
    await eventually(lambda: held.callbacks == ["updated: file:///b"], "the stream before still tells")
    assert not subscribing.done()

    await second.say(acknowledged(asked["id"]) + updated("file:///a"))
    assert await first.rest() == b""
    async with asyncio.timeout(10):
        await subscribing
    await eventually(lambda: held.callbacks[1:] == ["updated: file:///a"], "the next one tells")


async def test_a_stream_without_an_acknowledgement_for_long_is_overtaken_and_dropped_alone(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "LISTEN_ACK_SECONDS", 0.01)
    await held.greeted(is_modern=True)
    held.link.listen()
    first, asked = await held.request()
    await first.say(STREAM + acknowledged(asked["id"]) + updated("file:///x"))
    await eventually(lambda: bool(held.callbacks), "the first stream tells")
    one = asyncio.ensure_future(held.link.subscribe("file:///a"))
    second, _ = await held.request()
    two = asyncio.ensure_future(held.link.subscribe("file:///b"))
    third, asked = await held.request()
    assert asked["params"]["notifications"]["resourceSubscriptions"] == ["file:///a", "file:///b"]
    assert await second.rest() == b""
    await first.say(updated("file:///c"))
    await eventually(lambda: held.callbacks[1:] == ["updated: file:///c"], "the first stream still tells")
    await third.say(STREAM + acknowledged(asked["id"]))
    async with asyncio.timeout(10):
        await asyncio.gather(one, two)
    assert await first.rest() == b""


async def test_a_stream_without_an_acknowledgement_is_kept_if_it_is_the_only_one(held: Held) -> None:
    await held.greeted(is_modern=True)
    held.link.listen()
    first, _ = await held.request()
    subscribing = asyncio.ensure_future(held.link.subscribe("file:///a"))
    second, asked = await held.request()
    await first.say(STREAM + event(message(method="notifications/tools/list_changed")))
    await eventually(lambda: held.callbacks == ["changed: tools"], "the first stream tells after all")
    await second.say(STREAM + acknowledged(asked["id"]))
    async with asyncio.timeout(10):
        await subscribing
    assert await first.rest() == b""


@pytest.mark.parametrize(
    ("answered", "kind"),
    [
        (reply("200 OK", message(id=2, error={"code": -32601, "message": "no: a-secret"}), *JSON), ServerError),
        (reply("404 Not Found", b"", "connection: close"), BadReply),
        (STREAM + event(message(id=2, error={"code": -32601, "message": "no: a-secret"})), ServerError),
    ],
    ids=["json", "status", "event"],
)
async def test_a_refused_subscription_is_reported_to_its_requester(
    held: Held, answered: bytes, kind: type[Fault]
) -> None:
    await held.greeted(is_modern=True)
    held.link.redact = lambda text: text.replace("a-secret", "***")
    subscribing = asyncio.ensure_future(held.link.subscribe("file:///a"))
    peer, _ = await held.request()
    await peer.say(answered)
    peer.close()
    with pytest.raises(kind) as received:
        await subscribing
    assert "a-secret" not in str(received.value)


async def test_resources_missing_from_an_acknowledgement_are_refused(held: Held) -> None:
    await held.greeted(is_modern=True)
    good, bad = (asyncio.ensure_future(held.link.subscribe(f"file:///{name}")) for name in ("good", "bad"))
    first, asked = await held.request()
    assert asked["params"]["notifications"]["resourceSubscriptions"] == ["file:///bad", "file:///good"]
    await first.say(STREAM + acknowledged(asked["id"], "file:///good"))
    async with asyncio.timeout(10):
        await good
        with pytest.raises(ServerError, match="sends no updates"):
            await bad
    await first.say(updated("file:///good"))
    await eventually(lambda: held.callbacks == ["updated: file:///good"], "the stream tells")


async def test_a_refused_resource_costs_only_itself(held: Held) -> None:
    await held.greeted(is_modern=True)
    good = asyncio.ensure_future(held.link.subscribe("file:///good"))
    first, asked = await held.request()
    await first.say(STREAM + acknowledged(asked["id"]))
    await good
    bad = asyncio.ensure_future(held.link.subscribe("file:///bad"))
    second, asked = await held.request()
    refusal = message(id=asked["id"], error={"code": -32602, "message": "unknown"})
    await second.say(reply("400 No", refusal, "connection: close", *JSON))
    with pytest.raises(ServerError, match="unknown"):
        await bad
    await first.say(updated("file:///good"))
    await eventually(lambda: held.callbacks == ["updated: file:///good"], "the stream before still tells")
    another = asyncio.ensure_future(held.link.subscribe("file:///next"))
    third, asked = await held.request()
    assert asked["params"]["notifications"]["resourceSubscriptions"] == ["file:///good", "file:///next"]
    await third.say(STREAM + acknowledged(asked["id"]))
    async with asyncio.timeout(10):
        await another
    assert await first.rest() == b""


async def test_a_stream_that_ends_in_an_error_after_its_acknowledgement_is_opened_again(held: Held) -> None:
    await held.greeted(is_modern=True)
    held.link.listen()
    first, asked = await held.request()
    await first.say(STREAM + acknowledged(asked["id"]))
    await first.say(event(message(id=asked["id"], error={"code": -32000, "message": "restarting"})))
    first.close()
    _, asked = await held.request()
    assert asked["method"] == "subscriptions/listen"


async def test_a_new_subscription_waits_until_the_earlier_server_has_unsubscribed(held: Held) -> None:
    await held.greeted(is_modern=False)

    async def answered(method: str) -> None:
        peer, asked = await held.request()
        assert (asked["method"], asked["params"]["uri"]) == (method, "file:///a")
        await peer.say(reply("200 OK", message(id=asked["id"], result={}), "connection: close", *JSON))

    first = asyncio.ensure_future(held.link.subscribe("file:///a"))
    await answered("resources/subscribe")
    await first
    held.link.unsubscribe("file:///a")
    leaving, asked = await held.request()
    assert asked["method"] == "resources/unsubscribe"
    again = asyncio.ensure_future(held.link.subscribe("file:///a"))
    await asyncio.sleep(0.01)
    assert held.server.waiting() == 0
    await leaving.say(reply("200 OK", message(id=asked["id"], result={}), "connection: close", *JSON))
    await answered("resources/subscribe")
    async with asyncio.timeout(10):
        await again


async def test_a_lost_stream_is_opened_again_and_everything_is_looked_at(held: Held) -> None:
    await held.greeted(is_modern=True)
    held.link.listen()
    first, asked = await held.request()
    await first.say(STREAM + acknowledged(asked["id"]))
    first.close()
    gaps: list[str] = []
    held.link.on_gap = lambda: gaps.append("gap")
    second, asked = await held.request()
    assert gaps == []
    await second.say(STREAM + acknowledged(asked["id"]) + event(message(method="notifications/nothing")))
    await eventually(lambda: gaps == ["gap"], "what was not heard meanwhile is made up for")
    assert held.callbacks == ["changed: tools", "changed: prompts", "changed: resources"]


async def test_a_log_line_without_a_call_goes_to_the_only_caller(held: Held) -> None:
    await held.greeted(is_modern=False, session="s1")
    held.link.listen()
    stream, _ = await held.request()
    line = event(message(method="notifications/message", params={"level": "info", "data": "hm"}))
    _, mine = held.start()
    post, asked = await held.request()
    await stream.say(STREAM + line)
    await eventually(lambda: [type(seen) for seen in mine.events] == [LogMessage], "its caller hears it")
    _, theirs = held.start(caller=SOMEBODY)
    other, also_asked = await held.request()
    await stream.say(line)
    await eventually(lambda: len(held.logs) == 1, "the operator hears it")
    await post.say(reply("200 OK", answer(asked["id"]), *JSON))
    await other.say(reply("200 OK", answer(also_asked["id"]), *JSON))
    assert text_of(await over(mine)) == text_of(await over(theirs)) == "done"
    assert (len(mine.events), len(theirs.events)) == (1, 0)


# -- the era, and who can be asked -----------------------------------------------------------------------------------


def refused_version(id: int, *supported: str) -> bytes:
    data = {"supported": supported, "requested": "2026-07-28"}
    return reply("400 No", message(id=id, error={"code": -32022, "message": "no", "data": data}), *JSON)


async def test_a_server_that_refuses_a_version_and_names_it_as_its_own_is_asked_once_more(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    discovery = reply("200 OK", message(id=2, result=DISCOVERY), *JSON)
    await held.answered(refused_version(1, "2026-07-28"), discovery)
    async with asyncio.timeout(10):
        await greeting
    assert held.link.dialect.era == "modern"


async def test_a_server_that_goes_on_refusing_its_own_version_is_initialized_the_earlier_way(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    await held.answered(*(refused_version(id, "2026-07-28") for id in (1, 2)))
    peer, asked = await held.request()
    assert asked["method"] == "initialize"
    peer.close()
    with pytest.raises(Fault):
        await greeting


@pytest.mark.parametrize("supported", [("2025-11-25",), ()])
async def test_a_server_that_names_no_version_of_the_era_is_not_asked_again(
    held: Held, supported: tuple[str, ...]
) -> None:
    greeting = asyncio.ensure_future(held.link.handshake("auto"))
    await held.answered(refused_version(1, *supported))
    peer, asked = await held.request()
    assert asked["method"] == "initialize"
    peer.close()
    with pytest.raises(Fault):
        await greeting


async def until_listening(held: Held) -> tuple[asyncio.Future[None], Peer]:
    """Greet a server with sessions on behalf of those who can be asked; the peer is who wants to hear questions."""
    held.link.questions.client_caps = frozenset({"elicitation"})
    greeting = asyncio.ensure_future(held.link.handshake("legacy"))
    welcome = message(id=1, result=WELCOME)
    await held.answered(reply("200 OK", welcome, *JSON, "mcp-session-id: s1"))
    first, second = await held.request(), await held.request()
    (listener, _), (teller, _) = sorted((first, second), key=lambda request: bool(request[1]))
    await teller.say(ACCEPTED)
    return greeting, listener


async def test_the_stream_for_questions_is_open_before_anything_can_be_asked(held: Held) -> None:
    greeting, listener = await until_listening(held)
    assert not greeting.done()
    await listener.say(STREAM)
    async with asyncio.timeout(10):
        await greeting


async def asked_beside(held: Held, *sessions: str) -> tuple[Peer, list[Listener]]:
    """A server that can ask on the stream of all, and calls of these conversations; the peer is that stream."""
    greeting, listener = await until_listening(held)
    await listener.say(STREAM)
    async with asyncio.timeout(10):
        await greeting
    callers = []
    for session in sessions:
        asked = msgspec.structs.replace(call(client_caps=held.link.questions.client_caps), session=session)
        callers.append(held._stage.start(asked)[1])
        await held.request()
    return listener, callers


@pytest.mark.parametrize(
    ("sessions", "is_asked"), [([""], True), (["", ""], False), (["one", "one"], True), (["one", "two"], False)]
)
async def test_a_question_without_a_call_reaches_one_program_or_none_and_is_reported(
    held: Held, sessions: list[str], *, is_asked: bool
) -> None:
    received: list[str] = []
    held.link.questions.on_question = lambda: received.append("asked")
    listener, callers = await asked_beside(held, *sessions)
    await listener.say(event(message(id="q", method="elicitation/create", params={})))
    await eventually(lambda: bool(received), "the question is read")
    assert [len(caller.asked) for caller in callers] == [0] * (len(sessions) - 1) + [int(is_asked)]
    if not is_asked:
        _, refusal = await held.request()
        assert (refusal["id"], refusal["error"]["code"]) == ("q", -32603)


async def until_asked(held: Held) -> None:
    """Have the server ask on the stream of all, before there is any call."""
    listener, _ = await asked_beside(held)
    await listener.say(event(message(id="q", method="elicitation/create", params={})))
    await eventually(lambda: held.link.questions.has_asked, "the question is read")


async def test_a_question_before_its_call_waits_for_the_call(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "EARLY_SECONDS", 600.0)
    await until_asked(held)
    _, caller = held._stage.start(call(client_caps=held.link.questions.client_caps))
    assert caller.asked == []
    await eventually(lambda: bool(caller.asked), "the question is put")
    assert (await held.request())[1]["method"] == "tools/call"
    caller.asked[0][1](Answered(raw({"action": "decline"})))
    assert (await held.request())[1] == {"jsonrpc": "2.0", "id": "q", "result": {"action": "decline"}}
    assert not held.link.questions.has_unanswered


async def test_a_question_without_a_following_call_is_refused_after_a_moment(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "EARLY_SECONDS", 0.0)
    await until_asked(held)
    _, refusal = await held.request()
    assert (refusal["id"], refusal["error"]["message"]) == ("q", UNSURE.message)
    assert held.link.questions.has_unanswered


async def test_after_a_call_was_given_up_a_question_that_names_none_may_be_about_it(held: Held) -> None:
    listener, (_, _) = await asked_beside(held, "one", "two")
    first, *_ = held.link.requests.pending.values()
    assert isinstance(first.waiter, CallWaiter)
    first.waiter.inflight.cancel("enough")
    assert (await held.request())[1]["method"] == "notifications/cancelled"
    await listener.say(event(message(id="q", method="elicitation/create", params={})))
    _, refusal = await held.request()
    assert (refusal["id"], refusal["error"]["code"]) == ("q", -32603)


async def test_a_server_without_a_stream_for_questions_is_initialized_all_the_same(held: Held) -> None:
    greeting, listener = await until_listening(held)
    await listener.say(reply("405 No", b"", "connection: close"))
    async with asyncio.timeout(10):
        await greeting


@pytest.mark.parametrize("answered", [STREAM, reply("405 No", b"", "connection: close")])
async def test_a_subscription_on_a_link_without_a_stream_opens_it_first(held: Held, answered: bytes) -> None:
    await held.greeted(is_modern=False, session="s1")
    for uri in ("a:b", "a:c"):
        subscription_sync = asyncio.ensure_future(held.link.subscribe(uri))
        if uri == "a:b":
            listener, asked = await held.request()
            assert asked == {}
            await listener.say(answered)
        subscriber, asked = await held.request()  # the stream is asked for once, whether there is one or not
        assert (asked["method"], asked["params"]) == ("resources/subscribe", {"uri": uri})
        await subscriber.say(reply("200 OK", message(id=asked["id"], result={}), *JSON, "connection: close"))
        async with asyncio.timeout(10):
            await subscription_sync


async def test_tools_whose_headers_cannot_be_written_are_left_out_and_noted(held: Held) -> None:
    await held.greeted(is_modern=True)
    well = {"type": "object", "properties": {"at": {"type": "string", "x-mcp-header": "At"}}}
    ill = {"type": "object", "properties": {"at": {"type": "string", "x-mcp-header": "At all"}}}
    namesake = {"type": "object", "properties": {"x-mcp-header": {"type": "string"}}}
    schemas = {"well": well, "ill": ill, "namesake": namesake}
    tools = [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]
    listing = asyncio.ensure_future(held.link.list_features({"tools"}))
    await held.answered(reply("200 OK", message(id=2, result={"tools": tools}), *JSON))
    async with asyncio.timeout(10):
        found = await listing
    assert [tool.name for tool in found.tools] == ["well", "namesake"]
    assert found.all_notes() == ("'ill' left out: its x-mcp-header cannot be sent",)


# -- streams that end before the answer ------------------------------------------------------------------------------

SOON = b"id: e1\nretry: 50\ndata: \n\n"
"""How a server begins a stream that can be come back to."""


class Leaving(Listener):
    """A caller who can be let go."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def numbered(id: str, data: bytes) -> bytes:
    return b"id: %b\n" % id.encode() + event(data)


def progress(asked: dict[str, Any], done: int) -> bytes:
    token = asked["id"]
    return message(method="notifications/progress", params={"progressToken": token, "progress": done})


async def broken_off(held: Held, *said: bytes) -> tuple[InFlight, Listener, dict[str, Any]]:
    """A call whose stream said this and ended, as its server's end of a session."""
    await held.greeted(is_modern=False, session="s1")
    inflight, listener = held.start()
    peer, asked = await held.request()
    await peer.say(STREAM + b"".join(said))
    peer.close()
    return inflight, listener, asked


async def came_back(held: Held) -> tuple[Peer, str]:
    """The next request, which asks for the rest of a stream: from which event on."""
    peer = await held.server.accept()
    head = (await peer.request()).decode().lower()
    assert head.startswith("get ")
    assert "mcp-session-id: s1\r\n" in head
    return peer, head.partition("last-event-id: ")[2].partition("\r\n")[0]


async def test_the_rest_of_a_stream_is_asked_for_from_its_last_event_on(held: Held) -> None:
    _, listener, asked = await broken_off(held, SOON, numbered("e2", b"{}"))
    first, last = await came_back(held)
    assert last == "e2"
    await first.say(STREAM + numbered("e3", progress(asked, 1)) + b"id: half\n")
    first.close()
    second, last = await came_back(held)
    assert last == "e3"
    await second.say(STREAM + numbered("e4", progress(asked, 2)) + numbered("e5", answer(asked["id"])))
    assert text_of(await over(listener)) == "done"
    received = [event.members["progress"] for event in listener.events if isinstance(event, Progress)]
    assert [bytes(done) for done in received] == [b"1", b"2"]


async def test_a_question_on_the_resumed_stream_is_the_calls(held: Held) -> None:
    _, listener, asked = await broken_off(held, SOON)
    peer, _ = await came_back(held)
    question = message(id="q", method="elicitation/create", params={"message": "?"})
    await peer.say(STREAM + numbered("e2", question))
    teller, received = await held.request()
    assert (received["id"], "error" in received) == ("q", True)  # this caller cannot be asked, and the server is told
    await teller.say(ACCEPTED)
    await peer.say(numbered("e3", answer(asked["id"])))
    assert text_of(await over(listener)) == "done"


@pytest.mark.parametrize("said", [b"", event(b"{}"), b"retry: 10\n\n", b"id: \x07\ndata: {}\n\n", b"id\n\n"])
async def test_a_stream_without_an_id_that_can_be_said_is_lost_when_it_ends(held: Held, said: bytes) -> None:
    _, listener, _ = await broken_off(held, said)
    fault = (await over(listener)).fault
    assert isinstance(fault, Lost)
    assert (fault.executed, "its stream ended before the answer" in str(fault)) == ("unknown", True)


async def test_a_stream_that_breaks_is_asked_for_too(held: Held) -> None:
    await held.greeted(is_modern=False, session="s1")
    _, listener = held.start()
    peer, asked = await held.request()
    await peer.say(STREAM + SOON)
    post = cast("Post", held.link.requests.pending[asked["id"]])
    await eventually(lambda: post._decoder is not None, "the stream has begun")
    peer.reset()
    peer, last = await came_back(held)
    assert last == "e1"
    await peer.say(STREAM + event(answer(asked["id"])))
    assert text_of(await over(listener)) == "done"
    assert held.callbacks == ["doubt"]


@pytest.mark.parametrize("status", ["400 No", "404 Not Found", "405 No", "200 OK"])
async def test_a_server_that_does_not_give_the_rest_has_lost_the_call(held: Held, status: str) -> None:
    _, listener, _ = await broken_off(held, SOON)
    peer, _ = await came_back(held)
    await peer.say(reply(status, b"{}", *JSON))
    fault = (await over(listener)).fault
    assert isinstance(fault, Lost)
    assert (fault.executed, f"HTTP {status[:3]}" in str(fault)) == ("unknown", True)


async def test_a_server_in_passing_trouble_is_asked_again_and_not_for_ever(held: Held) -> None:
    _, listener, asked = await broken_off(held, SOON)
    for _ in range(2):
        peer, last = await came_back(held)
        await peer.say(reply("503 Later", b"", "connection: close"))
    peer, last = await came_back(held)
    assert last == "e1"
    await peer.say(STREAM + SOON)
    peer.close()
    for _ in range(3):
        peer, _ = await came_back(held)
        peer.close()
    fault = (await over(listener)).fault
    assert (isinstance(fault, Lost), asked["id"] in held.link.requests.pending) == (True, False)


async def test_a_users_headers_go_with_the_call_its_return_and_its_cancellation(held: Held) -> None:
    held.link.caller_headers = CallerHeaders(["X-User-Id"])
    await held.greeted(is_modern=False)
    inflight, _ = held.put(msgspec.structs.replace(call(), headers={"x-user-id": "ann", "X-Other": "1"}))
    peer = await held.server.accept()
    heads = [await peer.request()]
    await peer.say(STREAM + SOON)
    peer.close()
    heads.append(await (await held.server.accept()).request())
    inflight.cancel("by the caller")
    heads.append(await (await held.server.accept()).request())
    assert [head.partition(b" ")[0] for head in heads] == [b"POST", b"GET", b"POST"]
    assert all(b"\r\nX-User-Id: ann\r\n" in head for head in heads)
    assert not any(b"x-other" in head.lower() for head in heads)


async def cancelled_unread(held: Held, *said: bytes) -> dict[str, Any]:
    """A call in a session that was withdrawn when its server had said this; returns the request."""
    await held.greeted(is_modern=False, session="s1")
    inflight, _ = held.start()
    peer, asked = await held.request()
    for each in said:
        await peer.say(each)
    if said:
        await eventually(lambda: isinstance(post := inflight.carriage, Post) and post.was_read, "it was read")
    inflight.cancel("by the caller")
    return asked


async def test_a_cancellation_that_may_overtake_its_call_is_sent_again(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_shared, "CANCEL_PAUSES", (0.0, 0.0))
    asked = await cancelled_unread(held)
    received = []
    for said in (ACCEPTED, b"", ACCEPTED):
        teller, notified = await held.request()
        received.append((notified["method"], notified["params"]["requestId"]))
        await teller.say(said)
        teller.close()
    assert received == [("notifications/cancelled", asked["id"])] * 3
    await held.link._one_way_posts.wait_sent()
    assert not held.server.waiting()


async def test_a_server_that_has_begun_to_answer_receives_one_cancellation(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_shared, "CANCEL_PAUSES", (0.0, 0.0))
    await cancelled_unread(held, STREAM)
    await held.answered(ACCEPTED)
    await held.link._one_way_posts.wait_sent()
    for _ in range(2):  # another cancellation would come before the second one
        held.start()
        assert (await held.request())[1]["method"] == "tools/call"


async def test_a_call_with_the_id_of_a_withdrawn_one_is_not_cancelled(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_shared, "CANCEL_PAUSES", (0.0, 0.0))
    await held.greeted(is_modern=False, session="s1")
    held.link.requests.dedicate_to_caller()
    mine = msgspec.structs.replace(call(), request_id=msgspec.Raw(b"7"))
    inflight, _ = held.put(mine)
    assert (await held.request())[1]["id"] == 7
    inflight.cancel("by the caller")
    teller, received = await held.request()
    assert received["params"]["requestId"] == 7
    _, listener = held.put(mine)
    peer, asked = await held.request()
    await teller.say(ACCEPTED)
    await held.link._one_way_posts.wait_sent()
    await peer.say(reply("200 OK", answer(asked["id"]), *JSON))
    assert text_of(await over(listener)) == "done"
    assert not held.server.waiting()


async def test_a_call_that_is_withdrawn_while_its_stream_is_away_is_not_asked_for(held: Held) -> None:
    inflight, listener, asked = await broken_off(held, b"id: e1\nretry: 10000\ndata: \n\n")
    await eventually(lambda: bool(held.link._resumes), "the stream is away")
    ((post, (timer, _)),) = held.link._resumes.items()
    timer.cancel()
    assert held.link.may_have_run(inflight)
    inflight.cancel("by the caller")
    assert isinstance(listener.fault, Cancelled)
    teller, received = await held.request()
    assert received["params"]["requestId"] == asked["id"]
    await teller.say(ACCEPTED)
    held.link._request_rest(post)  # its time has come
    assert (held.link._resumes, post.ticket is not None and post.ticket.may_have_left) == ({}, True)
    assert held.server.waiting() == 0


async def test_a_link_that_is_closed_gives_up_streams_that_are_away(held: Held) -> None:
    _, listener, _ = await broken_off(held, b"id: e1\nretry: 10000\ndata: \n\n")
    await eventually(lambda: bool(held.link._resumes), "the stream is away")
    closing = asyncio.ensure_future(held.link.aclose())
    assert isinstance((await over(listener)).fault, Lost)
    peer, _ = await held.request()
    await peer.say(ACCEPTED)
    await closing


async def test_a_caller_that_can_be_let_go_is_when_its_server_lets_go(held: Held) -> None:
    await held.greeted(is_modern=False, session="s1")
    leaving = Leaving()
    held._stage.hub.start(call("files.read"), leaving)
    peer, asked = await held.request()
    await peer.say(STREAM + SOON)
    peer.close()
    peer, _ = await came_back(held)
    assert leaving.pauses == [0.05]
    peer.reset()  # which is nobody's wish
    peer, _ = await came_back(held)
    await peer.say(STREAM + event(answer(asked["id"])))
    assert text_of(await over(leaving)) == "done"
    assert leaving.pauses == [0.05]


async def test_a_stream_of_changes_goes_on_from_its_last_event_when_the_server_wants_it_to(held: Held) -> None:
    await held.greeted(is_modern=False, session="s1")
    held.link.listen()
    first, last = await came_back(held)
    assert last == ""
    await first.say(STREAM + b"id: c1\nretry: 0\ndata: \n\n")
    first.close()
    second, last = await came_back(held)
    assert last == "c1"
    await second.say(reply("400 No", b"", "connection: close"))
    third, last = await came_back(held)
    assert last == ""
    await third.say(STREAM)


# -- tasks ---------------------------------------------------------------------------------------------------------


async def test_an_answer_of_an_ended_session_belongs_to_no_new_session(held: Held) -> None:
    await held.greeted(is_modern=False, session="s1")
    first = held.link.place
    (early, _), (early_peer, _) = held.start(), await held.request()
    assert held.link.link_session_of(early) is first
    held.start()
    peer, _ = await held.request()
    await peer.say(reply("404 Not Found", b"", "connection: close"))
    _, renewal = await held.request()
    assert renewal["method"] == "initialize"
    assert (first.is_lost, held.link.place.is_lost) == (True, False)
    assert held.link.link_session_of(early) is None
    early_peer.reset()


@pytest.mark.parametrize("is_modern", [True, False])
async def test_a_method_is_posted_by_its_name_and_names_nothing_else(held: Held, *, is_modern: bool) -> None:
    await held.greeted(is_modern=is_modern)
    _, listener = held.put(call("prompts/list", {"cursor": "a"}, kind="method", surface=Surface("own", SERVER)))
    peer = await held.server.accept()
    head, _, body = (await peer.request()).partition(b"\r\n\r\n")
    asked = json.loads(body)
    assert (asked["method"], asked["params"]["cursor"]) == ("prompts/list", "a")
    assert (b"mcp-method: prompts/list" in head.lower(), b"mcp-name" in head.lower()) == (is_modern, False)
    await peer.say(reply("200 OK", message(id=asked["id"], result={"prompts": []}), *JSON))
    (outcome,) = (await over(listener)).ends
    assert isinstance(outcome, Result)
    assert json.loads(bytes(outcome.payload)) == {"prompts": []}
