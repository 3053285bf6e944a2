"""A modern caller gets a question as its result, and continues its own call once, and no other call."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.settings import Limits
from isthmus.credentials.sealing import ProcessSealer
from isthmus.frontends.mcp import input_required as module
from isthmus.frontends.mcp import input_required as parking
from isthmus.frontends.mcp.input_required import STATE_LENGTH_MAX, ModernClientInput
from isthmus.frontends.mcp.methods import McpMethods
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import (
    EVERYTHING,
    TOO_LATE,
    Answered,
    Call,
    Event,
    Kind,
    OnReply,
    Outcome,
    Question,
    Reply,
    Result,
    Surface,
)
from isthmus.model.fault_table import BadReply, BadState, Cancelled, NotConnected, Unanswered, UnknownTool
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import (
    ANYONE,
    DONE,
    PROGRESS,
    SERVER,
    Stage,
    call,
    prompt,
    raw,
    ready,
    resource,
    tool,
)
from tests.unit.frontends.mcp.doubles import SECONDS

ABLE = frozenset({"elicitation", "roots", "sampling"})
FORM = Question("elicitation/create", raw({"message": "who?"}))
ROOTS = Question("roots/list", raw({}))
ACCEPTED = {"action": "accept", "content": {"name": "Ada"}}
OTHER = Caller("other", "default", Grants(("*",)))
NAMESAKE = Caller("anyone", "elsewhere", Grants(("*",)))
ARGUMENTS = {"path": "a", "depth": 1}


class CallerRequest:
    """One request of a modern caller, and how it was answered."""

    def __init__(self, asked: Call) -> None:
        self.call = asked
        self.inflight: InFlight | None = None
        self.events: list[Event] = []
        self.ends: list[Outcome] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        raise AssertionError("the service asks")

    def end(self, outcome: Outcome) -> None:
        self.ends.append(outcome)

    def send(self, message: bytes) -> None:
        raise AssertionError(message)

    def send_request(self, id: bytes, message: bytes) -> None:
        raise AssertionError(message)

    def settle_request(self, id: bytes) -> None:
        raise AssertionError(id)

    @property
    def outcome(self) -> Outcome:
        (outcome,) = self.ends
        return outcome

    @property
    def result(self) -> Any:
        assert isinstance(self.outcome, Result), self.outcome
        return json.loads(bytes(self.outcome.payload))

    @property
    def state(self) -> str:
        state = self.result["requestState"]
        assert isinstance(state, str)
        return state


class FrontendRequest(CallerRequest):
    """The same as a frontend makes it: it asks by the client input."""

    def __init__(self, asked: Call, client_input: ModernClientInput) -> None:
        super().__init__(asked)
        self._client_input = client_input

    def ask(self, question: Question, reply: OnReply) -> None:
        self._client_input.ask(self, question, reply)

    def end(self, outcome: Outcome) -> None:
        self.inflight = None
        if isinstance(outcome, Result) and outcome.asked_by:
            outcome = self._client_input.seal(self.call, outcome)
        super().end(outcome)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - a timer of the loop's own
            await asyncio.sleep(0.001)


class AskingHub:
    """A hub with a server that asks, and modern callers."""

    def __init__(self, gather_seconds: float = 0) -> None:
        harmless = tool("look", annotations={"idempotentHint": True})
        odd = tool("odd", annotations=["idempotentHint"])
        self.stage = Stage.of(
            ready(
                tool(),
                tool("write"),
                harmless,
                odd,
                prompts=[prompt()],
                resources=[resource("a:b")],
                rules=ToolRules(is_trusted=True),
            )
        )
        self.client_input = ModernClientInput(ProcessSealer(), Limits(), gather_seconds=gather_seconds)
        self.mcp_methods = McpMethods(self.stage.hub, Implementation("isthmus", "1"), client_input=self.client_input)

    def caller_request(
        self,
        name: str = "files.read",
        *,
        state: str | None = None,
        responses: Any = None,
        arguments: Any = None,
        caller: Caller = ANYONE,
        surface: Surface = EVERYTHING,
        kind: Kind = "tool",
    ) -> FrontendRequest:
        """A request: a first one, or one that comes back."""
        extra: dict[str, msgspec.Raw] = {} if state is None else {"requestState": raw(state)}
        if responses is not None:
            extra["inputResponses"] = raw(responses)
        given = ARGUMENTS if arguments is None else arguments
        written = given if isinstance(given, msgspec.Raw) else raw(given)
        asked = call(name, caller=caller, surface=surface, kind=kind, client_caps=ABLE, comes_back=True)
        caller_request = FrontendRequest(
            msgspec.structs.replace(asked, extra=extra, arguments=written), self.client_input
        )
        inflight = self.mcp_methods.start(caller_request.call, caller_request)
        if inflight is not None and inflight.outcome is None and inflight.exchange is caller_request:
            caller_request.inflight = inflight
        return caller_request

    def asked(self, *questions: Question, **more: Any) -> tuple[FrontendRequest, list[Reply]]:
        """A request whose server, of the earlier era, asks something at once; and what that is answered."""
        caller_request, answers = self.caller_request(**more), list[Reply]()
        for question in questions or (FORM,):
            self.last.ask(question, answers.append)
        return caller_request, answers

    def required(self, state: str | None = "its own", **more: Any) -> FrontendRequest:
        """A request that a modern server answers with a question."""
        caller_request = self.caller_request(**more)
        asks = {"resultType": "input_required", "inputRequests": {"q": {"method": "roots/list"}}}
        payload = raw(asks if state is None else {**asks, "requestState": state})
        self.last.finish(Result(payload, is_typed=True, asked_by=SERVER))
        return caller_request

    @property
    def sent(self) -> list[InFlight]:
        return self.stage.link.sent

    @property
    def last(self) -> InFlight:
        return self.sent[-1]


@pytest.fixture
async def asking_hub() -> AskingHub:
    return AskingHub()


def is_refused(caller_request: CallerRequest) -> bool:
    return isinstance(caller_request.outcome, BadState) and caller_request.outcome.executed == "unknown"


# -- a modern server: its own state, sealed --------------------------------------------------------------------------


async def test_a_servers_state_is_hidden_from_the_caller_and_comes_back_to_the_server(asking_hub: AskingHub) -> None:
    asked = asking_hub.required("its own")
    assert asked.result["inputRequests"] == {"q": {"method": "roots/list"}}
    assert "its own" not in asked.state
    assert b"its own" not in base64.urlsafe_b64decode(asked.state)
    again = asking_hub.caller_request(state=asked.state, responses={"q": {"roots": []}})
    assert (again.ends, len(asking_hub.sent)) == ([], 2)
    extra = {key: json.loads(bytes(value)) for key, value in asking_hub.last.call.extra.items()}
    assert extra == {"requestState": "its own", "inputResponses": {"q": {"roots": []}}}


async def test_a_server_without_a_state_gets_none(asking_hub: AskingHub) -> None:
    asking_hub.caller_request(state=asking_hub.required(None).state, responses={"q": {}})
    assert list(asking_hub.last.call.extra) == ["inputResponses"]


async def test_several_rounds_have_a_state_each(asking_hub: AskingHub) -> None:
    first = asking_hub.required("one")
    asks = {"resultType": "input_required", "requestState": "two"}
    second = asking_hub.caller_request(state=first.state, responses={"q": {}})
    asking_hub.last.finish(Result(raw(asks), is_typed=True, asked_by=SERVER))
    asking_hub.caller_request(state=second.state)
    assert bytes(asking_hub.last.call.extra["requestState"]) == b'"two"'


async def test_a_state_is_good_once_unless_its_tool_may_run_twice(asking_hub: AskingHub) -> None:
    for name, times in (("files.read", 1), ("files.odd", 1), ("files.look", 3)):
        state, before = asking_hub.required(name=name).state, len(asking_hub.sent)
        caller_requests = [asking_hub.caller_request(name, state=state) for _ in range(3)]
        assert [is_refused(caller_request) for caller_request in caller_requests if caller_request.ends] == [True] * (
            3 - times
        )
        assert len(asking_hub.sent) - before == times


async def test_reading_and_prompting_may_be_repeated(asking_hub: AskingHub) -> None:
    kinds: dict[str, Kind] = {"a:b": "resource", "files.ask": "prompt"}
    for name, kind in kinds.items():
        state = asking_hub.required(name=name, kind=kind).state
        assert [asking_hub.caller_request(name, kind=kind, state=state).ends for _ in range(2)] == [[], []]


async def test_states_that_were_used_are_forgotten_when_they_cease_to_hold(
    asking_hub: AskingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATE_SECONDS", 0.01)
    state = asking_hub.required().state
    asking_hub.caller_request(state=state)
    monkeypatch.setattr(module, "STATE_SECONDS", 300.0)
    fresh = asking_hub.required().state
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SECONDS):
        over = loop.time() + 0.02
        while loop.time() < over:  # noqa: ASYNC110 - time has to pass
            await asyncio.sleep(0.005)
    assert is_refused(asking_hub.caller_request(state=state))
    assert asking_hub.caller_request(state=fresh).ends == []
    ((_, used),) = asking_hub.client_input._used.items()
    assert len(used) == 1


async def test_a_caller_that_returns_too_often_waits_and_no_other_does(
    asking_hub: AskingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "USED_EACH_MAX", 2)
    states = [asking_hub.required().state for _ in range(3)]
    assert [asking_hub.caller_request(state=state).ends for state in states[:2]] == [[], []]
    assert is_refused(asking_hub.caller_request(state=states[2]))
    assert asking_hub.caller_request(state=asking_hub.required(caller=OTHER).state, caller=OTHER).ends == []


async def test_a_call_that_its_server_did_not_get_has_not_used_its_state_up(asking_hub: AskingHub) -> None:
    state, sent = asking_hub.required().state, len(asking_hub.sent)
    asking_hub.stage.server_queue.detach("away", is_failure=False)
    assert isinstance(asking_hub.caller_request(state=state).outcome, NotConnected)
    asking_hub.stage.server_queue.attach(asking_hub.stage.link)
    assert (asking_hub.caller_request(state=state).ends, len(asking_hub.sent)) == ([], sent + 1)
    assert is_refused(asking_hub.caller_request(state=state))


async def test_a_call_that_never_left_its_queue_has_not_used_its_state_up(asking_hub: AskingHub) -> None:
    state = asking_hub.required().state
    asking_hub.stage.server_queue.adjust(1, 1, 30.0)
    asking_hub.caller_request()
    queued = asking_hub.caller_request(state=state)
    assert is_refused(asking_hub.caller_request(state=state)), "it may still be sent"
    asking_hub.stage.server_queue.detach("away", is_failure=False)
    asking_hub.last.finish(DONE)
    asking_hub.stage.server_queue.attach(asking_hub.stage.link)
    assert isinstance(queued.outcome, NotConnected)
    assert asking_hub.caller_request(state=state).ends == []


async def test_a_call_that_was_sent_has_used_its_state_up_however_it_ended(asking_hub: AskingHub) -> None:
    state = asking_hub.required().state
    again = asking_hub.caller_request(state=state)
    asking_hub.last.cancel("enough")
    assert isinstance(again.outcome, Cancelled)
    assert is_refused(asking_hub.caller_request(state=state))


async def test_a_cacheable_result_is_cached_after_a_question(asking_hub: AskingHub) -> None:
    state = asking_hub.required(name="a:b", kind="resource").state
    asking_hub.caller_request("a:b", kind="resource", state=state)
    asking_hub.last.finish(Result(raw({"contents": []}), ttl_seconds=60.0))
    assert len(asking_hub.stage.hub.result_cache) == 1


async def test_a_state_that_could_not_be_brought_back_is_not_handed_out(asking_hub: AskingHub) -> None:
    assert len(asking_hub.required("x" * 700_000).state) <= STATE_LENGTH_MAX
    refused = asking_hub.required("x" * 800_000)
    assert isinstance(refused.outcome, BadReply)
    assert refused.outcome.server == SERVER
    asking_hub.client_input.limits = Limits(request_bytes=4096)
    assert isinstance(asking_hub.required("x" * 2000).outcome, BadReply)
    assert asking_hub.caller_request(state=asking_hub.required("x" * 500).state).ends == []


# -- what is refused, for both kinds of servers ----------------------------------------------------------------------


def both(asking_hub: AskingHub, **more: Any) -> list[str]:
    """A state of a modern server's, and one of a call that is parked."""
    return [asking_hub.required(**more).state, asking_hub.asked(**more)[0].state]


