"""How a server that dialled in is followed while it is here, without a task while there is nothing to do."""

from __future__ import annotations

import pytest

from isthmus.upstream import listing
from isthmus.upstream import reconnector as base
from isthmus.upstream.dialin import link
from isthmus.upstream.dialin import server as module
from tests.unit.upstream.dialin.scene import Dialler, scene, until
from tests.unit.upstream.doubles import text_of


async def test_nothing_runs_while_there_is_nothing_to_do() -> None:
    async with scene() as at:
        for number in range(20):
            await at.agent_server(Dialler(f"clock{number}"))
        await until(lambda: len(at.background) == 0)


async def test_a_change_is_followed_at_once_and_then_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "RELIST_SECONDS", 0.05)
    async with scene() as at:
        server = await at.agent_server(Dialler())
        server.change("then")
        await until(lambda: at.tools("kitchen_clock") == ["then"])
        for number in range(10):
            server.change(f"later{number}")
        await until(lambda: at.tools("kitchen_clock") == ["later9"])
        assert [message["method"] for message in server.asked].count("tools/list") == 3
        await until(lambda: len(at.background) == 0)


async def test_a_change_while_it_is_initialized_is_not_missed() -> None:
    async with scene() as at:
        server = Dialler("clock", [f"t{number}" for number in range(60)])
        at.dial(server)
        await until(lambda: any(message["method"] == "tools/list" for message in server.asked))
        server.change("only")
        await until(lambda: at.servers() == {"kitchen_clock": "ready"} and at.tools("kitchen_clock") == ["only"])


async def test_a_modern_server_that_confirms_its_notifications_late_is_listed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "LISTEN_ACK_SECONDS", 0.01)
    async with scene() as at:
        server = Dialler()
        server.is_modern, server.acknowledges = True, False
        await at.agent_server(server)
        assert at.tools("kitchen_clock") == ["now"]
        server.tools = ["then"]
        server.acknowledge()
        await until(lambda: at.tools("kitchen_clock") == ["then"])
        server.change("later")
        await until(lambda: at.tools("kitchen_clock") == ["later"])


async def test_a_list_that_grew_old_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.02)
    async with scene() as at:
        server = await at.agent_server(Dialler())
        server.tools = ["then"]
        await until(lambda: at.tools("kitchen_clock") == ["then"])


async def test_a_server_that_gives_no_list_when_it_should_is_asked_whether_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "PONG_SECONDS", 0.02)
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.02)
    async with scene() as at:
        server = await at.agent_server(Dialler())
        (agent_server,) = at.book.roster("kitchen").servers()
        server.is_mute = True
        agent_server.reconnector._ping_soon()
        await until(lambda: at.servers() == {"kitchen_clock": "away"})
        ((code, reason),) = server.closed
        assert code == 1011
        assert "no longer answers" in reason


async def test_a_defect_in_the_hub_costs_the_connection_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as at:
        server = await at.agent_server(Dialler())
        with monkeypatch.context() as broken:
            broken.setattr(module.DialInReconnector, "_relist", lambda *_: 1 / 0)
            server.change("then")
            await until(lambda: at.servers() == {"kitchen_clock": "away"})
        assert server.closed == [(1011, "the hub failed")]
        await at.agent_server(Dialler())
        assert at.servers() == {"kitchen_clock": "ready"}


async def test_a_replacement_takes_over_the_queue() -> None:
    async with scene() as at:
        old = await at.agent_server(Dialler("old"), "s1")
        old.holds_calls = True
        calls = [at.start("kitchen_s1.now")[1] for _ in range(70)]  # 64 run, 6 wait
        await until(lambda: len(old.calls()) == 64)
        await at.agent_server(Dialler("new"), "s1")
        await until(lambda: all(listener.ends for listener in calls))
        assert [text_of(listener) for listener in calls[64:]] == ["new: now"] * 6


async def test_a_server_whose_lists_differ_by_caller_is_asked_only_if_it_is_modern() -> None:
    async with scene() as at:
        old, new = Dialler("old"), Dialler("new")
        new.is_modern = True
        await at.agent_server(old)
        await at.agent_server(new)
        _, listener = at.start("kitchen_old.nothing", client_caps=frozenset({"roots"}))
        await until(lambda: bool(listener.ends))
        counts = [[asked["method"] for asked in server.asked].count("tools/list") for server in (old, new)]
        assert counts == [1, 2]
