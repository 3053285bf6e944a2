"""SIGTERM: running calls finish, streams end, nothing is left; a second signal ends the hub at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ledger, Spawn
from tests.faults.caller import Answer, Broken, Caller
from tests.faults.watching import Tail, eventually, family, is_alive
from tests.hubs import END_SECONDS, HubProcess, serving, stdio
from tests.peers.launch import command


@pytest.fixture
async def servers(ledger: Ledger, spawn: Spawn) -> dict[str, Any]:
    noted = ("--ledger", str(ledger.path))
    return {
        "over_stdio": stdio(command("raw_server", *noted)),
        "over_http": {"url": (await spawn("raw_server", *noted)).url},
    }


async def start_calls(caller: Caller, names: list[str], tail: Tail, mode: str) -> list[asyncio.Task[Answer]]:
    """Calls that have all begun at their servers."""
    for name in names:
        await eventually(lambda: is_up(caller, name), f"{name} is there", within=20.0)  # noqa: B023
    calls = [asyncio.ensure_future(caller.call(f"{name}.pay", {"nonce": name, "mode": mode})) for name in names]
    await eventually(lambda: tail.look().ran >= set(names), "the calls have begun")
    return calls


async def is_up(caller: Caller, name: str) -> bool:
    return (await caller.call(f"{name}.echo", {"text": "?"})).reported == "ok"


def listen_bytes(caller: Caller) -> bytes:
    """A request that opens a stream of changes, in the caller's era."""
    if caller.era == "modern":
        return caller.request_bytes("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id='"s"')
    lines = f"host: 127.0.0.1\r\naccept: text/event-stream\r\nmcp-session-id: {caller.session}\r\n"
    return f"GET /mcp HTTP/1.1\r\n{lines}\r\n".encode()


async def end_of(hub: HubProcess) -> None:
    """Wait until the hub has ended: less long than it has patience with calls that run."""
    async with asyncio.timeout(END_SECONDS):
        await hub.process.wait()


async def test_calls_finish_and_streams_end_and_nothing_is_left(
    tmp_path: Path, ledger: Ledger, servers: dict[str, Any]
) -> None:
    async with (
        serving(tmp_path, servers) as hub,
        Caller(hub.port) as modern,
        Caller(hub.port, era="legacy") as legacy,
    ):
        await legacy.initialize()
        calls = await start_calls(modern, list(servers), Tail(ledger.path), "sleep:0.5")
        streams = [asyncio.ensure_future(caller.send(listen_bytes(caller))) for caller in (modern, legacy)]
        for caller in (modern, legacy):
            await eventually(lambda: caller.is_hearing, "the stream has begun")  # noqa: B023
        children = family(hub.pid)
        assert children

        hub.terminate()

        ended = await asyncio.gather(*streams)
        assert bytes(ended[0].message.id) == b'"s"', "a subscription ends with its result"
        assert ended[1].status == 200
        assert [(await call).text for call in calls] == list(servers)
        await end_of(hub)
        assert hub.process.returncode == 0
        assert not [pid for pid in children if is_alive(pid)]


async def test_new_calls_learn_that_the_hub_shuts_down(tmp_path: Path, ledger: Ledger, servers: dict[str, Any]) -> None:
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller:
        await eventually(lambda: is_up(caller, "over_stdio"), "over_stdio is there", within=20.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
        # The second comes to its turn when the first is answered, and by then the hub is leaving.
        is_leaving = tmp_path / "the hub is leaving"
        begun = caller.call_bytes("over_stdio.pay", {"nonce": "begun", "mode": f"until:{is_leaving}"}, id="1")
        writer.write(begun + caller.call_bytes("over_stdio.echo", {"text": "x"}, id="2"))
        tail = Tail(ledger.path)
        await eventually(lambda: "begun" in tail.look().ran, "the first has begun")
        hub.terminate()
        await eventually(lambda: any("shutting down" in line for line in hub.said), "the hub has heard")
        is_leaving.touch()

        answered, refused = await answer_on(reader), await answer_on(reader)
        writer.close()
        assert answered["result"]["content"][0]["text"] == "begun"
        assert refused["error"]["code"] == -32010
        assert refused["error"]["data"] | {"retryAfter": 0} == {"executed": "no", "reason": "draining", "retryAfter": 0}
        await end_of(hub)


async def answer_on(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next answer of a connection on which requests were sent together."""
    async with asyncio.timeout(END_SECONDS):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
        return answer


async def test_a_second_signal_ends_the_hub_in_the_middle_of_its_calls(
    tmp_path: Path, ledger: Ledger, servers: dict[str, Any]
) -> None:
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller:
        tail = Tail(ledger.path)
        calls = await start_calls(caller, list(servers), tail, "sleep:60")
        children = family(hub.pid)
        hub.terminate()
        await eventually(lambda: any("shutting down" in line for line in hub.said), "the hub has heard")
        hub.terminate()

        await end_of(hub)
        assert hub.process.returncode == 0
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, Broken) or (isinstance(end, Answer) and end.reported == "unknown") for end in ends)
        assert not [pid for pid in children if is_alive(pid)]


async def test_a_call_that_outlasts_the_drain_gets_an_error_before_the_listener_closes(
    tmp_path: Path, ledger: Ledger, servers: dict[str, Any]
) -> None:
    limits = {"drain_seconds": 0.5}
    async with serving(tmp_path, servers, limits=limits) as hub, Caller(hub.port) as caller:
        calls = await start_calls(caller, list(servers), Tail(ledger.path), "sleep:60")
        hub.terminate()

        assert [(await call).error for call in calls] == [(-32012, "unknown", "cancelled")] * len(servers)
        await end_of(hub)
        assert hub.process.returncode == 0


async def test_a_server_that_will_not_leave_is_made_to_and_the_others_are_not_started_again(
    tmp_path: Path, ledger: Ledger
) -> None:
    noted = ("--ledger", str(ledger.path))
    servers = {
        "stubborn": stdio(command("raw_server", "--mode", "ignore_sigterm,fork", *noted)),
        **{f"willing{at}": stdio(command("raw_server", *noted)) for at in range(3)},
    }
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller:
        for name in servers:
            await eventually(lambda: is_up(caller, name), f"{name} is there", within=20.0)  # noqa: B023
        children = family(hub.pid)
        assert len(children) == len(servers) + 1
        await eventually(lambda: ready_lines(hub) == len(servers), "the hub has said so of each")

        hub.terminate()
        await end_of(hub)

        assert hub.process.returncode == 0
        assert not [pid for pid in children if is_alive(pid)]
        assert ready_lines(hub) == len(servers)


async def test_signals_while_a_stubborn_server_is_ended_leave_no_child(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"stubborn": stdio(command("raw_server", "--mode", "ignore_sigterm,fork", "--ledger", str(ledger.path)))}
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller:
        await eventually(lambda: is_up(caller, "stubborn"), "the server is there", within=20.0)
        children = family(hub.pid)
        hub.terminate()
        await eventually(lambda: any("shutting down" in line for line in hub.said), "the hub has heard")
        await eventually(lambda: not caller.is_connected, "the listener is closed, and the servers are being ended")
        hub.terminate()

        await end_of(hub)
        assert hub.process.returncode == 0
        assert not [pid for pid in children if is_alive(pid)]


def ready_lines(hub: HubProcess) -> int:
    return sum("server ready" in line for line in hub.said)