async def test_a_state_with_any_byte_changed_is_refused_and_the_server_sees_nothing(asking_hub: AskingHub) -> None:
    for state in both(asking_hub):
        sent, parked = len(asking_hub.sent), len(asking_hub.client_input)
        for at, was in enumerate(state):
            changed = state[:at] + ("A" if was != "A" else "B") + state[at + 1 :]
            assert is_refused(asking_hub.caller_request(state=changed, responses={"q1": ACCEPTED}))
        assert (len(asking_hub.sent), len(asking_hub.client_input)) == (sent, parked)
        assert (
            asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}).ends == []
        )  # and none of that used it up


@pytest.mark.parametrize(
    "other",
    [
        {"caller": OTHER},
        {"caller": NAMESAKE},
        {"name": "files.write"},
        {"surface": Surface("own", SERVER), "name": "read"},
        {"surface": Surface("llm")},
        {"arguments": {**ARGUMENTS, "path": "b"}},
        {"arguments": {}},
        {"arguments": {**ARGUMENTS, "depth": 1.0}},
        {"arguments": {**ARGUMENTS, "depth": "1"}},
        {"name": "files.ask", "kind": "prompt"},
    ],
    ids=str,
)
async def test_a_foreign_state_is_refused_and_the_server_sees_nothing(
    asking_hub: AskingHub, other: dict[str, Any]
) -> None:
    for state in both(asking_hub):
        sent, parked = len(asking_hub.sent), len(asking_hub.client_input)
        assert is_refused(asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}, **other))
        assert (len(asking_hub.sent), len(asking_hub.client_input)) == (sent, parked)
        assert asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}).ends == []


