"""One server's slots, queue and breaker do not affect other servers."""

from __future__ import annotations

import asyncio
from weakref import ref

import msgspec
import pytest

from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.core.calls.circuit_breaker import CircuitBreaker
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Answered, Call, Outcome, Question, Surface
from isthmus.model.fault_table import (
    FAULTS,
    BadReply,
    BreakerOpen,
    Bug,
    Cancelled,
    Fault,
    Lost,
    NotConnected,
    Overloaded,
    ServerError,
    TimedOut,
    TooManyCalls,
    UnknownTool,
    UpstreamFault,
)
from isthmus.model.names import FeatureName
from tests.unit.core.doubles import DONE, SERVER, HeldLink, HeldPool, Listener, Stage, call, raw, ready, tool

SMALL = Limits(max_calls=2, max_queued=3)
FOUR = Limits(max_calls=4)
ANN = Caller("ann", "default", Grants(("*",)))
BEN = Caller("ben", "default", Grants(("*",)))
GONE = Lost(SERVER, "gone", executed="unknown")
KINDS = [kind for group in Fault.__subclasses__() for kind in group.__subclasses__() if kind.reason in FAULTS]


def breaks(inflight: InFlight) -> None:
    inflight.finish(Lost(SERVER, "gone before it was sent", executed="no"))


async def test_calls_beyond_the_slots_wait_and_beyond_the_queue_are_refused_at_once() -> None:
    stage = Stage(limits=SMALL)
    received = [stage.start()[1] for _ in range(6)]
    assert (stage.server_queue.running, stage.server_queue.queued, len(stage.link.sent)) == (2, 3, 2)
    assert isinstance(received[5].fault, Overloaded)
    assert (received[5].fault.executed, received[5].fault.retry_after) == ("no", 1.0)
    assert not any(listener.ends for listener in received[:5])


# -- calls that calls make ---------------------------------------------------------------------------------------------


def made_by(stage: Stage, maker: InFlight, asked: Call | None = None) -> tuple[InFlight, Listener]:
    """A call that a function makes while it serves another."""
    listener = Listener()
    return stage.hub.start(asked or call(), listener, ref(maker)), listener


async def test_a_call_that_waits_for_its_own_makers_is_refused_at_once() -> None:
    stage = Stage(limits=SMALL)
    outer, _ = stage.start()
    inner, _ = made_by(stage, outer)
    _, innermost = made_by(stage, inner)
    assert isinstance(innermost.fault, Overloaded)
    assert "including this one" in innermost.fault.message
    assert (innermost.fault.executed, stage.server_queue.queued) == ("no", 0)


async def test_of_calls_whose_makers_keep_every_slot_only_the_last_is_refused() -> None:
    stage = Stage(limits=SMALL)
    ann, ben = stage.start()[0], stage.start()[0]
    first, received = made_by(stage, ann)
    assert isinstance(made_by(stage, ben)[1].fault, Overloaded)
    assert not received.ends
    ben.finish(DONE)
    assert stage.link.sent == [ann, ben, first]


async def test_a_cancelled_waiter_delays_no_other() -> None:
    stage = Stage(limits=SMALL)
    outer, _ = stage.start()
    inner, _ = made_by(stage, outer)
    beside, _ = stage.start()
    outer.finish(DONE)
    innermost, received = made_by(stage, inner)
    assert (received.ends, stage.server_queue.queued) == ([], 1)
    beside.finish(DONE)
    assert stage.link.sent == [outer, inner, beside, innermost]


async def test_a_tenant_that_waits_for_its_own_calls_is_refused_though_others_have_slots() -> None:
    stage = Stage(limits=FOUR)
    stage.hub.tenants.configure(NO_TENANTS, {"default", "elsewhere"})
    stage.start(call(caller=Caller("eve", "elsewhere", Grants(("*",)))))
    made = stage.start()[0]
    for _ in range(2):
        made, received = made_by(stage, made)
        assert not received.ends
    assert isinstance(made_by(stage, made)[1].fault, Overloaded)


async def test_a_freed_slot_goes_to_the_call_that_waited_longest() -> None:
    stage = Stage(limits=SMALL)
    started = [stage.start()[0] for _ in range(5)]
    started[1].finish(DONE)
    started[0].finish(DONE)
    assert stage.link.sent == [started[0], started[1], started[2], started[3]]
    assert (stage.server_queue.running, stage.server_queue.queued) == (2, 1)


async def test_a_call_withdrawn_while_it_waits_is_never_sent_and_did_not_run() -> None:
    stage = Stage(limits=SMALL)
    started = [stage.start() for _ in range(4)]
    started[2][0].cancel("enough")
    assert started[2][1].fault.executed == "no"
    assert stage.link.withdrawn == []
    started[0][0].finish(DONE)
    assert stage.link.sent == [started[0][0], started[1][0], started[3][0]]
    assert stage.server_queue.queued == 0


async def test_without_a_link_a_call_gets_the_reason() -> None:
    stage = Stage()
    stage.server_queue.detach("its process ended", is_failure=False)
    assert "its process ended" in stage.start()[1].fault.message
    stage.server_queue.explain("no such program")
    fault = stage.start()[1].fault
    assert isinstance(fault, NotConnected)
    assert (fault.why, fault.executed) == ("no such program", "no")


async def test_waiting_calls_get_an_error_when_the_link_is_lost() -> None:
    stage = Stage(limits=SMALL)
    received = [stage.start()[1] for _ in range(5)]
    stage.server_queue.detach("its process ended", is_failure=True)
    assert [type(listener.fault) for listener in received[2:]] == [NotConnected] * 3
    assert not received[0].ends
    assert (stage.server_queue.running, stage.server_queue.queued) == (2, 0)


