"""Whatever is wrong with a request, it gets its own error, and the connection that brought it lives on."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.fork_server import quick_isthmus
from tests.frontends.cases import (
    ANSWERS,
    CALL,
    ECHO,
    INVALID,
    MISMATCH,
    PARAMS,
    PARSE,
    TEXTS,
    UNSUPPORTED,
    ExpectedReply,
    expected,
    is_modern,
    method_in,
    mutations,
)
from tests.frontends.wire import (
    BASE,
    PING,
    PONG,
    SECONDS,
    Headers,
    Reply,
    Wire,
    connected,
    encoded,
    legacy,
    modern,
    modern_headers,
    rendered,
)
from tests.hubs import META, MODERN, HubProcess, environment, serving, write_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL_BODY = 64 * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with serving(tmp_path_factory.mktemp("hub"), limits={"request_bytes": 4 << 20}) as running:
        yield running
    assert not [line for line in running.said if "Traceback" in line or '"error"' in line]


def actual(reply: Reply) -> ExpectedReply:
    return ExpectedReply(reply.status, reply.code if reply.body else None, reply.id_text)


async def lives_on(wire: Wire) -> None:
    """The next request on the same connection is answered as if nothing had been."""
    reply = await wire.request(PING)
    assert (reply.status, reply.body) == (200, PONG)


# -- messages ------------------------------------------------------------------------------------------------------


async def test_every_change_of_every_member_gets_its_own_error(hub: HubProcess) -> None:
    seen: Counter[int | None] = Counter()
    async with connected(hub.port) as wire:
        for case in mutations():
            headers = modern_headers(case.method, case.name) if case.era == "modern" else BASE
            reply = await wire.request(case.body, headers)
            assert actual(reply) == expected(case, "http"), f"{case.label}: {case.body!r} → {reply.body!r}"
            await lives_on(wire)
            seen[reply.code if reply.body else None] += 1
    assert sum(seen.values()) > 400
    assert set(seen) == {None, INVALID, PARAMS, MISMATCH, -32601}


async def test_invalid_messages_get_specific_errors(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        for label, (body, answer) in TEXTS.items():
            headers = modern_headers(method_in(body)) if is_modern(body) else BASE
            reply = await wire.request(body, headers)
            assert actual(reply) == answer, f"{label}: {reply.body[:300]!r}"
            await lives_on(wire)


async def test_a_body_that_ends_early_is_not_json_wherever_it_ends(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        for end in range(len(CALL)):
            assert actual(await wire.request(CALL[:end])) == ExpectedReply(400, PARSE, "null"), end
        await lives_on(wire)


@pytest.mark.parametrize("label", ANSWERS)
async def test_answers_to_nothing_are_taken_and_forgotten(hub: HubProcess, label: str) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(ANSWERS[label])
        assert (reply.status, reply.body) == (202, b"")
        await lives_on(wire)


async def test_an_error_has_no_result_and_a_readable_message(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        for body, answer in TEXTS.values():
            if answer.code is not None and not is_modern(body):
                reply = (await wire.request(body)).json
                assert set(reply) == {"jsonrpc", "id", "error"}
                assert len(reply["error"]["message"]) > 10


# -- the same over standard streams --------------------------------------------------------------------------------


class Conversation:
    """A caller of `isthmus stdio`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._asked = 0

    async def say(self, line: bytes) -> list[bytes]:
        """Send a line, then a ping; everything that came before the ping's answer."""
        self._asked += 1
        mark = f"mark {self._asked}"
        self.stdin.write(line + b"\n")
        await self.stdin.drain()
        answers: list[bytes] = []
        async with asyncio.timeout(SECONDS):
            # Answers may overtake each other, so the ping goes out when the line's own answer has had its chance.
            self.stdin.write(encoded(legacy("ping", id=mark)) + b"\n")
            while (answer := await self.stdout.readline()) and mark.encode() not in answer:
                answers.append(answer)
        assert answer, "the hub closed the conversation"
        return answers