async def test_a_state_that_has_ceased_to_hold_is_refused(
    asking_hub: AskingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATE_SECONDS", 0.0)
    for state in both(asking_hub):
        sent = len(asking_hub.sent)
        assert is_refused(asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}))
        assert len(asking_hub.sent) == sent


@pytest.mark.parametrize("state", ["", "x", "A" * 2_000_000, "é", "\ud83d\ude00"])
async def test_a_made_up_state_is_refused(asking_hub: AskingHub, state: str) -> None:
    assert is_refused(asking_hub.caller_request(state=state))
    assert asking_hub.sent == []


@pytest.mark.parametrize("state", [7, None, {}, [], True])
async def test_a_state_that_is_no_text_is_refused(asking_hub: AskingHub, state: object) -> None:
    caller_request = FrontendRequest(
        msgspec.structs.replace(call(comes_back=True), extra={"requestState": raw(state)}), asking_hub.client_input
    )
    assert asking_hub.mcp_methods.start(caller_request.call, caller_request) is None
    assert is_refused(caller_request)


async def test_the_state_of_another_hub_is_refused(asking_hub: AskingHub) -> None:
    for state in both(AskingHub()):
        assert is_refused(asking_hub.caller_request(state=state))
    assert asking_hub.sent == []


async def test_arguments_are_the_same_however_they_are_spelt(asking_hub: AskingHub) -> None:
    for state in both(asking_hub):
        spelt = msgspec.Raw(b'{ "depth": 1,\n "p\\u0061th": "a" }')
        assert asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}, arguments=spelt).ends == []


