"""What an answer, an error or a loss on the wire means for who waits."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.exchange import Aside
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.model.events import Log, Progress
from isthmus.model.faults import BadReply, Fault, Lost, NotConnected, Overloaded, ServerError
from isthmus.model.outcomes import Result
from isthmus.model.questions import NOT_ASKED, NOTHING, TOO_LATE, Answered, Profile, Question, Reply
from isthmus.upstream.waiters import (
    LATER_BYTES,
    CallWaiter,
    Inquiry,
    Waiter,
    log_alone,
    lone_call,
    lost,
    turned_away,
)
from isthmus.wire.jsonrpc import ErrorReply
from isthmus.wire.mcp.tasks import KNOWN
from tests.unit.core.doubles import ANYONE, DONE, SERVER, Listener, Stage, call, raw, ready, resource

REFUSED = ErrorReply(msgspec.Raw(b"1"), -32000, "no", raw({"hint": 1}))


async def waiting() -> tuple[InFlight, Listener, CallWaiter]:
    inflight, listener = Stage().start()
    return inflight, listener, CallWaiter(inflight)


@pytest.mark.parametrize(
    ("payload", "result"),
    [
        ({"content": []}, (False, False)),
        ({"content": [], "isError": None}, (False, False)),
        ({"content": [], "isError": True}, (True, False)),
        ({"content": [], "resultType": "complete"}, (False, True)),
    ],
)
async def test_a_result_ends_the_call_unread(payload: object, result: tuple[bool, bool]) -> None:
    _, listener, waiter = await waiting()
    waiter.result(raw(payload))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert (outcome.is_error, outcome.is_typed) == result
    assert bytes(outcome.payload) == bytes(raw(payload))


@pytest.mark.parametrize(
    ("more", "is_typed", "is_untyped"),
    [({}, False, True), ({"resultType": None}, False, False), ({"resultType": "complete"}, True, False)],
)
async def test_a_long_result_ends_the_call_in_another_turn(
    more: dict[str, object], *, is_typed: bool, is_untyped: bool
) -> None:
    _, listener, waiter = await waiting()
    payload = raw({"content": [{"type": "text", "text": "x" * LATER_BYTES}], **more})
    waiter.result(payload)
    assert not listener.ends
    for _ in range(4):
        await asyncio.sleep(0)
    (outcome,) = listener.ends
    assert outcome == Result(payload, is_typed=is_typed, is_untyped=is_untyped)


@pytest.mark.parametrize("payload", [7, [], "done", None, {"isError": "yes"}, {"resultType": 7}])
async def test_what_is_no_result_is_no_answer(payload: object) -> None:
    _, listener, waiter = await waiting()
    waiter.result(raw(payload))
    assert isinstance(listener.fault, BadReply)
    assert listener.fault.executed == "unknown"


@pytest.mark.parametrize("count", [1000, 20_000])
async def test_a_result_with_more_members_than_anybody_means_is_no_answer(count: int) -> None:
    _, listener, waiter = await waiting()
    waiter.result(raw({f"{number:064}": 0 for number in range(count)}))
    await asyncio.sleep(0)  # so many are looked at in a turn of their own
    (outcome,) = listener.ends
    assert isinstance(outcome, BadReply if count > 1000 else Result)


async def test_a_task_is_a_result_for_who_knows_what_it_is() -> None:
    stage = Stage()
    asked = msgspec.structs.replace(call(), profile=frozenset({KNOWN}))
    inflight, listener = stage.start(asked)
    CallWaiter(inflight).result(raw({"resultType": "task", "taskId": "t1"}))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert (outcome.is_typed, outcome.task_of) == (True, SERVER)


async def test_what_an_earlier_server_answers_to_who_asks_for_a_task_may_name_one() -> None:
    inflight, listener = Stage().start(msgspec.structs.replace(call(), extra={"task": raw({})}))
    CallWaiter(inflight).result(raw({"task": {"taskId": "t1"}}))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert (outcome.is_typed, outcome.task_of) == (False, SERVER)


async def test_a_result_of_a_type_that_is_not_relayed_says_so() -> None:
    _, listener, waiter = await waiting()
    waiter.result(raw({"resultType": "task"}))
    assert "'task'" in listener.fault.message


# -- questions -------------------------------------------------------------------------------------------------------


ASKS = {"resultType": "input_required", "inputRequests": {"r": {"method": "roots/list"}}, "requestState": "s"}


def asked_by(profile: Profile = NOTHING, *, comes_back: bool = False) -> tuple[Listener, CallWaiter]:
    inflight, listener = Stage().start(call(profile=profile, comes_back=comes_back))
    return listener, CallWaiter(inflight)


@pytest.mark.parametrize(
    ("method", "word"),
    [("elicitation/create", "elicitation"), ("sampling/createMessage", "sampling"), ("roots/list", "roots")],
)
async def test_a_caller_is_asked_what_it_said_it_can_answer_and_nothing_else(method: str, word: str) -> None:
    question, answers = Question(method, raw({})), list[Reply]()
    able, waiter = asked_by(frozenset({word}))
    waiter.ask(question, answers.append)
    assert ([asked for asked, _ in able.asked], answers) == ([question], [])
    unable, waiter = asked_by(frozenset({"elicitation", "sampling", "roots"}) - {word} | {f"{word}.detail"})
    waiter.ask(question, answers.append)
    assert (unable.asked, answers) == ([], [NOT_ASKED])


async def test_who_comes_back_is_given_the_servers_question_as_the_result() -> None:
    listener, waiter = asked_by(frozenset({"roots"}), comes_back=True)
    waiter.result(raw(ASKS))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert (outcome.asked_by, outcome.is_typed, bytes(outcome.payload)) == (SERVER, True, bytes(raw(ASKS)))


async def test_who_does_not_come_back_is_asked_and_the_call_goes_on() -> None:
    listener, waiter = asked_by(frozenset({"roots"}))
    waiter.inflight.carriage = "the request that was answered"
    waiter.result(raw(ASKS))
    assert ([question.method for question, _ in listener.asked], listener.ends) == (["roots/list"], [])
    assert waiter.inflight.carriage is None


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"inputRequests": []},
        {"inputRequests": {}},
        {"requestState": 7, "inputRequests": {"r": {"method": "roots/list"}}},
        {"inputRequests": {"r": {"method": "tools/call"}}},
        {"inputRequests": {"r": {"method": "roots/list", "params": 7}}},
        {"inputRequests": {str(number): {"method": "roots/list"} for number in range(101)}},
    ],
)
async def test_a_result_that_asks_badly_is_no_answer(wrong: dict[str, object], *, comes_back: bool) -> None:
    listener, waiter = asked_by(frozenset({"roots"}), comes_back=comes_back)
    waiter.result(raw({"resultType": "input_required", **wrong}))
    assert isinstance(listener.fault, BadReply)
    assert listener.asked == []


async def test_the_hub_itself_cannot_be_asked() -> None:
    answers = list[Reply]()
    Inquiry(SERVER).ask(Question("roots/list", raw({})), answers.append)
    assert answers == [NOT_ASKED]


async def test_a_question_that_may_be_about_any_call_of_a_caller_stops_the_clocks_of_all_of_them() -> None:
    stage, answers = Stage(), list[Reply]()
    question, able = Question("roots/list", raw({})), frozenset({"roots"})
    asked = msgspec.structs.replace(call(profile=able, timeout=0.001), session="one")
    started = [stage.start(asked) for _ in range(3)]
    whose = lone_call([CallWaiter(inflight) for inflight, _ in started])
    assert whose is not None
    whose.ask(question, answers.append)
    assert [len(listener.asked) for _, listener in started] == [0, 0, 1]
    _, other = stage.start(call(timeout=0.1))
    async with asyncio.timeout(30):
        await other.ended.wait()
    assert [inflight.outcome for inflight, _ in started] == [None] * 3
    started[2][0].finish(DONE)  # it was about another one
    started[2][1].asked[0][1](Answered(raw({"roots": []})))
    assert [type(answer) for answer in answers] == [Answered]
    async with asyncio.timeout(30):
        for _, listener in started:
            await listener.ended.wait()
    assert [type(listener.ends[0]).__name__ for _, listener in started] == ["TimedOut", "TimedOut", "Result"]


def waiters_of(*sessions: str, caller: Caller = ANYONE) -> list[CallWaiter]:
    """Calls of these conversations on one link."""
    stage = Stage()
    started = [stage.start(msgspec.structs.replace(call(caller=caller), session=session)) for session in sessions]
    return [CallWaiter(inflight) for inflight, _ in started]


async def test_a_question_among_calls_of_several_callers_is_nobodys() -> None:
    others = Caller("other", "default", Grants(("*",)))
    assert lone_call([*waiters_of("one"), *waiters_of("one", caller=others)]) is None
    assert lone_call([Inquiry(SERVER)]) is None


@pytest.mark.parametrize(
    ("sessions", "strays", "is_sure"),
    [
        (["one"], None, True),
        (["one", "one"], None, True),
        (["one", "two"], None, False),
        (["one", ""], None, False),
        ([""], None, True),
        (["", ""], None, False),
        (["one"], "one", True),
        (["one", "one"], "one", True),
        (["one"], "two", False),
        (["one"], "", False),
        ([""], "", False),
        ([""], "one", False),
    ],
)
async def test_a_question_is_put_to_one_program_for_certain_or_to_nobody(
    sessions: list[str], strays: str | None, *, is_sure: bool
) -> None:
    waiters = waiters_of(*sessions)
    whose = lone_call(waiters, strays)
    assert (whose is not None) == is_sure
    assert whose is None or whose.inflight is waiters[-1].inflight


TASKS_OWN = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}}


@pytest.mark.parametrize(
    ("question", "lasts"),
    [
        (Question("roots/list", raw({})), True),
        (Question("elicitation/create", raw({"message": "who?"})), False),
        (Question("elicitation/create", raw(TASKS_OWN)), True),
        (Question("sampling/createMessage", raw({})), False),
    ],
)
async def test_what_a_server_asks_on_a_shared_stream_may_outlast_the_call_it_came_with(
    question: Question, *, lasts: bool
) -> None:
    inflight, listener = Stage().start(call(profile=frozenset({"roots", "elicitation", "sampling"})))
    answers = list[Reply]()
    whose = lone_call([CallWaiter(inflight)])
    assert whose is not None
    whose.ask(question, answers.append)
    inflight.finish(DONE)
    answer = Answered(raw({}))
    listener.asked[0][1](answer)
    assert answers == [answer if lasts else TOO_LATE]


# -- errors ----------------------------------------------------------------------------------------------------------


async def test_a_servers_error_is_the_callers_as_it_is() -> None:
    _, listener, waiter = await waiting()
    waiter.error(REFUSED)
    fault = listener.fault
    assert isinstance(fault, ServerError)
    assert (fault.code, fault.message, fault.executed) == (-32000, "no", "yes")
    assert bytes(fault.data or b"") == b'{"hint": 1}'


async def test_a_failure_ends_the_call_as_it_is() -> None:
    _, listener, waiter = await waiting()
    fault = lost(SERVER, "gone", may_have_left=True)
    waiter.fail(fault)
    assert listener.ends == [fault]


@pytest.mark.parametrize(
    "fault", [lost(SERVER, "gone", may_have_left=False), turned_away(SERVER, "gone"), Overloaded(SERVER, 1, 0)]
)
async def test_a_call_that_was_asked_something_may_have_run_though_its_answers_were_not_sent(fault: Fault) -> None:
    inflight, listener, waiter = await waiting()
    inflight.rounds = 1
    waiter.fail(fault)
    assert (type(listener.fault), listener.fault.executed, fault.executed) == (Lost, "unknown", "no")
    assert (listener.fault.message.count("during the call"), listener.fault.server) == (1, SERVER)


async def test_progress_is_passed_on_without_the_token_of_this_hop() -> None:
    _, listener, waiter = await waiting()
    waiter.progress({"progressToken": raw(7), "progress": raw(1), "new": raw("x")})
    assert listener.events == [Progress({"progress": raw(1), "new": raw("x")})]


async def test_an_inquiry_hands_its_answer_to_who_awaits_it() -> None:
    inquiry = Inquiry(SERVER)
    inquiry.progress({})
    inquiry.result(raw({"tools": []}))
    inquiry.result(raw("again"))
    inquiry.error(REFUSED)
    assert bytes(await inquiry.answer) == b'{"tools": []}'


async def test_an_inquiry_raises_the_servers_error_where_it_is_awaited() -> None:
    inquiry = Inquiry(SERVER)
    inquiry.error(REFUSED)
    inquiry.result(raw("too late"))
    with pytest.raises(ServerError, match="no"):
        await inquiry.answer


def test_a_loss_says_whether_the_request_may_have_left() -> None:
    assert lost(SERVER, "gone", may_have_left=True).executed == "unknown"
    assert lost(SERVER, "gone", may_have_left=False).executed == "no"
    assert isinstance(lost(SERVER, "gone", may_have_left=True), Lost)


def test_a_request_that_was_turned_away_did_not_run() -> None:
    fault = turned_away(SERVER, "HTTP 403", 403)
    assert isinstance(fault, NotConnected)
    assert (fault.executed, fault.status) == ("no", 403)


# -- resources -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "kept"),
    [
        ({"contents": []}, (0.0, False)),
        ({"contents": [], "ttlMs": None, "cacheScope": None}, (0.0, False)),
        ({"contents": [], "ttlMs": 1500, "cacheScope": "private"}, (1.5, False)),
        ({"contents": [], "ttlMs": 1500, "cacheScope": "public"}, (1.5, True)),
        ({"contents": [], "ttlMs": -1}, (0.0, False)),
        ({"contents": [], "ttlMs": 1e300, "isError": "whatever"}, (1e297, False)),
    ],
)
async def test_a_resource_says_how_long_it_holds_and_for_whom(payload: object, kept: tuple[float, bool]) -> None:
    stage = Stage.of(ready(resources=[resource("file:///x")]))
    inflight, listener = stage.start(call("file:///x", kind="resource"))
    CallWaiter(inflight).result(raw(payload))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert (outcome.ttl_seconds, outcome.is_public) == kept


async def test_a_tool_says_nothing_of_the_kind() -> None:
    _, listener, waiter = await waiting()
    waiter.result(raw({"content": [], "ttlMs": 1500, "cacheScope": "public"}))
    assert listener.ends == [Result(raw({"content": [], "ttlMs": 1500, "cacheScope": "public"}))]


# -- logs ----------------------------------------------------------------------------------------------------------


LINE = Log("info", {"level": raw("info"), "data": raw("x")})
OTHER = Caller("other", "default", Grants(("*",)))


async def test_a_line_reaches_the_call_it_was_logged_for() -> None:
    _, listener, waiter = await waiting()
    waiter.log(LINE)
    assert listener.events == [LINE]


async def test_a_line_that_names_no_call_is_the_latest_of_the_only_caller() -> None:
    stage = Stage()
    (one, first), (two, latest) = stage.start(), stage.start()
    assert log_alone(LINE, [Inquiry(SERVER), CallWaiter(one), CallWaiter(two)])
    assert (first.events, latest.events) == ([], [LINE])


async def test_a_line_that_names_no_call_is_nobodys_where_several_callers_have_calls_or_none() -> None:
    stage = Stage()
    (one, first), (two, second) = stage.start(), stage.start(call(caller=OTHER))
    assert not log_alone(LINE, [CallWaiter(one), CallWaiter(two)])
    assert not log_alone(LINE, [Inquiry(SERVER)])
    assert (first.events, second.events) == ([], [])


async def test_who_is_not_heard_says_nothing() -> None:
    waiters: list[Waiter] = [Inquiry(SERVER)]
    for waiter in waiters:
        waiter.progress({})
        waiter.log(LINE)
    unheard = waiters[0]
    unheard.result(raw({}))
    unheard.error(REFUSED)
    unheard.fail(lost(SERVER, "gone", may_have_left=True))


class Glance(Listener, Aside):
    """What the hub asks in a caller's name."""