@asynccontextmanager
async def conversing(folder: Path) -> AsyncIterator[Conversation]:
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("stdio", "--config", str(write_config(folder, {}))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment(),
        limit=1 << 24,
    )
    try:
        yield Conversation(process)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def actual_on_a_line(answers: list[bytes]) -> ExpectedReply | None:
    if not answers:
        return None
    (line,) = answers
    reply = Reply(0, {}, line.rstrip(b"\n"))
    return ExpectedReply(0, reply.code, reply.id_text)


async def test_over_standard_streams_every_change_gets_the_same_error(tmp_path: Path) -> None:
    async with conversing(tmp_path) as talk:
        for case in mutations():
            answers = await talk.say(case.body)
            assert actual_on_a_line(answers) == expected(case, "stdio"), f"{case.label}: {answers}"


async def test_invalid_messages_over_stdio_get_the_same_errors(tmp_path: Path) -> None:
    async with conversing(tmp_path) as talk:
        for label, (body, answer) in TEXTS.items():
            answers = await talk.say(body)
            blank = not body.strip()
            assert actual_on_a_line(answers) == (None if blank else ExpectedReply(0, answer.code, answer.id)), label
        for label, body in ANSWERS.items():
            assert await talk.say(body) == [], label


async def test_over_standard_streams_a_line_that_is_too_long_is_refused_and_the_next_is_read(tmp_path: Path) -> None:
    async with conversing(tmp_path) as talk:
        answers = await talk.say(CALL.replace(b'"hi"', b'"' + b"x" * (5 << 20) + b'"'))
        assert actual_on_a_line(answers) == ExpectedReply(0, INVALID, "null")


# -- headers that must agree with the body -------------------------------------------------------------------------