@pytest.mark.parametrize(
    ("asked", "brought"),
    [
        ('{"amount":1}', '{"amount":1000,"amount":1}'),
        ('{"amount":1}', '{"amount":1000,"\\u0061mount":1}'),
        ('{"in":{"amount":1}}', '{"in":{"amount":1000,"amount":1}}'),
        ('{"amount":1000,"amount":1}', '{"amount":1}'),
        ('{"amount":1000,"amount":1}', '{"amount":1000, "amount":1}'),
        ('{"amount":9007199254740992.0}', '{"amount":9007199254740993.0}'),
        ('{"amount":0.1}', '{"amount":0.1000000000000000055}'),
        ('{"amount":1}', '{"amount":1e0}'),
        ('{"amount":0}', '{"amount":-0}'),
        ('{"amount":1}', '{"amount":"1"}'),
        ('{"amount":[1,2]}', '{"amount":[2,1]}'),
    ],
)
async def test_arguments_with_another_reading_are_different(asking_hub: AskingHub, asked: str, brought: str) -> None:
    written, other = msgspec.Raw(asked.encode()), msgspec.Raw(brought.encode())
    for state in both(asking_hub, arguments=written):
        sent = len(asking_hub.sent)
        assert is_refused(asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}, arguments=other))
        assert len(asking_hub.sent) == sent
        assert asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}, arguments=written).ends == []