async def test_a_link_that_broke_a_moment_ago_ends_a_full_queue_too() -> None:
    """The link knows that it is broken before its reconnector detaches it, and ends what it is still given."""
    stage = Stage()
    received = [stage.start()[1] for _ in range(64 + 256)]
    stage.link.at_once = breaks
    for inflight in list(stage.link.sent):
        inflight.finish(GONE)
    assert [len(listener.ends) for listener in received] == [1] * 320
    assert (stage.server_queue.running, stage.server_queue.queued) == (0, 0)


async def test_the_next_call_goes_though_a_full_queue_broke_before() -> None:
    stage = Stage(limits=SMALL)
    for _ in range(5):
        stage.start()
    stage.link.at_once = breaks
    for inflight in list(stage.link.sent):
        inflight.finish(GONE)
    fresh = HeldLink()
    stage.server_queue.attach(fresh)
    for _ in range(3):
        stage.start()
    fresh.sent[0].finish(DONE)
    assert len(fresh.sent) == 3


async def test_five_failures_in_a_row_close_the_way_for_a_while() -> None:
    stage = Stage()
    for _ in range(5):
        stage.start()[0].finish(TimedOut(SERVER, 1.0, executed="unknown"))
    fault = stage.start()[1].fault
    assert isinstance(fault, BreakerOpen)
    assert fault.executed == "no"
    assert fault.retry_after is not None
    assert 0 < fault.retry_after <= 3.0


@pytest.mark.parametrize("outcome", [TimedOut(SERVER, 1.0, executed="unknown"), GONE, BadReply(SERVER, "no")])
async def test_silence_loss_and_nonsense_count_against_a_server(outcome: Fault) -> None:
    stage = Stage()
    for _ in range(5):
        stage.start()[0].finish(outcome)
    assert isinstance(stage.start()[1].fault, BreakerOpen)


@pytest.mark.parametrize(
    "outcome",
    [
        DONE,
        ServerError(SERVER, -32000, "no"),
        Cancelled("enough", executed="unknown"),
        NotConnected(SERVER, "it turned the request away", status=403),
        Lost(SERVER, "a hub behind it lost it", executed="unknown", is_behind=True),
    ],
)
async def test_answers_and_withdrawals_do_not_count_against_a_server(outcome: Outcome) -> None:
    stage = Stage()
    for _ in range(20):
        stage.start()[0].finish(outcome)
    assert not stage.start()[1].ends


async def test_invented_names_do_not_count_for_the_circuit_breaker() -> None:
    stage = Stage()
    setattr(stage.link, "takes_methods", True)  # noqa: B010 - it is a link of a kind that does
    made_up = call("foo/bar", kind="method", surface=Surface("own", SERVER))
    for _ in range(20):
        stage.start(made_up)[0].finish(TimedOut(SERVER, 1.0, executed="unknown"))
    assert not stage.start()[1].ends
    for _ in range(5):
        stage.start()[0].finish(TimedOut(SERVER, 1.0, executed="unknown"))
    assert isinstance(stage.start()[1].fault, BreakerOpen)
    assert not stage.start(made_up)[1].ends, "nor is it kept from one that does not"


async def test_only_answers_are_taken_for_a_sign_of_health() -> None:
    stage = Stage()
    stage.start()[0].finish(Cancelled("enough", executed="unknown"))
    stage.start()[0].finish(GONE)
    assert stage.server_queue.answered == 0
    stage.start()[0].finish(DONE)
    stage.start()[0].finish(ServerError(SERVER, -32000, "no"))
    assert stage.server_queue.answered == 2


async def test_a_lost_link_counts_once_however_many_calls_were_on_it() -> None:
    stage = Stage()
    started = [stage.start()[0] for _ in range(50)]
    stage.server_queue.detach("its process ended", is_failure=True)
    for inflight in started:
        inflight.finish(GONE)
    stage.server_queue._link = stage.link  # as it was, without what a new link's start forgives
    assert not stage.start()[1].ends


async def test_links_lost_five_times_in_a_row_close_the_way_until_one_starts_well() -> None:
    stage = Stage(limits=Limits(breaker_failures=1))
    stage.server_queue.detach("lost", is_failure=True)
    stage.server_queue._link = stage.link
    assert isinstance(stage.start()[1].fault, BreakerOpen)
    stage.server_queue.attach(stage.link)
    assert not stage.start()[1].ends


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.reason)
async def test_the_table_of_faults_decides_which_outcomes_open_the_breaker(kind: type[Fault]) -> None:
    outcome = kind.__new__(kind)
    outcome.message = ""
    if isinstance(outcome, Lost):
        outcome.is_behind = False
    stage = Stage(limits=Limits(breaker_failures=1))
    stage.start()[0].finish(outcome)
    counts = issubclass(kind, UpstreamFault) and FAULTS[kind.reason].executed in (None, "unknown")
    assert any(isinstance(end, BreakerOpen) for end in stage.start()[1].ends) is counts


async def test_a_probe_that_is_never_sent_leaves_its_place_to_the_next() -> None:
    stage = Stage(limits=Limits(breaker_failures=1, max_calls=4, max_queued=1))
    running = [stage.start(of("pot"))[0], stage.start()[0]]
    running[1].finish(TimedOut(SERVER, 1.0, executed="unknown"))
    assert isinstance(stage.start()[1].fault, BreakerOpen)
    stage.server_queue._breaker.open_until = asyncio.get_running_loop().time()  # as if that were over
    held, listener = stage.start(of("pot"))
    assert (held.link, listener.ends) == (None, [])
    held.cancel("the device left")
    assert not stage.start()[1].ends


async def test_calls_during_a_login_get_its_address() -> None:
    stage = Stage(limits=SMALL)
    waiting = [stage.start()[1] for _ in range(3)][2]
    stage.server_queue.detach("it answered HTTP 401", is_failure=True, login="https://bank.example/in")
    for fault in (waiting.fault, stage.start()[1].fault):
        assert isinstance(fault, NotConnected)
        assert fault.login == "https://bank.example/in"