def sentinel(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def with_header(name: str, *values: str, method: str = "tools/call") -> list[tuple[str, str]]:
    """The headers of a modern call, with one of them given these values instead."""
    given = modern_headers(method, "builtin.echo" if method == "tools/call" else None)
    return [*(pair for pair in given if pair[0] != name), *((name, value) for value in values)]


MISMATCHES: dict[str, list[tuple[str, str]]] = {
    "no version header": with_header("mcp-protocol-version"),
    "a legacy version header": with_header("mcp-protocol-version", "2025-11-25"),
    "an unknown version header": with_header("mcp-protocol-version", "2099-01-01"),
    "an empty version header": with_header("mcp-protocol-version", ""),
    "two version headers": with_header("mcp-protocol-version", MODERN, MODERN),
    "two version headers that differ": with_header("mcp-protocol-version", "2025-11-25", MODERN),
    "two version headers that differ the other way": with_header("mcp-protocol-version", MODERN, "2025-11-25"),
    "no method header": with_header("mcp-method"),
    "another method header": with_header("mcp-method", "tools/list"),
    "a method header in other letters": with_header("mcp-method", "Tools/Call"),
    "two method headers": with_header("mcp-method", "tools/call", "tools/call"),
    "two method headers that differ": with_header("mcp-method", "tools/list", "tools/call"),
    "no name header": with_header("mcp-name"),
    "an empty name header": with_header("mcp-name", ""),
    "another name header": with_header("mcp-name", "builtin.timestamp"),
    "a name header in other letters": with_header("mcp-name", "Builtin.Echo"),
    "two name headers": with_header("mcp-name", "builtin.echo", "builtin.echo"),
    "two name headers that differ": with_header("mcp-name", "builtin.timestamp", "builtin.echo"),
    "two name headers that differ the other way": with_header("mcp-name", "builtin.echo", "builtin.timestamp"),
    "two names in one header": with_header("mcp-name", "builtin.echo, builtin.echo"),
    "another name in base64": with_header("mcp-name", sentinel("builtin.timestamp")),
    "base64 without its padding": with_header("mcp-name", sentinel("builtin.echo!").replace("=?=", "?=")),
    "base64 with spaces": with_header("mcp-name", sentinel("builtin.echo").replace("YnVp", "YnVp ")),
    "base64 with more padding": with_header("mcp-name", sentinel("builtin.echo")[:-2] + "=?="),
    "base64 that is none": with_header("mcp-name", "=?base64?****?="),
    "base64 of no text": with_header("mcp-name", "=?base64?/////w==?="),
    "empty base64": with_header("mcp-name", "=?base64??="),
    "another mark": with_header("mcp-name", sentinel("builtin.echo").replace("base64", "BASE64")),
    "base64 twice over": with_header("mcp-name", sentinel(sentinel("builtin.echo"))),
    "a raw byte": with_header("mcp-name", "builtin.ech\xf6"),
}


@pytest.mark.parametrize("label", MISMATCHES)
async def test_headers_that_contradict_the_body_are_refused(hub: HubProcess, label: str) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(encoded(modern("tools/call", ECHO, id=41)), MISMATCHES[label])
        assert actual(reply) == ExpectedReply(400, MISMATCH, "41"), reply.body
        await lives_on(wire)


@pytest.mark.parametrize("value", ["builtin.echo", sentinel("builtin.echo"), "  builtin.echo"])
async def test_headers_that_match_the_body_pass(hub: HubProcess, value: str) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(encoded(modern("tools/call", ECHO, id=41)), with_header("mcp-name", value))
        assert actual(reply) == ExpectedReply(200, None, "41")


async def test_an_unknown_version_is_answered_with_the_supported_ones(hub: HubProcess) -> None:
    meta = {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    headers = with_header("mcp-protocol-version", "2099-01-01", method="server/discover")
    async with connected(hub.port) as wire:
        reply = await wire.request(encoded(legacy("server/discover", {"_meta": meta}, id=41)), headers)
        assert actual(reply) == ExpectedReply(400, UNSUPPORTED, "41")
        assert reply.json["error"]["data"] == {
            "supported": [MODERN, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"],
            "requested": "2099-01-01",
        }


@pytest.mark.parametrize("version", ["2099-01-01", "", "latest", "2025-11-25, 2025-11-25"])
async def test_a_version_header_that_names_none_is_a_bad_request(hub: HubProcess, version: str) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(encoded(legacy("tools/list", {}, id=41)), [*BASE, ("mcp-protocol-version", version)])
        assert (reply.status, reply.id_text) == (400, "41")
        assert reply.code == UNSUPPORTED
        await lives_on(wire)


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("mcp-protocol-version", (MODERN, "2025-11-25"), 400),
        ("mcp-protocol-version", ("2025-06-18", "2025-11-25"), 400),
        ("mcp-session-id", ("one", "two"), 404),
    ],
)
async def test_a_duplicate_routing_header_is_refused_in_the_legacy_era_too(
    hub: HubProcess, name: str, values: tuple[str, str], status: int
) -> None:
    async with connected(hub.port) as wire:
        headers = [*BASE, *((name, value) for value in values)]
        reply = await wire.request(encoded(legacy("tools/list", {}, id=41)), headers)
        assert (reply.status, reply.id_text) == (status, "41")
        await lives_on(wire)


# -- HTTP ----------------------------------------------------------------------------------------------------------


def having(name: str, *values: str) -> list[tuple[str, str]]:
    """The usual headers, with one of them given these values instead."""
    return [*(pair for pair in BASE if pair[0] != name), *((name, value) for value in values)]


@pytest.mark.parametrize(
    ("values", "status"),
    [
        (("application/json",), 200),
        (("Application/JSON; charset=utf-8",), 200),
        ((), 415),
        (("",), 415),
        (("text/plain",), 415),
        (("text/plain; application/json",), 415),
        (("application/json-evil",), 415),
        (("application/jsonx",), 415),
        (("application/json, text/plain",), 415),
        (("application/x-www-form-urlencoded",), 415),
        (("multipart/form-data; boundary=x",), 415),
        (("application/json", "text/plain"), 415),
        (("text/plain", "application/json"), 415),
    ],
)
async def test_only_json_is_taken(hub: HubProcess, values: tuple[str, ...], status: int) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(CALL, having("content-type", *values))
        assert reply.status == status
        await lives_on(wire)


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ((), 200),
        (("*/*",), 200),
        (("application/json",), 200),
        (("APPLICATION/JSON, Text/Event-Stream",), 200),
        (("application/*, text/*",), 200),
        (("text/html, application/json;q=0.9",), 200),
        (("text/html",), 406),
        (("application/json", "text/event-stream"), 200),
        (("application/json", "text/html"), 200),
        (("text/html", "text/plain"), 406),
    ],
)
async def test_a_client_that_accepts_neither_json_nor_events_gets_an_error(
    hub: HubProcess, values: tuple[str, ...], status: int
) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(CALL, having("accept", *values))
        assert reply.status == status
        await lives_on(wire)


