"""Questions of functions to their caller, and every way in which there is no answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.model.calls import Answered, ClientCapabilities, Declined, Event, OnReply, Question, Result
from isthmus.upstream.python.context import Context, NoAnswerError, QuestionSender
from isthmus.upstream.python.runner import Runner
from isthmus.upstream.python.signatures import Function, Traits
from tests.unit.core.doubles import SERVER, Listener, Stage, call, raw

CAN: ClientCapabilities = frozenset({"elicitation"})
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def greet(context: Context) -> Any:
    return await context.ask("Who?", NAME)


def greet_blocking(context: Context) -> Any:
    return context.ask_blocking("Who?", NAME)


async def agree(context: Context) -> Any:
    return await context.ask("Really?")


class Asked(Listener):
    """A caller that tells when it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked = asyncio.Event()

    def ask(self, question: Question, reply: OnReply) -> None:
        super().ask(question, reply)
        self.was_asked.set()


class Scene:
    """Functions that run for calls of one caller."""

    def __init__(self, background: BackgroundTasks) -> None:
        self.stage = Stage()
        self.runner = Runner(SERVER, Limits(), background, 2)

    def start(self, function: Callable[..., Any], client_caps: ClientCapabilities = CAN, **traits: Any) -> Asked:
        asked = Asked()
        self.inflight = self.stage.hub.start(call(client_caps=client_caps), asked)
        self.inflight.link = self
        self.runner.start(self.inflight, Function("f", function, Traits(**traits)))
        return asked

    def send(self, _: Any) -> None: ...

    def may_have_run(self, inflight: Any) -> bool:
        return self.runner.may_have_run(inflight)

    def withdraw(self, inflight: Any, _reason: str) -> None:
        self.runner.withdraw(inflight)

    async def answered(self, function: Callable[..., Any], answer: Any) -> Any:
        """What a function returns, whose one question is answered so."""
        asked = self.start(function)
        async with asyncio.timeout(5):
            await asked.was_asked.wait()
            ((_, reply),) = asked.asked
            reply(answer if isinstance(answer, Declined) else Answered(raw(answer)))
            return await ended(asked)


async def ended(asked: Listener) -> Any:
    async with asyncio.timeout(5):
        await asked.ended.wait()
    (outcome,) = asked.ends
    assert isinstance(outcome, Result), outcome
    response = json.loads(bytes(outcome.payload))
    return response["content"][0]["text"] if outcome.is_error else response["structuredContent"]


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    background = BackgroundTasks("test")
    scene = Scene(background)
    yield scene
    scene.runner.close("done")
    await background.aclose()


@pytest.mark.parametrize("function", [greet, greet_blocking])
async def test_the_function_receives_the_answer(scene: Scene, function: Callable[..., Any]) -> None:
    answer = {"action": "accept", "content": {"name": "Ann"}}
    assert await scene.answered(function, answer) == {"name": "Ann"}


async def test_the_question_is_mcp_s(scene: Scene) -> None:
    asked = scene.start(greet)
    async with asyncio.timeout(5):
        await asked.was_asked.wait()
    ((question, _),) = asked.asked
    assert question.method == "elicitation/create"
    assert json.loads(bytes(question.params)) == {"message": "Who?", "requestedSchema": NAME}


async def test_without_a_schema_an_answer_is_a_yes(scene: Scene) -> None:
    assert await scene.answered(agree, {"action": "accept"}) == {}


@pytest.mark.parametrize("function", [greet, greet_blocking])
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_declined_question_returns_none(scene: Scene, function: Callable[..., Any], action: str) -> None:
    assert await scene.answered(function, {"action": action}) == {"result": None}


@pytest.mark.parametrize("function", [greet, greet_blocking])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"action": "accept", "content": {"name": 7}}, "NoAnswerError: the answer does not fit the requested schema"),
        ({"action": "accept"}, "NoAnswerError: the answer does not fit the requested schema"),
        ({"action": "accept", "content": [1]}, "NoAnswerError: the answer does not fit the requested schema"),
        ({"content": {"name": "Ann"}}, "NoAnswerError: what came back is no answer"),
        ([], "NoAnswerError: what came back is no answer"),
        (Declined(-32000, "not today"), "NoAnswerError: not today"),
    ],
)
async def test_an_unanswered_question_is_an_error_of_the_tool(
    scene: Scene, function: Callable[..., Any], answer: Any, words: str
) -> None:
    assert (await scene.answered(function, answer)).startswith(words)