@pytest.mark.parametrize(
    "odd", [b'{"a":1e999}', b'{"a":-1e999}', b'{"a":123456789012345678901234567890}', b'{"a":"\\ud8009"}']
)
async def test_arguments_that_only_their_server_can_read_are_bound_as_well(asking_hub: AskingHub, odd: bytes) -> None:
    for state in both(asking_hub, arguments=msgspec.Raw(odd)):
        other = odd.replace(b"9", b"8")
        assert is_refused(
            asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}, arguments=msgspec.Raw(other))
        )
        assert asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}, arguments=msgspec.Raw(odd)).ends == []


async def test_a_caller_that_loses_the_tool_cannot_resume_it(asking_hub: AskingHub) -> None:
    states = both(asking_hub)
    narrowed = Caller(ANYONE.name, ANYONE.tenant, Grants(("files.write",)))
    sent = len(asking_hub.sent)
    outcomes = [
        asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}, caller=narrowed).outcome for state in states
    ]
    assert [type(outcome) for outcome in outcomes] == [UnknownTool, BadState]
    assert len(asking_hub.sent) == sent


async def test_a_vanished_tool_cannot_be_resumed_and_waiting_callers_learn_of_it(asking_hub: AskingHub) -> None:
    states = both(asking_hub)
    asking_hub.stage.hub.publish(ready(tool("write")))
    outcomes = [asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}).outcome for state in states]
    assert [type(outcome) for outcome in outcomes] == [UnknownTool, BadState]
    assert [withdrawn for withdrawn, _ in asking_hub.stage.link.withdrawn] == [asking_hub.last]
    asking_hub.stage.hub.publish(ready(tool()))
    assert isinstance(asking_hub.caller_request(state=states[1]).outcome, Cancelled), "it is told how its call ended"


async def test_a_call_that_ended_before_its_tool_vanished_is_not_reported(asking_hub: AskingHub) -> None:
    asked, _ = asking_hub.asked()
    asking_hub.last.finish(DONE)
    asking_hub.stage.hub.publish(ready(tool("write")))
    assert is_refused(asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED}))
    assert asking_hub.stage.link.withdrawn == []


async def test_the_suspended_calls_of_a_removed_caller_are_given_up(asking_hub: AskingHub) -> None:
    asked, _ = asking_hub.asked()
    asking_hub.asked(caller=OTHER)
    asking_hub.client_input.retain({OTHER})
    assert [withdrawn for withdrawn, _ in asking_hub.stage.link.withdrawn] == [asking_hub.sent[0]]
    assert isinstance(asking_hub.caller_request(state=asked.state).outcome, Cancelled)
    asking_hub.client_input.retain({OTHER})
    assert asking_hub.sent[1].outcome is None


async def test_answers_without_a_state_are_the_callers_own_word_and_the_servers_to_judge(asking_hub: AskingHub) -> None:
    assert asking_hub.caller_request(responses={"q": {"roots": []}}).ends == []
    assert list(asking_hub.last.call.extra) == ["inputResponses"]


# -- an earlier server: its call is parked ---------------------------------------------------------------------------


async def test_a_question_is_the_result_and_the_call_goes_on_when_its_caller_is_back(asking_hub: AskingHub) -> None:
    asked, answers = asking_hub.asked()
    assert asked.result["resultType"] == "input_required"
    assert asked.result["inputRequests"] == {"q1": {"method": "elicitation/create", "params": {"message": "who?"}}}
    assert (len(asking_hub.client_input), asking_hub.stage.server_queue.running) == (1, 1)
    again = asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED})
    (answer,) = answers
    assert isinstance(answer, Answered)
    assert json.loads(bytes(answer.result)) == ACCEPTED
    asking_hub.last.emit(PROGRESS)
    asking_hub.last.finish(DONE)
    assert (again.outcome, again.events, len(asking_hub.sent), len(asking_hub.client_input)) == (DONE, [PROGRESS], 1, 0)
    assert len(asked.ends) == 1


async def test_a_parked_call_can_be_come_back_to_once(asking_hub: AskingHub) -> None:
    asked, answers = asking_hub.asked()
    again = asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED})
    for _ in range(3):
        assert is_refused(asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED}))
    asking_hub.last.finish(DONE)
    assert is_refused(asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED}))
    assert (again.outcome, len(answers)) == (DONE, 1)