async def test_a_detach_without_a_link_or_in_good_order_is_no_failure() -> None:
    stage = Stage(limits=Limits(breaker_failures=1))
    stage.server_queue.detach("the hub is shutting down", is_failure=False)
    stage.server_queue.detach("never was there", is_failure=True)
    stage.server_queue._link = stage.link
    assert not stage.start()[1].ends


async def test_a_servers_own_figures_win_and_the_hard_stop_holds() -> None:
    server_queue = ServerQueue(SERVER, Limits(), max_calls=1, max_queued=0, timeout=7200.0)
    assert (server_queue.max_calls, server_queue.max_queued, server_queue.timeout) == (1, 0, 3600.0)
    default = ServerQueue(SERVER, Limits(call_seconds=7.0))
    assert (default.max_calls, default.max_queued, default.timeout) == (64, 256, 7.0)


async def test_a_new_link_takes_the_calls_from_now_on() -> None:
    stage = Stage()
    old = stage.start()[0]
    fresh = HeldLink()
    stage.server_queue.attach(fresh)
    new = stage.start()[0]
    assert (stage.link.sent, fresh.sent) == ([old], [new])
    old.finish(GONE)  # says nothing about the new link
    assert (stage.server_queue.running, stage.server_queue.answered) == (1, 0)


async def test_a_refused_call_that_never_waited_leaves_the_queue_as_it_is() -> None:
    stage = Stage(limits=SMALL)
    for _ in range(5):
        stage.start()
    listener = Listener()
    stage.hub.start(call(), listener)
    assert stage.server_queue.queued == 3


# -- changing in place, and leaving --------------------------------------------------------------------------------


async def test_a_server_queue_allows_more_or_less_from_the_moment_that_is_said() -> None:
    stage = Stage(limits=SMALL)
    for _ in range(5):
        stage.start()
    stage.server_queue.adjust(1, 0, 7200.0)
    assert (stage.server_queue.running, stage.server_queue.queued, stage.server_queue.timeout) == (2, 3, 3600.0)
    assert isinstance(stage.start()[1].fault, Overloaded)
    stage.link.sent[0].finish(DONE)
    assert (stage.server_queue.running, stage.server_queue.queued) == (1, 3)
    stage.server_queue.adjust(3, 5, 1.0)
    assert (stage.server_queue.running, stage.server_queue.queued) == (3, 1)


async def test_waiting_calls_are_not_overtaken_when_a_server_queue_allows_more() -> None:
    stage = Stage(limits=SMALL)
    waiting = [stage.start()[0] for _ in range(5)][2:]
    stage.server_queue.adjust(5, 5, 1.0)
    later = stage.start()[0]
    assert (stage.link.sent[2:], stage.server_queue.queued) == (waiting, 1)
    stage.link.sent[0].finish(DONE)
    assert stage.link.sent[-1] is later


async def test_waiting_calls_are_not_overtaken_while_they_are_sent() -> None:
    stage = Stage(limits=Limits(max_calls=1))
    first, *waiting = [stage.start()[0] for _ in range(3)]
    later: list[InFlight] = []

    def breaks_and_calls_again(inflight: InFlight) -> None:
        stage.link.at_once = None
        breaks(inflight)
        later.append(stage.start()[0])

    stage.link.at_once = breaks_and_calls_again
    first.finish(DONE)
    assert stage.link.sent == [first, *waiting]
    waiting[1].finish(DONE)
    assert stage.link.sent[-1] is later[0]


async def test_a_waiter_for_an_idle_server_queue_is_notified_of_the_last_call_only() -> None:
    stage = Stage(limits=SMALL)
    received: list[int] = []
    stage.server_queue.on_idle = lambda: received.append(stage.server_queue.running + stage.server_queue.queued)
    calls = [stage.start()[0] for _ in range(3)]
    for inflight in calls[:-1]:
        inflight.finish(DONE)
    assert received == []
    calls[-1].finish(DONE)
    assert received == [0]


async def test_the_owner_of_unshared_links_is_notified_of_every_sent_call() -> None:
    stage, pool = Stage(limits=SMALL), HeldPool()
    stage.server_queue.pool = pool
    stage.server_queue.attach(pool)
    calls = [stage.start()[0] for _ in range(3)]
    calls[2].cancel("while it waits")
    calls[0].finish(DONE)
    assert pool.over == [calls[0]]


async def test_callers_with_client_capabilities_use_the_pool_and_others_the_link() -> None:
    stage, pool = Stage(), HeldPool()
    stage.server_queue.pool, stage.server_queue.uses_pool = pool, True
    plain, asked = stage.start()[0], stage.start(call(client_caps=frozenset({"roots"})))[0]
    assert (stage.link.sent, pool.sent) == ([plain], [asked])


async def test_callers_with_client_capabilities_use_the_link_where_the_pool_is_unused() -> None:
    stage, pool = Stage(), HeldPool()
    stage.server_queue.pool = pool
    asked, _ = stage.start(call(client_caps=frozenset({"roots"})))
    assert (stage.link.sent, pool.sent) == ([asked], [])


async def test_an_unused_pool_is_notified_of_the_end_of_its_calls() -> None:
    stage, pool = Stage(), HeldPool()
    stage.server_queue.pool, stage.server_queue.uses_pool = pool, True
    asked, _ = stage.start(call(client_caps=frozenset({"roots"})))
    stage.server_queue.uses_pool = False
    asked.finish(DONE)
    assert pool.over == [asked]


async def test_calls_of_the_pool_count_for_the_health_of_the_server() -> None:
    stage, pool = Stage(), HeldPool()
    stage.server_queue.pool, stage.server_queue.uses_pool = pool, True
    stage.start(call(client_caps=frozenset({"roots"})))[0].finish(DONE)
    assert (stage.server_queue.answered, stage.server_queue.running) == (1, 0)


