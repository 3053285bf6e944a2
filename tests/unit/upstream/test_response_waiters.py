"""Outcomes of an answer, an error or a lost connection for waiting calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import HubExchange, ReportProgress
from isthmus.core.watch.server_tasks import LinkSession, ServerTask
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import (
    NO_CAPABILITIES,
    NOT_ASKED,
    TOO_LATE,
    Answered,
    Call,
    ClientCapabilities,
    Declined,
    Kind,
    LogMessage,
    Progress,
    Question,
    Reply,
    Result,
    Surface,
)
from isthmus.model.fault_table import BadReply, Fault, Lost, NotConnected, Overloaded, ServerError, Unanswered
from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.model.tasks import ServerTaskState
from isthmus.upstream.response_waiters import (
    LATER_BYTES,
    ROUNDS_MAX,
    CallWaiter,
    HubRequest,
    IgnoredResponse,
    InputRound,
    PendingRequest,
    Waiter,
    log_alone,
    lone_call,
    lost,
    turned_away,
)
from isthmus.wire.jsonrpc import ErrorReply
from isthmus.wire.mcp.forwarded_methods import InputRequests, ModernDialect
from isthmus.wire.mcp.messages import PROGRESS, Implementation
from isthmus.wire.mcp.tasks import STATUS_NOTIFICATION, TASKS_CAPABILITY
from tests.unit.core.doubles import ANYONE, DONE, SERVER, HeldLink, Listener, Stage, call, raw, ready, resource, tool
from tests.unit.upstream.scripted import NAME, Scripted

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
    async with asyncio.timeout(30):
        while not listener.ends:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
    (outcome,) = listener.ends
    assert outcome == Result(payload, is_typed=is_typed, is_untyped=is_untyped)


@pytest.mark.parametrize("payload", [7, [], "done", None, {"isError": "yes"}, {"resultType": 7}])
async def test_an_invalid_result_is_a_bad_reply(payload: object) -> None:
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


async def test_a_task_is_a_result_for_clients_with_tasks() -> None:
    stage = Stage()
    asked = msgspec.structs.replace(call(), client_caps=frozenset({TASKS_CAPABILITY}))
    inflight, listener = stage.start(asked)
    CallWaiter(inflight).result(raw({"resultType": "task", "taskId": "t1"}))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert (outcome.is_typed, outcome.task_of) == (True, SERVER)


async def test_a_legacy_servers_answer_to_a_task_request_may_name_a_task() -> None:
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


def asked_by(
    client_caps: ClientCapabilities = NO_CAPABILITIES, *, comes_back: bool = False
) -> tuple[Listener, CallWaiter]:
    inflight, listener = Stage().start(call(client_caps=client_caps, comes_back=comes_back))
    return listener, CallWaiter(inflight)


@pytest.mark.parametrize(
    ("method", "word"),
    [("elicitation/create", "elicitation"), ("sampling/createMessage", "sampling"), ("roots/list", "roots")],
)
async def test_a_caller_is_asked_only_questions_of_its_capabilities(method: str, word: str) -> None:
    question, answers = Question(method, raw({})), list[Reply]()
    able, waiter = asked_by(frozenset({word}))
    waiter.ask(question, answers.append)
    assert ([asked for asked, _ in able.asked], answers) == ([question], [])
    unable, waiter = asked_by(frozenset({"elicitation", "sampling", "roots"}) - {word} | {f"{word}.detail"})
    waiter.ask(question, answers.append)
    assert (unable.asked, answers) == ([], [NOT_ASKED])


async def test_a_caller_with_input_required_gets_the_servers_question_as_the_result() -> None:
    listener, waiter = asked_by(frozenset({"roots"}), comes_back=True)
    waiter.result(raw(ASKS))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert (outcome.asked_by, outcome.is_typed, bytes(outcome.payload)) == (SERVER, True, bytes(raw(ASKS)))


async def test_a_caller_without_input_required_is_asked_and_the_call_goes_on() -> None:
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
    HubRequest(SERVER).ask(Question("roots/list", raw({})), answers.append)
    assert answers == [NOT_ASKED]


async def test_a_question_that_may_be_about_any_call_of_a_caller_stops_the_clocks_of_all_of_them() -> None:
    stage, answers = Stage(), list[Reply]()
    question, able = Question("roots/list", raw({})), frozenset({"roots"})
    asked = msgspec.structs.replace(call(client_caps=able, timeout=0.001), session="one")
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


async def test_a_question_among_calls_of_several_callers_is_dropped() -> None:
    others = Caller("other", "default", Grants(("*",)))
    assert lone_call([*waiters_of("one"), *waiters_of("one", caller=others)]) is None
    assert lone_call([HubRequest(SERVER)]) is None


@pytest.mark.parametrize(
    ("sessions", "abandoned_session", "is_sure"),
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
async def test_a_question_goes_to_a_call_only_if_its_caller_is_certain(
    sessions: list[str], abandoned_session: str | None, *, is_sure: bool
) -> None:
    waiters = waiters_of(*sessions)
    whose = lone_call(waiters, abandoned_session)
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
async def test_a_question_on_a_shared_stream_may_outlast_its_call(question: Question, *, lasts: bool) -> None:
    inflight, listener = Stage().start(call(client_caps=frozenset({"roots", "elicitation", "sampling"})))
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


async def test_an_inquiry_returns_its_answer_to_its_waiter() -> None:
    own_request = HubRequest(SERVER)
    own_request.progress({})
    own_request.result(raw({"tools": []}))
    own_request.result(raw("again"))
    own_request.error(REFUSED)
    assert bytes(await own_request.answer) == b'{"tools": []}'


async def test_an_inquiry_raises_the_servers_error_where_it_is_awaited() -> None:
    own_request = HubRequest(SERVER)
    own_request.error(REFUSED)
    own_request.result(raw("too late"))
    with pytest.raises(ServerError, match="no"):
        await own_request.answer


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
async def test_a_resource_says_how_long_and_for_which_callers_it_holds(
    payload: object, kept: tuple[float, bool]
) -> None:
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


LINE = LogMessage("info", {"level": raw("info"), "data": raw("x")})
OTHER = Caller("other", "default", Grants(("*",)))


async def test_a_line_reaches_the_call_it_was_logged_for() -> None:
    _, listener, waiter = await waiting()
    waiter.log(LINE)
    assert listener.events == [LINE]


async def test_a_line_that_names_no_call_is_the_latest_of_the_only_caller() -> None:
    stage = Stage()
    (one, first), (two, latest) = stage.start(), stage.start()
    assert log_alone(LINE, [HubRequest(SERVER), CallWaiter(one), CallWaiter(two)])
    assert (first.events, latest.events) == ([], [LINE])


async def test_a_log_line_without_a_call_is_dropped_unless_one_caller_has_calls() -> None:
    stage = Stage()
    (one, first), (two, second) = stage.start(), stage.start(call(caller=OTHER))
    assert not log_alone(LINE, [CallWaiter(one), CallWaiter(two)])
    assert not log_alone(LINE, [HubRequest(SERVER)])
    assert (first.events, second.events) == ([], [])


async def test_a_call_without_a_listener_sends_no_events() -> None:
    waiters: list[Waiter] = [HubRequest(SERVER)]
    for waiter in waiters:
        waiter.progress({})
        waiter.log(LINE)
    unheard = waiters[0]
    unheard.result(raw({}))
    unheard.error(REFUSED)
    unheard.fail(lost(SERVER, "gone", may_have_left=True))


class Glance(Listener, HubExchange):
    """What the hub asks in a caller's name."""