async def test_every_further_question_is_a_result_of_its_own(asking_hub: AskingHub) -> None:
    asked, answers = asking_hub.asked()
    for round_ in range(20):
        assert len(answers) == round_
        before, asked = asked, asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED})
        asking_hub.last.ask(FORM, answers.append)
        assert is_refused(asking_hub.caller_request(state=before.state, responses={"q1": ACCEPTED}))
    assert (len(asking_hub.sent), len(asking_hub.client_input)) == (1, 1)


async def test_questions_that_came_meanwhile_are_asked_when_the_caller_is_back(asking_hub: AskingHub) -> None:
    asked, answers = asking_hub.asked(FORM, ROOTS)
    assert list(asked.result["inputRequests"]) == ["q1"]
    again = asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED, "q2": {"roots": []}})
    assert len(answers) == 2, "who guesses has answered"
    asking_hub.last.finish(DONE)
    assert again.outcome is DONE


async def test_a_caller_that_answers_a_part_is_asked_for_the_rest(asking_hub: AskingHub) -> None:
    asked, answers = asking_hub.asked(FORM, ROOTS)
    more = asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED})
    assert more.result["inputRequests"] == {"q2": {"method": "roots/list", "params": {}}}
    assert (len(answers), len(asking_hub.client_input)) == (1, 1)
    assert is_refused(asking_hub.caller_request(state=asked.state, responses={"q2": {"roots": []}}))
    last = asking_hub.caller_request(state=more.state, responses={"q2": {"roots": []}})
    assert (len(answers), last.ends, len(asking_hub.client_input)) == (2, [], 0)


async def test_simultaneous_questions_are_one_result() -> None:
    asking_hub = AskingHub(gather_seconds=0.001)
    asked, answers = asking_hub.asked(FORM, ROOTS)
    assert asked.ends == []
    assert [parked.waiting_exchange for parked in asking_hub.client_input._calls] == [asked]
    await until(lambda: bool(asked.ends))
    assert [parked.waiting_exchange for parked in asking_hub.client_input._calls] == [None]
    assert list(asked.result["inputRequests"]) == ["q1", "q2"]
    asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED, "q2": {"roots": []}})
    assert (len(answers), len(asking_hub.client_input)) == (2, 0)


async def test_a_call_that_ends_before_its_questions_are_put_is_simply_answered() -> None:
    asking_hub = AskingHub(gather_seconds=0.001)
    asked, _ = asking_hub.asked()
    asking_hub.last.finish(DONE)
    await until(lambda: bool(asked.ends))
    assert (asked.ends, len(asking_hub.client_input)) == ([DONE], 0)


@pytest.mark.parametrize(
    "responses", [None, {}, {"q9": {}}, [], 7, "q1", {"q1": None}, {"q1": 5}, {"q1": []}, {"q1": "accept"}]
)
async def test_a_caller_that_returns_without_an_answer_is_asked_again(asking_hub: AskingHub, responses: object) -> None:
    asked, answers = asking_hub.asked()
    again = asking_hub.caller_request(state=asked.state, responses=responses)
    assert again.result["inputRequests"] == asked.result["inputRequests"]
    assert (answers, again.state == asked.state) == ([], False)
    asking_hub.caller_request(state=again.state, responses={"q1": ACCEPTED})
    assert len(answers) == 1


async def test_a_returning_caller_gets_the_outcome_of_a_call_that_ended_meanwhile(asking_hub: AskingHub) -> None:
    asked, answers = asking_hub.asked()
    asking_hub.last.finish(DONE)
    assert (asking_hub.stage.server_queue.running, len(asking_hub.client_input)) == (0, 1)
    again = asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED})
    assert (again.outcome, again.inflight, len(answers), len(asking_hub.client_input)) == (DONE, None, 1, 0)


async def test_an_end_is_kept_for_as_long_as_its_state_holds(asking_hub: AskingHub) -> None:
    asking_hub.asked()
    asking_hub.last.finish(DONE)
    (parked,) = asking_hub.client_input._calls
    assert parked.expiry is not None
    assert parked.expiry.when() == parked.until > asyncio.get_running_loop().time()