@pytest.mark.parametrize(
    ("method", "headers", "status", "allow"),
    [
        ("PUT", BASE, 405, "GET, POST, DELETE"),
        ("PATCH", BASE, 405, "GET, POST, DELETE"),
        ("OPTIONS", BASE, 405, "GET, POST, DELETE"),
        ("HEAD", BASE, 405, "GET, POST, DELETE"),
        ("GET", having("accept", "application/json"), 406, None),
        ("GET", [*BASE, ("mcp-protocol-version", MODERN)], 405, "POST"),
        ("GET", [*BASE, ("mcp-session-id", "nobody's")], 404, None),
        ("DELETE", [*BASE, ("mcp-session-id", "nobody's")], 404, None),
        ("DELETE", BASE, 404, None),
    ],
)
async def test_other_methods_are_answered_with_the_allowed_ones(
    hub: HubProcess, method: str, headers: Headers, status: int, allow: str | None
) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(b"", headers, method=method)
        assert (reply.status, reply.headers.get("allow")) == (status, allow)
        await lives_on(wire)


@pytest.mark.parametrize("path", ["/mcp/", "/MCP", "/mcp/builtin/x", "/mcp//builtin", "//mcp", "/mcp;x", "/admin"])
async def test_another_path_is_not_found(hub: HubProcess, path: str) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(CALL, path=path)
        assert reply.status == 404
        await lives_on(wire)


async def test_a_chunked_body_is_read_like_any_other(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        head = rendered("POST", "/mcp", [*BASE, ("transfer-encoding", "chunked")])
        await wire.say(head + b"".join(b"1\r\n%c\r\n" % byte for byte in CALL) + b"0\r\n\r\n")
        assert actual(await wire.reply()) == ExpectedReply(200, None, "41")
        await lives_on(wire)


async def test_a_client_that_expects_continue_gets_it(hub: HubProcess) -> None:
    headers = [*BASE, ("expect", "100-continue"), ("content-length", str(len(CALL)))]
    async with connected(hub.port) as wire:
        await wire.say(rendered("POST", "/mcp", headers))
        async with asyncio.timeout(SECONDS):
            assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await wire.say(CALL)
        assert actual(await wire.reply()) == ExpectedReply(200, None, "41")
        await lives_on(wire)


def raw_request(*lines: bytes, body: bytes = CALL) -> bytes:
    usual = [b"Host: localhost", b"Content-Type: application/json", *lines]
    return b"POST /mcp HTTP/1.1\r\n" + b"\r\n".join(usual) + b"\r\n\r\n" + body


LENGTH = b"Content-Length: %d" % len(CALL)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CALL), CALL)
SMUGGLED = raw_request(LENGTH).replace(b"/mcp", b"/mcp/smuggled")