async def test_a_request_of_the_hub_in_a_callers_name_gets_no_questions_and_events() -> None:
    stage, line = Stage(), LogMessage("info", {"data": raw("x"), "_meta": raw({})})
    own, listener = stage.start()
    glance = Glance()
    waiters = [CallWaiter(own), CallWaiter(stage.hub.start(call(), glance))]
    assert log_alone(line, waiters)
    assert (listener.events, glance.events) == ([msgspec.structs.replace(line, task_of=SERVER)], [])
    assert not log_alone(line, waiters[1:])
    assert lone_call(waiters[1:]) is None
    able = msgspec.structs.replace(call(client_caps=frozenset({"roots"})), session="s")
    own, listener = stage.start(able)
    waiters = [CallWaiter(own), CallWaiter(stage.hub.start(able, glance))]
    whose = lone_call(waiters)
    assert whose is not None
    assert whose.inflight is own


async def test_progress_that_may_belong_to_a_task_names_its_server() -> None:
    _, listener, waiter = await waiting()
    waiter.progress({"progressToken": raw(1), "progress": raw(1), "_meta": raw({})})
    assert listener.events == [Progress({"progress": raw(1), "_meta": raw({})}, SERVER)]


async def test_a_methods_result_may_be_any_object() -> None:
    odd = raw({"isError": "odd", "resultType": "input_required", "x": [1]})
    for payload, is_result in ((odd, True), (raw([1]), False)):
        stage = Stage()
        setattr(stage.link, "takes_methods", True)  # noqa: B010 - it is a link of a kind that is
        inflight, listener = stage.start(call("prompts/list", kind="method", surface=Surface("own", SERVER)))
        CallWaiter(inflight).result(payload)
        (outcome,) = listener.ends
        assert outcome == Result(odd) if is_result else isinstance(outcome, BadReply)


