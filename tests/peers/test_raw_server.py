"""The hand-written server: its answers in each era, and that each mode does what its name says."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Ledger, Spawn, children, state
from tests.peers.launch import HttpPeer, command
from tests.peers.raw_modes import Modes

Json = dict[str, Any]

META = "io.modelcontextprotocol/"
MODERN_META = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
LINE_BYTES = 8 << 20


@dataclass(slots=True)
class Pipe:
    """A raw server on pipes, spoken to line by line."""

    process: asyncio.subprocess.Process

    def send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        return await self.process.stdout.readline()

    async def receive(self) -> Json:
        response: Json = json.loads(await self.line())
        return response

    async def ask(self, method: str, **params: Any) -> Json:
        self.send(request(method, **params))
        return await self.receive()


@asynccontextmanager
async def raw_pipe(ledger: Ledger, *options: str) -> AsyncIterator[Pipe]:
    pipe = asyncio.subprocess.PIPE
    words = command("raw_server", "--ledger", str(ledger.path), *options)
    process = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, start_new_session=True, limit=LINE_BYTES
    )
    try:
        async with asyncio.timeout(30):
            yield Pipe(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def request(method: str, request_id: object = 1, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def pay(nonce: str, mode: str = "echo", request_id: object = 1) -> Json:
    return request("tools/call", request_id, name="pay", arguments={"nonce": nonce, "mode": mode})


def paid(answer: Json) -> str:
    said: str = answer["result"]["content"][0]["text"]
    return said


async def fetch(peer: HttpPeer, message: Json, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One POST on a connection of its own, read to its end or until the server dies."""
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
    given = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps(message).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        f"content-length: {len(body)}",
        *(": ".join(pair) for pair in given.items()),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    try:
        async with asyncio.timeout(30):
            return await read_response(reader)
    finally:
        writer.close()


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    status, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    received = {name: value for name, _, value in (line.partition(": ") for line in rest)}
    if "content-length" in received:
        content = await reader.readexactly(int(received["content-length"]))
    else:
        content = await reader.readuntil(b"0\r\n\r\n")
    return int(status.split()[1]), received, content


