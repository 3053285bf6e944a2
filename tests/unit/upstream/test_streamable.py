"""The link over Streamable HTTP: whether it is the right carrier, and the stream that tells of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from isthmus.core.crew import Crew
from isthmus.core.settings import Limits
from isthmus.credentials.memory import StaticCredentials
from isthmus.model.events import Log
from isthmus.model.faults import BadReply, Fault, ServerError
from isthmus.transport.egress import Egress
from isthmus.upstream.link import ConnectFailed, WrongCarrier
from isthmus.upstream.settings import Era
from isthmus.upstream.streamable.link import StreamableLink
from tests.conftest import Spawn
from tests.faults.watching import eventually
from tests.unit.core.doubles import SERVER
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


def dial(url: str, crew: Crew) -> StreamableLink:
    return StreamableLink(
        SERVER,
        ME,
        Limits(connect_seconds=5.0),
        url=url,
        credentials=StaticCredentials({}),
        egress=Egress(),
        crew=crew,
        max_calls=8,
    )


class Held(Scene):
    """A link to a server that answers greetings and leaves every other request to the test."""

    def __init__(self, server: Server, crew: Crew) -> None:
        self.server = server
        super().__init__(dial(f"{server.origin}/mcp", crew))

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
        greeting = asyncio.ensure_future(self.link.greet("modern" if is_modern else "legacy"))
        welcome = message(id=1, result=DISCOVERY if is_modern else WELCOME)
        await self.answered(reply("200 OK", welcome, *JSON, *([f"mcp-session-id: {session}"] if session else [])))
        if not is_modern:
            await self.answered(ACCEPTED)
        async with asyncio.timeout(10):
            await greeting


@pytest_asyncio.fixture
async def crew() -> AsyncIterator[Crew]:
    crew = Crew("test")
    yield crew
    await crew.aclose()


@pytest_asyncio.fixture
async def held(crew: Crew) -> AsyncIterator[Held]:
    async with Server() as server:
        scene = Held(server, crew)
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
    greeting = asyncio.ensure_future(held.link.greet(era))
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
async def test_one_that_looks_like_an_endpoint_is_none_of_another_carrier(held: Held, answers: list[bytes]) -> None:
    greeting = asyncio.ensure_future(held.link.greet("auto"))
    await held.answered(*answers)
    with pytest.raises((Fault, ConnectFailed)) as failed:
        await greeting
    assert not isinstance(failed.value, WrongCarrier)


async def test_nobody_there_is_no_wrong_carrier(crew: Crew) -> None:
    link = dial("http://127.0.0.1:1/mcp", crew)
    with pytest.raises(Fault):
        await link.greet("auto")
    await link.aclose()


async def test_a_stream_of_the_earlier_transport_is_recognised_by_its_first_event(held: Held) -> None:
    greeting = asyncio.ensure_future(held.link.greet("auto"))
    await held.answered(*[STREAM + event(b"/messages?s=1", "endpoint")] * 2)
    with pytest.raises(WrongCarrier, match="a stream of HTTP\\+SSE"):
        await greeting


@pytest.mark.parametrize("peer", ["full_sdk1", "full_sdk2", "raw_server"])
async def test_real_servers_of_the_earlier_transport_are_recognised(spawn: Spawn, crew: Crew, peer: str) -> None:
    running = await spawn(peer, "--transport", "sse")
    link = dial(running.at("/sse"), crew)
    with pytest.raises(WrongCarrier):
        await link.greet("auto")
    await link.aclose()


# -- the stream of changes -------------------------------------------------------------------------------------------


def acknowledged(id: int) -> bytes:
    meta = {"io.modelcontextprotocol/subscriptionId": id}
    params = {"notifications": {}, "_meta": meta}
    return event(message(method="notifications/subscriptions/acknowledged", params=params))


def updated(uri: str) -> bytes:
    return event(message(method="notifications/resources/updated", params={"uri": uri}))


async def test_the_stream_before_is_kept_until_the_next_one_tells(held: Held) -> None:
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
    await eventually(lambda: held.told == ["updated: file:///b"], "the stream before still tells")
    assert not subscribing.done()

    await second.say(acknowledged(asked["id"]) + updated("file:///a"))
    assert await first.rest() == b""
    async with asyncio.timeout(10):
        await subscribing
    await eventually(lambda: held.told[1:] == ["updated: file:///a"], "the next one tells")


async def test_a_stream_that_is_overtaken_before_it_tells_is_dropped_alone(held: Held) -> None:
    await held.greeted(is_modern=True)
    held.link.listen()
    first, asked = await held.request()
    await first.say(STREAM + acknowledged(asked["id"]) + updated("file:///x"))
    await eventually(lambda: bool(held.told), "the first stream tells")
    one = asyncio.ensure_future(held.link.subscribe("file:///a"))
    second, _ = await held.request()
    two = asyncio.ensure_future(held.link.subscribe("file:///b"))
    third, asked = await held.request()
    assert asked["params"]["notifications"]["resourceSubscriptions"] == ["file:///a", "file:///b"]
    assert await second.rest() == b""
    await first.say(updated("file:///c"))
    await eventually(lambda: held.told[1:] == ["updated: file:///c"], "the first stream still tells")
    await third.say(STREAM + acknowledged(asked["id"]))
    async with asyncio.timeout(10):
        await asyncio.gather(one, two)
    assert await first.rest() == b""


async def test_a_stream_that_has_not_told_yet_is_kept_if_it_is_the_only_one(held: Held) -> None:
    await held.greeted(is_modern=True)
    held.link.listen()
    first, _ = await held.request()
    subscribing = asyncio.ensure_future(held.link.subscribe("file:///a"))
    second, asked = await held.request()
    await first.say(STREAM + event(message(method="notifications/tools/list_changed")))
    await eventually(lambda: held.told == ["changed: tools"], "the first stream tells after all")
    await second.say(STREAM + acknowledged(asked["id"]))
    async with asyncio.timeout(10):
        await subscribing
    assert await first.rest() == b""


@pytest.mark.parametrize(
    ("answered", "kind"),
    [
        (reply("200 OK", message(id=2, error={"code": -32601, "message": "no"}), *JSON), ServerError),
        (reply("404 Not Found", b"", "connection: close"), BadReply),
        (STREAM + event(message(id=2, error={"code": -32601, "message": "no"})), ServerError),
    ],
    ids=["json", "status", "event"],
)
async def test_a_refused_subscription_is_told_to_who_asked(held: Held, answered: bytes, kind: type[Fault]) -> None:
    await held.greeted(is_modern=True)
    subscribing = asyncio.ensure_future(held.link.subscribe("file:///a"))
    peer, _ = await held.request()
    await peer.say(answered)
    peer.close()
    with pytest.raises(kind):
        await subscribing


async def test_a_lost_stream_is_opened_again_and_everything_is_looked_at(held: Held) -> None:
    await held.greeted(is_modern=True)
    held.link.listen()
    first, asked = await held.request()
    await first.say(STREAM + acknowledged(asked["id"]))
    first.close()
    second, asked = await held.request()
    await second.say(STREAM + acknowledged(asked["id"]))
    assert held.told == ["changed: tools", "changed: prompts", "changed: resources"]


async def test_a_log_that_names_no_call_is_the_callers_who_is_alone(held: Held) -> None:
    await held.greeted(is_modern=False, session="s1")
    held.link.listen()
    stream, _ = await held.request()
    line = event(message(method="notifications/message", params={"level": "info", "data": "hm"}))
    _, mine = held.start()
    post, asked = await held.request()
    await stream.say(STREAM + line)
    await eventually(lambda: [type(seen) for seen in mine.events] == [Log], "its caller hears it")
    _, theirs = held.start(caller=SOMEBODY)
    other, also_asked = await held.request()
    await stream.say(line)
    await eventually(lambda: len(held.logs) == 1, "the operator hears it")
    await post.say(reply("200 OK", answer(asked["id"]), *JSON))
    await other.say(reply("200 OK", answer(also_asked["id"]), *JSON))
    assert text_of(await over(mine)) == text_of(await over(theirs)) == "done"
    assert (len(mine.events), len(theirs.events)) == (1, 0)