async def test_a_link_that_breaks_while_sending_costs_one_call_and_no_slot() -> None:
    stage = Stage()

    def broken(_inflight: InFlight) -> None:
        raise ZeroDivisionError

    stage.link.at_once = broken
    assert isinstance(stage.start()[1].fault, Bug)
    assert stage.server_queue.running == 0
    stage.link.at_once = None
    assert not stage.start()[1].ends


async def test_a_server_queue_says_why_it_has_no_link() -> None:
    server_queue = ServerQueue(SERVER, Limits())
    server_queue.explain("it is disabled")
    stage = Stage()
    stage.hub.open_server_queue(server_queue, ready(tool()))
    fault = stage.start()[1].fault
    assert isinstance(fault, NotConnected)
    assert fault.why == "it is disabled"


async def test_a_call_that_is_not_sent_in_time_ends_as_busy() -> None:
    stage = Stage(limits=SMALL)
    running = [stage.start()[0] for _ in range(2)]
    _, listener = stage.start(call(timeout=0.02))
    await asyncio.wait_for(listener.ended.wait(), 5)
    assert isinstance(listener.fault, Overloaded)
    assert (listener.fault.executed, stage.server_queue.queued) == ("no", 0)
    assert not any(inflight.outcome for inflight in running)


async def test_a_server_has_its_whole_time_for_a_call_that_waited_in_the_queue() -> None:
    stage = Stage(limits=Limits(max_calls=1, call_seconds=0.4))
    (first, _), (_, listener) = stage.start(), stage.start()
    await asyncio.sleep(0.2)
    first.finish(DONE)
    sent_at = asyncio.get_running_loop().time()
    await asyncio.wait_for(listener.ended.wait(), 5)
    assert asyncio.get_running_loop().time() - sent_at >= 0.4
    assert isinstance(listener.fault, TimedOut)
    assert "did not answer within 0.4 s" in str(listener.fault)


# -- calls of those who share the server -------------------------------------------------------------------------------


def of(sharer: str) -> Call:
    return msgspec.structs.replace(call(), sharer=sharer)


async def test_one_sharer_of_a_server_has_a_quarter_of_it() -> None:
    stage = Stage(limits=Limits(max_calls=8))
    pots = [stage.start(of("pot"))[0] for _ in range(4)]
    assert (stage.link.sent, stage.server_queue.queued) == (pots[:2], 2)
    others = [stage.start(of("pan"))[0], stage.start()[0], stage.start()[0], stage.start()[0]]
    assert stage.link.sent == [*pots[:2], *others]
    pots[0].finish(DONE)
    assert stage.link.sent[-1] is pots[2]
    pots[3].cancel("enough")
    pots[1].finish(DONE)
    pots[2].finish(DONE)
    assert (stage.server_queue.running, stage.server_queue.queued) == (4, 0)


async def test_one_slot_is_had_by_everybody() -> None:
    stage = Stage(limits=Limits(max_calls=1))
    first, second = stage.start(of("pot"))[0], stage.start(of("pot"))[0]
    first.finish(DONE)
    assert stage.link.sent == [first, second]


async def test_a_free_slot_goes_to_the_oldest_call_that_may_have_it() -> None:
    stage = Stage(limits=FOUR)
    pots = [stage.start(of("pot"))[0] for _ in range(3)]
    others = [stage.start()[0] for _ in range(5)]
    assert stage.link.sent == [pots[0], *others[:3]]
    others[0].finish(DONE)  # the pot has its quarter
    assert stage.link.sent[-1] is others[3]
    pots[0].finish(DONE)
    assert stage.link.sent[-1] is pots[1]
    others[1].finish(DONE)
    assert stage.link.sent[-1] is others[4]
    pots[1].finish(DONE)
    assert (stage.link.sent[-1], stage.server_queue.queued) == (pots[2], 0)


async def test_calls_that_are_held_back_are_sent_in_the_order_of_their_arrival() -> None:
    stage = Stage(limits=FOUR)
    others = [stage.start()[0] for _ in range(4)]
    early, late = [stage.start(of("pot"))[0] for _ in range(2)]  # both queue: there is no slot
    others[0].finish(DONE)
    latest = stage.start(of("pot"))[0]  # held back at once, and `late` when its turn comes
    others[1].finish(DONE)
    early.finish(DONE)
    late.finish(DONE)
    assert stage.link.sent[4:] == [early, late, latest]


async def test_a_call_that_leaves_costs_no_other_its_turn() -> None:
    stage = Stage(limits=FOUR)
    pots = [stage.start(of("pot"))[0] for _ in range(3)]
    for _ in range(4):
        stage.start()
    pots[1].cancel("enough")
    pots[0].finish(DONE)
    assert stage.link.sent[-1] is pots[2]


async def test_those_that_are_held_back_go_to_the_next_link() -> None:
    stage = Stage(limits=FOUR)
    stage.server_queue.grace = 30.0
    pots = [stage.start(of("pot"))[0] for _ in range(3)]
    stage.server_queue.detach("gone", is_failure=False)
    pots[0].finish(GONE)
    back = HeldLink()
    stage.server_queue.attach(back)
    assert back.sent == [pots[1]]
    pots[1].finish(DONE)
    assert back.sent == pots[1:]


# -- calls of several tenants ------------------------------------------------------------------------------------------

ELSA = Caller("elsa", "elsewhere", Grants(("*",)))


def shared(limits: Limits) -> Stage:
    stage = Stage(limits=limits)
    stage.hub.tenants.configure(NO_TENANTS, {"default", "elsewhere"})
    return stage


async def test_a_tenant_leaves_a_quarter_of_a_server_to_others() -> None:
    stage = shared(Limits(max_calls=8))
    greedy = [stage.start(call(caller=ANN))[0] for _ in range(8)]
    assert (stage.link.sent, stage.server_queue.queued) == (greedy[:6], 2)
    others = [stage.start(call(caller=ELSA))[0] for _ in range(2)]
    assert stage.link.sent == [*greedy[:6], *others]
    others[0].finish(DONE)
    assert stage.server_queue.running == 7
    greedy[0].finish(DONE)
    assert stage.link.sent[-1] is greedy[6]