ABLE = frozenset({"elicitation", "roots", "sampling"})
ROOTS = Question("roots/list", raw({}))
FORM = Question("elicitation/create", raw({"message": "who?"}))


class Asked:
    """A call whose server asks by its results."""

    def __init__(self, client_caps: frozenset[str] = ABLE, **extra: Any) -> None:
        self.stage = Stage()
        made = msgspec.structs.replace(
            call(client_caps=client_caps), extra={key: raw(value) for key, value in extra.items()}
        )
        self.inflight, self.listener = self.stage.start(made)

    def require(self, state: str | None = None, **questions: Question) -> None:
        InputRound(self.inflight, InputRequests(questions, None if state is None else raw(state))).ask()

    def answer(self, value: object) -> None:
        """Answer the question that has waited longest."""
        self.listener.asked.pop(0)[1](Answered(raw(value)))

    @property
    def sent(self) -> list[InFlight]:
        return self.stage.link.sent

    @property
    def extra(self) -> dict[str, Any]:
        """What the call carries beside its arguments now."""
        return {key: json.loads(bytes(value)) for key, value in self.inflight.call.extra.items()}


async def test_the_call_is_sent_again_with_the_answers_and_the_servers_state() -> None:
    asked = Asked(own=1)
    asked.require("s1", roots=ROOTS)
    assert asked.sent == [asked.inflight]
    asked.answer({"roots": []})
    assert asked.sent == [asked.inflight] * 2
    assert asked.extra == {"own": 1, "inputResponses": {"roots": {"roots": []}}, "requestState": "s1"}
    assert asked.stage.server_queue.running == 1


async def test_each_question_that_sends_the_user_elsewhere_has_an_id_of_its_own() -> None:
    asked = Asked()
    login = Question("elicitation/create", raw({"mode": "url", "url": "https://login.example/"}))
    asked.require(one=login, other=login)
    ids = {json.loads(bytes(question.params))["elicitationId"] for question, _ in asked.listener.asked}
    assert len(ids) == 2


async def test_several_questions_are_asked_at_once_and_sent_back_together() -> None:
    asked = Asked()
    asked.require("s", roots=ROOTS, name=FORM)
    assert [question for question, _ in asked.listener.asked] == [ROOTS, FORM]
    asked.answer("first")
    assert len(asked.sent) == 1
    asked.answer("second")
    assert len(asked.sent) == 2
    assert asked.extra["inputResponses"] == {"roots": "first", "name": "second"}


async def test_a_later_round_carries_its_own_answers_and_state_alone() -> None:
    asked = Asked()
    asked.require("s1", roots=ROOTS)
    asked.answer("first")
    asked.require(None, name=FORM)
    asked.answer("second")
    assert asked.extra == {"inputResponses": {"name": "second"}}