BROKEN: dict[str, tuple[bytes, int]] = {
    "a length over the limit": (raw_request(b"Content-Length: 5368709120"), 413),
    "a compressed body": (raw_request(LENGTH, b"Content-Encoding: gzip"), 415),
    "a length and chunks": (raw_request(LENGTH, b"Transfer-Encoding: chunked", body=CHUNKED + SMUGGLED), 400),
    "chunks and a length": (raw_request(b"Transfer-Encoding: chunked", LENGTH, body=CHUNKED + SMUGGLED), 400),
    "two lengths": (raw_request(LENGTH, b"Content-Length: 0", body=CALL + SMUGGLED), 400),
    "two equal lengths": (raw_request(LENGTH, LENGTH, body=CALL + SMUGGLED), 400),
    "a list of lengths": (raw_request(LENGTH + b", %d" % len(CALL)), 400),
    "a negative length": (raw_request(b"Content-Length: -1"), 400),
    "a length that is no number": (raw_request(b"Content-Length: 0x10"), 400),
    "another transfer encoding": (raw_request(b"Transfer-Encoding: gzip, chunked", body=CHUNKED), 501),
    "a space before the colon": (raw_request(b"Transfer-Encoding : chunked", body=CHUNKED + SMUGGLED), 400),
    "a folded header": (raw_request(b"X-Folded: a\r\n b", LENGTH), 400),
    "a chunk that is no number": (raw_request(b"Transfer-Encoding: chunked", body=b"zz\r\n" + SMUGGLED), 400),
    "a chunk of 2^64 bytes": (raw_request(b"Transfer-Encoding: chunked", body=b"1" + b"0" * 16 + b"\r\n"), 400),
    "no host": (b"POST /mcp HTTP/1.1\r\nContent-Type: application/json\r\n" + LENGTH + b"\r\n\r\n" + CALL, 400),
    "a NUL in a header": (raw_request(b"X-Nul: \0", LENGTH), 400),
    "no HTTP at all": (b"hello, is it me?\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a tunnel": (b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a head without end": (b"POST /mcp HTTP/1.1\r\nX-Long: " + b"x" * 70_000, 431),
}


READ_FIRST = pytest.mark.one_process("the load balancer reads these bytes itself")
NOT_PASSED_ON = ("a chunk that is no number", "HTTP/2", "a head without end")


@pytest.mark.parametrize(
    "label", [pytest.param(each, marks=READ_FIRST if each in NOT_PASSED_ON else ()) for each in BROKEN]
)
async def test_a_request_that_two_readers_could_read_differently_is_refused_and_nothing_after_it_is_read(
    hub: HubProcess, label: str
) -> None:
    data, status = BROKEN[label]
    async with connected(hub.port) as wire:
        await wire.say(data)
        reply = await wire.reply()
        assert reply.status in ((400, 505) if label == "HTTP/2" else (status,))
        if label != "no host":
            assert reply.closes
            assert await wire.is_closed()
    async with connected(hub.port) as wire:
        await lives_on(wire)


async def test_a_chunked_body_over_the_limit_is_cut_off(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        await wire.say(rendered("POST", "/mcp", [*BASE, ("transfer-encoding", "chunked")]))
        piece = b"%x\r\n%b\r\n" % (SMALL_BODY, b" " * SMALL_BODY)
        reply = asyncio.ensure_future(wire.reply())
        sent = 0
        while not reply.done() and sent < 64 << 20:
            await wire.say(piece)
            await asyncio.sleep(0)  # a write that needs no waiting would not let the answer be read
            sent += SMALL_BODY
        assert (await reply).status == 413
        # Four that the hub reads, and whatever the kernel takes on both sides while the hub has other things to do.
        assert sent < 32 << 20


async def test_a_body_of_exactly_the_limit_is_read(hub: HubProcess) -> None:
    body = CALL[:-1].ljust((4 << 20) - 1) + b"}"
    async with connected(hub.port) as wire:
        assert actual(await wire.request(body)) == ExpectedReply(200, None, "41")
        assert (await wire.request(body + b" ")).status == 413


async def test_requests_sent_all_at_once_are_answered_in_order(hub: HubProcess) -> None:
    """Bad ones between good ones do not confuse whose answer is whose."""
    bodies: list[tuple[bytes, Any]] = []
    for at in range(30):
        good = encoded(legacy("tools/call", ECHO, id=at))
        bodies += [(good, at), (good[:-1], None)]
    async with connected(hub.port) as wire:
        for start in range(0, len(bodies), 6):
            batch = bodies[start : start + 6]
            data = [rendered("POST", "/mcp", [*BASE, ("content-length", str(len(body)))], body) for body, _ in batch]
            await wire.say(b"".join(data))
            for _, id in batch:
                assert (await wire.reply()).json["id"] == id


async def test_an_unknown_session_is_not_found(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        headers = [*BASE, ("mcp-session-id", "nobody's")]
        assert actual(await wire.request(CALL, headers)) == ExpectedReply(404, INVALID, "41")
        note = encoded(legacy("notifications/cancelled", {"requestId": 1}, id=None))
        assert actual(await wire.request(note, headers)) == ExpectedReply(404, INVALID, "null")
        await lives_on(wire)


async def test_nothing_of_it_is_a_defect_in_the_eyes_of_the_hub(hub: HubProcess) -> None:
    errors = [line for line in hub.said if json.loads(line).get("level") in ("error", "critical")]
    assert errors == []