async def test_a_tenant_leaves_a_quarter_of_the_queue_to_others() -> None:
    stage = shared(Limits(max_calls=4, max_queued=4))
    received = [stage.start(call(caller=ANN))[1] for _ in range(7)]
    assert (stage.server_queue.running, stage.server_queue.queued) == (3, 3)
    assert isinstance(received[6].fault, Overloaded)
    assert not stage.start(call(caller=ELSA))[1].ends
    assert not stage.start(call(caller=ELSA))[1].ends
    assert (stage.server_queue.running, stage.server_queue.queued) == (4, 4)


async def test_a_tenant_leaves_a_quarter_of_the_queue_to_others_while_the_server_is_away() -> None:
    stage = shared(Limits(max_calls=4, max_queued=4))
    stage.server_queue.grace = 60.0
    stage.server_queue.detach("it is gone", is_failure=False)
    received = [stage.start(call(caller=ANN))[1] for _ in range(4)]
    assert isinstance(received[3].fault, Overloaded)
    assert not stage.start(call(caller=ELSA))[1].ends
    assert stage.server_queue.queued == 4


async def test_the_only_tenant_has_the_whole_server() -> None:
    stage = Stage(limits=FOUR)
    assert [stage.start(call(caller=ANN))[0] for _ in range(4)] == stage.link.sent


async def test_of_those_that_a_tenant_waits_with_none_is_forgotten() -> None:
    stage = shared(FOUR)
    greedy = [stage.start(call(caller=ANN))[0] for _ in range(6)]
    elsas = [stage.start(call(caller=ELSA))[0] for _ in range(2)]
    assert stage.link.sent == [*greedy[:3], elsas[0]]
    greedy[0].finish(DONE)  # its next came before the other tenant's
    assert stage.link.sent[-1] is greedy[3]
    elsas[0].finish(DONE)
    assert stage.link.sent[-1] is elsas[1]
    greedy[4].cancel("enough")
    greedy[1].finish(DONE)
    assert stage.link.sent[-1] is greedy[5]
    for each in (greedy[2], greedy[3], greedy[5], elsas[1]):
        each.finish(DONE)
    assert (stage.server_queue.running, stage.server_queue.queued, len(stage.link.sent)) == (0, 0, 7)
    assert stage.hub.tenants.under_way("default") == stage.hub.tenants.under_way("elsewhere") == 0


async def test_a_tenant_with_as_many_calls_as_it_may_have_is_refused_whichever_server_it_calls() -> None:
    stage = Stage(limits=FOUR)
    stage.hub.tenants.configure(Tenants({"default": TenantSettings(max_calls=1)}), set())
    first, _ = stage.start(call(caller=ANN))
    assert isinstance(stage.start(call(caller=BEN))[1].fault, TooManyCalls)
    assert not stage.start(call(caller=ELSA))[1].ends
    first.finish(DONE)
    assert not stage.start(call(caller=BEN))[1].ends


# -- calls that last ---------------------------------------------------------------------------------------------------


def lasting(caller: Caller) -> Call:
    return msgspec.structs.replace(call(caller=caller), lasts=True)


async def test_calls_that_last_leave_half_of_a_server_to_others() -> None:
    stage = Stage(limits=FOUR)
    tasks = [stage.start(lasting(ANN))[0] for _ in range(4)]
    assert (stage.link.sent, stage.server_queue.queued) == (tasks[:2], 2)
    plain = [stage.start(call(caller=BEN))[0] for _ in range(3)]
    assert stage.link.sent == [*tasks[:2], *plain[:2]]
    plain[0].finish(DONE)
    assert stage.link.sent[-1] is plain[2]
    tasks[1].finish(DONE)
    assert (stage.link.sent[-1], stage.server_queue.queued, stage.server_queue.running) == (tasks[2], 1, 4)


async def test_calls_behind_a_held_call_do_not_wait_for_it() -> None:
    stage = Stage(limits=FOUR)
    tasks = [stage.start(lasting(ANN))[0] for _ in range(2)]
    plain = [stage.start(call(caller=BEN))[0] for _ in range(2)]
    later, after = stage.start(lasting(ANN))[0], stage.start(call(caller=BEN))[0]
    plain[0].finish(DONE)
    assert (stage.link.sent[-1], later.link) == (after, None)
    tasks[0].finish(DONE)
    assert stage.link.sent[-1] is later


async def test_one_callers_calls_that_last_leave_room_for_those_of_others() -> None:
    stage = Stage(limits=Limits(max_calls=16))
    anns = [stage.start(lasting(ANN))[0] for _ in range(8)]
    bens = [stage.start(lasting(BEN))[0] for _ in range(3)]
    assert stage.link.sent == [*anns[:6], *bens[:2]]
    anns[0].finish(DONE)
    assert stage.link.sent[-1] is anns[6]
    bens[0].finish(DONE)
    assert stage.link.sent[-1] is bens[2]


async def test_calls_that_last_are_sent_in_the_order_of_their_arrival_where_tenants_are_counted_too() -> None:
    stage = shared(FOUR)
    tasks = [stage.start(lasting(ANN))[0] for _ in range(6)]
    for task in tasks:
        task.finish(DONE)
    assert stage.link.sent == tasks


async def test_the_only_slot_is_had_by_a_call_that_lasts_too() -> None:
    stage = Stage(limits=Limits(max_calls=1))
    first, second = [stage.start(lasting(ANN))[0] for _ in range(2)]
    first.finish(DONE)
    assert (stage.link.sent, stage.server_queue.queued) == ([first, second], 0)