async def test_a_server_that_only_wants_its_state_back_gets_it_at_once() -> None:
    asked = Asked()
    asked.require("s1")
    assert len(asked.sent) == 2
    assert asked.extra == {"inputResponses": {}, "requestState": "s1"}


async def test_a_server_that_asks_for_ever_gets_nowhere() -> None:
    asked = Asked()
    for _ in range(ROUNDS_MAX):
        asked.require("s", roots=ROOTS)
        asked.answer({})
    assert len(asked.sent) == 1 + ROUNDS_MAX
    asked.require("s", roots=ROOTS)
    assert (len(asked.sent), asked.listener.asked) == (1 + ROUNDS_MAX, [])
    assert isinstance(asked.listener.fault, Unanswered)
    assert asked.listener.fault.why == f"it still asked after {ROUNDS_MAX} rounds"


async def test_a_declined_question_ends_the_call_and_the_other_answers_are_dropped() -> None:
    asked = Asked()
    asked.require("s", roots=ROOTS, name=FORM)
    asked.listener.asked.pop(0)[1](Declined(-1, "not now"))
    asked.answer("too late")
    assert isinstance(asked.listener.fault, Unanswered)
    assert (asked.listener.fault.why, asked.listener.fault.server, len(asked.sent)) == ("not now", SERVER, 1)


@pytest.mark.parametrize("client_caps", [frozenset[str](), frozenset({"roots"}), frozenset({"elicitation.form"})])
async def test_a_caller_is_not_asked_beyond_its_capabilities(client_caps: frozenset[str]) -> None:
    asked = Asked(client_caps)
    asked.require("s", name=FORM)
    assert asked.listener.asked == []
    assert isinstance(asked.listener.fault, Unanswered)
    assert asked.listener.fault.why == NOT_ASKED.message


async def test_an_answer_after_the_end_of_the_call_sends_nothing() -> None:
    asked = Asked()
    asked.require("s", roots=ROOTS)
    asked.inflight.finish(DONE)
    asked.answer({})
    assert (len(asked.sent), asked.listener.ends) == (1, [DONE])


TASK_ABLE: frozenset[Ability] = frozenset({"tools", "tasks", "task_handles"})


class PlacedLink(HeldLink):
    """A link that says where its calls were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.place = LinkSession()

    def link_session_of(self, inflight: InFlight) -> LinkSession | None:
        return self.place


class Carrying(PendingRequest):
    """What a link keeps of a request."""

    def __init__(self, id: int) -> None:
        super().__init__(id, IgnoredResponse())

    @property
    def may_have_left(self) -> bool:
        return True

    def abandon(self) -> None: ...


def staged() -> Stage:
    stage = Stage.of(ready(tool(), abilities=TASK_ABLE))
    stage.link = PlacedLink()
    stage.server_queue.attach(stage.link)
    return stage


def answer(stage: Stage, asked: Call, result: object) -> list[ServerTask]:
    """Have a call answered; returns what is known afterwards."""
    inflight, listener = stage.start(asked)
    CallWaiter(inflight).result(raw(result))
    assert len(listener.ends) == 1
    return stage.hub.tasks.tasks_for(ANYONE)


def about(id: str, kind: Kind = "task") -> Call:
    return call(id, kind=kind, surface=Surface("own", SERVER))


ASKING = msgspec.structs.replace(call(), extra={"task": raw({})}, session="s")
STATE = {"taskId": "t", "status": "working", "ttl": 60_000}


async def test_a_task_that_was_asked_for_is_noted_with_where_it_was_made() -> None:
    stage = staged()
    (task,) = answer(stage, ASKING, {"task": STATE})
    assert isinstance(stage.link, PlacedLink)
    assert (task.server, task.state.id, task.place, task.session) == (SERVER, "t", stage.link.place, "s")


async def test_a_task_that_its_server_decided_on_is_noted() -> None:
    knows = call(client_caps=frozenset({TASKS_CAPABILITY}))
    (task,) = answer(staged(), knows, {"resultType": "task", "taskId": "t", "status": "working", "ttlMs": 5000})
    assert (task.state.id, task.state.ttl_seconds) == ("t", 5.0)


async def test_a_link_without_a_place_notes_a_task_that_cannot_be_notified() -> None:
    (task,) = answer(Stage.of(ready(tool(), abilities=TASK_ABLE)), ASKING, {"task": STATE})
    assert task.place is None


@pytest.mark.parametrize("result", [{"content": []}, {"task": {"taskId": "t"}}, {"task": 1}, {"task": {"status": "x"}}])
async def test_a_result_without_a_task_creates_no_task(result: object) -> None:
    assert answer(staged(), ASKING, result) == []


async def test_task_states_in_answers_are_recorded() -> None:
    stage = staged()
    answer(stage, ASKING, {"task": STATE})
    (task,) = answer(stage, about("t"), {**STATE, "status": "input_required"})
    assert task.state.status == "input_required"
    (task,) = answer(stage, about("t"), {**STATE, "taskId": "other", "status": "failed"})
    assert task.state.status == "input_required"
    (task,) = answer(stage, about("t", "task_cancel"), {**STATE, "status": "cancelled"})
    assert task.state.status == "cancelled"


async def test_a_server_without_a_server_queue_of_the_hubs_notes_nothing() -> None:
    stage = staged()
    stage.server_queue.tasks = None
    assert answer(stage, ASKING, {"task": STATE}) == []


class Reporting(Listener):
    """An exchange whose caller hears of progress afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[Progress] = []

    def reporter(self) -> ReportProgress:
        return self.later.append