async def test_an_outcome_that_is_never_fetched_is_forgotten(
    asking_hub: AskingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATE_SECONDS", 0.01)
    asked, _ = asking_hub.asked()
    asking_hub.last.finish(DONE)
    async with asyncio.timeout(SECONDS):
        while len(asking_hub.client_input):  # noqa: ASYNC110 - it has no notification
            await asyncio.sleep(0.001)
    assert is_refused(asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED}))


async def test_a_caller_that_never_returns_ends_its_call_and_the_server_learns_of_it(asking_hub: AskingHub) -> None:
    asked, _ = asking_hub.asked()
    inflight = asking_hub.last
    inflight.expire()
    assert isinstance(inflight.outcome, Unanswered)
    assert [withdrawn for withdrawn, _ in asking_hub.stage.link.withdrawn] == [inflight]
    assert isinstance(asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED}).outcome, Unanswered)


async def test_a_link_that_breaks_as_it_is_answered_ends_the_call_once(asking_hub: AskingHub) -> None:
    asked = asking_hub.caller_request()
    inflight = asking_hub.last
    asking_hub.last.ask(FORM, lambda _: inflight.cancel("the link broke"))
    asking_hub.last.ask(ROOTS, lambda _: None)
    again = asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED})
    assert isinstance(again.outcome, Cancelled)
    assert (again.inflight, len(asking_hub.client_input)) == (None, 0)


async def test_a_server_that_asks_on_as_it_is_answered_has_its_caller_come_back_again(asking_hub: AskingHub) -> None:
    answers: list[Reply] = []
    asked, inflight = asking_hub.caller_request(), asking_hub.last

    def ask_on(_: Reply) -> None:
        inflight.ask(ROOTS, answers.append)

    inflight.ask(FORM, ask_on)
    again = asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED})
    assert list(again.result["inputRequests"]) == ["q2"]
    asking_hub.caller_request(state=again.state, responses={"q2": {}})
    assert len(answers) == 1


async def test_only_so_many_calls_of_one_caller_are_parked_and_others_are_not_crowded_out(
    asking_hub: AskingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "SUSPENDED_EACH_MAX", 2)
    parked = [asking_hub.asked()[0] for _ in range(2)]
    crowded, refusals = asking_hub.asked()
    assert (refusals, crowded.ends, len(asking_hub.client_input)) == ([parking.FULL], [], 2)
    for caller in (OTHER, NAMESAKE):
        assert asking_hub.asked(caller=caller)[1] == []
    asking_hub.caller_request(state=parked[0].state, responses={"q1": ACCEPTED})
    assert asking_hub.asked()[1] == []


async def test_a_question_that_is_too_much_to_keep_is_declined_and_nothing_is_parked(
    asking_hub: AskingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "QUESTIONS_BYTES_MAX", 10)
    caller_request, answers = asking_hub.asked()
    assert (answers, caller_request.ends, caller_request.inflight, len(asking_hub.client_input)) == (
        [parking.LARGE],
        [],
        asking_hub.last,
        0,
    )
    asking_hub.last.finish(DONE)
    assert caller_request.ends == [DONE]


async def test_only_so_many_calls_are_parked_in_all(asking_hub: AskingHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "SUSPENDED_MAX", 2)
    asking_hub.asked()
    asking_hub.asked(caller=OTHER)
    assert asking_hub.asked(caller=NAMESAKE)[1] == [parking.FULL]
    asking_hub.sent[0].finish(DONE)
    assert len(asking_hub.client_input) == 2, "its end waits for its caller"


async def test_a_call_that_is_not_suspended_is_not_counted(asking_hub: AskingHub) -> None:
    for _ in range(parking.SUSPENDED_EACH_MAX * 3):
        asked, _ = asking_hub.asked()
        asking_hub.caller_request(state=asked.state, responses={"q1": ACCEPTED})
        asking_hub.last.finish(DONE)
    assert (len(asking_hub.client_input), asking_hub.client_input._calls._counts, asking_hub.client_input._used) == (
        0,
        {},
        {},
    )


# -- retracted questions -----------------------------------------------------------------------------------------------


async def test_an_answer_to_a_retracted_question_resumes_the_call(asking_hub: AskingHub) -> None:
    caller_request, answers = asking_hub.caller_request(), list[Reply]()
    question = asking_hub.last.ask(FORM, answers.append)
    assert question is not None
    question.retract()
    again = asking_hub.caller_request(state=caller_request.state, responses={"q1": ACCEPTED})
    assert (again.ends, answers, len(asking_hub.sent)) == ([], [], 1)
    asking_hub.last.emit(PROGRESS)
    asking_hub.last.finish(DONE)
    assert (again.events, again.ends, len(asking_hub.client_input)) == ([PROGRESS], [DONE], 0)