@pytest.mark.parametrize("function", [greet, greet_blocking])
async def test_a_caller_without_elicitation_is_not_asked(scene: Scene, function: Callable[..., Any]) -> None:
    asked = scene.start(function, frozenset())
    assert await ended(asked) == "NoAnswerError: This caller cannot be asked"
    assert asked.asked == []


async def test_a_function_can_know_beforehand(scene: Scene) -> None:
    def look(context: Context) -> bool:
        return context.can_ask

    assert await ended(scene.start(look)) == {"result": True}
    assert await ended(scene.start(look, frozenset())) == {"result": False}


async def test_a_function_that_stops_waiting_retracts_its_question(scene: Scene) -> None:
    was_taken_back, may_end = asyncio.Event(), asyncio.Event()

    async def impatient(context: Context) -> str:
        asking = asyncio.ensure_future(context.ask("Who?"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        asyncio.get_running_loop().call_soon(was_taken_back.set)
        await may_end.wait()
        return "never mind"

    asked = scene.start(impatient)
    async with asyncio.timeout(5):
        await was_taken_back.wait()
    assert scene.inflight.questions == ()
    ((_, reply),) = asked.asked
    reply(Answered(raw({"action": "accept"})))  # which nobody waits for
    may_end.set()
    assert await ended(asked) == {"result": "never mind"}


async def test_a_thread_that_waits_for_an_answer_is_let_go_with_its_call(scene: Scene) -> None:
    let_go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(context: Context) -> None:
        try:
            context.ask_blocking("Who?")
        except NoAnswerError:
            loop.call_soon_threadsafe(let_go.set)

    asked = scene.start(wait)
    async with asyncio.timeout(5):
        await asked.was_asked.wait()
        scene.inflight.cancel("enough")
        await let_go.wait()
    assert asked.fault.executed == "unknown"


@pytest.mark.parametrize(
    ("function", "traits", "words"),
    [
        (lambda context: context.ask("Who?"), {}, "RuntimeError: context.ask is to be awaited"),
        (
            greet_blocking,
            {"is_inline": True},
            "RuntimeError: context.ask_blocking would keep the hub from receiving the answer",
        ),
    ],
)
async def test_the_wrong_way_to_ask_says_which_is_right(
    scene: Scene, function: Callable[..., Any], traits: dict[str, Any], words: str
) -> None:
    def run(context: Context) -> Any:
        return function(context)

    assert (await ended(scene.start(run, **traits))).startswith(words)


@pytest.mark.parametrize("schema", [{"type": "string"}, {}, {"type": "object", "properties": 3}])
async def test_an_invalid_schema_fails_before_the_question_is_sent(scene: Scene, schema: dict[str, Any]) -> None:
    async def ask(context: Context) -> Any:
        return await context.ask("Who?", schema)

    asked = scene.start(ask)
    assert (await ended(asked)).startswith("ValueError: the ")
    assert asked.asked == []


async def test_a_function_outside_a_call_cannot_ask() -> None:
    context = Context("ann", lambda _event: None)
    assert not context.can_ask
    assert not context.is_done
    with pytest.raises(NoAnswerError, match="the caller cannot be asked here"):
        await context.ask("Who?")


def test_after_the_hub_has_ended_no_answer_comes() -> None:
    async def inflight_of_the_past() -> Any:
        return Stage().start(call())[0]

    loop = asyncio.new_event_loop()
    context = Context(
        "ann", lambda _event: None, "", QuestionSender(loop.run_until_complete(inflight_of_the_past()), loop)
    )
    loop.close()
    with pytest.raises(NoAnswerError, match="given up"):
        context.ask_blocking("Who?")


@pytest.mark.parametrize(
    ("tell", "said"),
    [
        (lambda context: context.log("warn", "x"), "the level of a line must be one of debug, .*, not 'warn'"),
        (lambda context: context.progress("half"), "progress must be a number, not 'half'"),
        (lambda context: context.progress(None), "progress must be a number, not None"),
        (lambda context: context.progress(float("nan")), "progress must be a number, not nan"),
        (lambda context: context.progress(10**400), "progress must be a number, not 1000"),
        (lambda context: context.progress(1, True), "total must be a number, not True"),
    ],
)
def test_unsendable_values_are_reported_at_the_call_that_sends_them(tell: Callable[[Context], None], said: str) -> None:
    received: list[Event] = []
    with pytest.raises(ValueError, match=said):
        tell(Context("ada", received.append))
    assert received == []
