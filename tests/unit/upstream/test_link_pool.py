"""Links for single callers and calls: never shared, nothing sent too early, and nothing leaked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import Subscriber
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import NewTask
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities, LogMessage
from isthmus.model.credentials import NO_CREDENTIALS, OwnCredentials, ServerCredentials, Subject
from isthmus.model.fault_table import Cancelled, Fault, Lost, NotConnected, Overloaded, UnknownTool
from isthmus.upstream import link_pool as module
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.link_pool import LinkPool
from isthmus.upstream.server_settings import REASON_LENGTH_MAX
from isthmus.upstream.subscription_sync import SubscriptionSync
from tests.unit.core.doubles import ANYONE, DONE, Listener, Stage, call, raw
from tests.unit.core.tasks.doubles import HeldJournal
from tests.unit.upstream.scripted import NAME, SECONDS, Scripted, finish, settings

OTHER = Caller("other", "default", Grants(("*",)))
NAMESAKE = Caller("anyone", "elsewhere", Grants(("*",)))


class Pooled:
    """A server queue whose link is a pool, and the links that were made for it."""

    def __init__(
        self, isolation: str = "caller", max_calls: int = 64, credentials: ServerCredentials | None = None
    ) -> None:
        self.stage = Stage()
        self.background = BackgroundTasks("pool")
        self.links: list[Scripted] = []
        self.all_client_caps: list[ClientCapabilities] = []
        """What each link was made for."""
        self.lines: list[LogMessage] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.refusal: BaseException | None = None
        made = settings(isolation=isolation, max_calls=max_calls, credentials=credentials or NO_CREDENTIALS)
        self.subscription_sync = SubscriptionSync(self.stage.hub, self.background, NAME)
        self.pool = LinkPool(made, self.background, self._connect, self.lines.append, self.subscription_sync)
        self.stage.server_queue.attach(self.pool)
        self.stage.server_queue.pool = self.pool

    async def _connect(self, client_caps: ClientCapabilities, subject: Subject | None = None) -> BaseLink:
        self.all_client_caps.append(client_caps)
        await self.opened.wait()
        if self.refusal is not None:
            raise self.refusal
        self.links.append(Scripted())
        self.links[-1].subject = subject
        return self.links[-1]

    def start(
        self, caller: Caller = ANYONE, client_caps: ClientCapabilities = NO_CAPABILITIES
    ) -> tuple[InFlight, Listener]:
        return self.stage.start(call(caller=caller, client_caps=client_caps))

    async def sent(self, caller: Caller = ANYONE, client_caps: ClientCapabilities = NO_CAPABILITIES) -> InFlight:
        """A call that has reached a link."""
        inflight, _ = self.start(caller, client_caps)
        await self.until_sent(inflight)
        return inflight

    async def until_sent(self, *inflights: InFlight) -> None:
        await self.until_quiet()
        assert all(any(inflight in link.sent for link in self.links) for inflight in inflights)

    async def until_quiet(self) -> None:
        """Wait until no link is being made or closed."""
        async with asyncio.timeout(SECONDS):
            while len(self.background):  # noqa: ASYNC110 - background tasks have no notification
                await asyncio.sleep(0)

    def carrier_of(self, inflight: InFlight) -> Scripted:
        (link,) = [link for link in self.links if inflight in link.sent]
        return link

    def is_empty(self) -> bool:
        return (len(self.pool), self.pool._member_of, self.stage.server_queue.running) == (0, {}, 0)


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


async def test_log_lines_of_a_pooled_link_reach_the_common_log(pooled: Pooled) -> None:
    link = pooled.carrier_of(await pooled.sent())
    line = LogMessage("info", {"data": raw("x")})
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


async def test_an_unwanted_link_is_closed_as_it_arrives(pooled: Pooled) -> None:
    pooled.opened.clear()
    inflight, _ = pooled.start()
    await asyncio.sleep(0)
    inflight.cancel("enough")
    pooled.opened.set()
    await pooled.until_quiet()
    assert [(link.sent, link.closings) for link in pooled.links] == [([], 1)]
    assert len(pooled.pool) == 0


async def test_a_caller_that_returns_while_the_link_is_made_gets_it(pooled: Pooled) -> None:
    pooled.opened.clear()
    pooled.start()[0].cancel("enough")
    again, _ = pooled.start()
    pooled.opened.set()
    await pooled.until_sent(again)
    assert len(pooled.links) == 1


async def test_a_link_that_cannot_be_made_is_reported_to_its_waiters_and_tried_for_the_next(pooled: Pooled) -> None:
    pooled.refusal = ConnectFailed("no such command hunter22")
    listeners = [pooled.start()[1] for _ in range(2)]
    await pooled.until_quiet()
    for listener in listeners:
        assert isinstance(listener.fault, NotConnected)
        assert (listener.fault.why, listener.fault.executed) == ("no such command ***", "no")
    assert len(pooled.pool) == 0
    pooled.refusal = None
    await pooled.sent()


async def test_a_long_reason_is_cut_after_its_secrets_are_gone(pooled: Pooled) -> None:
    pooled.refusal = ConnectFailed(f"{'x' * (REASON_LENGTH_MAX - 4)} hunter22 {'y' * 10_000}")
    _, listener = pooled.start()
    await pooled.until_quiet()
    received = f"{'x' * (REASON_LENGTH_MAX - 4)} ***"
    assert isinstance(listener.fault, NotConnected)
    assert listener.fault.why == received
    with pytest.raises(NotConnected) as refused:
        async with pooled.pool.borrowed(ANYONE, ABLE):
            pass
    assert refused.value.why == received


async def test_a_defect_while_a_link_is_made_costs_only_its_waiters(pooled: Pooled) -> None:
    steady = await pooled.sent(OTHER)
    pooled.refusal = ZeroDivisionError("a defect")
    _, listener = pooled.start()
    await pooled.until_quiet()
    assert isinstance(listener.fault, NotConnected)
    assert (len(pooled.pool), steady.outcome) == (1, None)


async def test_a_link_that_was_lost_before_it_could_be_used_does_not_stay(pooled: Pooled) -> None:
    connect = pooled._connect

    async def fragile(client_caps: ClientCapabilities, subject: Subject | None) -> BaseLink:
        link = await connect(client_caps, subject)
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


async def test_a_lost_link_ends_only_the_calls_of_its_callers(pooled: Pooled) -> None:
    one, other = await pooled.sent(), await pooled.sent(OTHER)
    pooled.carrier_of(one).die("crashed")
    assert isinstance(one.outcome, Lost)
    assert other.outcome is None
    fresh = await pooled.sent()
    assert pooled.carrier_of(fresh) is pooled.links[2]
    assert pooled.links[0].closings == 1


async def test_a_lost_link_takes_nothing_from_the_one_after_it(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_IDLE_SECONDS", 0.01)
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
    monkeypatch.setattr(module, "SESSION_IDLE_SECONDS", 0.0)
    finish(await pooled.sent())
    await later(0.01)
    await pooled.until_quiet()
    assert (len(pooled.pool), pooled.links[0].closings) == (0, 1)


async def test_a_link_in_use_is_not_idle(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_IDLE_SECONDS", 0.01)
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


async def test_a_link_being_made_without_waiters_frees_its_place_and_is_closed_when_it_arrives() -> None:
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


async def test_closing_closes_every_link_and_notifies_waiters() -> None:
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
async def test_a_server_with_capabilities_at_initialize_has_a_link_for_each(isolation: str) -> None:
    pooled = Pooled(isolation)
    pooled.pool.differs_by_client = True
    one, same, more = [await pooled.sent(client_caps=client_caps) for client_caps in (ROOTS, ROOTS, MORE)]
    assert pooled.carrier_of(one) is pooled.carrier_of(same)
    assert pooled.carrier_of(one) is not pooled.carrier_of(more)
    assert pooled.all_client_caps == [ROOTS, MORE]
    await pooled.pool.aclose()


async def test_a_server_with_capabilities_in_every_call_has_one_link_for_all() -> None:
    pooled = Pooled("caller")
    one, more = await pooled.sent(client_caps=ROOTS), await pooled.sent(client_caps=MORE)
    assert pooled.carrier_of(one) is pooled.carrier_of(more)
    assert pooled.all_client_caps == [NO_CAPABILITIES]
    await pooled.pool.aclose()


@pytest.mark.parametrize(("is_duplex", "links"), [(False, 1), (True, 3)])
async def test_callers_share_a_link_unless_a_question_on_it_could_be_anybodys(*, is_duplex: bool, links: int) -> None:
    pooled = Pooled("shared")
    pooled.pool.differs_by_client, pooled.pool.is_duplex = True, is_duplex
    calls = [await pooled.sent(caller, ROOTS) for caller in (ANYONE, OTHER, NAMESAKE, ANYONE)]
    assert len({id(pooled.carrier_of(inflight)) for inflight in calls}) == links
    assert pooled.all_client_caps == [ROOTS] * links
    await pooled.pool.aclose()


async def test_two_conversations_of_one_caller_share_no_link_on_which_questions_come() -> None:
    pooled = Pooled("shared")
    pooled.pool.differs_by_client = pooled.pool.is_duplex = True
    calls = []
    for session in ("a", "b", "a"):
        inflight, _ = pooled.stage.start(msgspec.structs.replace(call(client_caps=ROOTS), session=session))
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

ABLE: ClientCapabilities = frozenset({"elicitation"})


async def test_a_borrowed_link_is_that_of_the_callers_calls_and_stays(pooled: Pooled) -> None:
    async with pooled.pool.borrowed(ANYONE, ABLE) as link:
        assert (pooled.all_client_caps, len(pooled.pool), pooled.pool.has_link_for(ABLE)) == ([ABLE], 1, True)
    assert link is pooled.links[0]
    assert not pooled.links[0].is_closed
    assert not pooled.pool.has_link_for(frozenset({"sampling"}))
    async with pooled.pool.borrowed(OTHER, ABLE) as again:
        assert again is link, "what is listed does not depend on the caller"


async def test_a_link_that_is_borrowed_is_not_idle(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_IDLE_SECONDS", 0.0)
    pooled.pool.differs_by_client = True
    async with pooled.pool.borrowed(ANYONE, ABLE) as link:
        finish(await pooled.sent(client_caps=ABLE))
        await asyncio.sleep(0.001)
        kept = pooled.links[0].closings == 0
    async with asyncio.timeout(SECONDS):
        await link.lost
    assert (kept, len(pooled.links)) == (True, 1)


async def test_only_the_caller_with_most_links_gives_way() -> None:
    pooled = Pooled(max_calls=4)
    pooled.pool.is_duplex = pooled.pool.differs_by_client = True
    others = await pooled.sent(OTHER, ROOTS)
    finish(others)
    for number in range(6):
        finish(await pooled.sent(ANYONE, frozenset({"sampling", str(number)})))
    assert not pooled.carrier_of(others).is_closed
    assert [link.is_closed for link in pooled.links[1:]] == [True, True, True, False, False, False]
    again = await pooled.sent(OTHER, ROOTS)
    assert pooled.carrier_of(again) is pooled.carrier_of(others)
    finish(again)
    await pooled.pool.aclose()


async def conversing(pooled: Pooled, session: str) -> InFlight:
    """A call of a conversation that has a link of its own."""
    pooled.pool.is_duplex = pooled.pool.differs_by_client = True
    inflight, _ = pooled.stage.start(msgspec.structs.replace(call(client_caps=ROOTS), session=session))
    await pooled.until_sent(inflight)
    return inflight


async def test_the_link_of_a_conversation_ends_with_it(pooled: Pooled) -> None:
    one, other, none = [await conversing(pooled, session) for session in ("one", "other", "")]
    for inflight in (one, other, none):
        finish(inflight)
    for session in ("", "unknown", "one"):
        pooled.stage.hub.session_ended(session)
    await pooled.until_quiet()
    assert [pooled.carrier_of(inflight).is_closed for inflight in (one, other, none)] == [True, False, False]


async def test_the_link_of_a_conversation_that_is_over_waits_for_its_last_call(pooled: Pooled) -> None:
    inflight = await conversing(pooled, "one")
    pooled.stage.hub.session_ended("one")
    await pooled.until_quiet()
    assert not pooled.carrier_of(inflight).is_closed
    finish(inflight)
    await pooled.until_quiet()
    assert pooled.carrier_of(inflight).is_closed


async def test_a_link_that_is_made_for_a_conversation_that_ended_meanwhile_is_closed(pooled: Pooled) -> None:
    pooled.pool.is_duplex = pooled.pool.differs_by_client = True
    pooled.opened.clear()
    inflight, _ = pooled.stage.start(msgspec.structs.replace(call(client_caps=ROOTS), session="one"))
    inflight.cancel("the session was ended")
    pooled.stage.hub.session_ended("one")
    pooled.opened.set()
    await pooled.until_quiet()
    assert (len(pooled.pool), [link.is_closed for link in pooled.links]) == (0, [True])


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


async def test_a_borrower_learns_why_it_cannot(pooled: Pooled) -> None:
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


async def test_a_change_on_a_link_counts_for_the_callers_of_that_link(pooled: Pooled) -> None:
    received: list[tuple[ClientCapabilities, str]] = []
    renewed: list[BaseLink] = []
    pooled.pool.on_changed = lambda client_caps, topic: received.append((client_caps, topic))
    pooled.pool.on_renewed = renewed.append
    await pooled.sent()
    pooled.links[0].on_changed("tools")
    async with pooled.pool.borrowed(OTHER, ABLE):
        pooled.links[1].on_changed("prompts")
        pooled.links[1].on_renewed()
    assert received[0] == (NO_CAPABILITIES, "tools")
    assert received[1:] == [(ABLE, topic) for topic in ("prompts", "tools", "prompts", "resources")]
    assert renewed == [pooled.links[1]]


async def test_a_link_that_was_made_to_list_is_the_first_conversations_and_no_others(pooled: Pooled) -> None:
    pooled.pool.differs_by_client = pooled.pool.is_duplex = True
    async with pooled.pool.borrowed(ANYONE, ABLE):
        first, _ = pooled.stage.start(msgspec.structs.replace(call(client_caps=ABLE), session="first"))
        second, _ = pooled.stage.start(msgspec.structs.replace(call(client_caps=ABLE), session="second"))
        other, _ = pooled.stage.start(msgspec.structs.replace(call(client_caps=ABLE, caller=OTHER), session="first"))
        await pooled.until_sent(first, second, other)
    assert [link.sent for link in pooled.links] == [[first], [second], [other]]
    for inflight in (first, second, other):
        finish(inflight)


async def test_a_question_that_could_be_anybodys_parts_the_callers_from_then_on() -> None:
    pooled = Pooled("shared")
    pooled.pool.differs_by_client = True
    shared = [pooled.carrier_of(await pooled.sent(caller, ROOTS)) for caller in (ANYONE, OTHER)]
    assert shared[0] is shared[1]
    shared[0].questions.on_question()
    parted = [pooled.carrier_of(await pooled.sent(caller, ROOTS)) for caller in (ANYONE, OTHER)]
    assert parted[0] is not parted[1]
    await pooled.pool.aclose()


# -- calls of no conversation ------------------------------------------------------------------------------------------


@pytest.fixture
async def asking() -> AsyncIterator[Pooled]:
    """A server that asks on links where a question names no call."""
    made = Pooled("shared", max_calls=4)
    made.pool.differs_by_client = made.pool.is_duplex = True
    yield made
    for link in made.links:
        for inflight in link.sent:
            inflight.finish(DONE)
    await made.pool.aclose()
    await made.until_quiet()
    assert made.is_empty()


async def test_they_share_a_link_while_their_server_asks_nothing_and_none_from_then_on(asking: Pooled) -> None:
    one, two = await asking.sent(client_caps=ROOTS), await asking.sent(client_caps=ROOTS)
    assert [link.sent for link in asking.links] == [[one, two]]
    asking.links[0].questions.on_question()
    three, four = await asking.sent(client_caps=ROOTS), await asking.sent(client_caps=ROOTS)
    assert [link.sent for link in asking.links] == [[one, two], [three], [four]]
    assert asking.all_client_caps == [ROOTS] * 3


async def test_each_then_has_a_link_that_is_idle_if_there_is_one_of_the_same_caller_and_profile(
    asking: Pooled,
) -> None:
    first = await asking.sent(client_caps=ROOTS)
    asking.links[0].questions.on_question()
    second = await asking.sent(client_caps=ROOTS)
    finish(first)
    third = await asking.sent(client_caps=ROOTS)
    assert asking.carrier_of(third) is asking.links[0]
    finish(second)
    others = await asking.sent(OTHER, ROOTS), await asking.sent(client_caps=MORE)
    assert [link.sent for link in asking.links] == [[first, third], [second], [others[0]], [others[1]]]


async def test_one_call_after_the_other_goes_on_the_link_that_was_used_last(asking: Pooled) -> None:
    first = await asking.sent(client_caps=ROOTS)
    asking.links[0].questions.on_question()
    second = await asking.sent(client_caps=ROOTS)
    finish(first)
    finish(second)
    for _ in range(3):
        finish(await asking.sent(client_caps=ROOTS))
    assert [len(link.sent) for link in asking.links] == [1, 4]


async def test_a_conversation_keeps_the_link_that_is_its_own(asking: Pooled) -> None:
    asked = msgspec.structs.replace(call(client_caps=ROOTS), session="one")
    calls = [asking.stage.start(asked)[0] for _ in range(2)]
    await asking.until_sent(*calls)
    asking.links[0].questions.on_question()
    calls.append(asking.stage.start(asked)[0])
    lonely = await asking.sent(client_caps=ROOTS)
    assert [link.sent for link in asking.links] == [calls, [lonely]]


# -- conversations that share links ---------------------------------------------------------------------------------


async def in_context(asking: Pooled, context: str, caller: Caller = ANYONE) -> InFlight:
    """A call of an A2A context that has reached a link."""
    asked = msgspec.structs.replace(call(caller=caller, client_caps=ROOTS), session=context, shares_link=True)
    inflight, _ = asking.stage.start(asked)
    await asking.until_sent(inflight)
    return inflight


async def test_contexts_share_a_link_while_their_server_asks_nothing_and_keep_it_when_it_does(asking: Pooled) -> None:
    calls = [await in_context(asking, context) for context in ("a", "b", "a")]
    asking.links[0].questions.on_question()
    calls += [await in_context(asking, context) for context in ("b", "a", "a")]
    assert [link.sent for link in asking.links] == [calls]


async def test_a_context_that_begins_when_the_server_asks_has_a_link_without_calls_and_keeps_it(
    asking: Pooled,
) -> None:
    first = await in_context(asking, "a")
    asking.links[0].questions.on_question()
    second, third = await in_context(asking, "b"), await in_context(asking, "b")
    finish(first)
    fourth = await in_context(asking, "c")
    assert [link.sent for link in asking.links] == [[first, fourth], [second, third]]


async def test_no_context_begins_on_a_link_to_which_another_has_come_back(asking: Pooled) -> None:
    asking.pool._asks_between_calls = True
    for _ in range(2):
        finish(await in_context(asking, "a"))
    finish(await in_context(asking, "b"))
    for context in ("c", "c", "a"):
        finish(await in_context(asking, context))
    assert [[each.call.session for each in link.sent] for link in asking.links] == [["a", "a", "a"], ["b", "c", "c"]]


async def test_contexts_of_two_callers_share_nothing_though_they_have_one_name(asking: Pooled) -> None:
    calls = [await in_context(asking, "a", caller) for caller in (ANYONE, OTHER, ANYONE)]
    assert [link.sent for link in asking.links] == [[calls[0], calls[2]], [calls[1]]]


async def test_a_context_whose_call_was_given_up_keeps_its_link_which_no_other_begins_on(asking: Pooled) -> None:
    asking.pool._asks_between_calls = True
    given_up = await in_context(asking, "a")
    asking.links[0].questions.abandoned_session = "a"  # as the link notes it, since the server may ask all the same
    given_up.cancel("enough")
    finish(await in_context(asking, "b"))
    finish(await in_context(asking, "a"))
    assert [[each.call.session for each in link.sent] for link in asking.links] == [["a", "a"], ["b"]]


async def test_a_context_whose_link_is_lost_begins_anew(asking: Pooled) -> None:
    await in_context(asking, "a")
    asking.links[0].die("crashed")
    await in_context(asking, "a")
    assert (len(asking.links), list(asking.pool._bound_to)) == (2, ["a"])


async def test_only_the_latest_contexts_on_a_link_are_remembered(
    asking: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BOUND_SESSIONS_MAX", 2)
    for context in ("a", "b", "c"):
        finish(await in_context(asking, context))
    assert list(asking.pool._bound_to) == ["b", "c"]


async def test_contexts_that_waited_for_one_link_are_parted_when_its_server_asks_at_once(asking: Pooled) -> None:
    connect = asking._connect

    async def curious(client_caps: ClientCapabilities, subject: Subject | None) -> BaseLink:
        link = await connect(client_caps, subject)
        link.questions.has_asked = True
        return link

    asking.pool._connect = curious
    asking.opened.clear()
    begun = [
        asking.stage.start(msgspec.structs.replace(call(client_caps=ROOTS), session=context, shares_link=True))[0]
        for context in ("a", "b", "a")
    ]
    asking.opened.set()
    await asking.until_sent(*begun)
    assert [link.sent for link in asking.links] == [[begun[0], begun[2]], [begun[1]]]


async def test_a_session_stays_on_the_link_that_it_shares_with_everybody_when_the_server_asks_beside_its_calls(
    asking: Pooled,
) -> None:
    asking.pool.is_duplex = False
    calls = [await conversing_on(asking, session) for session in ("a", "b")]
    asking.links[0].questions.on_question()
    calls.append(await conversing_on(asking, "a"))
    later = await conversing_on(asking, "c")
    assert [link.sent for link in asking.links] == [calls, [later]]
    asking.stage.hub.session_ended("a")
    assert list(asking.pool._bound_to) == ["b"]


async def conversing_on(asking: Pooled, session: str) -> InFlight:
    inflight, _ = asking.stage.start(msgspec.structs.replace(call(client_caps=ROOTS), session=session))
    await asking.until_sent(inflight)
    return inflight


async def test_the_link_of_a_context_is_kept_for_longer_than_that_of_calls_outside_of_any(
    asking: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NO_SESSION_IDLE_SECONDS", 0.0)
    finish(await in_context(asking, "a"))
    finish(await asking.sent(OTHER, ROOTS))
    await later(0.01)
    await asking.until_quiet()
    assert [link.is_closed for link in asking.links] == [False, True]


@pytest.mark.parametrize("is_duplex", [True, False])
async def test_calls_that_waited_for_one_link_are_parted_when_its_server_asks_at_once(
    asking: Pooled, *, is_duplex: bool
) -> None:
    asking.pool.is_duplex = is_duplex
    connect = asking._connect

    async def curious(client_caps: ClientCapabilities, subject: Subject | None) -> BaseLink:
        link = await connect(client_caps, subject)
        link.questions.has_asked = True
        return link

    asking.pool._connect = curious
    asking.opened.clear()
    calls = [asking.start(client_caps=ROOTS)[0] for _ in range(3)]
    asking.opened.set()
    await asking.until_sent(*calls)
    assert [link.sent for link in asking.links] == [[one] for one in calls]
    for inflight in calls:
        finish(inflight)
    assert all(member.calls == 0 for member in asking.pool._members.values())


async def test_a_link_whose_server_may_ask_about_a_cancelled_call_serves_no_other(asking: Pooled) -> None:
    first = await asking.sent(client_caps=ROOTS)
    asking.links[0].questions.on_question()
    asking.links[0].questions.abandoned_session = ""
    finish(first)
    await asking.until_quiet()
    assert asking.links[0].is_closed
    second = await asking.sent(client_caps=ROOTS)
    assert asking.carrier_of(second) is asking.links[1]
    finish(second)
    asking.links[1].questions.abandoned_session = ""  # it asked while there was no call
    third = await asking.sent(client_caps=ROOTS)
    assert asking.carrier_of(third) is asking.links[2]


@pytest.mark.parametrize("session", ["", "one"])
async def test_a_link_with_an_unanswered_question_takes_no_calls_and_still_lists(asking: Pooled, session: str) -> None:
    async with asking.pool.borrowed(ANYONE, ROOTS):
        pass
    asking.links[0].questions.on_question()
    asking.links[0].questions.has_unanswered = True
    first, _ = asking.stage.start(msgspec.structs.replace(call(client_caps=ROOTS), session=session))
    await asking.until_sent(first)
    assert [link.sent for link in asking.links] == [[], [first]]
    assert not asking.links[0].is_closed


async def test_a_conversation_keeps_its_link_after_an_unanswered_question_between_calls(
    asking: Pooled,
) -> None:
    asked = msgspec.structs.replace(call(client_caps=ROOTS), session="one")
    first, _ = asking.stage.start(asked)
    await asking.until_sent(first)
    finish(first)
    asking.links[0].questions.on_question()
    asking.links[0].questions.has_unanswered = True
    second, _ = asking.stage.start(asked)
    assert [link.sent for link in asking.links] == [[first, second]]


async def test_a_server_that_never_asked_keeps_a_link_on_which_a_call_was_given_up(asking: Pooled) -> None:
    first = await asking.sent(client_caps=ROOTS)
    asking.links[0].questions.abandoned_session = ""
    finish(first)
    await asking.sent(client_caps=ROOTS)
    assert len(asking.links) == 1


@pytest.mark.parametrize("session", ["", "one"])
async def test_a_question_without_a_call_waits_for_the_next_only_where_that_is_the_same_program(
    asking: Pooled, session: str
) -> None:
    async with asking.pool.borrowed(ANYONE, ROOTS):
        assert asking.links[0].questions.can_wait
        asked = msgspec.structs.replace(call(client_caps=ROOTS), session=session)
        first, _ = asking.stage.start(asked)
        await asking.until_quiet()
        assert asking.carrier_of(first).questions.can_wait == bool(session)
    other, _ = asking.stage.start(msgspec.structs.replace(call(client_caps=MORE), session=session))
    await asking.until_quiet()
    assert asking.carrier_of(other).questions.can_wait == bool(session)


async def test_links_are_limited_by_the_number_of_calls_and_a_caller_without_one_gets_an_error(asking: Pooled) -> None:
    first = await asking.sent(client_caps=ROOTS)
    asking.links[0].questions.on_question()
    for _ in range(3):
        await asking.sent(client_caps=ROOTS)
    fault = asking.start(client_caps=ROOTS)[1].fault
    assert isinstance(fault, Overloaded)
    assert (fault.executed, fault.retry_after, len(asking.pool)) == ("no", 1.0, 4)
    finish(first)
    await asking.sent(client_caps=ROOTS)
    assert len(asking.links) == 4


async def test_without_room_a_conversation_loses_its_link_last(asking: Pooled) -> None:
    asked = msgspec.structs.replace(call(client_caps=ROOTS), session="one")
    conversation, _ = asking.stage.start(asked)
    await asking.until_sent(conversation)
    asking.links[0].questions.on_question()
    calls = [await asking.sent(client_caps=ROOTS) for _ in range(3)]
    finish(conversation)
    finish(calls[0])
    await asking.sent(OTHER, ROOTS)
    assert [link.is_closed for link in asking.links] == [False, True, False, False, False]


async def test_where_a_question_names_its_call_everybody_shares_until_one_does_not() -> None:
    pooled = Pooled("shared")
    pooled.pool.differs_by_client = True
    calls = [await pooled.sent(client_caps=ROOTS) for _ in range(2)]
    assert len(pooled.links) == 1
    pooled.links[0].questions.on_question()
    calls += [await pooled.sent(client_caps=ROOTS) for _ in range(2)]
    assert [len(link.sent) for link in pooled.links] == [2, 1, 1]
    for inflight in calls:
        finish(inflight)
    await pooled.pool.aclose()


# -- what callers follow -------------------------------------------------------------------------------------------

PAGE, OTHER_PAGE = "file:///page", "file:///other"


class Followed(Pooled):
    """A pool of a server with followed resources, and the notifications of the followers."""

    def __init__(self, isolation: str = "shared", max_calls: int = 64) -> None:
        super().__init__(isolation, max_calls)
        self.pool.differs_by_client = self.pool.is_duplex = True
        self.notified: list[str] = []
        self.common = Scripted()
        self.kind: type[Scripted] = Scripted
        self.subscriptions = self.stage.hub.subscriptions
        self.subscriptions.attach(NAME, self.common, self.pool)

    async def _connect(self, client_caps: ClientCapabilities, subject: Subject | None = None) -> BaseLink:
        self.links.append(self.kind())
        return self.links[-1]

    async def follow(self, session: str = "a", uri: str = PAGE, caller: Caller = ANYONE) -> Subscriber:
        follower = Subscriber(caller, ABLE, session)
        assert (
            await self.subscriptions.add((NAME, uri), lambda: self.notified.append(f"{session} {uri}"), follower)
            is None
        )
        return follower

    async def called(self, session: str = "a", caller: Caller = ANYONE) -> Scripted:
        """A link on which a call of this conversation was answered."""
        asked = msgspec.structs.replace(call(caller=caller, client_caps=ABLE), session=session)
        inflight, _ = self.stage.start(asked)
        await self.until_sent(inflight)
        inflight.finish(DONE)
        return self.carrier_of(inflight)


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    made = Followed()
    yield made
    made.opened.set()
    await made.pool.aclose()
    await made.until_quiet()
    assert all(link.is_closed for link in made.links)


def subscribed(link: Scripted) -> list[str]:
    return [params["uri"] for method, params in link.asked if method == "resources/subscribe"]


async def test_a_new_link_subscribes_for_its_conversation_before_a_call_is_sent(followed: Followed) -> None:
    await followed.follow("a")
    await followed.follow("b", OTHER_PAGE)
    sent: list[int] = []

    class Late(Scripted):
        async def subscribe(self, uri: str) -> None:
            await super().subscribe(uri)
            await asyncio.sleep(0)
            sent.append(len(self.sent))

    followed.kind = Late
    link = await followed.called("a")
    assert (subscribed(link), sent) == ([PAGE], [0])
    link.on_updated(PAGE)
    link.on_updated(OTHER_PAGE)
    assert followed.notified == [f"a {PAGE}"]


async def test_a_subscription_added_while_a_link_subscribes_is_requested_too(followed: Followed) -> None:
    await followed.follow("a")

    class Slow(Scripted):
        async def subscribe(self, uri: str) -> None:
            if uri == PAGE:
                await followed.follow("a", OTHER_PAGE)
            await super().subscribe(uri)

    followed.kind = Slow
    assert subscribed(await followed.called("a")) == [PAGE, OTHER_PAGE]


async def test_a_server_that_does_not_answer_a_subscriber_delays_a_call_only_for_a_while(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUBSCRIBE_SECONDS", 0.01)
    await followed.follow("a")

    class Mute(Scripted):
        async def subscribe(self, uri: str) -> None:
            await asyncio.get_running_loop().create_future()

    followed.kind = Mute
    link = await followed.called("a")
    followed.subscriptions.updated(NAME, PAGE)  # it does not tell: the common one still does
    assert (len(link.sent), followed.notified) == (1, [f"a {PAGE}"])


async def test_a_link_that_was_made_to_list_is_asked_before_it_is_a_conversations(followed: Followed) -> None:
    await followed.follow("a")
    async with followed.pool.borrowed(ANYONE, ABLE) as listed:
        assert listed is followed.links[0]
        assert subscribed(followed.links[0]) == []
        inflight, _ = followed.stage.start(msgspec.structs.replace(call(client_caps=ABLE), session="a"))
        assert followed.links[0].sent == []
        async with followed.pool.borrowed(OTHER, ABLE) as again:
            assert again is listed
        await followed.until_sent(inflight)
    assert (len(followed.links), subscribed(followed.links[0])) == (1, [PAGE])


async def test_a_link_for_lists_follows_nothing_until_a_caller_uses_it(followed: Followed) -> None:
    await followed.follow("")
    async with followed.pool.borrowed(ANYONE, ABLE):
        pass
    assert subscribed(followed.links[0]) == []
    await followed.called("")
    assert (len(followed.links), subscribed(followed.links[0])) == (1, [PAGE])
    followed.links[0].on_updated(PAGE)
    assert followed.notified == [f" {PAGE}"]


async def test_a_subscriber_on_a_lost_link_is_notified_once_and_the_next_one_is_asked(followed: Followed) -> None:
    await followed.follow("a")
    await followed.follow("b")
    (await followed.called("a")).die("crashed")
    assert followed.notified == [f"a {PAGE}"]
    followed.subscriptions.updated(NAME, PAGE)  # until there is another, the common one tells
    assert followed.notified == [f"a {PAGE}", f"a {PAGE}", f"b {PAGE}"]
    again = await followed.called("a")
    assert (subscribed(again), len(followed.notified)) == ([PAGE], 3)


async def test_a_link_that_is_lost_while_it_is_asked_ends_its_calls_and_does_not_stay(followed: Followed) -> None:
    await followed.follow("a")

    class Fragile(Scripted):
        async def subscribe(self, uri: str) -> None:
            self.die("crashed")
            raise Lost(NAME, "crashed", executed="no")

        def send(self, inflight: InFlight) -> None:
            inflight.finish(Lost(NAME, "crashed", executed="no"))

    followed.kind = Fragile
    _, listener = followed.stage.start(msgspec.structs.replace(call(client_caps=ABLE), session="a"))
    await followed.until_quiet()
    assert isinstance(listener.fault, Lost)
    assert (len(followed.pool), followed.links[0].is_closed) == (0, True)


async def test_a_hub_that_goes_while_a_link_is_asked_leaves_nothing() -> None:
    followed = Followed()
    await followed.follow("a")
    asked = asyncio.Event()

    class Mute(Scripted):
        async def subscribe(self, uri: str) -> None:
            asked.set()
            await asyncio.get_running_loop().create_future()

    followed.kind = Mute
    _, listener = followed.stage.start(msgspec.structs.replace(call(client_caps=ABLE), session="a"))
    async with asyncio.timeout(SECONDS):
        await asked.wait()
    await followed.background.aclose()
    assert isinstance(listener.fault, NotConnected)
    assert (len(followed.pool), followed.links[0].closings) == (0, 1)


async def test_a_link_on_which_something_is_followed_is_not_idle(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SESSION_IDLE_SECONDS", 0.0)
    received: list[str] = []
    await followed.subscriptions.add(
        (NAME, PAGE), (tell := lambda: received.append(PAGE)), Subscriber(ANYONE, ABLE, "a")
    )
    link = await followed.called("a")
    await later(0.01)
    assert not link.is_closed
    followed.subscriptions.remove((NAME, PAGE), tell)
    assert link.asked[-1] == ("resources/unsubscribe", {"uri": PAGE})
    await later(0.01)
    await followed.until_quiet()
    assert (link.is_closed, len(followed.pool), received) == (True, 0, [])


async def test_links_without_subscriptions_make_room_and_others_notify_when_they_are_back() -> None:
    followed = Followed(max_calls=2)
    await followed.follow("a")
    a, b = await followed.called("a"), await followed.called("b")
    c = await followed.called("c")
    assert (a.is_closed, b.is_closed) == (False, True)
    await followed.follow("c")
    await followed.called("d")  # now there is no other
    await followed.until_quiet()
    assert (a.is_closed, c.is_closed, followed.notified) == (True, False, [])
    again = await followed.called("a")
    assert (subscribed(again), followed.notified) == ([PAGE], [f"a {PAGE}"])
    await followed.called("a")
    assert followed.notified == [f"a {PAGE}"]
    await followed.pool.aclose()


async def test_of_few_closed_links_it_is_remembered_that_something_was_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MISSED_MAX", 2)
    followed = Followed(max_calls=1)
    for session in "abcd":
        await followed.follow(session)
        await followed.called(session)
    await followed.until_quiet()
    assert [key.scope[2] for key in followed.pool._evicted] == ["b", "c"]
    await followed.pool.aclose()


async def test_a_server_that_forgot_a_session_is_asked_again_and_its_followers_look(followed: Followed) -> None:
    await followed.follow("a")
    link = await followed.called("a")
    link.on_renewed()
    await followed.until_quiet()
    assert (subscribed(link), followed.notified) == ([PAGE] * 2, [f"a {PAGE}"])


@pytest.mark.parametrize(
    ("isolation", "client_caps", "links"), [("shared", NO_CAPABILITIES, 0), ("caller", NO_CAPABILITIES, 1)]
)
async def test_a_caller_without_capabilities_has_a_link_of_its_own_where_every_caller_has(
    isolation: str, client_caps: ClientCapabilities, links: int
) -> None:
    followed = Followed(isolation)
    await followed.sent()
    assert len(followed.pool.own(Subscriber(ANYONE, client_caps))) == links
    assert followed.pool.own(Subscriber(OTHER, client_caps)) == []
    await followed.pool.aclose()


async def test_where_each_call_has_its_own_link_nothing_is_followed_there() -> None:
    followed = Followed("call")
    await followed.follow("a")
    inflight = await followed.sent(client_caps=ABLE)
    assert (subscribed(followed.links[0]), followed.pool.own(Subscriber(ANYONE, ABLE, "a"))) == ([], [])
    inflight.finish(DONE)
    await followed.until_quiet()
    assert followed.links[0].is_closed


async def test_a_subscriber_without_a_conversation_gets_updates_from_all_links_of_its_calls(followed: Followed) -> None:
    await followed.follow("")
    one = pooled_call(followed)
    await followed.until_sent(one)
    followed.links[0].questions.on_question()  # from now on no two of such calls share a link
    two = pooled_call(followed)
    await followed.until_sent(two)
    assert [subscribed(link) for link in followed.links] == [[PAGE], [PAGE]]
    for link in followed.links:
        link.on_updated(PAGE)
    assert followed.notified == [f" {PAGE}"] * 2
    for inflight in (one, two):
        inflight.finish(DONE)


async def test_a_subscriber_on_an_unused_link_is_notified_once_to_look(followed: Followed) -> None:
    await followed.follow("")
    inflight = pooled_call(followed)
    await followed.until_sent(inflight)
    followed.links[0].questions.on_question()
    followed.links[0].questions.abandoned_session = ""
    inflight.finish(DONE)
    await followed.until_quiet()
    assert (followed.links[0].is_closed, followed.notified) == (True, [f" {PAGE}"])


def pooled_call(followed: Followed) -> InFlight:
    return followed.stage.start(call(client_caps=ABLE))[0]


# -- tasks ---------------------------------------------------------------------------------------------------------


async def test_where_a_call_is_answered_is_its_own_links_to_say(pooled: Pooled) -> None:
    one, two = await pooled.sent(), await pooled.sent(OTHER)
    assert [pooled.pool.link_session_of(inflight) for inflight in (one, two)] == [link.place for link in pooled.links]
    pooled.opened.clear()
    waiting, _ = pooled.start(NAMESAKE)
    assert pooled.pool.link_session_of(waiting) is None
    one.finish(DONE)
    assert pooled.pool.link_session_of(one) is None


async def test_a_callers_link_is_listened_to_where_its_server_may_notify_of_tasks(pooled: Pooled) -> None:
    received: list[str] = []

    class Telling(Scripted):
        def __init__(self) -> None:
            super().__init__()
            self.can = frozenset({"tools", "tasks"})

        def listen(self) -> None:
            received.append("listens")

    async def connect(_profile: ClientCapabilities, _subject: Subject | None) -> BaseLink:
        pooled.links.append(Telling())
        return pooled.links[-1]

    pooled.pool._connect = connect
    await pooled.sent()
    assert received == ["listens"]


# -- credentials of single callers ----------------------------------------------------------------------------------

OWN = ServerCredentials(own={Subject("default", "other"): OwnCredentials({"Authorization": "x"})})


async def own_pool(credentials: ServerCredentials, isolation: str = "shared") -> Pooled:
    return Pooled(isolation, credentials=credentials)


@pytest.mark.parametrize("isolation", ["shared", "caller"])
async def test_a_caller_with_credentials_of_its_own_has_a_link_of_its_own(isolation: str) -> None:
    pooled = await own_pool(OWN, isolation)
    own, common, namesake = [await pooled.sent(who) for who in (OTHER, ANYONE, Caller("other", "t", Grants(("*",))))]
    assert pooled.carrier_of(own).subject == Subject("default", "other")
    assert pooled.carrier_of(common).subject is pooled.carrier_of(namesake).subject is None
    assert pooled.carrier_of(common) is not pooled.carrier_of(own)
    again = await pooled.sent(OTHER)
    assert pooled.carrier_of(again) is pooled.carrier_of(own)
    await pooled.pool.aclose()
    await pooled.background.aclose()


async def test_shared_lists_are_never_read_with_one_callers_credentials() -> None:
    pooled = await own_pool(OWN)
    pooled.pool.differs_by_client = True
    await pooled.sent(OTHER, ABLE)
    async with pooled.pool.borrowed(OTHER, ABLE) as link:
        assert isinstance(link, Scripted)
        assert link.subject is None
    await pooled.pool.aclose()
    await pooled.background.aclose()


async def test_where_each_caller_needs_its_own_credentials_the_common_ones_are_unused() -> None:
    demanded = ServerCredentials(own=OWN.own, are_demanded=True)
    pooled = await own_pool(demanded)
    _, listener = pooled.start(ANYONE)
    assert isinstance(listener.fault, NotConnected)
    assert "anyone has none" in listener.fault.why
    assert pooled.carrier_of(await pooled.sent(OTHER)).subject is not None
    await pooled.pool.aclose()
    await pooled.background.aclose()


async def test_a_link_that_was_shut_out_or_is_shown_something_else_goes_with_its_last_call() -> None:
    pooled = await own_pool(OWN)
    first = await pooled.sent(OTHER)
    pooled.carrier_of(first).on_unauthorized()
    first.finish(DONE)
    second = await pooled.sent(OTHER)
    assert pooled.links.index(pooled.carrier_of(second)) == 1
    second.finish(DONE)
    pooled.pool.renew(Subject("default", "other"))
    await pooled.until_quiet()
    assert len(pooled.pool) == 0
    await pooled.pool.aclose()
    await pooled.background.aclose()


# -- what a server lists there -------------------------------------------------------------------------------------


def guard(link: Scripted, looks: list[Scripted], fault: Fault | None = None) -> Scripted:
    """Have each look at a link noted, and fail if it is to."""

    async def look() -> None:
        looks.append(link)
        if fault is not None:
            raise fault

    link.recheck = look
    return link


async def test_a_link_is_looked_at_when_its_server_announces_other_tools_and_not_for_other_lists(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.0)
    looks: list[Scripted] = []
    one, two = [guard(pooled.carrier_of(await pooled.sent(caller)), looks) for caller in (ANYONE, OTHER)]
    one.on_changed("prompts")
    await pooled.until_quiet()
    assert looks == []
    for link in (two, two, one):
        link.on_changed("tools")
    await pooled.until_quiet()
    assert looks == [two, one]


async def test_a_link_that_cannot_be_looked_at_keeps_no_other_from_it(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.0)
    looks: list[Scripted] = []
    faults = (NotConnected(NAME, "it does not list"), None)
    links = [
        guard(pooled.carrier_of(await pooled.sent(caller)), looks, fault)
        for caller, fault in zip((ANYONE, OTHER), faults, strict=True)
    ]
    pooled.pool.recheck_all()
    await pooled.until_quiet()
    assert looks == links


async def test_a_call_that_may_not_go_on_a_link_is_that_of_no_tool(pooled: Pooled) -> None:
    link = pooled.carrier_of(await pooled.sent())
    link.may_send = lambda _: False
    inflight, listener = pooled.start()
    assert isinstance(listener.fault, UnknownTool)
    assert inflight not in link.sent


# -- tasks ---------------------------------------------------------------------------------------------------------


async def test_a_task_is_kept_as_not_sent_until_there_is_a_link_for_its_call(pooled: Pooled) -> None:
    journal = HeldJournal()
    journal.is_held = False
    engine = TaskEngine(pooled.stage.hub, journal, lambda: 5.0)
    pooled.opened.clear()
    live = await engine.begin(NewTask(ANYONE, "talk", "1.0", (), call=call()))
    assert (live.record.state, live.record.phase) == ("submitted", "waiting")
    journal.is_held = True
    pooled.opened.set()
    await pooled.until_quiet()
    assert [link.sent for link in pooled.links] == [[]]
    assert live.record.phase == "sent"
    journal.let_go()
    assert len(pooled.links[0].sent) == 1
    pooled.links[0].sent[0].finish(DONE)
    await engine.wait_idle()


async def test_a_task_whose_link_is_lost_before_its_call_is_sent_has_another(pooled: Pooled) -> None:
    journal = HeldJournal()
    engine = TaskEngine(pooled.stage.hub, journal, lambda: 5.0)
    await pooled.sent()
    beginning = asyncio.ensure_future(engine.begin(NewTask(ANYONE, "talk", "1.0", (), call=call())))
    async with asyncio.timeout(SECONDS):
        while not journal.waiting:  # noqa: ASYNC110 - a journal has no notification
            await asyncio.sleep(0)
    pooled.links[0].die("gone")
    journal.let_go()
    live = await beginning
    await pooled.until_quiet()
    assert (len(pooled.links[1].sent), live.record.phase) == (1, "sent")
    pooled.links[1].sent[0].finish(DONE)
    await engine.wait_idle()