async def test_a_held_back_call_can_be_cancelled_and_learns_of_a_lost_link() -> None:
    stage = Stage(limits=FOUR)
    received = [stage.start(lasting(ANN)) for _ in range(4)]
    received[2][0].cancel("enough")
    assert (received[2][1].fault.executed, stage.server_queue.queued) == ("no", 1)
    stage.server_queue.detach("its process ended", is_failure=True)
    assert (type(received[3][1].fault), stage.server_queue.queued) == (NotConnected, 0)


async def test_those_that_are_held_back_are_queued_as_others_are() -> None:
    stage = Stage(limits=SMALL)
    received = [stage.start(lasting(ANN))[1] for _ in range(5)]
    assert (stage.server_queue.running, stage.server_queue.queued, type(received[4].fault)) == (1, 3, Overloaded)


async def test_calls_of_scripts_leave_half_of_a_server_to_others() -> None:
    stage = Stage(limits=FOUR)
    scripted = [stage.start(msgspec.structs.replace(call(caller=each), script="s"))[0] for each in (ANN, BEN) * 2]
    assert (stage.link.sent, stage.server_queue.queued) == (scripted[:2], 2)
    plain = [stage.start(call(caller=ANN))[0] for _ in range(3)]
    assert stage.link.sent == [*scripted[:2], *plain[:2]]
    plain[0].finish(DONE)
    assert stage.link.sent[-1] is plain[2]
    scripted[1].finish(DONE)
    assert (stage.link.sent[-1], stage.server_queue.queued, stage.server_queue.running) == (scripted[2], 1, 4)


async def test_running_calls_come_to_last_as_long_as_there_are_few_of_them() -> None:
    stage = Stage(limits=FOUR)
    running = [stage.start(call(caller=ANN))[0] for _ in range(3)]
    assert [stage.server_queue.admit_long_call(inflight) for inflight in running] == [True, True, False]
    held = stage.start(lasting(BEN))[0]
    assert held.link is None
    stage.server_queue.end_long_call(running[0])
    assert (stage.link.sent[-1], stage.server_queue.admit_long_call(running[2])) == (held, False)
    running[1].finish(DONE)
    assert stage.server_queue.admit_long_call(running[2])


async def test_a_call_that_ends_while_it_waits_gives_up_its_place_among_those_that_last() -> None:
    stage = Stage(limits=SMALL)
    running, _ = [stage.start()[0] for _ in range(2)]
    waiting, held = stage.start()[0], stage.start(lasting(BEN))[0]
    assert stage.server_queue.admit_long_call(waiting)
    waiting.cancel("enough")
    running.finish(DONE)
    assert stage.link.sent[-1] is held


# -- calls that wait for their caller ----------------------------------------------------------------------------------

QUESTION = Question("roots/list", raw({}))


def asked_of(stage: Stage, caller: Caller) -> Listener:
    """The caller's side of a call that was asked something and is not answered."""
    inflight, listener = stage.start(call(caller=caller))
    inflight.ask(QUESTION, lambda _: None)
    return listener


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_caller_that_keeps_a_whole_server_waiting_gives_way_to_another() -> None:
    stage = Stage(limits=FOUR)
    anns = [asked_of(stage, ANN) for _ in range(4)]
    ben, _ = stage.start(call(caller=BEN))
    assert stage.server_queue.queued == 1
    await turns()
    assert [len(listener.ends) for listener in anns] == [1, 0, 0, 0]
    assert (anns[0].fault.reason, anns[0].fault.executed) == ("unanswered", "unknown")
    assert stage.link.sent[-1] is ben
    assert [inflight for inflight, _ in stage.link.withdrawn] == [stage.link.sent[0]]


async def test_waiting_questions_keep_at_most_half_of_a_contended_server() -> None:
    stage = Stage(limits=FOUR)
    anns = [asked_of(stage, ANN) for _ in range(4)]
    for _ in range(5):
        stage.start(call(caller=BEN))
    await turns()
    assert [len(listener.ends) for listener in anns] == [1, 1, 0, 0]
    assert stage.server_queue.queued == 3


async def test_a_caller_without_competitors_may_think_as_long_as_it_likes() -> None:
    stage = Stage(limits=FOUR)
    anns = [asked_of(stage, ANN) for _ in range(4)]
    stage.start(call(caller=ANN))
    await turns()
    assert (not any(listener.ends for listener in anns), stage.server_queue.queued) == (True, 1)


async def test_a_caller_is_asked_too_much_only_once_others_wait() -> None:
    stage = Stage(limits=FOUR)
    running = [stage.start(call(caller=ANN))[0] for _ in range(4)]
    stage.start(call(caller=BEN))
    for inflight in running:
        inflight.ask(QUESTION, lambda _: None)
    await turns()
    assert [inflight.outcome is None for inflight in running] == [False, True, True, True]


async def test_an_answered_question_delays_no_other_call() -> None:
    stage = Stage(limits=FOUR)
    anns = [asked_of(stage, ANN) for _ in range(4)]
    for listener in anns[:2]:
        listener.asked[0][1](Answered(raw({})))
    stage.start(call(caller=BEN))
    await turns()
    assert not any(listener.ends for listener in anns)


async def test_the_only_slot_stays_with_its_holder() -> None:
    stage = Stage(limits=Limits(max_calls=1))
    ann = asked_of(stage, ANN)
    stage.start(call(caller=BEN))
    await turns()
    assert (ann.ends, stage.server_queue.queued) == ([], 1)


# -- waiting for a link that went ------------------------------------------------------------------------------------


def patient(grace: float = 60.0, limits: Limits | None = None) -> Stage:
    """A server that has just gone, and is waited for."""
    stage = Stage(limits=limits)
    stage.server_queue.grace = grace
    stage.server_queue.detach("its socket was closed", is_failure=True)
    return stage


async def test_calls_wait_for_a_server_that_has_just_gone_and_are_sent_in_order_when_it_is_back() -> None:
    stage = patient()
    started = [stage.start()[0] for _ in range(3)]
    assert (stage.server_queue.running, stage.server_queue.queued) == (0, 3)
    back = HeldLink()
    stage.server_queue.attach(back)
    assert back.sent == started
    assert (stage.link.sent, stage.server_queue.queued) == ([], 0)


