"""Properties of replies over HTTP."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import msgspec
import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.model.fault_table import BadArguments
from isthmus.transport.egress import Egress, HttpOrigin
from isthmus.transport.http_client import HttpClient, ResponseSink, Ticket, request_head
from isthmus.upstream import http_shared as module
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.http_shared import (
    HEADERS_BYTES_MAX,
    URL_LENGTH_MAX,
    CallerHeaders,
    OneWayPosts,
    login_url,
    same_origin_target,
)
from tests.unit.core.doubles import Listener, Stage, call, tool
from tests.unit.transport.doubles import Recorder, Server
from tests.unit.upstream.doubles import ACCEPTED

PLACE = "https://bank.example/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    "challenge",
    [
        f'Bearer resource_metadata="{PLACE}"',
        f'Bearer realm="x", error="invalid_token", resource_metadata="{PLACE}", scope="a b"',
        f'Basic realm="x", Bearer Resource_Metadata = "{PLACE}"',
        f"Bearer resource_metadata={PLACE}, realm=x",
    ],
)
def test_a_challenge_says_where_to_log_in(challenge: str) -> None:
    assert login_url(401, {"www-authenticate": challenge}) == PLACE


@pytest.mark.parametrize(
    "challenge",
    [
        "",
        "Bearer",
        'Bearer realm="resource_metadata"',
        'Bearer resource_metadata=""',
        'Bearer resource_metadata="javascript:alert(1)"',
        'Bearer resource_metadata="file:///etc/passwd"',
        'Bearer resource_metadata="https://a\x07b"',
        f'Bearer resource_metadata="https://{"a" * URL_LENGTH_MAX}"',
    ],
)
def test_a_challenge_without_a_valid_url_has_no_login_url(challenge: str) -> None:
    assert login_url(401, {"www-authenticate": challenge}) is None


def test_only_unauthenticated_requests_get_a_challenge() -> None:
    assert login_url(401, {}) is None
    assert login_url(403, {"www-authenticate": f'Bearer resource_metadata="{PLACE}"'}) is None


ORIGIN = HttpOrigin("https", "tools.example", 443)


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("/messages?s=1", "/messages?s=1"),
        ("messages", "/v1/messages"),
        ("?s=1", "/v1/sse?s=1"),
        ("", "/v1/sse"),
        ("https://tools.example/x", "/x"),
        ("https://TOOLS.example:443/x", "/x"),
        ("//tools.example/x", "/x"),
        ("../../../x", "/x"),
        ("/x#part", "/x"),
    ],
)
def test_within_the_origin_it_is_followed(reference: str, target: str) -> None:
    assert same_origin_target(ORIGIN, "/v1/sse", reference, "redirects to") == target


@pytest.mark.parametrize(
    "reference",
    ["https://other.example/x", "http://tools.example/x", "https://tools.example:8443/x", "//tools.example.evil.io/x"],
)
def test_elsewhere_it_is_not_and_both_places_are_named(reference: str) -> None:
    with pytest.raises(ConnectFailed, match=r"^it redirects to http.*, which is not https://tools.example; configure"):
        same_origin_target(ORIGIN, "/v1/sse", reference, "redirects to")


@pytest.mark.parametrize(
    "reference", ["javascript:alert(1)", "/a b", "/a\r\nb", "https://u:p@tools.example/x", "https://[::1", "/a\\b"]
)
def test_an_invalid_address_is_refused(reference: str) -> None:
    with pytest.raises(ConnectFailed, match="not an address"):
        same_origin_target(ORIGIN, "/v1/sse", reference, "redirects to")


@pytest.mark.parametrize("reference", ["/v1/sse/", "/v1/sse", "https://tools.example/v1/sse/"])
def test_a_confined_request_may_be_redirected_to_the_same_place_behind_a_slash(reference: str) -> None:
    assert same_origin_target(ORIGIN, "/v1/sse", reference, "redirects to", stays=True).rstrip("/") == "/v1/sse"


@pytest.mark.parametrize("reference", ["/v1/other", "/", "/v1/sse/x", "/v1/sse?x=1", "/V1/sse"])
def test_a_confined_request_is_redirected_nowhere_else(reference: str) -> None:
    with pytest.raises(ConnectFailed, match="another path"):
        same_origin_target(ORIGIN, "/v1/sse", reference, "redirects to", stays=True)


@pytest.mark.parametrize("is_taken", [True, False])
async def test_quiet_comes_when_all_were_taken_or_lost(*, is_taken: bool) -> None:
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
        posts = OneWayPosts(client)
        await posts.wait_sent()  # nothing is under way
        posts.send(request_head("POST", "/", server.origin, {}), b"{}")
        wait_sent = asyncio.ensure_future(posts.wait_sent())
        peer = await server.accept()
        assert (await peer.request()).endswith(b"\r\n\r\n{}")
        assert not wait_sent.done()
        if is_taken:
            await peer.say(ACCEPTED)
        else:
            peer.reset()
        async with asyncio.timeout(10):
            await wait_sent
        await client.aclose()
    await background.aclose()


async def test_one_that_is_never_acknowledged_gives_its_connection_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONE_WAY_SECONDS", 0.05)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
        posts = OneWayPosts(client)
        posts.send(request_head("POST", "/", server.origin, {}), b"{}")
        async with asyncio.timeout(10):
            await posts.wait_sent()
        await (await server.accept()).rest()
        await client.aclose()
    await background.aclose()


async def test_beyond_the_limit_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONE_WAY_MAX", 2)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
        posts = OneWayPosts(client)
        head = request_head("POST", "/", server.origin, {})
        for number in (b"1", b"2", b"3"):
            posts.send(head, number)
        assert not posts.has_room()
        seen = []
        for _ in range(2):
            peer = await server.accept()
            seen.append((await peer.request())[-1:])
            await peer.say(ACCEPTED)
        async with asyncio.timeout(10):
            await posts.wait_sent()
        assert sorted(seen) == [b"1", b"2"]
        assert server.accepted == 2
        await client.aclose()
    await background.aclose()


async def test_answers_are_sent_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONE_WAY_MAX", 2)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=1)
        posts = OneWayPosts(client)
        numbers = [b"%d" % number for number in range(9)]
        for number in numbers:
            posts.answer(request_head("POST", "/", server.origin, {}), number)
        assert posts.has_room()  # they do not count
        seen = []
        for _ in numbers:
            peer = await server.accept()
            seen.append((await peer.request())[-1:])
            await peer.say(ACCEPTED)
        assert seen == numbers
        await client.aclose()
    await background.aclose()


async def test_an_answers_time_begins_when_a_connection_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONE_WAY_SECONDS", 0.01)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=1)
        posts = OneWayPosts(client)
        head = request_head("POST", "/", server.origin, {})
        client.send(head, b"a call", Recorder())
        first = await server.accept()
        posts.answer(head, b"an answer")
        posts.send(head, b"a notice")
        async with asyncio.timeout(10):
            await posts.wait_sent()  # its time was over before there was a connection for it
        monkeypatch.setattr(module, "ONE_WAY_SECONDS", 30.0)
        await first.request()
        await first.say(ACCEPTED)
        second = await server.accept()
        assert (await second.request()).endswith(b"an answer")
        await client.aclose()
    await background.aclose()


async def test_an_answer_that_is_never_acknowledged_gives_its_connection_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONE_WAY_SECONDS", 0.01)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
        OneWayPosts(client).answer(request_head("POST", "/", server.origin, {}), b"{}")
        await (await server.accept()).rest()
        await client.aclose()
    await background.aclose()


async def test_an_answer_does_not_wait_for_a_connection_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONE_WAY_SECONDS", 0.01)
    monkeypatch.setattr(module, "REPLY_SECONDS", 0.01)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=1)
        posts = OneWayPosts(client)
        head = request_head("POST", "/", server.origin, {})
        client.send(head, b"a call", Recorder())
        first = await server.accept()
        posts.answer(head, b"an answer")
        posts.send(head, b"a notice")
        async with asyncio.timeout(10):
            await posts.wait_sent()
        monkeypatch.setattr(module, "ONE_WAY_SECONDS", 30.0)
        later = Recorder()
        client.send(head, b"another call", later)
        await first.request()
        await first.say(ACCEPTED)
        assert (await (await server.accept()).request()).endswith(b"another call")
        await client.aclose()
    await background.aclose()


async def test_an_unsent_answer_is_sent_again_once() -> None:
    class Counting(HttpClient):
        """A client that remembers what it was given."""

        sent: ClassVar[list[bytes | None]] = []

        def send(self, head: bytes, body: bytes | None, sink: ResponseSink) -> Ticket:
            self.sent.append(body)
            return super().send(head, body, sink)

    background = BackgroundTasks("test")
    async with Server() as server:
        client = Counting(server.origin, Egress(), background)
        await client.aclose()
        OneWayPosts(client).answer(request_head("POST", "/", server.origin, {}), b"an answer")
        for _ in range(10):
            await asyncio.sleep(0)
        assert client.sent == [b"an answer", b"an answer"]
    await background.aclose()


class Writing:
    """A link that only writes a call's headers."""

    def __init__(self, *names: str) -> None:
        self._headers = CallerHeaders(names)
        self.lines: list[bytes | None] = []

    def send(self, inflight: InFlight) -> None:
        self.lines.append(self._headers.lines_for(inflight))

    def may_have_run(self, inflight: InFlight) -> bool:
        return False

    def withdraw(self, inflight: InFlight, reason: str) -> None: ...


