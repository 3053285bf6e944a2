"""Lists for callers with elicitation: read once, kept apart, and for few capability sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, ClientCapabilities
from isthmus.model.fault_table import BadReply
from isthmus.upstream import link_pool as pools
from isthmus.upstream import listing as paces
from isthmus.upstream import lists_by_capability as module
from isthmus.upstream import reconnector as reconnectors
from tests.unit.core.doubles import ANYONE, call
from tests.unit.upstream.scripted import NAME, SECONDS, Kept, Scripted, finish, settings
from tests.unit.upstream.test_server_set import OTHER

ABLE: ClientCapabilities = frozenset({"elicitation"})
ERAS = pytest.mark.parametrize("is_modern", [True, False])


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    made = Kept()
    yield made
    await made.aclose()


def generous(kept: Kept, *, is_modern: bool) -> None:
    """From now on servers list one tool more to those that they can ask."""

    def prepare(link: Scripted) -> None:
        link.is_modern = is_modern
        link.more = ["ask"]

    kept.prepare = prepare


async def listed(kept: Kept, client_caps: ClientCapabilities = ABLE, caller: Caller = ANYONE) -> list[str]:
    async with asyncio.timeout(SECONDS):
        return list((await kept.hub.view_for(caller, EVERYTHING, client_caps)).routes)


@ERAS
async def test_a_profile_is_listed_its_own_and_the_server_is_asked_once(kept: Kept, *, is_modern: bool) -> None:
    generous(kept, is_modern=is_modern)
    link = await kept.ready()
    for _ in range(3):
        assert await listed(kept) == ["files.read", "files.ask"]
        assert await listed(kept, frozenset()) == ["files.read"]
    assert len(kept.links) == (1 if is_modern else 2)
    asked = kept.links[-1]
    assert (len(asked.profiled), len(link.listings)) == (1, 1)
    assert asked.questions.client_caps == (frozenset() if is_modern else ABLE)


async def test_an_earlier_server_is_asked_on_the_link_of_the_callers_calls(kept: Kept) -> None:
    generous(kept, is_modern=False)
    await kept.ready()
    await listed(kept)
    running, _ = kept.start(call("files.ask", client_caps=ABLE))
    assert kept.links[1].sent == [running]
    finish(running)


async def test_a_caller_with_the_common_list_shares_the_view(kept: Kept) -> None:
    await kept.ready()
    await listed(kept)
    assert kept.server_status.variants == {}
    assert kept.hub.snapshot.view(ANYONE.grants, EVERYTHING, ABLE) is kept.hub.snapshot.view(ANYONE.grants, EVERYTHING)


async def test_entries_common_to_all_lists_are_shared(kept: Kept) -> None:
    generous(kept, is_modern=True)
    await kept.ready()
    await listed(kept)
    assert kept.server_status.variants[ABLE].tools[0] is kept.server_status.tools[0]


async def test_a_change_that_is_announced_on_a_callers_link_is_that_profiles(kept: Kept) -> None:
    generous(kept, is_modern=False)
    base = await kept.ready()
    await listed(kept)
    own = kept.links[1]
    own.more.append("more")
    own.on_changed("tools")
    own.on_changed("tools")
    await kept.until(lambda: len(kept.server_status.variants[ABLE].tools) == 3)
    assert own.profiled == [{"tools", "prompts", "resources"}, {"tools"}]
    assert len(base.listings) == 1


async def test_a_callers_link_that_was_greeted_anew_has_everything_looked_at(kept: Kept) -> None:
    generous(kept, is_modern=False)
    await kept.ready()
    await listed(kept)
    own = kept.links[1]
    own.more.append("more")
    own.on_renewed()
    await kept.until(lambda: len(kept.server_status.variants[ABLE].tools) == 3)
    assert own.profiled[1] == {"tools", "prompts", "resources"}


@ERAS
async def test_a_change_that_is_announced_to_the_hub_may_be_everybodys(kept: Kept, *, is_modern: bool) -> None:
    generous(kept, is_modern=is_modern)
    base = await kept.ready()
    await listed(kept)
    for link in kept.links:
        link.names.append("write")
    base.on_changed("tools")
    await kept.until(lambda: len(kept.server_status.tools) == 2 and len(kept.server_status.variants[ABLE].tools) == 3)


async def test_a_list_that_is_old_is_read_again_for_profiles_that_cost_no_link(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnectors, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(paces, "RELIST_SECONDS", 0.001)
    generous(kept, is_modern=True)
    link = await kept.ready()
    await listed(kept)
    link.more.append("more")
    await kept.until(lambda: len(kept.server_status.variants[ABLE].tools) == 3)


async def test_a_server_that_lists_nothing_to_a_profile_costs_that_profile_only(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    generous(kept, is_modern=True)
    link = await kept.ready()
    link.list_refusal = BadReply(NAME, "nonsense")
    assert await listed(kept) == ["files.read"]
    link.list_refusal = None
    assert await listed(kept) == ["files.read"]
    assert len(link.profiled) == 1, "it is left alone for a while"
    monkeypatch.setattr(module, "RETRY_SECONDS", -1.0)
    monkeypatch.setattr(paces, "RELIST_SECONDS", 0.001)
    await kept.until(lambda: kept.supervisor.reconnectors[NAME]._lists_by_capability._variants[ABLE].task is None)
    await listed(kept)
    await kept.until(lambda: ABLE in kept.server_status.variants)


async def test_a_link_that_cannot_be_made_costs_that_profile_only(kept: Kept) -> None:
    generous(kept, is_modern=False)
    await kept.ready()
    kept.refuse("no more processes")
    assert await listed(kept) == ["files.read"]
    assert kept.server_status.state == "ready"


async def test_there_is_an_end_to_the_profiles_that_are_known(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPABILITIES_MAX", 2)
    generous(kept, is_modern=True)
    link = await kept.ready()
    all_client_caps: list[ClientCapabilities] = [frozenset({"elicitation", f"elicitation.{n}"}) for n in range(5)]
    for client_caps in all_client_caps[:2]:
        assert await listed(kept, client_caps) == ["files.read", "files.ask"]
    assert await listed(kept, all_client_caps[2]) == ["files.read"], "nobody is forgotten who asked a moment ago"
    assert len(link.profiled) == 2
    monkeypatch.setattr(module, "FORGET_SECONDS", 0.0)
    for client_caps in all_client_caps[2:]:
        assert await listed(kept, client_caps) == ["files.read", "files.ask"]
    assert set(kept.server_status.variants) == set(all_client_caps[-2:])


async def test_one_callers_capabilities_crowd_out_no_others(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPABILITIES_PER_CALLER_MAX", 2)
    generous(kept, is_modern=True)
    await kept.ready()
    many: list[ClientCapabilities] = [frozenset({"elicitation", f"elicitation.{n}"}) for n in range(3)]
    for client_caps in many[:2]:
        assert await listed(kept, client_caps) == ["files.read", "files.ask"]
    assert await listed(kept, many[2]) == ["files.read"]
    other = Caller("other", "default", Grants(("*",)))
    assert await listed(kept, many[2], other) == ["files.read", "files.ask"]
    monkeypatch.setattr(module, "FORGET_SECONDS", 0.0)
    assert await listed(kept, frozenset({"roots"})) == ["files.read", "files.ask"]
    assert set(kept.server_status.variants) == {many[1], many[2], frozenset({"roots"})}


async def test_an_unannounced_change_rereads_the_lists_of_all_profiles(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECENT_SECONDS", -1.0)
    monkeypatch.setattr(paces, "RELIST_SECONDS", 0.001)
    monkeypatch.setattr(pools, "SESSION_IDLE_SECONDS", 0.0)
    generous(kept, is_modern=False)
    base = await kept.ready()
    await listed(kept)
    await kept.until(lambda: kept.links[1].is_closed)
    reconnector = kept.supervisor.reconnectors[NAME]
    reconnector._lists_by_capability.refresh()
    assert len(kept.links) == 2, "to look for what may not be there, no link is made"
    generous(kept, is_modern=False)
    base.names.append("write")
    reconnector._relist_at = 0.0
    reconnector._wake()
    await kept.until(lambda: len(kept.links) == 3 and len(kept.links[2].profiled) == 1)


async def test_a_caller_that_lists_while_a_server_starts_learns_when_it_is_there(kept: Kept) -> None:
    generous(kept, is_modern=True)
    kept.refuse("not yet")
    kept.keep()
    await kept.until(lambda: kept.server_status.state == "retrying")
    assert await listed(kept) == []
    kept.refuse(None)
    await kept.until(lambda: ABLE in kept.server_status.variants)


async def test_a_profiles_list_outlasts_a_lost_link_and_is_read_again(kept: Kept) -> None:
    generous(kept, is_modern=True)
    link = await kept.ready()
    await listed(kept)

    def richer(link: Scripted) -> None:
        link.more = ["ask", "more"]

    kept.prepare = richer
    link.die("gone")
    assert len(kept.server_status.variants[ABLE].tools) == 2
    await kept.until(lambda: len(kept.server_status.variants[ABLE].tools) == 3)


async def test_a_changed_server_knows_the_profiles_of_the_one_before_it_is_shown(kept: Kept) -> None:
    generous(kept, is_modern=True)
    old = await kept.ready()
    await listed(kept)
    seen: list[bool] = []
    unwatch = kept.hub.watch(lambda: seen.append(ABLE in kept.server_status.variants))
    kept.supervisor.change(settings(OTHER))
    await kept.until(lambda: old.is_closed)
    unwatch()
    assert all(seen)
    assert kept.server_status.variants[ABLE].tools[1].name == "ask"


async def test_servers_that_cannot_ask_are_not_asked(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "can_ask", False)
    generous(kept, is_modern=False)
    link = await kept.ready()
    assert await listed(kept) == ["files.read"]
    running, _ = kept.start(call(client_caps=ABLE))
    assert link.sent == [running]
    assert (len(kept.links), link.profiled) == (1, [])
    finish(running)


@ERAS
async def test_the_first_change_after_the_first_listing_is_looked_at_at_once_and_each_list_by_itself(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, *, is_modern: bool
) -> None:
    monkeypatch.setattr(paces, "RELIST_SECONDS", 600.0)
    generous(kept, is_modern=is_modern)
    await kept.ready()
    await listed(kept)
    link = kept.links[-1]
    for topic in ("tools", "prompts", "tools"):
        kept.links[-1].on_changed(topic)
        await asyncio.sleep(0)
    await kept.until(lambda: {"prompts"} in link.profiled)
    assert link.profiled == [{"tools", "prompts", "resources"}, {"tools"}, {"prompts"}]


async def test_repeated_announcements_are_read_once_they_pause(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "RELIST_SECONDS", 0.01)
    generous(kept, is_modern=False)
    await kept.ready()
    await listed(kept)
    link = kept.links[-1]
    for size in (2, 3, 4):
        link.on_changed("tools")
        await kept.until(lambda size=size: len(link.profiled) == size)  # type: ignore[misc]


async def test_other_nodes_are_notified_of_a_change_for_some_callers_and_read_it_again(kept: Kept) -> None:
    generous(kept, is_modern=False)
    changes: list[tuple[str, ...]] = []
    kept.supervisor.on_lists_changed = lambda _server, topics: changes.append(tuple(topics))
    await kept.ready()
    await listed(kept)
    own = kept.links[1]
    own.more.append("more")
    own.on_changed("tools")
    await kept.until(lambda: bool(changes))
    assert changes == [("tools",)]
    # As at a node that has only heard of it: the next list waits until it is read again.
    own.more.append("again")
    kept.supervisor.reconnectors[NAME].lists_changed(("tools",))
    assert await listed(kept) == ["files.read", "files.ask", "files.more", "files.again"]
