"""Local servers connected to a hub by `dial`: the hub's view of the socket, and reconnecting."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from isthmus.app import dial
from isthmus.app.dial import (
    Dialler,
    DialPlan,
    HubConnectionLost,
    HubRefused,
    ReconnectPauses,
    open_dialler,
    permanent_refusal,
    read_address,
)
from isthmus.app.dial_sessions import LocalOffer
from isthmus.app.served_session import UNANSWERED_BYTES_MAX
from isthmus.config.settings import Configuration, HubSettings
from isthmus.model.names import ServerName
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_log_folders import slot_file
from isthmus.upstream.server_settings import ServerSettings, StdioSettings
from tests.conftest import children
from tests.hubs import META
from tests.relay.standin import PATIENCE, Guest, StandIn, standing_in, text_in

pytestmark = pytest.mark.usefixtures("no_leftovers")

CHILD = str(Path(__file__).parents[2] / "relay" / "dial_child.py")


def plan_for(hub: StandIn, *names: str, is_compatible: bool = False) -> DialPlan:
    servers = tuple(
        ServerSettings(ServerName(name), StdioSettings(sys.executable, ("-S", CHILD, name))) for name in names
    )
    offers = tuple(LocalOffer(server.name, f"{server.name}-id") for server in servers)
    return DialPlan(read_address(hub.url), Configuration(None, HubSettings(), servers), offers, is_compatible)


@asynccontextmanager
async def dialling(hub: StandIn, *names: str, is_compatible: bool = False) -> AsyncIterator[Dialler]:
    """Bring servers to a hub until the block ends, which must end in good order."""
    dialler = Dialler(plan_for(hub, *names, is_compatible=is_compatible), os.environ)
    running = asyncio.ensure_future(dialler.run())
    try:
        yield dialler
    finally:
        dialler.stop()
        await asyncio.wait_for(running, PATIENCE)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_true():  # noqa: ASYNC110 - it has no notification
            await asyncio.sleep(0.01)


async def channels(guest: Guest, count: int) -> dict[str, int]:
    """Wait for channels and greet who is there: by id, what their numbers are."""
    found = {}
    for _ in range(count):
        number, server_id = await guest.opened()
        await guest.greet(number)
        found[server_id] = number
    return found


# -- towards the original ------------------------------------------------------------------------------------------


async def test_to_a_relay_that_sends_nothing_by_itself_a_server_answers_every_sender() -> None:
    async with standing_in() as hub, dialling(hub, "calc"):
        guest = await hub.arrives()
        assert guest.path == "/mcp_endpoint/mcp/"
        assert guest.query == {"token": "a+b", "server_id": "calc-id"}

        # Each device's own greeting arrives, and so do ids that the relay made.
        for device in range(3):
            welcome = await guest.ask("initialize", {"protocolVersion": "2024-11-05"}, id=f"{device}_n_1")
            assert welcome["result"]["serverInfo"]["name"] == "calc-id"
            assert welcome["result"]["protocolVersion"] == "2024-11-05"
            await guest.say({"method": "notifications/initialized", "params": {}})
        listed = await guest.ask("tools/list", id="0_n_2")
        assert [tool["name"] for tool in listed["result"]["tools"]][:2] == ["echo", "pid"]
        for id in ("0_s_x", 0, "", 1.5):
            assert await guest.call("echo", id=id, text=f"for {id}") == f"for {id}"
        assert await guest.call("count") == "greeted 1, held 0, withdrawn 0"


async def test_several_servers_have_a_socket_each_where_the_hub_does_not_share() -> None:
    async with standing_in() as hub, dialling(hub, "one", "two") as dialler:
        guests = [await hub.arrives(), await hub.arrives()]
        assert {guest.query["server_id"] for guest in guests} == {"one-id", "two-id"}
        assert len({await guest.call("pid", id=1) for guest in guests}) == 2
        assert [line.is_muxed for line in dialler.status().lines] == [False, False]


async def test_a_server_whose_place_a_stranger_takes_is_not_taken_for_one_of_a_relay_that_keeps_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "TRIAL_SECONDS", 0.2)
    async with standing_in() as hub, dialling(hub, "one", "two", is_compatible=True):
        first, _ = await hub.arrives(), await hub.arrives()
        await first.close(1000, "新连接替换")
        assert (await hub.arrives()).query["server_id"] == first.query["server_id"]


async def test_a_relay_that_keeps_one_connection_has_all_servers_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "TRIAL_SECONDS", 0.2)
    async with standing_in(keeps_one=True) as hub, dialling(hub, "one", "two"):
        while (guest := await hub.arrives()).query["server_id"] != "isthmus":
            pass
        listed = await guest.ask("tools/list")
        names = {tool["name"] for tool in listed["result"]["tools"]}
        assert {"one.echo", "two.echo"} <= names
        assert all(name.startswith(("one.", "two.")) for name in names)
        assert await guest.call("one.pid") != await guest.call("two.pid")


async def test_a_compatible_connection_offers_no_sharing() -> None:
    async with standing_in(shares=True) as hub, dialling(hub, "one", "two", is_compatible=True):
        guests = [await hub.arrives(), await hub.arrives()]
        assert all("Sec-WebSocket-Protocol" not in guest.headers for guest in guests)


# -- several on one socket -----------------------------------------------------------------------------------------


async def test_servers_share_a_socket_and_equal_ids_do_not_meet() -> None:
    async with standing_in(shares=True) as hub, dialling(hub, "one", "two") as dialler:
        guest = await hub.arrives()
        numbers = await channels(guest, 2)
        assert numbers.keys() == {"one-id", "two-id"}
        one, two = numbers["one-id"], numbers["two-id"]
        calls = [
            guest.call("echo", id=id, channel=number, text=f"{number} {id}")
            for id in range(50)
            for number in (one, two)
        ]
        assert await asyncio.gather(*calls) == [f"{number} {id}" for id in range(50) for number in (one, two)]
        await guest.control({"opened": one, "server": "robot_one-id"})
        await until(lambda: dialler.status().servers[0].hub_name == "robot_one-id")
        assert dialler.status().servers[0].answered == 50
        assert len(hub.present) == 1


async def test_a_server_that_stands_still_costs_only_its_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "FINISH_SECONDS", 0.1)
    async with standing_in(shares=True) as hub, dialling(hub, "stuck", "well"):
        guest = await hub.arrives()
        numbers = await channels(guest, 2)
        stuck, well = numbers["stuck-id"], numbers["well-id"]
        await guest.send("tools/call", {"name": "stick", "arguments": {}}, channel=stuck)
        long = {"name": "echo", "arguments": {"text": "x" * 1024 * 1024}}
        fitting = UNANSWERED_BYTES_MAX // (1024 * 1024) - 1
        waiting = [await guest.send("tools/call", long, channel=stuck) for _ in range(fitting)]
        refused = await guest.ask("tools/call", long, channel=stuck)
        assert text_in(refused) == "The server has too many unanswered requests"
        assert refused["error"]["data"] == {"executed": "no", "reason": "overloaded"}
        assert not any(each.done() for each in waiting)
        assert await guest.call("echo", channel=well, text="here") == "here"


async def test_an_answer_that_is_too_long_for_the_hub_is_reported_and_keeps_the_connection() -> None:
    async with standing_in(shares=True) as hub, dialling(hub, "one", "two"):
        guest = await hub.arrives()
        numbers = await channels(guest, 2)
        await guest.control({"opened": numbers["one-id"], "limit": 2000})
        call = {"name": "echo", "arguments": {"text": "x" * 3000}}
        error = (await guest.ask("tools/call", call, id="mine", channel=numbers["one-id"]))["error"]
        assert (error["code"], error["data"]["executed"]) == (-32012, "yes")
        assert "the hub accepts at most 2000" in error["message"]
        assert len(text_in(await guest.ask("tools/call", call, channel=numbers["two-id"]))) == 3000
        assert await guest.call("echo", channel=numbers["one-id"], text="short") == "short"


async def test_a_channel_that_the_hub_closes_is_opened_anew() -> None:
    async with standing_in(shares=True) as hub, dialling(hub, "one", "two"):
        guest = await hub.arrives()
        numbers = await channels(guest, 2)
        await guest.control({"closed": numbers["one-id"], "code": 1011, "reason": "it failed"})
        again, server_id = await guest.opened()
        assert server_id == "one-id"
        assert again not in numbers.values()
        await guest.greet(again)
        assert await guest.call("count", channel=again) == "greeted 1, held 0, withdrawn 0"
        assert await guest.call("echo", channel=numbers["two-id"], text="on") == "on"


async def test_servers_get_another_socket_when_the_hub_restarts_and_calls_on_the_first_one_are_answered(
    tmp_path: Path,
) -> None:
    file, awaited = tmp_path / "asks", tmp_path / "asks.awaited"
    async with standing_in(shares=True) as hub, dialling(hub, "one", "two"):
        guest = await hub.arrives()
        numbers = await channels(guest, 2)
        await guest.greet(numbers["one-id"])
        asking = {"name": "ask", "arguments": {"after": str(file)}}
        waiting = await guest.send("tools/call", asking, channel=numbers["one-id"])
        await until(awaited.exists)
        await guest.control({"closed": numbers["two-id"], "code": 1012, "reason": "the hub is shutting down"})
        other = await hub.arrives()
        there = await channels(other, 2)
        await other.greet(there["two-id"])
        assert await other.call("echo", channel=there["two-id"], text="on") == "on"
        await guest.control({"opened": numbers["one-id"], "server": "kitchen_one", "grace": 60.0})  # too late
        file.touch()
        assert "result" in await asyncio.wait_for(waiting, PATIENCE)
        await guest.control({"closed": numbers["one-id"], "code": 1012, "reason": "the hub is shutting down"})
        await guest.close(1012, "the hub is shutting down")
        assert await other.call("echo", channel=there["two-id"], text="still") == "still"
        assert hub.attempts == 2


async def test_a_hub_that_does_not_keep_to_the_frames_is_dialled_again() -> None:
    async with standing_in(shares=True) as hub, dialling(hub, "one"):
        guest = await hub.arrives()
        await guest.opened()
        await guest.socket.send("nonsense")
        another = await hub.arrives()
        assert await channels(another, 1)


async def test_a_server_asks_the_caller_through_it_and_needs_no_second_process_for_that() -> None:
    before = children()
    async with standing_in() as hub, dialling(hub, "one"):
        guest = await hub.arrives()
        await guest.greet()
        waiting = await guest.send("tools/call", {"name": "ask", "arguments": {}})
        question = await asyncio.wait_for(guest.notes.get(), PATIENCE)
        assert question["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"colour": "blue"}}
        await guest.say({"id": question["id"], "result": answer})
        assert json.loads(text_in(await asyncio.wait_for(waiting, PATIENCE))) == answer
        assert children() - before == {int(await guest.call("pid"))}


async def test_the_hub_gets_updates_from_the_process_of_each_conversation() -> None:
    """It follows for everybody; who is marked as another caller has a process of its own."""
    able = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    wanted = {"resourceSubscriptions": ["memo://one"]}
    async with standing_in(shares=True) as hub, dialling(hub, "one"):
        guest = await hub.arrives()
        number, _ = await guest.opened()

        async def touches(caller: str) -> str:
            params = {"name": "touch", "_meta": {**able, "isthmus/conversation": {"caller": caller}}}
            return text_in(await guest.ask("tools/call", params, channel=number))

        async def is_told(method: str) -> bool:
            return bool((await asyncio.wait_for(guest.notes.get(), PATIENCE))["method"] == method)

        processes = {await touches("a")}
        listening = {"notifications": wanted, "_meta": META}
        await guest.say({"id": "all", "method": "subscriptions/listen", "params": listening}, number)
        assert await is_told("notifications/subscriptions/acknowledged")
        for caller in ("a", "b"):
            processes.add(await touches(caller))
            assert await is_told("notifications/resources/updated")
        assert len(processes) == 2


async def test_calls_wait_for_a_local_server_as_long_as_they_would_in_the_hub() -> None:
    async with standing_in(shares=True) as hub, dialling(hub, "one") as dialler:
        guest = await hub.arrives()
        number, _ = await guest.opened()
        server_queue = dialler.running.hub.server_queues[ServerName("one")]
        await guest.control({"opened": number, "server": "robot_one", "grace": 90})
        await until(lambda: server_queue.grace == 90)
        await guest.control({"opened": number, "server": "robot_one", "grace": 3})
        await until(lambda: server_queue.grace == 10)


async def test_progress_and_withdrawals_go_through() -> None:
    async with standing_in(shares=True) as hub, dialling(hub, "one"):
        guest = await hub.arrives()
        number = (await channels(guest, 1))["one-id"]
        params = {"name": "steps", "arguments": {}, "_meta": {"progressToken": "mine"}}
        assert text_in(await guest.ask("tools/call", params, channel=number)) == "done"
        steps = [guest.notes.get_nowait() for _ in range(guest.notes.qsize())]
        assert [(step["params"]["progressToken"], step["params"]["progress"]) for step in steps] == [
            ("mine", 1),
            ("mine", 2),
        ]
        await guest.send("tools/call", {"name": "hold", "arguments": {}}, id="held", channel=number)
        await guest.call("echo", channel=number)  # which the child reads after the other
        await guest.say({"method": "notifications/cancelled", "params": {"requestId": "held"}}, number)
        assert await guest.call("count", channel=number) == "greeted 1, held 1, withdrawn 1"


# -- losing and finding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [True, False])
async def test_a_lost_hub_is_dialled_again_and_local_servers_go_on(*, shares: bool) -> None:
    async with standing_in(shares=shares) as hub, dialling(hub, "one") as dialler:
        guest = await hub.arrives()
        number = (await channels(guest, 1))["one-id"] if shares else 0
        pid = await guest.call("pid", channel=number)
        await guest.send("tools/call", {"name": "hold", "arguments": {}}, channel=number)
        await guest.call("echo", channel=number)  # which the child reads after the other
        guest.cut()

        another = await hub.arrives()
        number = (await channels(another, 1))["one-id"] if shares else 0
        assert await another.call("pid", channel=number) == pid
        assert await another.call("count", channel=number) == "greeted 1, held 1, withdrawn 1"
        assert dialler.status().servers[0].running == 0


async def test_a_child_that_dies_is_started_again_and_calls_wait_for_it() -> None:
    async with standing_in(shares=True) as hub, dialling(hub, "one"):
        guest = await hub.arrives()
        number = (await channels(guest, 1))["one-id"]
        pid = int(await guest.call("pid", channel=number))
        lost = await guest.send("tools/call", {"name": "hold", "arguments": {}}, channel=number)
        await guest.call("echo", channel=number)  # which the child reads after the other
        os.kill(pid, signal.SIGKILL)
        error = (await asyncio.wait_for(lost, PATIENCE))["error"]
        assert (error["code"], error["data"]["executed"]) == (-32012, "unknown")
        assert int(await guest.call("pid", channel=number)) != pid
        assert len(hub.present) == 1, "the hub's connection was not touched"


async def test_calls_of_the_hub_are_in_the_local_audit_log(tmp_path: Path) -> None:
    async with standing_in(shares=True) as hub:
        plan = plan_for(hub, "one")
        settings = HubSettings(state=str(tmp_path))
        dialler = await open_dialler(replace(plan, configuration=replace(plan.configuration, hub=settings)), os.environ)
        running = asyncio.ensure_future(dialler.run())
        guest = await hub.arrives()
        await guest.call("pid", channel=(await channels(guest, 1))["one-id"])
        dialler.stop()
        await asyncio.wait_for(running, PATIENCE)
    async with audit_sqlite.open_reader(slot_file(tmp_path, 1)) as log:
        received = [json.loads(row.content) async for row in log.rows()]
    assert [each["event"] for each in received] == ["hub.started", "call", "hub.stopped"]
    assert (received[1]["frontend"], received[1]["caller"], received[1]["name"], received[1]["executed"]) == (
        "dial",
        "hub",
        "pid",
        "yes",
    )


async def test_a_server_that_cannot_start_is_not_offered_and_delays_no_other() -> None:
    async with standing_in(shares=True) as hub:
        plan = plan_for(hub, "well")
        broken = ServerSettings(ServerName("broken"), StdioSettings("/does/not/exist"))
        configuration = Configuration(None, HubSettings(), (broken, *plan.configuration.servers))
        offers = (LocalOffer(broken.name, "broken"), *plan.offers)
        dialler = Dialler(DialPlan(plan.address, configuration, offers), os.environ)
        running = asyncio.ensure_future(dialler.run())
        guest = await hub.arrives()
        assert await channels(guest, 1) == {"well-id": 1}
        assert dialler.status().servers[0].server_status.state == "retrying"
        assert guest.words.empty()
        dialler.stop()
        await asyncio.wait_for(running, PATIENCE)


# -- the hub says no -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["token解密失败", "缺少token参数", "无对应agentId", "token已撤销"])
async def test_a_refused_token_ends_it_with_the_hubs_reason(reason: str) -> None:
    async with standing_in(refusal=reason) as hub:
        with pytest.raises(HubRefused, match=reason):
            await asyncio.wait_for(Dialler(plan_for(hub, "one"), os.environ).run(), PATIENCE)
        assert hub.attempts == 1


@pytest.mark.parametrize(("status", "is_missing"), [(401, False), (403, False), (404, True)])
async def test_an_answer_in_http_that_means_no_ends_it(status: int, *, is_missing: bool) -> None:
    async with standing_in(status=status) as hub:
        with pytest.raises(HubRefused, match=f"HTTP {status}") as refused:
            await asyncio.wait_for(Dialler(plan_for(hub, "one"), os.environ).run(), PATIENCE)
        assert refused.value.is_missing is is_missing


async def test_a_hub_that_cannot_serve_now_is_asked_again() -> None:
    async with standing_in(status=503) as hub, dialling(hub, "one") as dialler:
        await until(lambda: hub.attempts >= 2)
        assert dialler.status().lines[0].reason == "it answered HTTP 503 instead of opening a WebSocket"
        hub.status = None
        assert await (await hub.arrives()).call("echo", text="back") == "back"


async def test_another_refusal_is_reported_and_the_next_attempt_waits() -> None:
    async with standing_in(refusal="the agent has 64 connections") as hub, dialling(hub, "one") as dialler:
        await until(lambda: bool(dialler.status().lines) and dialler.status().lines[0].state == "pausing")
        line = dialler.status().lines[0]
        assert line.reason == "it closed the WebSocket with code 1008: 'the agent has 64 connections'"
        assert line.again_at is not None
        assert line.again_at - line.since > 50


def test_how_long_is_waited_fits_the_reason() -> None:
    pauses = ReconnectPauses()
    lost = HubConnectionLost("the connection to it broke")
    assert [pauses.after(lost, 1.0) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    pauses.reset()
    assert pauses.after(lost, 0.5) == 0.25
    assert pauses.after(HubConnectionLost("it restarts", 1012, "the hub is shutting down"), 1.0) == 1.0
    assert pauses.after(HubConnectionLost("full", 1008, "no room"), 0.0) == 60
    assert pauses.after(HubConnectionLost("cut", 1008, "it does not read its messages", 3600), 0.0) == 0
    assert pauses.after(HubConnectionLost("replaced", 1000, "新连接替换"), 0.0) == 60
    assert pauses.after(lost, 1.0) == 2.0, "a pause that is not the backoff's does not lengthen it"


def test_two_that_take_each_others_place_do_so_ever_more_seldom() -> None:
    pauses, held = ReconnectPauses(), 0.0
    waited = []
    for _ in range(6):
        waited.append(pauses.after(HubConnectionLost("", 1000, "新连接替换", held), 0.5))
        pauses.reset()  # it has its place again, and answers calls
        held = waited[-1]
    assert waited == [60, 120, 240, 480, 600, 600]
    assert pauses.after(HubConnectionLost("", 1000, "新连接替换", 3600), 0.5) == 60, (
        "who had the place for long had no rival"
    )


async def replaces(guest: Guest) -> None:
    """Take a server in, and have another one take its place."""
    if guest.is_muxed:
        number, _ = await guest.opened()
        await guest.greet(number)
        await guest.control({"opened": number, "server": "robot_one-id"})
        await guest.control({"closed": number, "code": 1000, "reason": "新连接替换"})
    else:
        await guest.close(1000, "新连接替换")


@pytest.mark.parametrize("shares", [True, False])
async def test_a_server_whose_place_another_has_is_shown_so(*, shares: bool) -> None:
    async with standing_in(shares=shares) as hub, dialling(hub, "one") as dialler:
        await replaces(await hub.arrives())
        await until(lambda: dialler.status().servers[0].refusal is not None)
        (shown,) = dialler.status().servers
        assert shown.refusal is not None
        assert shown.refusal.reason.startswith("another connection uses this server id")
        assert 30 < shown.refusal.again_at - time.time() <= 60
        assert shown.hub_name is None


@pytest.mark.parametrize("shares", [True, False])
async def test_a_server_waits_longer_each_time_that_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, *, shares: bool
) -> None:
    monkeypatch.setattr(dial, "REPLACED_SECONDS", 0.1)
    with capture_logs() as lines:
        async with standing_in(shares=shares) as hub, dialling(hub, "one") as dialler:
            guest = await hub.arrives()
            for _ in range(3):
                await replaces(guest)
                guest = guest if shares else await hub.arrives()
            if shares:
                number, _ = await guest.opened()
                await guest.control({"opened": number, "server": "robot_one-id"})
                await until(lambda: dialler.status().servers[0].hub_name == "robot_one-id")
            assert dialler.status().servers[0].refusal is None
    assert [line["again_in"] for line in lines if "again_in" in line] == [0.1, 0.2, 0.4]


def test_only_close_reasons_about_the_token_are_final() -> None:
    assert permanent_refusal(HubConnectionLost("", 1008, "token已过期")) == "token已过期"
    assert permanent_refusal(HubConnectionLost("", 1008, "its token is no longer valid")) is not None
    assert permanent_refusal(HubConnectionLost("", 1008, "no room")) is None
    assert permanent_refusal(HubConnectionLost("", 1011, "token")) is None
    assert permanent_refusal(HubConnectionLost("refused")) is None


# -- ending ----------------------------------------------------------------------------------------------------------


async def test_its_end_lets_calls_finish_and_says_goodbye() -> None:
    async with standing_in() as hub:
        async with dialling(hub, "one") as dialler:
            guest = await hub.arrives()
            await guest.greet()
            waiting = await guest.send("tools/call", {"name": "ask", "arguments": {}})
            question = await asyncio.wait_for(guest.notes.get(), PATIENCE)
            dialler.stop()
            late = await guest.ask("tools/call", {"name": "echo", "arguments": {}})
            assert late["error"]["data"]["executed"] == "no"
            await guest.say({"id": question["id"], "result": {"action": "decline"}})
            assert json.loads(text_in(await asyncio.wait_for(waiting, PATIENCE))) == {"action": "decline"}
        await asyncio.wait_for(guest.socket.wait_closed(), PATIENCE)
        assert guest.socket.close_code == 1000
