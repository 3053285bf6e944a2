"""Servers that dial in: seats, twins, going and coming back, limits, names, and an ordered end."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import weakref
from itertools import islice, pairwise
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.settings import Limits
from isthmus.model.calls import EVERYTHING, Answered
from isthmus.model.fault_table import Lost, NotConnected, UnknownTool
from isthmus.model.names import ServerName
from isthmus.model.relay import AgentRules, Claim
from isthmus.storage.memory import MemoryJournal
from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.websocket import MessageReceiver
from isthmus.upstream.dialin import registry as module
from isthmus.upstream.dialin.link import DialInLink
from isthmus.upstream.dialin.registry import MOVE_AT_ONCE_MAX, DialInRegistry
from isthmus.upstream.dialin.server import REPLACED
from isthmus.upstream.dialin.server_names import NameRules
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.upstream.server_settings import REASON_LENGTH_MAX
from tests.unit.core.doubles import ANYONE, raw, ready, tool
from tests.unit.upstream.dialin.scene import CLAIM, Dialler, Scene, scene, until
from tests.unit.upstream.doubles import text_of

# -- coming ----------------------------------------------------------------------------------------------------------


async def test_a_server_is_initialized_once_listed_to_the_last_page_and_called() -> None:
    async with scene() as at:
        server = Dialler(tools=[f"t{number}" for number in range(120)])
        await at.agent_server(server, "clock")
        assert at.servers() == {"kitchen_clock": "ready"}
        assert at.tools("kitchen_clock") == server.tools
        assert at.server_status("kitchen_clock").agent == "kitchen"
        assert text_of(await at.call("kitchen_clock.t119")) == "clock: t119"
        methods = [message["method"] for message in server.asked]
        assert methods == ["initialize", "notifications/initialized", *["tools/list"] * 3, "tools/call"]
        assert not server.closed


async def test_a_server_is_invisible_before_it_was_listed_and_waiters_learn_when_it_is() -> None:
    async with scene() as at:
        at.dial(Dialler(), "clock")
        ((label, _, arrival),) = at.book.roster("kitchen").arriving()
        assert (label, at.servers(), at.book.roster("kitchen").servers()) == ("clock", {}, ())
        (shown,) = at.book.servers()
        assert (shown.state, shown.server_id, shown.client) == ("connecting", "clock", "192.0.2.7")
        await arrival
        (agent_server,) = at.book.roster("kitchen").servers()
        assert (agent_server.server_id, agent_server.server, agent_server.is_here) == ("clock", "kitchen_clock", True)
        assert json.loads(agent_server.welcome)["serverInfo"]["name"] == "clock"


async def test_without_a_server_id_the_servers_own_name_is_used() -> None:
    async with scene() as at:
        for server in (Dialler("clock"), Dialler("lamp"), Dialler(None)):
            await at.agent_server(server)
        assert [agent_server.server_id for agent_server in at.book.roster("kitchen").servers()] == [
            "clock",
            "lamp",
            "default",
        ]


async def test_a_modern_server_refuses_the_earlier_greeting_and_gets_its_own() -> None:
    async with scene() as at:
        server = Dialler("clock")
        server.is_modern = True
        await at.agent_server(server)
        assert at.server_status("kitchen_clock").era == "2026-07-28"
        assert [message["method"] for message in server.asked][:2] == ["initialize", "server/discover"]
        assert text_of(await at.call("kitchen_clock.now")) == "clock: now"


async def test_agents_do_not_meet() -> None:
    async with scene() as at:
        await at.agent_server(Dialler("clock"), claim=Claim("kitchen"))
        await at.agent_server(Dialler("clock"), claim=Claim("kitchen", "acme"))
        assert at.servers() == {"kitchen_clock": "ready", "acme_kitchen_clock": "ready"}
        assert [agent_server.server for agent_server in at.book.roster("acme/kitchen").servers()] == [
            "acme_kitchen_clock"
        ]


# -- turned away -----------------------------------------------------------------------------------------------------


async def nothing_is_left(at: Scene) -> None:
    await at.quiet()
    assert (at.servers(), at.book.servers(), at.book.connections(), len(at.book._links)) == ({}, (), 0, 0)


async def test_a_silent_server_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DialInLink, "start_seconds", 0.01)
    async with scene() as at:
        server = Dialler()
        server.is_mute = True
        await at.agent_server(server)
        assert server.closed == [(1011, "no answer to initialize within 0.01 s")]
        await nothing_is_left(at)


async def test_a_server_that_leaves_without_an_answer_is_reported_once() -> None:
    async with scene() as at:
        server = Dialler()
        server.is_mute = True
        with capture_logs() as lines:
            at.dial(server, "clock")
            await until(lambda: len(server.asked) == 1)
            came = at.time
            at.time += 5
            (shown,) = at.book.servers()
            assert (shown.state, shown.reason) == ("connecting", "it has not listed its tools yet")
            assert shown.since == came
            server.leave("it did not respond")
            await nothing_is_left(at)
            await until(lambda: bool(lines))
        (line,) = lines
        assert (line["event"], line["reason"]) == ("server left before it was listed", "it did not respond")
        assert (line["server"], line["client"]) == ("kitchen_clock", "192.0.2.7")


async def test_a_server_that_never_ends_its_list_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ARRIVE_SECONDS", 0.02)
    async with scene() as at:
        server = Dialler()
        server.capabilities["prompts"] = {}  # which it does not answer
        await at.agent_server(server)
        assert server.closed == [(1011, "it did not list its tools within 0.02 s")]
        await nothing_is_left(at)


async def test_a_server_that_refuses_every_greeting_is_sent_away() -> None:
    async with scene() as at:
        server = Dialler()
        server.is_mute = True
        at.dial(server)
        await until(lambda: len(server.asked) == 1)
        server.say(id=1, error={"code": -1, "message": "not today"})
        await until(lambda: len(server.asked) == 2)
        server.say(id=2, error={"code": -1, "message": "nor so"})
        await nothing_is_left(at)
        assert server.closed == [(1008, "it refused to initialize: not today (-1)")]


async def test_a_long_refusal_is_cut_in_the_log_and_in_the_close_reason() -> None:
    async with scene() as at:
        server = Dialler()
        server.is_mute = True
        with capture_logs() as lines:
            at.dial(server)
            for number in (1, 2):
                await until(lambda: len(server.asked) == number)  # noqa: B023 - it is waited for here
                server.say(id=number, error={"code": -1, "message": "no" * 10_000})
            await nothing_is_left(at)
            await until(lambda: bool(lines))
        assert [len(line["reason"]) for line in lines] == [REASON_LENGTH_MAX]
        assert [len(words) for _, words in server.closed] == [REASON_LENGTH_MAX]


async def test_a_server_of_no_known_version_is_sent_away() -> None:
    async with scene() as at:
        server = Dialler()
        server.is_mute = True
        at.dial(server)
        await until(lambda: len(server.asked) == 1)
        server.receiver.read(b"hello")
        server.say(id=1, result={"protocolVersion": "1999-01-01"})
        await nothing_is_left(at)
        assert server.closed[0][0] == 1008
        assert "1999-01-01" in server.closed[0][1]


async def test_a_server_that_leaves_while_it_is_initialized_leaves_nothing_behind() -> None:
    async with scene() as at:
        server = Dialler()
        at.dial(server)
        server.leave()
        await nothing_is_left(at)
        assert not server.closed


async def test_this_hub_itself_is_sent_away() -> None:
    async with scene() as at:
        server = Dialler()
        server.is_mute = True
        at.dial(server)
        await until(lambda: len(server.asked) == 1)
        meta = {"isthmus/hubs": {at.hub.id: 0}}
        server.is_mute = False
        server.say(id=1, result={"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "_meta": meta})
        await nothing_is_left(at)
        assert server.closed == [(1008, "it is this hub itself")]


# -- the same once more ----------------------------------------------------------------------------------------------


async def test_the_newest_connection_of_a_server_id_replaces_the_old_one() -> None:
    async with scene() as at:
        old = await at.agent_server(Dialler("old"), "s1")
        old.holds_calls = True
        _, waiting = at.start("kitchen_s1.now")
        await until(lambda: len(old.calls()) == 1)
        new = await at.agent_server(Dialler("new", ["now", "then"]), "s1")
        assert old.closed == [(1000, REPLACED)]
        assert isinstance(waiting.fault, Lost)
        assert waiting.fault.executed == "unknown"
        old.leave()
        assert (at.servers(), at.tools("kitchen_s1")) == ({"kitchen_s1": "ready"}, ["now", "then"])
        assert text_of(await at.call("kitchen_s1.now")) == "new: now"
        assert not new.closed


async def test_while_the_newest_is_initialized_the_old_one_serves() -> None:
    async with scene() as at:
        old = await at.agent_server(Dialler("old"), "s1")
        new = Dialler("new")
        new.is_mute = True
        at.dial(new, "s1")
        assert text_of(await at.call("kitchen_s1.now")) == "old: now"
        new.leave()
        await at.quiet()
        assert text_of(await at.call("kitchen_s1.now")) == "old: now"
        assert not old.closed


async def test_the_newest_is_the_one_that_dialled_last_and_not_the_one_that_was_greeted_last() -> None:
    async with scene() as at:
        slow = Dialler("slow")
        slow.is_mute = True
        at.dial(slow, "s1")
        await until(lambda: len(slow.asked) == 1)
        at.dial(Dialler("fast"), "s1")
        await until(lambda: at.servers() == {"kitchen_s1": "ready"})
        slow.is_mute = False
        slow._serve(slow.asked[0])
        await at.quiet()
        assert slow.closed == [(1000, REPLACED)]
        assert text_of(await at.call("kitchen_s1.now")) == "fast: now"


async def test_two_servers_of_one_name_both_stay() -> None:
    async with scene() as at:
        first, second, third = [await at.agent_server(Dialler("clock")) for _ in range(3)]
        assert [agent_server.server_id for agent_server in at.book.roster("kitchen").servers()] == [
            "clock",
            "clock_2",
            "clock_3",
        ]
        assert [twin.closed for twin in (first, second, third)] == [[], [], []]
        second.leave()
        await at.agent_server(Dialler("clock"))
        assert at.servers() == dict.fromkeys(("kitchen_clock", "kitchen_clock_2", "kitchen_clock_3"), "ready")


async def test_two_servers_of_one_name_that_come_together_both_stay() -> None:
    async with scene() as at:
        twins = [Dialler("clock"), Dialler("clock")]
        for twin in twins:
            at.dial(twin)
        await at.quiet()
        assert at.servers() == dict.fromkeys(("kitchen_clock", "kitchen_clock_2"), "ready")
        assert not [twin.closed for twin in twins if twin.closed]


async def test_twins_that_come_back_in_another_order_have_their_own_seats() -> None:
    async with scene(DialInSettings(grace=30.0)) as at:
        first, second = (
            await at.agent_server(Dialler("FastMCP", ["calc"])),
            await at.agent_server(Dialler("FastMCP", ["rain", "sun"])),
        )
        first.leave()
        second.leave()
        _, waiting = at.start("kitchen_FastMCP.calc")
        back = await at.agent_server(Dialler("FastMCP", ["rain", "sun", "snow"]))
        assert at.servers() == {"kitchen_FastMCP": "away", "kitchen_FastMCP_2": "ready"}
        assert not back.calls()
        first = await at.agent_server(Dialler("FastMCP", ["calc"]))
        await until(lambda: bool(waiting.ends))
        assert text_of(waiting) == "FastMCP: calc"
        assert len(first.calls()) == 1


async def test_a_twin_that_only_seems_to_be_here_is_looked_at_before_another_ones_seat_is_taken() -> None:
    async with scene() as at:
        first, second = (
            await at.agent_server(Dialler("FastMCP", ["calc"])),
            await at.agent_server(Dialler("FastMCP", ["rain"])),
        )
        second.leave()
        first.is_there = False
        again = await at.agent_server(Dialler("FastMCP", ["calc"]))
        assert at.servers() == {"kitchen_FastMCP": "ready", "kitchen_FastMCP_2": "away"}
        assert (again.closed, len(first.closed)) == ([], 1)


async def test_a_call_that_waits_is_not_sent_to_a_server_that_came_back_without_its_tool() -> None:
    async with scene(DialInSettings(grace=30.0)) as at:
        server = await at.agent_server(Dialler("clock", ["now", "then"]))
        server.leave()
        _, gone = at.start("kitchen_clock.then")
        _, kept = at.start("kitchen_clock.now")
        back = await at.agent_server(Dialler("clock", ["now"]))
        assert isinstance(gone.fault, UnknownTool)
        await until(lambda: bool(kept.ends))
        assert text_of(kept) == "clock: now"
        assert [each["params"]["name"] for each in back.calls()] == ["now"]


async def test_one_that_gives_no_sign_of_life_makes_place_for_its_name() -> None:
    async with scene() as at:
        gone = await at.agent_server(Dialler("clock"))
        gone.is_there = False
        await at.agent_server(Dialler("clock", ["then"]))
        assert gone.closed == [(1008, "it does not respond")]
        assert (at.servers(), at.tools("kitchen_clock")) == ({"kitchen_clock": "ready"}, ["then"])


async def test_one_hundred_reconnections_leave_one_server() -> None:
    async with scene() as at:
        for _ in range(100):
            server = await at.agent_server(Dialler("clock"))
            server.leave()
        await at.agent_server(Dialler("clock"))
        assert at.servers() == {"kitchen_clock": "ready"}
        assert (len(at.book.servers()), len(at.book._links)) == (1, 1)


# -- away ------------------------------------------------------------------------------------------------------------


async def test_away_its_tools_are_kept_and_marked_and_calls_fail_at_once() -> None:
    async with scene() as at:
        server = await at.agent_server(Dialler())
        server.holds_calls = True
        _, running = at.start("kitchen_clock.now")
        await until(lambda: len(server.calls()) == 1)
        at.time += 5
        server.leave("it closed the WebSocket with code 1006")
        assert isinstance(running.fault, Lost)
        server_status = at.server_status("kitchen_clock")
        reason = "it is not connected: it closed the WebSocket with code 1006"
        assert (server_status.state, server_status.reason, at.tools("kitchen_clock")) == ("away", reason, ["now"])
        late = await at.call("kitchen_clock.now")
        assert isinstance(late.fault, NotConnected)
        assert late.fault.executed == "no"
        (agent_server,) = at.book.roster("kitchen").servers()
        (shown,) = at.book.servers()
        assert not agent_server.is_here
        assert (shown.state, shown.reason, shown.since, shown.tools) == ("away", reason, at.time, ("now",))


async def test_unsent_calls_did_not_run() -> None:
    async with scene() as at:
        server = await at.agent_server(Dialler())
        server.holds_calls = True
        server.unread_bytes = 1_000_000
        _, held = at.start("kitchen_clock.now")
        server.leave()
        assert held.fault.executed == "no"
        assert not server.calls()


async def test_within_the_grace_calls_wait_for_it_to_come_back() -> None:
    async with scene(DialInSettings(grace=30.0)) as at:
        server = await at.agent_server(Dialler())
        server.leave()
        _, waiting = at.start("kitchen_clock.now")
        assert not waiting.ends
        await at.agent_server(Dialler())
        await until(lambda: bool(waiting.ends))
        assert text_of(waiting) == "clock: now"


async def test_the_grace_is_the_agents_own_and_changes_at_once() -> None:
    agents = {"kitchen": AgentRules(grace=30.0)}
    async with scene(DialInSettings(agents=agents)) as at:
        server = await at.agent_server(Dialler())
        server.leave()
        _, waiting = at.start("kitchen_clock.now")
        assert not waiting.ends
        at.book.change(DialInSettings())
        assert isinstance(waiting.fault, NotConnected)


async def test_a_leaving_server_answers_its_calls_and_the_next_one_takes_over() -> None:
    async with scene(DialInSettings(grace=30.0)) as at:
        old, new = Dialler(), Dialler()
        old.holds_calls = True
        await at.agent_server(old)
        _, running = at.start("kitchen_clock.now")
        await until(lambda: len(old.calls()) == 1)
        old.say_goodbye()
        _, waiting = at.start("kitchen_clock.now")
        await at.agent_server(new)
        await until(lambda: bool(waiting.ends))
        assert (len(old.calls()), len(new.calls())) == (1, 1)
        assert (at.servers(), running.ends, old.closed) == ({"kitchen_clock": "ready"}, [], [])
        old.answer(old.calls()[0]["id"])
        assert text_of(running) == "done"
        old.leave()
        assert at.servers() == {"kitchen_clock": "ready"}
        assert (at.hub.running(), at.book.connections()) == (0, 1)


async def test_a_leaving_server_is_away_and_gets_no_calls() -> None:
    async with scene(DialInSettings(grace=30.0)) as at:
        old = await at.agent_server(Dialler())
        old.say_goodbye()
        asked = len(old.asked)
        old.change("now", "then")
        at.book.change(DialInSettings(grace=30.0, agents={"kitchen": AgentRules(name="home")}))
        _, waiting = at.start("home_clock.now")
        await until(lambda: len(at.background) == 0)
        assert at.servers() == {"home_clock": "away"}
        assert at.server_status("home_clock").reason == "it is not connected: its client has ended"
        assert (len(old.asked), old.closed, waiting.ends) == (asked, [], [])
        await at.agent_server(Dialler())
        await until(lambda: bool(waiting.ends))
        assert text_of(waiting) == "clock: now"


async def test_one_that_leaves_before_it_has_its_seat_gets_none() -> None:
    async with scene() as at:
        server = Dialler()
        at.dial(server)
        server.say_goodbye()
        await at.quiet()
        assert (at.servers(), server.closed) == ({}, [])
        server.leave()
        assert at.book.connections() == 0


async def test_a_server_that_is_away_for_long_is_forgotten() -> None:
    async with scene(DialInSettings(forget=0.05)) as at:
        early, late = await at.agent_server(Dialler("early")), await at.agent_server(Dialler("late"))
        early.leave()
        at.time += 0.04
        late.leave()
        at.time += 0.02
        at.book._forget()
        assert at.servers() == {"kitchen_late": "away"}
        at.time += 1
        await until(lambda: at.servers() == {})
        assert at.book.servers() == ()


async def test_a_watcher_that_fails_keeps_notifications_from_no_other() -> None:
    async with scene() as at:
        roster = at.book.roster("kitchen")
        received: list[str] = []

        def fail() -> None:
            raise RuntimeError("broken")

        roster.watch(fail)
        roster.watch(lambda: received.append("something"))
        await at.agent_server(Dialler())
        assert received
        assert at.servers() == {"kitchen_clock": "ready"}


async def test_a_roster_notifies_of_every_change_and_is_new_only_when_a_server_joins_or_leaves() -> None:
    async with scene(DialInSettings(max_servers=1)) as at:
        roster = at.book.roster("kitchen")
        received: list[int] = []
        unwatch = roster.watch(lambda: received.append(len(roster.servers())))
        server = await at.agent_server(Dialler())
        servers = roster.servers()
        assert received[-1] == 1
        server.leave()
        assert roster.servers() is servers
        notified = len(received)
        await at.agent_server(Dialler("lamp"))
        assert len(received) > notified
        assert [agent_server.server_id for agent_server in roster.servers()] == ["lamp"]
        unwatch()
        notified = len(received)
        await at.agent_server(Dialler("lamp"), "lamp")
        assert len(received) == notified


# -- limits ----------------------------------------------------------------------------------------------------------


async def test_the_server_that_is_away_longest_makes_room_and_no_connected_one() -> None:
    async with scene(DialInSettings(max_servers=2)) as at:
        first, second = await at.agent_server(Dialler("first")), await at.agent_server(Dialler("second"))
        refused = await at.agent_server(Dialler("third"))
        assert refused.closed == [(1008, "its agent has 2 servers, as many as it may have (max_servers)")]
        second.leave()
        at.time += 1
        first.leave()
        await at.agent_server(Dialler("third"))
        assert at.servers() == {"kitchen_first": "away", "kitchen_third": "ready"}


async def test_tools_beyond_the_agents_limit_are_left_out_with_a_note() -> None:
    async with scene(DialInSettings(max_tools=3)) as at:
        await at.agent_server(Dialler("first", ["a", "b"]))
        second = await at.agent_server(Dialler("second", ["c", "d", "e"]))
        assert (at.tools("kitchen_first"), at.tools("kitchen_second")) == (["a", "b"], ["c"])
        note = "2 of its 3 tools left out: an agent may have 3 in all (max_tools)"
        assert at.server_status("kitchen_second").notes == (note,)
        second.change("f", "g")
        await until(lambda: at.tools("kitchen_second") == ["f"])


async def test_tools_that_were_left_out_come_in_when_another_server_is_forgotten() -> None:
    async with scene(DialInSettings(max_tools=3, forget=60.0)) as at:
        first = await at.agent_server(Dialler("first", ["a", "b"]))
        await at.agent_server(Dialler("second", ["c", "d", "e"]))
        first.leave()
        at.time += 61
        at.book._forget()
        await until(lambda: at.tools("kitchen_second") == ["c", "d", "e"])
        assert at.server_status("kitchen_second").notes == ()


async def test_servers_that_are_away_make_room_for_tools_the_longest_away_first() -> None:
    async with scene(DialInSettings(max_tools=4)) as at:
        for name, tools in (("first", ["a", "b"]), ("second", ["c", "d"])):
            server = await at.agent_server(Dialler(name, tools))
            at.time += 1
            server.leave()
        with capture_logs() as logged:
            third = await at.agent_server(Dialler("third", ["e", "f", "g"]))
        assert at.tools("kitchen_third") == ["e", "f", "g"]
        assert (at.tools("kitchen_first"), at.tools("kitchen_second")) == ([], ["c"])
        warned = [(entry["server"], entry["reason"]) for entry in logged if entry["log_level"] == "warning"]
        rule = "tools left out: an agent may have 4 in all (max_tools)"
        assert warned == [("kitchen_first", f"2 of its 2 {rule}"), ("kitchen_second", f"1 of its 2 {rule}")]
        with capture_logs() as logged:
            third.change("e", "f", "h")
            await until(lambda: at.tools("kitchen_third") == ["e", "f", "h"])
            await at.agent_server(Dialler("second", ["c", "d"]))
        assert (at.tools("kitchen_second"), at.tools("kitchen_third")) == (["c"], ["e", "f", "h"])
        assert [entry for entry in logged if entry["log_level"] == "warning"] == []  # it is no news


async def test_a_server_without_room_for_its_tools_has_that_of_one_that_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAKE_ROOM_SECONDS", 0.0)
    async with scene(DialInSettings(max_tools=3)) as at:
        first = await at.agent_server(Dialler("first", ["a", "b"]))
        await at.agent_server(Dialler("second", ["c", "d", "e"]))
        assert at.tools("kitchen_second") == ["c"]
        first.leave()
        await until(lambda: at.tools("kitchen_second") == ["c", "d", "e"])
        assert (at.tools("kitchen_first"), at.servers()["kitchen_first"]) == ([], "away")


async def test_another_limit_of_tools_holds_for_connected_and_absent_servers() -> None:
    async with scene(DialInSettings(max_tools=9)) as at:
        gone = await at.agent_server(Dialler("gone", ["x", "y"]))
        gone.leave()
        await at.agent_server(Dialler("first", ["a", "b", "c"]))
        await at.agent_server(Dialler("second", ["d", "e"]))
        at.book.change(DialInSettings(max_tools=4))
        shown = [at.tools(f"kitchen_{name}") for name in ("gone", "first", "second")]
        assert shown == [[], ["a", "b", "c"], ["d"]]
        at.book.change(DialInSettings(max_tools=1))
        assert [at.tools(f"kitchen_{name}") for name in ("first", "second")] == [["a"], []]
        await until(lambda: len(at.server_status("kitchen_first").notes) == 1)
        note = "2 of its 3 tools left out: an agent may have 1 in all (max_tools)"
        assert at.server_status("kitchen_first").notes == (note,)
        at.book.change(DialInSettings(max_tools=9))
        await until(lambda: at.tools("kitchen_first") == ["a", "b", "c"] and at.tools("kitchen_second") == ["d", "e"])
        assert at.server_status("kitchen_first").notes == ()


async def test_only_absent_servers_can_be_forgotten() -> None:
    async with scene() as at:
        clock = await at.agent_server(Dialler())
        name = ServerName("kitchen_clock")
        assert (at.book.forget(ServerName("kitchen_oven")), at.book.forget(name)) == ("unknown", "connected")
        clock.leave()
        assert (at.book.forget(name), at.book.forget(name), at.servers()) == ("forgotten", "unknown", {})
        await at.agent_server(Dialler())
        assert at.servers() == {"kitchen_clock": "ready"}


async def test_tools_that_were_left_out_come_in_when_another_server_has_fewer_or_more_are_allowed() -> None:
    async with scene(DialInSettings(max_tools=3)) as at:
        first = await at.agent_server(Dialler("first", ["a", "b"]))
        await at.agent_server(Dialler("second", ["c", "d", "e", "f"]))
        assert at.tools("kitchen_second") == ["c"]
        first.change("a")
        await until(lambda: at.tools("kitchen_second") == ["c", "d"])
        at.book.change(DialInSettings(max_tools=5))
        await until(lambda: at.tools("kitchen_second") == ["c", "d", "e", "f"])


async def test_a_server_that_comes_back_in_the_earlier_era_lists_the_same_to_everybody() -> None:
    async with scene() as at:
        modern = Dialler("clock", ["ask"])
        modern.is_modern = True
        await at.agent_server(modern)
        asked = frozenset({"elicitation"})
        modern.tools = ["ask", "more"]
        await at.hub.view_for(ANYONE, EVERYTHING, asked)
        await until(lambda: bool(at.server_status("kitchen_clock").variants))
        modern.leave()
        await at.agent_server(Dialler("clock", ["now"]))
        seen = await at.hub.view_for(ANYONE, EVERYTHING, asked)
        assert [*seen.routes] == ["kitchen_clock.now"]


async def test_changed_limits_hold_for_connected_servers() -> None:
    async with scene() as at:
        server = await at.agent_server(Dialler())
        at.hub.limits = Limits(call_seconds=7.0, max_calls=2, max_queued=3)
        at.book.change(DialInSettings())
        server_queue = at.hub.server_queues[ServerName("kitchen_clock")]
        assert (server_queue.timeout, server_queue.max_calls, server_queue.max_queued) == (7.0, 2, 3)
        assert not server.closed


async def test_connections_are_counted_in_all_and_of_each_agent() -> None:
    async with scene(DialInSettings(max_connections=3, max_agent_connections=2)) as at:
        book = at.book
        assert book.room_for("kitchen", 0, 0) is None
        assert "max_connections" in (book.room_for("kitchen", 3, 0) or "")
        assert "max_agent_connections" in (book.room_for("kitchen", 2, 2) or "")


class Shared:
    """A socket that two servers share, on channels 1 and 2."""

    client = "192.0.2.8"

    def __init__(self) -> None:
        self.servers = {b"1": Dialler("one"), b"2": Dialler("two")}
        self.messages: list[Any] = []
        self.closed: list[tuple[int, str]] = []
        self.receiver: MessageReceiver

    def open(self, book: DialInRegistry) -> None:
        """Dial in and offer both."""
        self.receiver = book.accept_mux(cast("AcceptedSocket", self), CLAIM)
        for number, server in self.servers.items():
            server.receiver = _Channel(self, number)
            self.receiver.read(b'0 {"open": %b}' % number)

    def frame(self, message: bytes) -> bytes:
        return message + b"\n"

    def write(self, data: bytes) -> int:
        for line in data.splitlines():
            number, _, message = line.partition(b" ")
            if number == b"0":
                self.messages.append(json.loads(message))
            else:
                self.servers[number].write(message + b"\n")
        return 0

    def has_left(self, _offset: int) -> bool:
        return True

    def buffered_bytes(self) -> int:
        return 0

    async def is_alive(self, _within: float) -> bool:
        return True

    def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))


class _Channel:
    """What a server says goes on the socket under its number."""

    def __init__(self, socket: Shared, number: bytes) -> None:
        self._socket = socket
        self._number = number

    def read(self, text: bytes | memoryview) -> None:
        self._socket.receiver.read(self._number + b" " + text)

    def flush(self) -> None: ...

    def connection_ended(self, reason: str) -> None: ...


async def test_servers_that_share_a_socket_are_one_connection_and_get_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("isthmus.upstream.base_link.PROBE_SECONDS", 0.02)  # they do not say whether they are modern
    async with scene() as at:
        socket = Shared()
        socket.open(at.book)
        await at.quiet()
        assert at.servers() == {"kitchen_one": "ready", "kitchen_two": "ready"}
        assert {received["server"] for received in socket.messages if "server" in received} == {
            "kitchen_one",
            "kitchen_two",
        }
        assert (at.book.connections(), at.book.connections_of("kitchen")) == (1, 1)
        assert text_of(await at.call("kitchen_two.now")) == "two: now"
        assert all(shown.is_muxed for shown in at.book.servers())
        at.book.change(DialInSettings(agents={"kitchen": AgentRules(name="home")}))
        assert [received["server"] for received in socket.messages if "server" in received][2:] == [
            "home_two",
            "home_one",
        ]
        at.book.change(DialInSettings())
        at.book.recheck(lambda _claim: False)
        assert socket.closed == [(1008, "token已失效")]
        assert at.servers() == {"kitchen_one": "away", "kitchen_two": "away"}
        assert at.book.connections() == 0
        again = Shared()
        again.open(at.book)
        await at.quiet()
        await at.book.aclose()
        late = Shared()
        late.open(at.book)
        assert again.closed == late.closed == [(1012, "the hub is shutting down")]


# -- names -----------------------------------------------------------------------------------------------------------


async def test_a_name_that_a_configured_server_has_is_not_taken() -> None:
    async with scene() as at:
        for name in (ServerName("kitchen_clock"), BUILTIN):
            at.hub.open_server_queue(ServerQueue(name, at.hub.limits), ready(tool("now", name), server=name))
        await at.agent_server(Dialler())
        (agent_server,) = at.book.roster("kitchen").servers()
        assert agent_server.server.startswith("kitchen_clock_")
        assert at.servers()[agent_server.server] == "ready"


async def test_it_is_renamed_for_a_configured_server_and_its_calls_go_on() -> None:
    async with scene() as at:
        server = await at.agent_server(Dialler())
        server.holds_calls = True
        _, running = at.start("kitchen_clock.now")
        await until(lambda: len(server.calls()) == 1)
        at.book.make_room([ServerName("kitchen_clock"), ServerName("other")])
        (agent_server,) = at.book.roster("kitchen").servers()
        assert list(at.servers()) == [agent_server.server]
        assert agent_server.server != "kitchen_clock"
        server.answer(server.calls()[0]["id"])
        assert text_of(running) == "done"
        server.holds_calls = False
        assert text_of(await at.call(f"{agent_server.server}.now")) == "clock: now"
        server.change("then")
        await until(lambda: at.tools(agent_server.server) == ["then"])
        assert not server.closed


@pytest.mark.parametrize("is_weaker_first", [True, False])
async def test_in_any_order_of_arrival_the_same_server_has_a_contested_name(*, is_weaker_first: bool) -> None:
    async with scene() as at:
        honest, other = Claim("my_kitchen"), Claim("my")
        coming = [(Dialler("honest"), "knives", honest), (Dialler("other"), "kitchen_knives", other)]
        for server, server_id, claim in reversed(coming) if is_weaker_first else coming:
            await at.agent_server(server, server_id, claim)
        (first,), (second,) = (at.book.roster(claim.key).servers() for claim in (honest, other))
        assert first.server == "my_kitchen_knives"
        assert re.fullmatch("my_kitchen_knives_[0-9a-f]{6}", second.server)
        assert text_of(await at.call("my_kitchen_knives.now")) == "honest: now"
        assert text_of(await at.call(f"{second.server}.now")) == "other: now"
        assert at.server_status("my_kitchen_knives").agent == "my_kitchen"
        assert not coming[0][0].closed + coming[1][0].closed


async def test_calls_to_a_server_that_loses_its_name_go_on() -> None:
    async with scene() as at:
        weaker = Dialler("weaker")
        weaker.holds_calls = True
        await at.agent_server(weaker, "kitchen_knives", Claim("my"))
        _, running = at.start("my_kitchen_knives.now")
        await until(lambda: len(weaker.calls()) == 1)
        await at.agent_server(Dialler("stronger"), "knives", Claim("my_kitchen"))
        weaker.answer(weaker.calls()[0]["id"])
        assert text_of(running) == "done"
        assert text_of(await at.call("my_kitchen_knives.now")) == "stronger: now"


async def test_many_candidates_for_one_name_have_the_same_names_in_any_order_of_arrival() -> None:
    ids = ["a_b", "a b", "a.b", "钟 1", "锅 1"]
    found = []
    for order in (ids, ids[::-1]):
        async with scene() as at:
            for server_id in order:
                await at.agent_server(Dialler(), server_id)
            found.append(
                {agent_server.server_id: agent_server.server for agent_server in at.book.roster("kitchen").servers()}
            )
    assert found[0] == found[1]
    assert found[0]["a_b"] == "kitchen_a_b"


async def test_no_server_is_left_without_a_name_by_one_that_takes_all_it_could_have() -> None:
    async with scene(DialInSettings(max_servers=40)) as at:
        weaker = NameRules({}).bid("my", "kitchen_knives")
        for name in [*islice(weaker.names(), 30)]:
            await at.agent_server(Dialler(), name.removeprefix("my_kitchen_"), Claim("my_kitchen"))
        await at.agent_server(Dialler("weaker"), "kitchen_knives", Claim("my"))
        (agent_server,) = at.book.roster("my").servers()
        assert text_of(await at.call(f"{agent_server.server}.now")) == "weaker: now"


async def test_an_agent_that_becomes_configured_has_its_names_from_then_on() -> None:
    async with scene() as at:
        await at.agent_server(Dialler(), "kitchen_knives", Claim("my"))
        at.book.change(DialInSettings(agents={"my_kitchen": AgentRules()}))
        (agent_server,) = at.book.roster("my").servers()
        assert re.fullmatch("my_kitchen_knives_[0-9a-f]{6}", agent_server.server)
        await at.agent_server(Dialler("honest"), "knives", Claim("my_kitchen"))
        assert text_of(await at.call("my_kitchen_knives.now")) == "honest: now"
        at.book.change(DialInSettings(agents={"my": AgentRules()}))
        assert {agent_server.server for agent_server in at.book.roster("my").servers()} == {"my_kitchen_knives"}


async def test_calls_that_wait_for_a_server_go_on_to_do_so_when_it_is_renamed() -> None:
    async with scene(DialInSettings(grace=30.0)) as at:
        at.hub.limits = Limits(max_calls=1)
        busy, away = await at.agent_server(Dialler("busy")), await at.agent_server(Dialler("away"))
        busy.holds_calls = True
        away.leave()
        waiting = [at.start(name)[1] for name in ("kitchen_busy.now", "kitchen_busy.now", "kitchen_away.now")]
        await until(lambda: len(busy.calls()) == 1)
        at.book.change(DialInSettings(grace=30.0, agents={"kitchen": AgentRules(name="home")}))
        await until(lambda: len(busy.calls()) == 2)
        for call in busy.calls():
            busy.answer(call["id"])
        await at.agent_server(Dialler("away"))
        await until(lambda: all(listener.ends for listener in waiting))
        assert [text_of(listener) for listener in waiting] == ["done", "done", "away: now"]
        assert at.hub.running() == 0


async def test_the_grace_ends_when_it_would_have_though_a_server_was_renamed_meanwhile() -> None:
    async with scene(DialInSettings(grace=30.0)) as at:
        away = await at.agent_server(Dialler())
        away.leave()
        _, waiting = at.start("kitchen_clock.now")
        at.book.make_room([ServerName("kitchen_clock")])
        (agent_server,) = at.book.roster("kitchen").servers()
        assert not waiting.ends
        agent_server.reconnector.server_queue.grace = 0.0
        assert isinstance(waiting.fault, NotConnected)


async def test_an_agent_that_is_called_otherwise_has_its_servers_renamed_those_that_are_away_too() -> None:
    async with scene() as at:
        gone = await at.agent_server(Dialler("gone"))
        here = await at.agent_server(Dialler("here"))
        gone.leave("it left")
        rules = {"kitchen": AgentRules(name="home")}
        at.book.change(DialInSettings(agents=rules))
        assert at.servers() == {"home_gone": "away", "home_here": "ready"}
        assert (at.tools("home_gone"), at.server_status("home_gone").agent) == (["now"], "kitchen")
        assert at.server_status("home_gone").reason == "it is not connected: it left"
        await at.agent_server(Dialler("gone"))
        assert text_of(await at.call("home_gone.now")) == "gone: now"
        at.book.change(DialInSettings(agents=rules))
        assert not here.closed


# -- the end ---------------------------------------------------------------------------------------------------------


async def test_a_socket_with_a_revoked_token_is_closed() -> None:
    async with scene() as at:
        good, bad = Claim("kitchen", id="good"), Claim("kitchen", id="bad")
        kept, cut = await at.agent_server(Dialler("kept"), claim=good), await at.agent_server(Dialler("cut"), claim=bad)
        at.book.recheck(lambda claim: claim.id == "good")
        assert (kept.closed, cut.closed) == ([], [(1008, "token已失效")])
        assert at.servers() == {"kitchen_kept": "ready", "kitchen_cut": "away"}


async def test_of_tokens_that_nothing_can_end_one_is_asked_for_all() -> None:
    async with scene() as at:
        servers = [await at.agent_server(Dialler(f"s{number}")) for number in range(5)]
        asked: list[Claim] = []

        def is_valid(claim: Claim) -> bool:
            asked.append(claim)
            return True

        at.book.recheck(is_valid)
        assert len(asked) == 1
        at.book.recheck(lambda _claim: False)
        assert [server.closed[0][0] for server in servers] == [1008] * 5


async def test_every_socket_is_closed_once_when_the_hub_shuts_down_and_no_new_one_is_accepted() -> None:
    async with scene(DialInSettings(grace=30.0)) as at:
        server, away = await at.agent_server(Dialler("clock")), await at.agent_server(Dialler("away"))
        away.leave()
        coming = Dialler("slow")
        coming.is_mute = True
        at.dial(coming)
        _, waiting = at.start("kitchen_away.now")
        await at.book.aclose()
        late = Dialler("late")
        at.dial(late)
        goodbye = [(1012, "the hub is shutting down")]
        assert [server.closed, coming.closed, late.closed] == [goodbye] * 3
        assert isinstance(waiting.fault, NotConnected)
        await at.book.aclose()


async def test_a_servers_summary_has_its_state_and_calls() -> None:
    async with scene() as at:
        server = await at.agent_server(Dialler())
        server.holds_calls = True
        at.start("kitchen_clock.now")
        (shown,) = at.book.servers()
        assert shown.tools == ("now",)
        assert (shown.agent, shown.server_id, shown.name) == ("kitchen", "clock", "kitchen_clock")
        assert (shown.state, shown.title, shown.client, shown.calls) == ("ready", "clock 1", "192.0.2.7", 1)
        assert not shown.is_muxed
        assert at.book.roster(CLAIM.key).agent == "kitchen"


# -- remembering -----------------------------------------------------------------------------------------------------


async def test_a_server_from_before_a_restart_is_known_and_waited_for() -> None:
    journal = MemoryJournal()
    async with scene(journal=journal) as before:
        await before.agent_server(Dialler("clock"))
        (await before.agent_server(Dialler("lamp", ["on", "off"]))).leave()
        (await before.agent_server(Dialler("old"))).leave()
    async with scene(DialInSettings(grace=30.0), journal) as at:
        await at.agent_server(Dialler("old", ["new"]))
        await at.book.recall()
        assert at.servers() == {"kitchen_clock": "away", "kitchen_lamp": "away", "kitchen_old": "ready"}
        assert (at.tools("kitchen_lamp"), at.tools("kitchen_old")) == (["on", "off"], ["new"])
        reason = "it is not connected: it has not dialled in since the hub was started"
        assert at.server_status("kitchen_clock").reason == reason
        (shown,) = [each for each in at.book.servers() if each.server_id == "clock"]
        assert (shown.title, shown.state) == ("clock 1", "away")
        _, waiting = at.start("kitchen_clock.now")
        await at.agent_server(Dialler("clock"))
        await until(lambda: bool(waiting.ends))
        assert text_of(waiting) == "clock: now"


async def test_a_name_that_was_anothers_is_not_had_after_a_restart() -> None:
    journal = MemoryJournal()
    async with scene(journal=journal) as at:
        await at.agent_server(Dialler(), "kitchen_knives", Claim("my"))
        stronger = await at.agent_server(Dialler(), "knives", Claim("my_kitchen"))
        (before,) = (agent_server.server for agent_server in at.book.roster("my").servers())
        assert before != "my_kitchen_knives"
        stronger.leave()
        at.time += 50
    async with scene(DialInSettings(forget=40.0), journal) as at:
        at.time += 50
        await at.book.recall()
        assert at.servers() == {before: "away"}


async def test_a_server_that_was_away_for_long_before_a_restart_is_forgotten_for_good() -> None:
    journal = MemoryJournal()
    async with scene(journal=journal) as before:
        for name in ("first", "second", "third"):
            server = await before.agent_server(Dialler(name))
            server.leave()
            before.time += 10
    async with scene(DialInSettings(forget=25.0, max_servers=1), journal) as at:
        at.time += 30
        await at.book.recall()
        assert at.servers() == {"kitchen_second": "away"}
        at.time += 10
        at.book._forget()
        assert at.servers() == {}
    async with scene(journal=journal) as after:
        await after.book.recall()
        assert after.servers() == {}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_links_that_went_and_servers_that_are_forgotten_are_freed_without_the_cycle_collector(era: str) -> None:
    gc.collect()
    gc.disable()
    try:
        async with scene(DialInSettings(forget=60.0)) as at:
            server = Dialler()
            server.is_modern = era == "modern"
            await at.agent_server(server)
            await at.call("kitchen_clock.now")
            agent_server = at.book.roster("kitchen").agent_server("clock")
            assert agent_server is not None
            reconnector, link = weakref.ref(agent_server.reconnector), weakref.ref(server.receiver)
            del agent_server
            server.leave()
            del server.receiver
            await until(lambda: link() is None)
            at.time += 61
            at.book._forget()
            await until(lambda: reconnector() is None)
    finally:
        gc.enable()


async def test_a_hub_that_leaves_keeps_a_socket_whose_server_has_asked_a_caller() -> None:
    async with scene() as at:
        server = Dialler()
        server.is_modern = server.holds_calls = True
        await at.agent_server(server)
        _, listener = at.start("kitchen_clock.now", client_caps=frozenset({"elicitation"}))
        await until(lambda: len(server.calls()) == 1)
        question = {"method": "elicitation/create", "params": {"message": "when?", "requestedSchema": {}}}
        asking = {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s"}
        server.say(id=server.calls()[0]["id"], result=asking)
        ((_, reply),) = listener.asked
        idle = await at.agent_server(Dialler("idle"), "idle")
        at.book.leave()
        await until(lambda: bool(idle.closed))
        assert not server.closed
        reply(Answered(raw({"action": "accept", "content": {}})))
        await until(lambda: len(server.calls()) == 2)
        server.answer(server.calls()[1]["id"])
        assert text_of(listener) == "done"
        await until(lambda: bool(server.closed))


async def test_a_hub_that_leaves_lets_few_of_its_servers_go_in_one_turn_of_the_loop() -> None:
    async with scene(DialInSettings(max_servers=1_000)) as at:
        servers = [Dialler(f"s{number}") for number in range(2 * MOVE_AT_ONCE_MAX + 1)]
        for server in servers:
            at.dial(server)
        await at.quiet()
        at.book.leave()
        counts = [0]
        while counts[-1] < len(servers):
            await asyncio.sleep(0)
            counts.append(sum(cast("DialInLink", server.receiver).is_leaving for server in servers))
        assert max(now - before for before, now in pairwise(counts)) <= MOVE_AT_ONCE_MAX


async def test_no_call_waits_for_a_server_that_moves_once_the_hub_waits_no_longer() -> None:
    async with scene(DialInSettings(grace=60.0)) as at:
        await at.agent_server(Dialler())
        agent_server = at.book.roster("kitchen").agent_server("clock")
        assert agent_server is not None
        at.book.leave()
        await until(lambda: at.servers() == {"kitchen_clock": "away"})
        at.hub.stop_waiting("the hub is shutting down")
        at.book.await_move("kitchen", "clock")  # another node leaves, too
        at.book._end_move(agent_server)
        _, listener = at.start("kitchen_clock.now")
        assert isinstance(listener.fault, NotConnected)


async def test_a_long_call_on_a_shared_socket_does_not_keep_the_other_servers_from_moving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("isthmus.upstream.base_link.PROBE_SECONDS", 0.02)  # they do not say whether they are modern
    async with scene() as at:
        busy, idle = Shared(), Shared()
        busy.open(at.book)
        await at.quiet()
        idle.servers = {b"1": Dialler("three")}
        idle.open(at.book)
        await at.quiet()
        busy.servers[b"1"].holds_calls = True
        _, listener = at.start("kitchen_one.now")
        await until(lambda: len(busy.servers[b"1"].calls()) == 1)
        at.book.leave()
        await until(lambda: bool(idle.closed))
        await until(lambda: any("closed" in message for message in busy.messages))
        assert [message["closed"] for message in busy.messages if "closed" in message] == [2]
        assert not busy.closed
        assert not any("closed" in message for message in idle.messages), "its socket is closed as a whole"
        busy.servers[b"1"].answer(busy.servers[b"1"].calls()[0]["id"])
        assert text_of(listener) == "done"
        await until(lambda: bool(busy.closed))
        assert idle.closed == busy.closed == [(1012, "the hub is shutting down")]