def sent(headers: dict[str, str], *names: str) -> tuple[bytes | None, Listener]:
    """What a server that receives these names is sent, and what the caller hears."""
    stage, link = Stage(tool("read")), Writing(*names)
    stage.server_queue.attach(link)
    _, listener = stage.start(msgspec.structs.replace(call(), headers=headers))
    (lines,) = link.lines
    return lines, listener


async def test_only_configured_headers_are_sent_in_the_operators_spelling() -> None:
    lines, listener = sent({"x-user-id": "ann", "Authorization": "Bearer t", "X-Other": "1"}, "X-User-Id", "X-Absent")
    assert lines == b"X-User-Id: ann\r\n"
    assert not listener.ends


async def test_a_header_that_differs_only_in_case_is_written_once() -> None:
    lines, _ = sent({"x-user-id": "ann", "X-USER-ID": "bob"}, "X-User-Id")
    assert lines == b"X-User-Id: bob\r\n"


async def test_latin_letters_are_written_as_http_has_them() -> None:
    assert sent({"X-Name": "Zoë"}, "X-Name")[0] == b"X-Name: Zo\xeb\r\n"


@pytest.mark.parametrize("value", ["ann\r\nX-Admin: yes", "a\nb", "a\rb", "a\0b", "アン", "\ud800"])
async def test_an_invalid_header_value_ends_the_call_before_anything_is_sent(value: str) -> None:
    lines, listener = sent({"X-User-Id": value}, "X-User-Id")
    assert lines is None
    (fault,) = listener.ends
    assert isinstance(fault, BadArguments)
    assert fault.executed == "no"
    assert "'X-User-Id'" in fault.message
    assert value not in fault.message


async def test_unsent_headers_may_have_any_value() -> None:
    lines, listener = sent({"X-Secret": "a\r\nb"}, "X-User-Id")
    assert lines == b""
    assert not listener.ends


async def test_more_than_a_server_takes_ends_the_call_too() -> None:
    lines, listener = sent({"X-User-Id": "u" * HEADERS_BYTES_MAX}, "X-User-Id")
    assert lines is None
    (fault,) = listener.ends
    assert isinstance(fault, BadArguments)
    assert str(HEADERS_BYTES_MAX) in fault.message


async def test_a_refused_header_says_nothing_of_the_server() -> None:
    stage = Stage(tool("read"))
    stage.server_queue.attach(Writing("X-User-Id"))
    stage.start(msgspec.structs.replace(call(), headers={"X-User-Id": "a\nb"}))
    assert stage.server_queue.answered == 0
    assert stage.server_queue.running == 0


def test_a_call_that_is_printed_keeps_its_headers_to_itself() -> None:
    asked = msgspec.structs.replace(call(), headers={"Authorization": "hunter22"})
    assert "files.read" in repr(asked)
    assert "hunter22" not in repr(asked)