async def test_a_server_that_is_back_is_not_taken_for_away_when_the_grace_would_have_been_over() -> None:
    stage = patient(0.02, limits=Limits(max_calls=1))
    take_back = stage.server_queue.watch_link(lambda _server_queue: None)
    take_back()
    stage.server_queue.attach(stage.link)
    stage.start()
    _, waiting = stage.start()
    await asyncio.sleep(0.03)
    assert not waiting.ends


async def test_calls_that_waited_for_a_slot_wait_for_the_next_link() -> None:
    stage = Stage(limits=SMALL)
    stage.server_queue.grace = 60.0
    started = [stage.start() for _ in range(5)]
    stage.server_queue.detach("its socket was closed", is_failure=True)
    for inflight in list(stage.link.sent):
        inflight.finish(GONE)
    assert not any(listener.ends for _, listener in started[2:])
    back = HeldLink()
    stage.server_queue.attach(back)
    assert back.sent == [inflight for inflight, _ in started[2:4]]
    back.sent[0].finish(DONE)
    assert back.sent[2] is started[4][0]


async def test_a_call_that_timed_out_in_the_queue_reports_its_wait_and_that_nothing_ran() -> None:
    stage = patient(0.02)
    received = [stage.start()[1] for _ in range(2)]
    for listener in received:
        await asyncio.wait_for(listener.ended.wait(), 5)
        assert isinstance(listener.fault, NotConnected)
        assert listener.fault.executed == "no"
        assert listener.fault.why == "its socket was closed; it did not come back within 0.02 s"
    assert stage.start()[1].fault.message.endswith("its socket was closed")


async def test_a_server_that_has_never_been_there_is_waited_for_from_the_moment_it_is_expected() -> None:
    stage = Stage()
    server_queue = ServerQueue(SERVER, stage.hub.limits)
    server_queue.grace = 60.0
    stage.hub.open_server_queue(server_queue, ready(tool()))
    inflight, _ = stage.start()
    back = HeldLink()
    server_queue.attach(back)
    assert back.sent == [inflight]


async def test_a_server_is_waited_for_from_the_moment_it_went_however_long_it_was_there() -> None:
    stage = Stage()
    stage.server_queue.grace = 0.02
    await asyncio.sleep(0.03)
    stage.server_queue.detach("its socket was closed", is_failure=True)
    _, listener = stage.start()
    assert not listener.ends
    await asyncio.wait_for(listener.ended.wait(), 5)


async def test_one_more_failed_attempt_does_not_make_the_wait_longer() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    stage = patient(60.0)
    after = loop.time()
    await asyncio.sleep(0.01)  # a wait from now on would be seen to be longer
    stage.server_queue.detach("it hung up again", is_failure=True)
    stage.start()
    (end,) = due(loop)
    assert before - 1e-6 <= end - 60.0 <= after + 1e-6


async def test_the_last_failed_attempt_is_reported() -> None:
    stage = patient(0.02)
    _, listener = stage.start()
    stage.server_queue.detach("it hung up again", is_failure=True)
    await asyncio.wait_for(listener.ended.wait(), 5)
    assert listener.fault.message.endswith("it hung up again; it did not come back within 0.02 s")
    assert isinstance(stage.start()[1].fault, NotConnected)


async def test_no_more_calls_wait_for_a_server_than_may_be_queued() -> None:
    stage = patient(limits=SMALL)
    received = [stage.start()[1] for _ in range(4)]
    assert isinstance(received[3].fault, Overloaded)
    assert not any(listener.ends for listener in received[:3])


async def test_a_call_that_waits_for_a_server_still_has_its_own_deadline() -> None:
    stage = patient()
    inflight, listener = stage.start(call(timeout=0.02))
    await asyncio.wait_for(listener.ended.wait(), 5)
    assert isinstance(listener.fault, TimedOut)
    assert (listener.fault.executed, stage.server_queue.queued) == ("no", 0)
    back = HeldLink()
    stage.server_queue.attach(back)
    assert back.sent == []
    assert not inflight.finish(DONE)


async def test_a_call_withdrawn_while_it_waits_for_a_server_is_never_sent() -> None:
    stage = patient()
    kept, gone = stage.start(), stage.start()
    gone[0].cancel("enough")
    assert (gone[1].fault.executed, stage.server_queue.queued) == ("no", 1)
    back = HeldLink()
    stage.server_queue.attach(back)
    assert back.sent == [kept[0]]


async def test_without_a_waiting_call_there_is_no_timer() -> None:
    loop = asyncio.get_running_loop()
    stage = patient(60.0)
    assert due(loop) == []
    waiting = [stage.start(call(timeout=500.0))[0] for _ in range(2)]
    assert len(due(loop)) == 1
    for inflight in waiting:
        inflight.cancel("enough")
    assert due(loop) == []


def due(loop: asyncio.AbstractEventLoop) -> list[float]:
    """When the timers of server queues are due: those of the hub's deadlines tick more often."""
    handles: list[asyncio.TimerHandle] = getattr(loop, "_scheduled")  # noqa: B009 - the loop has no other way to say
    return [each.when() for each in handles if not each.cancelled() and each.when() > loop.time() + 1]


async def test_a_server_queue_without_grace_ends_waiting_calls_at_once() -> None:
    stage = patient()
    _, listener = stage.start()
    stage.server_queue.grace = 0.0
    assert listener.fault.message.endswith("its socket was closed")
    assert isinstance(stage.start()[1].fault, NotConnected)