async def test_what_the_hub_asks_in_a_callers_name_is_asked_and_told_nothing() -> None:
    stage, line = Stage(), Log("info", {"data": raw("x"), "_meta": raw({})})
    own, listener = stage.start()
    glance = Glance()
    waiters = [CallWaiter(own), CallWaiter(stage.hub.start(call(), glance))]
    assert log_alone(line, waiters)
    assert (listener.events, glance.events) == ([msgspec.structs.replace(line, task_of=SERVER)], [])
    assert not log_alone(line, waiters[1:])
    assert lone_call(waiters[1:]) is None
    able = msgspec.structs.replace(call(profile=frozenset({"roots"})), session="s")
    own, listener = stage.start(able)
    waiters = [CallWaiter(own), CallWaiter(stage.hub.start(able, glance))]
    whose = lone_call(waiters)
    assert whose is not None
    assert whose.inflight is own


async def test_progress_that_may_relate_to_a_task_says_whose() -> None:
    _, listener, waiter = await waiting()
    waiter.progress({"progressToken": raw(1), "progress": raw(1), "_meta": raw({})})
    assert listener.events == [Progress({"progress": raw(1), "_meta": raw({})}, SERVER)]


async def test_a_method_ends_in_whatever_object_its_server_gives() -> None:
    odd = raw({"isError": "odd", "resultType": "input_required", "x": [1]})
    for payload, is_result in ((odd, True), (raw([1]), False)):
        stage = Stage()
        setattr(stage.link, "takes_methods", True)  # noqa: B010 - it is a link of a kind that is
        inflight, listener = stage.start(call("prompts/list", kind="method", surface=Surface("own", SERVER)))
        CallWaiter(inflight).result(payload)
        (outcome,) = listener.ends
        assert outcome == Result(odd) if is_result else isinstance(outcome, BadReply)
