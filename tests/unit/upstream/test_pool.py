"""Links for single callers and calls: nobody's is another's, nothing is sent too early, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from isthmus.core.calls.inflight import InFlight
from isthmus.core.crew import Crew
from isthmus.model.callers import Caller, Grants
from isthmus.model.events import Log
from isthmus.model.faults import Cancelled, Lost, NotConnected, Overloaded
from isthmus.model.questions import NOTHING, Profile
from isthmus.upstream import pool as module
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.pool import Pool
from tests.unit.core.doubles import ANYONE, DONE, Listener, Stage, call, raw
from tests.unit.upstream.scripted import SECONDS, Scripted, finish, settings

OTHER = Caller("other", "default", Grants(("*",)))
NAMESAKE = Caller("anyone", "elsewhere", Grants(("*",)))


class Pooled:
    """A lane whose link is a pool, and the links that were made for it."""

    def __init__(self, isolation: str = "caller", max_calls: int = 64) -> None:
        self.stage = Stage()
        self.crew = Crew("pool")
        self.links: list[Scripted] = []
        self.profiles: list[Profile] = []
        """What each link was made for."""
        self.lines: list[Log] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.refusal: BaseException | None = None
        made = settings(isolation=isolation, max_calls=max_calls)
        self.pool = Pool(made, self.crew, self._connect, self.lines.append)
        self.stage.lane.attach(self.pool)
        self.stage.lane.pool = self.pool

    async def _connect(self, profile: Profile) -> BaseLink:
        self.profiles.append(profile)
        await self.opened.wait()
        if self.refusal is not None:
            raise self.refusal
        self.links.append(Scripted())
        return self.links[-1]

    def start(self, caller: Caller = ANYONE, profile: Profile = NOTHING) -> tuple[InFlight, Listener]:
        return self.stage.start(call(caller=caller, profile=profile))

    async def sent(self, caller: Caller = ANYONE, profile: Profile = NOTHING) -> InFlight:
        """A call that has reached a link."""
        inflight, _ = self.start(caller, profile)
        await self.until_sent(inflight)
        return inflight

    async def until_sent(self, *inflights: InFlight) -> None:
        await self.until_quiet()
        assert all(any(inflight in link.sent for link in self.links) for inflight in inflights)

    async def until_quiet(self) -> None:
        """Wait until no link is being made or closed."""
        async with asyncio.timeout(SECONDS):
            while len(self.crew):  # noqa: ASYNC110 - a crew tells nobody
                await asyncio.sleep(0)

    def carrier_of(self, inflight: InFlight) -> Scripted:
        (link,) = [link for link in self.links if inflight in link.sent]
        return link

    def is_empty(self) -> bool:
        return (len(self.pool), self.pool._of, self.stage.lane.running) == (0, {}, 0)


@pytest.fixture
async def pooled() -> AsyncIterator[Pooled]:
    made = Pooled()
    yield made
    await made.pool.aclose()
    made.opened.set()
    await made.until_quiet()
    assert all(link.is_closed for link in made.links)
    assert made.is_empty()


# -- whose link ----------------------------------------------------------------------------------------------------


async def test_a_callers_calls_share_a_link_and_no_others_do(pooled: Pooled) -> None:
    one, two = await pooled.sent(), await pooled.sent()
    three, four = await pooled.sent(OTHER), await pooled.sent(NAMESAKE)
    assert [link.sent for link in pooled.links] == [[one, two], [three], [four]]
    assert len(pooled.pool) == 3


async def test_every_call_can_have_a_link_of_its_own_which_ends_with_it() -> None:
    pooled = Pooled("call")
    one, two = await pooled.sent(), await pooled.sent()
    assert [link.sent for link in pooled.links] == [[one], [two]]
    finish(one)
    await pooled.until_quiet()
    assert [link.closings for link in pooled.links] == [1, 0]
    finish(two)
    await pooled.until_quiet()
    assert [link.closings for link in pooled.links] == [1, 1]
    assert pooled.is_empty()


async def test_what_a_link_logs_goes_where_all_of_it_goes(pooled: Pooled) -> None:
    link = pooled.carrier_of(await pooled.sent())
    line = Log("info", {"data": raw("x")})
    link.on_log(line)
    assert pooled.lines == [line]


# -- while a link is made ------------------------------------------------------------------------------------------


async def test_calls_wait_for_their_link_in_their_order(pooled: Pooled) -> None:
    pooled.opened.clear()
    calls = [pooled.start()[0] for _ in range(3)]
    await asyncio.sleep(0)
    assert pooled.links == []
    pooled.opened.set()
    await pooled.until_sent(*calls)
    assert [link.sent for link in pooled.links] == [calls]


async def test_a_call_withdrawn_while_it_waits_was_never_sent(pooled: Pooled) -> None:
    pooled.opened.clear()
    gone, listener = pooled.start()
    stays, _ = pooled.start()
    gone.cancel("enough")
    assert isinstance(listener.fault, Cancelled)
    assert listener.fault.executed == "no"
    pooled.opened.set()
    await pooled.until_sent(stays)
    assert pooled.links[0].sent == [stays]


async def test_a_deadline_that_passes_while_a_link_is_made_proves_that_nothing_ran(pooled: Pooled) -> None:
    pooled.opened.clear()
    inflight, listener = pooled.start()
    inflight.expire()
    assert listener.fault.executed == "no"


async def test_a_link_that_nobody_wants_any_more_is_closed_as_it_comes(pooled: Pooled) -> None:
    pooled.opened.clear()
    inflight, _ = pooled.start()
    await asyncio.sleep(0)
    inflight.cancel("enough")
    pooled.opened.set()
    await pooled.until_quiet()
    assert [(link.sent, link.closings) for link in pooled.links] == [([], 1)]
    assert len(pooled.pool) == 0


async def test_who_comes_back_while_the_link_is_made_has_it(pooled: Pooled) -> None:
    pooled.opened.clear()
    pooled.start()[0].cancel("enough")
    again, _ = pooled.start()
    pooled.opened.set()
    await pooled.until_sent(again)
    assert len(pooled.links) == 1


async def test_a_link_that_cannot_be_made_is_told_to_who_waits_and_tried_for_the_next(pooled: Pooled) -> None:
    pooled.refusal = ConnectFailed("no such command hunter22")
    listeners = [pooled.start()[1] for _ in range(2)]
    await pooled.until_quiet()
    for listener in listeners:
        assert isinstance(listener.fault, NotConnected)
        assert (listener.fault.why, listener.fault.executed) == ("no such command ***", "no")
    assert len(pooled.pool) == 0
    pooled.refusal = None
    await pooled.sent()


async def test_a_defect_while_a_link_is_made_costs_only_those_who_wait_for_it(pooled: Pooled) -> None:
    steady = await pooled.sent(OTHER)
    pooled.refusal = ZeroDivisionError("a defect")
    _, listener = pooled.start()
    await pooled.until_quiet()
    assert isinstance(listener.fault, NotConnected)
    assert (len(pooled.pool), steady.outcome) == (1, None)


async def test_a_link_that_was_lost_before_it_could_be_used_does_not_stay(pooled: Pooled) -> None:
    connect = pooled._connect

    async def fragile(profile: Profile) -> BaseLink:
        link = await connect(profile)
        link._lose("gone already")
        return link

    pooled.pool._connect = fragile
    pooled.start()
    await pooled.until_quiet()
    assert len(pooled.pool) == 0


# -- a link in use -------------------------------------------------------------------------------------------------


async def test_a_withdrawal_reaches_the_callers_own_link(pooled: Pooled) -> None:
    one, two = await pooled.sent(), await pooled.sent(OTHER)
    two.cancel("enough")
    assert [link.withdrawn for link in pooled.links] == [[], [two]]
    assert isinstance(two.outcome, Cancelled)
    assert two.outcome.executed == "unknown"
    assert one.outcome is None


async def test_a_lost_link_ends_its_callers_calls_and_nobody_elses(pooled: Pooled) -> None:
    one, other = await pooled.sent(), await pooled.sent(OTHER)
    pooled.carrier_of(one).die("crashed")
    assert isinstance(one.outcome, Lost)
    assert other.outcome is None
    fresh = await pooled.sent()
    assert pooled.carrier_of(fresh) is pooled.links[2]
    assert pooled.links[0].closings == 1


async def test_a_lost_link_takes_nothing_from_the_one_after_it(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    pooled.carrier_of(await pooled.sent()).die("crashed")
    fresh = await pooled.sent()
    await later(0.05)  # a timer that the lost link had left would have come by now
    assert len(pooled.pool) == 1
    assert not pooled.carrier_of(fresh).is_closed


async def test_a_link_that_is_lost_while_idle_is_let_go(pooled: Pooled) -> None:
    inflight = await pooled.sent()
    finish(inflight)
    pooled.links[0].die("crashed")
    await pooled.until_quiet()
    assert (len(pooled.pool), pooled.links[0].closings) == (0, 1)


# -- idle links and room -------------------------------------------------------------------------------------------


async def later(seconds: float) -> None:
    """Wait until every timer that is due by then has run."""
    passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, passed.set_result, None)
    await passed


async def test_a_callers_link_is_kept_for_its_next_call(pooled: Pooled) -> None:
    finish(await pooled.sent())
    again = await pooled.sent()
    assert len(pooled.links) == 1
    finish(again)


async def test_an_idle_link_is_closed_after_a_while(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    finish(await pooled.sent())
    await later(0.01)
    await pooled.until_quiet()
    assert (len(pooled.pool), pooled.links[0].closings) == (0, 1)


async def test_a_link_in_use_is_not_idle(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    inflight, other = await pooled.sent(), await pooled.sent()
    finish(inflight)
    await later(0.03)
    assert not pooled.links[0].is_closed
    finish(other)


async def test_a_call_in_time_keeps_an_idle_link(pooled: Pooled) -> None:
    finish(await pooled.sent())
    (member,) = pooled.pool._members.values()
    assert member.idle is not None
    await pooled.sent()
    assert member.idle is None


async def test_without_room_the_link_idle_for_longest_makes_some() -> None:
    pooled = Pooled(max_calls=2)
    finish(await pooled.sent())
    finish(await pooled.sent(OTHER))
    finish(await pooled.sent())
    third = await pooled.sent(NAMESAKE)
    assert [link.is_closed for link in pooled.links] == [False, True, False]
    finish(third)
    await pooled.pool.aclose()


async def test_with_every_link_in_use_a_call_is_refused_and_the_others_go_on() -> None:
    pooled = Pooled(max_calls=1)
    busy = await pooled.sent()
    fault = pooled.start(OTHER)[1].fault
    assert isinstance(fault, Overloaded)
    assert busy.outcome is None
    finish(busy)
    await pooled.pool.aclose()
    assert pooled.is_empty()


async def test_a_link_being_made_for_nobody_gives_its_place_up_and_is_closed_when_it_comes() -> None:
    pooled = Pooled(max_calls=1)
    pooled.opened.clear()
    pooled.start()[0].cancel("enough")
    other, _ = pooled.start(OTHER)
    again = pooled.start()[1].fault  # its old place is another's now
    assert isinstance(again, Overloaded)
    pooled.opened.set()
    await pooled.until_sent(other)
    assert [link.is_closed for link in pooled.links] == [True, False]
    assert len(pooled.pool) == 1
    finish(other)
    await pooled.pool.aclose()


async def test_more_links_are_allowed_from_the_moment_that_is_said() -> None:
    pooled = Pooled(max_calls=1)
    one = await pooled.sent()
    pooled.pool.adjust(settings(isolation="caller", max_calls=2))
    two = await pooled.sent(OTHER)
    assert len(pooled.pool) == 2
    finish(one)
    finish(two)
    await pooled.pool.aclose()


# -- the end -------------------------------------------------------------------------------------------------------


async def test_closing_closes_every_link_and_tells_who_waits() -> None:
    pooled = Pooled()
    running = await pooled.sent()
    finish(await pooled.sent(OTHER))
    pooled.opened.clear()
    _, waiting = pooled.start(NAMESAKE)
    await asyncio.sleep(0)
    await pooled.pool.aclose()
    assert isinstance(running.outcome, Lost)
    assert isinstance(waiting.fault, NotConnected)
    assert [link.closings for link in pooled.links] == [1, 1]
    pooled.opened.set()
    await pooled.until_quiet()
    assert [link.closings for link in pooled.links] == [1, 1, 1]  # the one that came too late
    assert isinstance(pooled.start()[1].fault, Overloaded)
    assert pooled.is_empty()


async def test_many_callers_that_come_and_go_leave_nothing() -> None:
    pooled = Pooled("call", max_calls=8)
    for number in range(200):
        inflight, _ = pooled.start(Caller(f"caller {number % 7}", "default", Grants(("*",))))
        if number % 3 == 0:
            inflight.cancel("enough")
        elif number % 3 == 1:
            await pooled.until_quiet()
        if inflight.outcome is None and number % 5:
            inflight.finish(DONE)
        for link in pooled.links[-3:]:
            if number % 11 == 0:
                link.die("crashed")
    for link in pooled.links:
        for inflight in link.sent:
            inflight.finish(DONE)
    await pooled.until_quiet()
    await pooled.pool.aclose()
    assert pooled.is_empty()
    assert all(link.closings == 1 for link in pooled.links)


# -- whom a link is for ----------------------------------------------------------------------------------------------

ROOTS = frozenset({"roots"})
MORE = frozenset({"roots", "roots.listChanged"})


@pytest.mark.parametrize("isolation", ["shared", "caller"])
async def test_a_server_that_is_told_profiles_has_a_link_for_each(isolation: str) -> None:
    pooled = Pooled(isolation)
    pooled.pool.is_profiled = True
    one, same, more = [await pooled.sent(profile=profile) for profile in (ROOTS, ROOTS, MORE)]
    assert pooled.carrier_of(one) is pooled.carrier_of(same)
    assert pooled.carrier_of(one) is not pooled.carrier_of(more)
    assert pooled.profiles == [ROOTS, MORE]
    await pooled.pool.aclose()


async def test_a_server_that_is_told_with_every_call_has_one_link_for_all_profiles() -> None:
    pooled = Pooled("caller")
    one, more = await pooled.sent(profile=ROOTS), await pooled.sent(profile=MORE)
    assert pooled.carrier_of(one) is pooled.carrier_of(more)
    assert pooled.profiles == [NOTHING]
    await pooled.pool.aclose()


@pytest.mark.parametrize(("is_duplex", "links"), [(False, 1), (True, 3)])
async def test_callers_share_a_link_unless_a_question_on_it_could_be_anybodys(*, is_duplex: bool, links: int) -> None:
    pooled = Pooled("shared")
    pooled.pool.is_profiled, pooled.pool.is_duplex = True, is_duplex
    calls = [await pooled.sent(caller, ROOTS) for caller in (ANYONE, OTHER, NAMESAKE, ANYONE)]
    assert len({id(pooled.carrier_of(inflight)) for inflight in calls}) == links
    assert pooled.profiles == [ROOTS] * links
    await pooled.pool.aclose()


async def test_two_conversations_of_one_caller_share_no_link_on_which_questions_come() -> None:
    pooled = Pooled("shared")
    pooled.pool.is_profiled = pooled.pool.is_duplex = True
    calls = []
    for session in ("a", "b", "a"):
        inflight, _ = pooled.stage.start(msgspec.structs.replace(call(profile=ROOTS), session=session))
        await pooled.until_sent(inflight)
        calls.append(pooled.carrier_of(inflight))
    assert calls[0] is calls[2] is not calls[1]
    await pooled.pool.aclose()


# -- a call that is sent again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["shared", "caller", "call"])
async def test_a_call_that_is_sent_again_stays_on_its_link_and_counts_once(isolation: str) -> None:
    pooled = Pooled(isolation)
    inflight = await pooled.sent()
    pooled.pool.send(inflight)
    await pooled.until_quiet()
    (link,) = pooled.links
    assert link.sent == [inflight] * 2
    inflight.finish(DONE)
    await pooled.until_quiet()
    assert (len(pooled.pool), link.is_closed) == ((0, True) if isolation == "call" else (1, False))
    await pooled.pool.aclose()


async def test_a_link_whose_call_was_sent_again_makes_room_once_it_is_idle() -> None:
    pooled = Pooled(max_calls=1)
    inflight = await pooled.sent()
    pooled.pool.send(inflight)
    inflight.finish(DONE)
    other = await pooled.sent(OTHER)
    assert pooled.carrier_of(other) is pooled.links[1]
    assert pooled.links[0].is_closed
    await pooled.pool.aclose()


# -- borrowing -----------------------------------------------------------------------------------------------------

ABLE: Profile = frozenset({"elicitation"})


async def test_a_borrowed_link_is_that_of_the_callers_calls_and_stays(pooled: Pooled) -> None:
    async with pooled.pool.borrowed(ANYONE, ABLE) as link:
        assert (pooled.profiles, len(pooled.pool), pooled.pool.has(ABLE)) == ([ABLE], 1, True)
    assert link is pooled.links[0]
    assert not pooled.links[0].is_closed
    assert not pooled.pool.has(frozenset({"sampling"}))
    async with pooled.pool.borrowed(OTHER, ABLE) as again:
        assert again is link, "what is listed does not depend on the caller"


async def test_a_link_that_is_borrowed_is_not_idle(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    pooled.pool.is_profiled = True
    async with pooled.pool.borrowed(ANYONE, ABLE) as link:
        finish(await pooled.sent(profile=ABLE))
        await asyncio.sleep(0.001)
        kept = pooled.links[0].closings == 0
    async with asyncio.timeout(SECONDS):
        await link.lost
    assert (kept, len(pooled.links)) == (True, 1)


async def test_listing_on_a_link_does_not_keep_it_from_being_idle(pooled: Pooled) -> None:
    async with pooled.pool.borrowed(ANYONE, ABLE):
        pass
    (member,) = pooled.pool._members.values()
    resting = member.idle
    assert resting is not None
    async with pooled.pool.borrowed(ANYONE, ABLE):
        pass
    assert member.idle is resting


async def test_where_each_call_has_its_own_link_a_borrowed_one_is_closed_when_it_is_given_back() -> None:
    pooled = Pooled("call")
    async with pooled.pool.borrowed(ANYONE, ABLE):
        closings = pooled.links[0].closings
    await pooled.until_quiet()
    assert (closings, pooled.links[0].closings) == (0, 1)
    assert pooled.is_empty()


async def test_who_borrows_is_told_why_it_cannot(pooled: Pooled) -> None:
    pooled.refusal = ConnectFailed("hunter22 is wrong")
    with pytest.raises(NotConnected, match=r"\*\*\* is wrong"):
        async with pooled.pool.borrowed(ANYONE, ABLE) as link:
            link.listen()


async def test_a_full_pool_lends_nothing() -> None:
    pooled = Pooled(max_calls=1)
    inflight = await pooled.sent()
    with pytest.raises(Overloaded):
        async with pooled.pool.borrowed(OTHER, ABLE) as link:
            link.listen()
    finish(inflight)
    await pooled.pool.aclose()


async def test_only_links_of_those_who_can_be_asked_are_heard(pooled: Pooled) -> None:
    heard: list[tuple[Profile, str]] = []
    pooled.pool.on_changed = lambda profile, topic: heard.append((profile, topic))
    await pooled.sent()
    pooled.links[0].on_changed("tools")
    async with pooled.pool.borrowed(OTHER, ABLE):
        pooled.links[1].on_changed("prompts")
        pooled.links[1].on_renewed()
    assert heard == [(ABLE, topic) for topic in ("prompts", "tools", "prompts", "resources")]


async def test_a_link_that_was_made_to_list_is_the_first_conversations_and_no_others(pooled: Pooled) -> None:
    pooled.pool.is_profiled = pooled.pool.is_duplex = True
    async with pooled.pool.borrowed(ANYONE, ABLE):
        first, _ = pooled.stage.start(msgspec.structs.replace(call(profile=ABLE), session="first"))
        second, _ = pooled.stage.start(msgspec.structs.replace(call(profile=ABLE), session="second"))
        other, _ = pooled.stage.start(msgspec.structs.replace(call(profile=ABLE, caller=OTHER), session="first"))
        await pooled.until_sent(first, second, other)
    assert [link.sent for link in pooled.links] == [[first], [second], [other]]
    for inflight in (first, second, other):
        finish(inflight)


async def test_a_question_that_could_be_anybodys_parts_the_callers_from_then_on() -> None:
    pooled = Pooled("shared")
    pooled.pool.is_profiled = True
    shared = [pooled.carrier_of(await pooled.sent(caller, ROOTS)) for caller in (ANYONE, OTHER)]
    assert shared[0] is shared[1]
    shared[0].on_crowded()
    parted = [pooled.carrier_of(await pooled.sent(caller, ROOTS)) for caller in (ANYONE, OTHER)]
    assert parted[0] is not parted[1]
    await pooled.pool.aclose()