async def test_a_hub_that_shuts_down_ends_waits_for_absent_servers_and_nothing_else() -> None:
    stage = Stage(limits=SMALL)
    stage.server_queue.grace = 60.0
    started = [stage.start() for _ in range(3)]
    stage.hub.stop_waiting("the hub is shutting down")
    assert not any(listener.ends for _, listener in started)
    stage.server_queue.detach("its socket was closed", is_failure=True)
    assert started[2][1].fault.message.endswith("its socket was closed")
    waiting = patient()
    _, listener = waiting.start()
    waiting.hub.stop_waiting("the hub is shutting down")
    assert listener.fault.message.endswith("its socket was closed; the hub is shutting down")
    assert listener.fault.executed == "no"


async def test_calls_of_a_replaced_server_queue_wait_in_the_new_one() -> None:
    stage = Stage(limits=SMALL)
    started = [stage.start()[0] for _ in range(5)]
    after = ServerQueue(SERVER, SMALL)
    after.inherit(stage.server_queue)
    assert (stage.server_queue.running, stage.server_queue.queued, after.running, after.queued) == (2, 0, 0, 3)
    link = HeldLink()
    after.attach(link)
    assert link.sent == started[2:4]
    link.sent[0].finish(DONE)
    started[0].finish(DONE)
    assert link.sent == started[2:]
    assert (stage.server_queue.running, after.running) == (1, 2)


async def test_the_grace_of_a_server_queue_is_over_when_that_of_the_one_before_would_have_been() -> None:
    stage = patient()
    inflight, _ = stage.start()
    loop = asyncio.get_running_loop()
    (end,) = due(loop)
    await asyncio.sleep(0.05)
    after = ServerQueue(SERVER, stage.hub.limits)
    after.inherit(stage.server_queue)
    assert due(loop) == [pytest.approx(end, abs=0.04)]
    inflight.cancel("enough")
    assert due(loop) == []


async def test_calls_that_wait_for_a_tool_that_is_gone_are_refused_and_no_others() -> None:
    stage = patient()
    _, gone = stage.start()
    stage.server_queue.refuse_tools({FeatureName("another")})
    assert not gone.ends
    stage.server_queue.refuse_tools({FeatureName("read")})
    assert isinstance(gone.fault, UnknownTool)
    assert stage.server_queue.queued == 0


async def test_a_shorter_grace_holds_for_calls_that_wait_already() -> None:
    stage = patient()
    _, listener = stage.start()
    stage.server_queue.grace = 0.02
    await asyncio.wait_for(listener.ended.wait(), 5)
    assert "within 0.02 s" in listener.fault.message


async def test_calls_that_last_and_were_held_back_are_not_forgotten_when_the_link_goes() -> None:
    stage = Stage(limits=FOUR)
    stage.server_queue.grace = 60.0
    started = [stage.start(lasting(caller)) for caller in (ANN, BEN, ANN, BEN, ANN, BEN)]
    assert len(stage.link.sent) == 2
    stage.server_queue.detach("its socket was closed", is_failure=True)
    for inflight in list(stage.link.sent):
        inflight.finish(GONE)
    for inflight, _ in started[2:4]:
        inflight.cancel("enough")
    back = HeldLink()
    stage.server_queue.attach(back)
    assert back.sent == [inflight for inflight, _ in started[4:]]


LIMITS = Limits()


def opened(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(5):
        breaker.failed(at)
    return breaker


def test_it_opens_after_five_failures_in_a_row_and_not_before() -> None:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(4):
        breaker.failed(1.0)
        assert breaker.wait(1.0) == 0
    breaker.failed(1.0)
    assert breaker.wait(1.0) == 3.0
    assert breaker.wait(3.5) == pytest.approx(0.5)


def test_a_success_between_failures_starts_the_row_anew() -> None:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(3):
        for _ in range(2):
            breaker.failed(1.0)
        for _ in range(3):
            breaker.succeeded(1.0)
    assert breaker.wait(1.0) == 0


def test_it_opens_when_half_of_at_least_ten_calls_failed() -> None:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(4):
        breaker.succeeded(1.0)
        breaker.failed(1.0)
    breaker.succeeded(1.0)
    assert breaker.wait(1.0) == 0
    breaker.failed(1.0)
    assert breaker.wait(1.0) == 3.0


def test_failures_of_another_window_do_not_count_towards_the_share() -> None:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(4):
        breaker.succeeded(1.0)
        breaker.failed(1.0)
    breaker.succeeded(1.0)
    breaker.failed(1.0 + LIMITS.breaker_window_seconds)
    assert breaker.wait(31.0) == 0


def test_after_the_pause_one_call_may_probe_and_the_others_wait() -> None:
    breaker = opened()
    assert breaker.wait(3.0) == 0
    assert breaker.wait(3.0) == 3.0
    assert breaker.wait(3.1) == 3.0


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened()
    breaker.wait(3.0)
    breaker.succeeded(3.1)
    assert [breaker.wait(3.1) for _ in range(3)] == [0, 0, 0]


def test_each_failed_probe_doubles_the_pause_up_to_a_minute() -> None:
    breaker = opened()
    now, pauses = 0.0, []
    for _ in range(7):
        pauses.append(breaker.wait(now))
        now += pauses[-1]
        assert breaker.wait(now) == 0
        breaker.failed(now)
    assert pauses == [3.0, 6.0, 12.0, 24.0, 48.0, 60.0, 60.0]


def test_a_success_forgets_how_long_the_pauses_had_become() -> None:
    breaker = opened()
    breaker.wait(3.0)
    breaker.failed(3.0)
    breaker.wait(9.0)
    breaker.succeeded(9.0)
    for _ in range(5):
        breaker.failed(10.0)
    assert breaker.wait(10.0) == 3.0


def test_a_probe_that_was_withdrawn_may_be_made_again() -> None:
    breaker = opened()
    assert breaker.wait(3.0) == 0
    breaker.gave_up()
    assert breaker.wait(3.0) == 0


def test_a_new_link_that_came_up_wipes_it_clean() -> None:
    breaker = opened()
    breaker.reset()
    assert breaker.wait(0.0) == 0
