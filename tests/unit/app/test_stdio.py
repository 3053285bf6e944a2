"""The hub on standard streams of every kind, to an end in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.reload import ConfigurationSource
from isthmus.app.stdio import Inlet, Outlet, run_stdio
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.settings import Limits
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import ServerSettings, StdioSettings
from tests.conftest import Ledger
from tests.faults import light_server
from tests.hubs import stdio, write_config
from tests.peers.launch import command

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def line(id: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


def call(id: int, name: str, **arguments: Any) -> bytes:
    return line(id, "tools/call", name=name, arguments=arguments)


ASKED = line(1, "initialize", **HELLO) + call(2, "builtin.echo", text="over there")


def answers(output: bytes) -> dict[int, dict[str, Any]]:
    return {message["id"]: message for message in map(json.loads, output.splitlines()) if "id" in message}


def echoed(output: bytes, id: int = 2) -> str:
    return str(answers(output)[id]["result"]["content"][0]["text"])


def with_raw(ledger: Ledger, **limits: float) -> Configuration:
    """A configuration in which the first calls wait for the server, however long it takes to start."""
    words = command("raw_server", "--ledger", str(ledger.path))
    server = ServerSettings(ServerName("raw"), StdioSettings(words[0], tuple(words[1:])))
    state = str(ledger.path.parent / "state")
    hub = HubSettings(audit="off", state=state, limits=Limits(listing_seconds=30.0, **limits))  # type: ignore[arg-type]
    return Configuration(None, hub, (server,))


ALONE = Configuration(None, HubSettings(audit="off"))


class Pipes:
    """Standard streams as a client that starts its servers gives them."""

    def __init__(self) -> None:
        self.stdin, self.to_hub = os.pipe()
        self.from_hub, self.stdout = os.pipe()

    def send(self, data: bytes) -> None:
        os.write(self.to_hub, data)

    def leave(self) -> None:
        os.close(self.to_hub)

    def received(self) -> bytes:
        """What the hub wrote, once it has ended."""
        os.close(self.stdout)
        chunks = []
        while chunk := os.read(self.from_hub, 1 << 16):
            chunks.append(chunk)
        return b"".join(chunks)

    async def take(self) -> bytes:
        """Some of what the hub has written, while it runs."""
        os.set_blocking(self.from_hub, False)
        async with asyncio.timeout(30):
            while True:
                with suppress(BlockingIOError):
                    return os.read(self.from_hub, 1 << 16)
                await asyncio.sleep(0.001)

    def close(self) -> None:
        for descriptor in (self.stdin, self.to_hub, self.from_hub, self.stdout):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that another thread or process brings about."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - nobody could wake us
            await asyncio.sleep(0.005)


async def test_a_caller_on_pipes_is_answered_and_its_leaving_ends_it(pipes: Pipes) -> None:
    pipes.send(ASKED)
    pipes.leave()
    await run_stdio(ALONE, {}, stdin=pipes.stdin, stdout=pipes.stdout)
    output = pipes.received()
    assert answers(output)[1]["result"]["serverInfo"]["name"] == "isthmus"
    assert echoed(output) == "over there"


async def test_files_will_do(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(ASKED)
    stdin = os.open(tmp_path / "in", os.O_RDONLY)
    stdout = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    await run_stdio(ALONE, {}, stdin=stdin, stdout=stdout)
    os.close(stdin)
    os.close(stdout)
    assert echoed((tmp_path / "out").read_bytes()) == "over there"


async def test_one_socket_can_be_both_streams() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(ASKED)
        ours.shutdown(socket.SHUT_WR)
        await run_stdio(ALONE, {}, stdin=theirs.fileno(), stdout=theirs.fileno())
        assert os.get_blocking(theirs.fileno())
        assert echoed(ours.recv(1 << 16)) == "over there"


async def test_no_standard_input_at_all_is_an_end(pipes: Pipes) -> None:
    os.close(pipes.stdin)
    await run_stdio(ALONE, {}, stdin=pipes.stdin, stdout=pipes.stdout)
    assert pipes.received() == b""


async def test_a_surface_decides_the_names(pipes: Pipes, ledger: Ledger) -> None:
    pipes.send(line(1, "initialize", **HELLO) + line(2, "tools/list"))
    pipes.leave()
    surface = Surface("own", ServerName("raw"))
    await run_stdio(with_raw(ledger), os.environ, surface=surface, stdin=pipes.stdin, stdout=pipes.stdout)
    tools = answers(pipes.received())[2]["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["pay", "echo", "meta", "grow"]


async def test_a_caller_that_leaves_still_gets_its_answer(pipes: Pipes, ledger: Ledger) -> None:
    pipes.send(line(1, "initialize", **HELLO) + call(2, "raw.pay", nonce="n", mode="sleep:0.2"))
    pipes.leave()
    await run_stdio(with_raw(ledger), os.environ, stdin=pipes.stdin, stdout=pipes.stdout)
    assert echoed(pipes.received()) == "n"


async def test_a_call_that_outlasts_the_drain_is_withdrawn_and_answered(pipes: Pipes, ledger: Ledger) -> None:
    pipes.send(line(1, "initialize", **HELLO) + call(2, "raw.pay", nonce="n", mode="sleep:60"))
    configuration = with_raw(ledger, drain_seconds=1.0)
    serving = asyncio.ensure_future(run_stdio(configuration, os.environ, stdin=pipes.stdin, stdout=pipes.stdout))
    await until(lambda: bool(ledger.lines()))
    pipes.leave()
    await serving
    error = answers(pipes.received())[2]["error"]
    assert error["data"]["reason"] == "cancelled"
    assert '"cancelled": "n"' in ledger.lines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_answers_running_calls_and_ends(pipes: Pipes, ledger: Ledger, number: signal.Signals) -> None:
    pipes.send(line(1, "initialize", **HELLO) + call(2, "raw.pay", nonce="n", mode="sleep:60"))
    serving = asyncio.ensure_future(run_stdio(with_raw(ledger), os.environ, stdin=pipes.stdin, stdout=pipes.stdout))
    await until(lambda: bool(ledger.lines()))
    os.kill(os.getpid(), number)
    async with asyncio.timeout(30):
        await serving
    assert number.name in answers(pipes.received())[2]["error"]["message"]
    assert '"cancelled": "n"' in ledger.lines()[-1]


async def test_files_that_change_are_followed(pipes: Pipes, tmp_path: Path) -> None:
    source = ConfigurationSource(write_config(tmp_path, {}), os.environ, tmp_path, tmp_path)
    work = run_stdio(source.load(), os.environ, source, stdin=pipes.stdin, stdout=pipes.stdout)
    serving = asyncio.ensure_future(work)
    pipes.send(line(1, "initialize", **HELLO) + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    response = await pipes.take()
    write_config(tmp_path, {"light": stdio(light_server.command("x"))})
    async with asyncio.timeout(30):
        while b"notifications/tools/list_changed" not in response:
            response += await pipes.take()
        pipes.leave()
        await serving


# -- the streams themselves ----------------------------------------------------------------------------------


SMALL = Limits(lag_bytes=4096, lag_seconds=0.1, reply_bytes=64 * 1024)
PIPE_BYTES = 1 << 20
"""More than a pipe holds."""


async def test_a_slow_reader_gets_everything_and_delays_no_other(pipes: Pipes) -> None:
    outlet = Outlet(pipes.stdout, Limits(), pytest.fail)
    sent = bytes(range(256)) * (PIPE_BYTES // 256)
    outlet.write(sent)
    outlet.write(b"end")
    assert outlet.unsent_bytes > 0
    received = bytearray()
    while len(received) < len(sent) + 3:
        received += await pipes.take()
    await outlet.flushed()
    assert received == sent + b"end"
    assert outlet.unsent_bytes == 0
    outlet.close()


async def test_accepted_output_needs_no_flush(pipes: Pipes) -> None:
    outlet = Outlet(pipes.stdout, Limits(), pytest.fail)
    outlet.write(b"short")
    await outlet.flushed()
    outlet.close()


async def test_a_reader_that_stands_still_is_given_up(pipes: Pipes) -> None:
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    outlet = Outlet(pipes.stdout, SMALL, lost.set_result)
    outlet.write(b"x" * PIPE_BYTES)
    async with asyncio.timeout(30):
        assert await lost == "the caller does not read its answers"
    outlet.write(b"more")
    assert outlet.unsent_bytes == 0
    await outlet.flushed()
    outlet.close()


async def test_a_reader_that_is_behind_and_still_reads_is_not_given_up(pipes: Pipes) -> None:
    outlet = Outlet(pipes.stdout, SMALL_PATIENT, pytest.fail)
    outlet.write(b"x" * (PIPE_BYTES // 4))
    for _ in range(2):
        judged, before = outlet._sent_bytes, outlet.unsent_bytes
        os.read(pipes.from_hub, 1 << 15)
        await until(lambda: outlet.unsent_bytes < before)  # noqa: B023
        assert outlet.is_full
        outlet._judge(judged)  # as its timer does when the reader's time is up
    assert outlet.is_full
    outlet.close()


async def test_far_too_much_for_a_reader_is_not_kept(pipes: Pipes) -> None:
    lost: list[str] = []
    outlet = Outlet(pipes.stdout, SMALL, lost.append)
    for _ in range(8):
        outlet.write(b"x" * (PIPE_BYTES // 4))
    assert lost == ["the caller does not read its answers"]
    outlet.close()


async def test_a_reader_that_has_gone_is_noticed(pipes: Pipes) -> None:
    lost: list[str] = []
    outlet = Outlet(pipes.stdout, Limits(), lost.append)
    os.close(pipes.from_hub)
    outlet.write(b"anyone?")
    assert lost == ["cannot write to the caller (Broken pipe)"]
    outlet.close()


async def test_nothing_more_is_read_while_the_caller_takes_no_answers(pipes: Pipes) -> None:
    outlet = Outlet(pipes.stdout, SMALL_PATIENT, pytest.fail)
    taken: list[bytes] = []

    def feed(chunk: bytes) -> None:
        taken.append(chunk)
        outlet.write(b"y" * (PIPE_BYTES // 4))

    inlet = Inlet(pipes.stdin, feed, outlet)
    inlet.start()
    pipes.send(b"first")
    await until(lambda: len(taken) == 1)
    pipes.send(b"second")
    await until(lambda: len(taken) == 2)
    pipes.send(b"held back")
    await asyncio.sleep(0.05)  # nothing happens, which only time can show
    assert len(taken) == 2
    while not taken[2:]:
        await pipes.take()
    assert taken[2] == b"held back"
    inlet.stop()
    outlet.close()


SMALL_PATIENT = Limits(lag_bytes=4096, lag_seconds=30.0)