async def open_session(peer: HttpPeer) -> str:
    hello = request("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})
    return (await fetch(peer, hello))[1]["mcp-session-id"]


@pytest.mark.parametrize(
    ("era", "legacy", "modern"), [("both", True, True), ("legacy", True, False), ("modern", False, True)]
)
async def test_it_answers_in_the_configured_eras(era: str, *, legacy: bool, modern: bool, ledger: Ledger) -> None:
    async with raw_pipe(ledger, "--era", era) as pipe:
        hello = await pipe.ask("initialize", protocolVersion="2025-06-18")
        found = await pipe.ask("server/discover", _meta=MODERN_META)

    assert ("result" in hello, "result" in found) == (legacy, modern)
    assert hello.get("error", {}).get("code") == (None if legacy else -32022)
    assert found.get("error", {}).get("code") == (None if modern else -32601)


async def test_the_ledger_is_written_before_the_answer_and_ids_come_back_as_they_were(ledger: Ledger) -> None:
    async with raw_pipe(ledger) as pipe:
        for at, request_id in enumerate([0, "", "1", 2**53 + 1]):
            pipe.send(pay(f"n{at}", request_id=request_id))
            answer = await pipe.receive()

            assert (answer["id"], paid(answer)) == (request_id, f"n{at}")
            assert ledger.ran()[f"n{at}"] == 1


async def test_dying_before_and_after_the_ledger_look_alike_and_are_not(ledger: Ledger) -> None:
    for mode in ("die_before_write", "die_after_ledger"):
        async with raw_pipe(ledger) as pipe:
            pipe.send(pay(mode, mode))

            assert await pipe.line() == b""
            assert await pipe.process.wait() == -signal.SIGKILL
    assert ledger.ran() == {"die_after_ledger": 1}


async def test_dying_in_the_middle_leaves_exactly_so_many_bytes(ledger: Ledger, spawn: Spawn) -> None:
    async with raw_pipe(ledger) as pipe:
        pipe.send(pay("a", "die_mid_reply:7"))
        assert await pipe.line() == b'{"jsonr'

    peer = await spawn("raw_server", "--stateless", "--mode", "die_mid_reply:7")
    with pytest.raises(asyncio.IncompleteReadError) as broken:
        await fetch(peer, pay("b"))
    assert broken.value.partial == b"HTTP/1."


async def test_lies_are_sent_on_a_pipe(ledger: Ledger) -> None:
    async with raw_pipe(ledger) as pipe:
        pipe.send(pay("a", "dup_reply"))
        assert await pipe.receive() == await pipe.receive()
        pipe.send(pay("b", "wrong_id"))
        assert (await pipe.receive())["id"] != 1
        pipe.send(pay("c", "garbage"))
        lines = [await pipe.line() for _ in range(17)]
        assert lines[0] == b"this is not JSON\n"
        assert any(b'"c"' in line for line in lines)
        pipe.send(pay("d", "huge:1000000"))
        assert len(await pipe.line()) > 1_000_000
        pipe.send(pay("e", "notify_flood:1000"))
        assert [("method" in await pipe.receive()) for _ in range(1000)] == [True] * 1000
        assert paid(await pipe.receive()) == "e"


async def test_a_cancelled_call_stops_and_gets_no_answer_or_a_late_one(ledger: Ledger) -> None:
    async with raw_pipe(ledger) as pipe:
        for nonce, mode in (("slept", "sleep:60"), ("hung", "hang"), ("late", "late_reply:60")):
            pipe.send(pay(nonce, mode, request_id=nonce))
            pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": nonce}})

        assert (await pipe.receive())["id"] == "late"
        assert (await pipe.ask("ping"))["id"] == 1
    assert ledger.ran() == {"slept": 1, "late": 1}
    assert [json.loads(line).get("cancelled") for line in ledger.lines()].count("slept") == 1


@pytest.mark.parametrize("kind", ["mixed", "nameless", "duplicates", "bad_schema", "not_list", "cyclic"])
async def test_lying_lists_are_wrong_and_the_good_tools_still_work(kind: str, ledger: Ledger) -> None:
    async with raw_pipe(ledger, "--mode", f"lying_list:{kind}") as pipe:
        listed = (await pipe.ask("tools/list"))["result"]
        pipe.send(pay("a"))

        assert listed["tools"] != (await plain_listing(ledger)) or listed.get("nextCursor") == "again"
        assert paid(await pipe.receive()) == "a"


async def plain_listing(ledger: Ledger) -> object:
    async with raw_pipe(ledger) as pipe:
        return (await pipe.ask("tools/list"))["result"]["tools"]


async def test_hang_init_never_answers_a_handshake_and_answers_the_rest(ledger: Ledger) -> None:
    async with raw_pipe(ledger, "--mode", "hang_init") as pipe:
        pipe.send(request("initialize", protocolVersion="2025-11-25"))
        pipe.send(request("server/discover", _meta=MODERN_META))

        assert await pipe.ask("ping") == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_a_flood_on_stderr_does_not_stop_the_answers(ledger: Ledger) -> None:
    async with raw_pipe(ledger, "--mode", "stderr_flood:100000") as pipe:
        assert (await pipe.ask("ping"))["result"] == {}


async def test_a_stubborn_server_outlives_sigterm_and_the_end_of_its_stdin(ledger: Ledger) -> None:
    async with raw_pipe(ledger, "--mode", "ignore_sigterm,fork") as pipe:
        await pipe.ask("ping")
        pipe.process.terminate()
        assert (await pipe.ask("ping"))["result"] == {}
        (child,) = (json.loads(line)["child"] for line in ledger.lines())

        assert child in children(pipe.process.pid)
        assert state(child)[0] in "RS"


async def test_a_session_is_required_and_expires_on_request(spawn: Spawn, ledger: Ledger) -> None:
    peer = await spawn("raw_server", "--ledger", str(ledger.path), "--mode", "session_expire:2")
    session = await open_session(peer)

    statuses = [(await fetch(peer, pay(f"n{at}"), mcp_session_id=session))[0] for at in range(3)]

    assert statuses == [200, 200, 404]
    assert (await fetch(peer, pay("none")))[0] == 400
    assert ledger.ran() == {"n0": 1, "n1": 1}


async def test_modern_headers_must_match_the_body(spawn: Spawn) -> None:
    peer = await spawn("raw_server")
    message = request("tools/call", name="pay", arguments={"nonce": "a"}, _meta=MODERN_META)
    right = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": "pay"}

    assert (await fetch(peer, message, **right))[0] == 200
    assert (await fetch(peer, message, **right | {"mcp_name": "=?base64?cGF5?="}))[0] == 200
    for wrong in ({"mcp_name": "echo"}, {"mcp_method": "tools/list"}, {"mcp_protocol_version": "2025-11-25"}):
        status, _, body = await fetch(peer, message, **right | wrong)
        assert (status, json.loads(body)["error"]["code"]) == (400, -32020)


async def test_modes_of_http_change_at_run_time(spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--stateless")
    plain = await fetch(peer, pay("a"))
    await peer.control("sse")
    streamed = await fetch(peer, pay("b"))
    await peer.control("gzip")
    zipped = await fetch(peer, pay("c"))
    await peer.control("redirect:http://127.0.0.1:1/mcp")
    sent_away = await fetch(peer, pay("d"))

    assert paid(json.loads(plain[2])) == "a"
    assert streamed[1]["content-type"] == "text/event-stream"
    assert zipped[1]["content-encoding"] == "gzip"
    assert paid(json.loads(gzip.decompress(zipped[2]))) == "c"
    assert (sent_away[0], sent_away[1]["location"]) == (307, "http://127.0.0.1:1/mcp")


async def test_wrong_media_types_are_refused(spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--stateless")

    assert (await fetch(peer, pay("a"), content_type="text/plain"))[0] == 415
    assert (await fetch(peer, pay("a"), accept="application/json"))[0] == 406


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown modes"):
        Modes.parse("echo,slepe:3")


async def test_nothing_is_left_behind_by_a_peer(no_leftovers: None, spawn: Spawn, ledger: Ledger) -> None:
    await spawn("raw_server", "--mode", "fork,ignore_sigterm", "--ledger", str(ledger.path))