@pytest.mark.parametrize(("carriage", "reports"), [(Carrying(7), 1), (Carrying(8), 0), (None, 0)])
async def test_progress_that_comes_after_the_answer_is_its_requests(carriage: object, reports: int) -> None:
    stage, exchange = staged(), Reporting()
    inflight = stage.hub.start(ASKING, exchange)
    inflight.carriage = carriage
    assert isinstance(stage.link, PlacedLink)
    CallWaiter(inflight).result(raw({"task": STATE}))
    stage.hub.tasks.progressed(stage.link.place, 7, lambda: Progress({}))
    assert len(exchange.later) == reports


# -- notifications of links -------------------------------------------------------------------------------------------


async def test_a_link_passes_on_how_a_task_stands_and_where_that_was_said() -> None:
    link, received = Scripted(), list[tuple[ServerName, LinkSession, ServerTaskState]]()
    link.on_task = lambda server, place, state: received.append((server, place, state))
    link.on_notification(STATUS_NOTIFICATION, {key: raw(value) for key, value in STATE.items()})
    link.on_notification(STATUS_NOTIFICATION, {"taskId": raw("t")})
    ((server, place, state),) = received
    assert (server, place, state.id, state.status) == (NAME, link.place, "t", "working")
    assert (link.place.is_process, link.place.is_lost) == (False, False)


async def test_unrequested_notifications_of_a_modern_server_are_ignored() -> None:
    link, received = Scripted(), list[str]()
    link.dialect = ModernDialect(Implementation("isthmus", "1"))
    link.on_task = lambda _server, _place, state: received.append(state.id)
    link.on_notification(STATUS_NOTIFICATION, {key: raw(value) for key, value in STATE.items()})
    assert received == []


async def test_a_link_passes_on_progress_without_a_waiter() -> None:
    link, received = Scripted(), list[tuple[LinkSession, int, Progress]]()
    link.on_progress = lambda place, request, event: received.append((place, request, event()))
    link.on_notification(PROGRESS, {"progressToken": raw(7), "progress": raw(1), "_meta": raw({})})
    assert received == [(link.place, 7, Progress({"progress": raw(1), "_meta": raw({})}, NAME))]


async def test_a_request_that_the_hub_abandoned_asks_nothing_later() -> None:
    class Glance(Listener, HubExchange):
        """What the hub asks in a caller's name."""

    stage, link = staged(), Scripted()
    link.questions.note_abandoned(stage.hub.start(about("t"), Glance()))
    assert link.questions.abandoned_session is None
    link.questions.note_abandoned(stage.hub.start(about("t"), Listener()))
    assert link.questions.abandoned_session == ""