async def test_an_answer_to_a_retracted_question_gets_the_outcome_of_the_call(asking_hub: AskingHub) -> None:
    caller_request, answers = asking_hub.caller_request(), list[Reply]()
    question = asking_hub.last.ask(FORM, answers.append)
    assert question is not None
    question.retract()
    asking_hub.last.finish(DONE)
    again = asking_hub.caller_request(state=caller_request.state, responses={"q1": ACCEPTED})
    assert (again.ends, answers) == ([DONE], [])


async def test_only_open_questions_are_asked_again(asking_hub: AskingHub) -> None:
    caller_request, answers = asking_hub.caller_request(), list[Reply]()
    first, _, third = [asking_hub.last.ask(question, answers.append) for question in (FORM, ROOTS, FORM)]
    assert first is not None
    assert third is not None
    third.retract()
    again = asking_hub.caller_request(state=caller_request.state, responses={"q1": ACCEPTED, "q3": ACCEPTED})
    assert (list(again.result["inputRequests"]), len(answers)) == (["q2"], 1)
    last = asking_hub.caller_request(state=again.state, responses={"q2": {"roots": []}})
    asking_hub.last.finish(DONE)
    assert (last.ends, len(answers)) == ([DONE], 2)


async def test_a_question_that_is_taken_back_before_it_is_handed_out_is_never_seen() -> None:
    asking_hub = AskingHub(gather_seconds=0.001)
    caller_request, answers = asking_hub.caller_request(), list[Reply]()
    question = asking_hub.last.ask(FORM, answers.append)
    assert question is not None
    question.retract()
    await until(lambda: asking_hub.last.exchange is caller_request)
    assert (caller_request.ends, caller_request.inflight, len(asking_hub.client_input)) == ([], asking_hub.last, 0)
    asking_hub.last.finish(DONE)
    assert caller_request.ends == [DONE]


async def test_a_call_that_ends_while_it_is_asked_ends_its_questions(asking_hub: AskingHub) -> None:
    caller_request, answers = asking_hub.asked()
    asking_hub.last.finish(DONE)
    assert answers == [TOO_LATE]
    assert asking_hub.caller_request(state=caller_request.state, responses={"q1": ACCEPTED}).ends == [DONE]
    assert answers == [TOO_LATE]


async def test_a_question_that_outlasts_its_call_is_answered_by_a_returning_caller_or_given_up(
    asking_hub: AskingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller_request, answers = asking_hub.caller_request(), list[Reply]()
    asking_hub.last.ask(ROOTS, answers.append, lasts=True)
    asking_hub.last.finish(DONE)
    assert asking_hub.caller_request(state=caller_request.state, responses={"q1": {"roots": []}}).ends == [DONE]
    assert [type(answer) for answer in answers] == [Answered]
    monkeypatch.setattr(module, "STATE_SECONDS", 0.0)
    asking_hub.caller_request()
    asking_hub.last.ask(ROOTS, answers.append, lasts=True)
    asking_hub.last.finish(DONE)
    await until(lambda: len(answers) == 2)
    assert (answers[1], len(asking_hub.client_input)) == (TOO_LATE, 0)


async def test_a_retracted_question_that_outlasts_its_call_is_not_answered_by_a_returning_caller(
    asking_hub: AskingHub,
) -> None:
    caller_request, answers = asking_hub.caller_request(), list[Reply]()
    question = asking_hub.last.ask(ROOTS, answers.append, lasts=True)
    asking_hub.last.finish(DONE)
    assert question is not None
    question.retract()
    assert [parked.questions for parked in asking_hub.client_input._calls] == [{}]
    assert asking_hub.caller_request(state=caller_request.state, responses={"q1": {"roots": []}}).ends == [DONE]
    assert answers == []


async def test_a_caller_that_is_not_parked_was_asked_nothing(asking_hub: AskingHub) -> None:
    caller_request = asking_hub.caller_request()
    asking_hub.client_input.retract(caller_request, list[Reply]().append)
    asking_hub.client_input.outlive(list[Reply]().append, None)
    assert caller_request.ends == []
