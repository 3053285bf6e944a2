"""Remote tasks, over real sockets: the requests to agents, and the outcome of each answer."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from isthmus.model.calls import NOT_ASKED, Answered, LogMessage, Progress
from isthmus.model.fault_table import (
    BadArguments,
    BadReply,
    Cancelled,
    Lost,
    NotConnected,
    ServerError,
    TimedOut,
    Unanswered,
)
from isthmus.model.tasks import (
    Artifact,
    DataPart,
    FilePart,
    Message,
    Task,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
)
from isthmus.upstream.a2a import link, remote_task
from isthmus.upstream.response_waiters import ROUNDS_MAX
from isthmus.wire.a2a.operations import A2aProblem, CancelTask, GetTask, SendMessage, SubscribeToTask
from tests.unit.core.doubles import ANYONE, Listener
from tests.unit.upstream.a2a.scene import ASKABLE, SECONDS, Scene, over, result_of, texts, until
from tests.unit.upstream.a2a.scripted import (
    CONTEXT,
    DONE,
    HELLO,
    TASK,
    WORKING,
    HangUp,
    Out,
    answering,
    made,
    says,
    stands,
    streaming,
    task,
)

YES = Answered(Raw(b'{"action":"accept","content":{"message":"yes"}}'))

# -- what it is told -------------------------------------------------------------------------------------------------


async def test_a_call_is_a_message_of_words_and_data(every: Scene) -> None:
    arguments = {"message": "look", "data": {"n": 1.50, "big": 12345678901234567890}, "context_id": "c-0"}
    await every.answered(streaming(WORKING, HELLO, DONE), arguments=arguments)
    (sent,) = every.agent.sent()
    assert sent.is_stream
    assert (sent.task, sent.context) == (None, "c-0")
    assert sent.message.role == "user"
    text, data = sent.message.parts
    assert (text, isinstance(data, DataPart)) == (TextPart("look"), True)
    assert isinstance(data, DataPart)
    assert bytes(data.data) == b'{"n": 1.5, "big": 12345678901234567890}'
    assert json.loads(bytes(sent.message.metadata)) == {"skill": "research"}


async def test_the_configured_headers_and_the_version_go_with_every_request(every: Scene) -> None:
    await every.answered(streaming(WORKING, HELLO, DONE))
    for head in (*every.agent.fetched, *every.agent.heads):
        assert "x-key: secret\r\n" in head
    assert f"a2a-version: {every.agent.kind.version}\r\n" in every.agent.heads[0]


async def test_the_trace_context_goes_with_the_message_as_headers(every: Scene) -> None:
    parent = f"00-{'1' * 32}-{'2' * 16}-01"
    meta = {"traceparent": Raw(f'"{parent}"'.encode()), "tracestate": Raw(b'"vendor=1"')}
    await every.answered(streaming(WORKING, HELLO, DONE), meta=meta)
    assert f"traceparent: {parent}\r\n" in every.agent.heads[0]
    assert "tracestate: vendor=1\r\n" in every.agent.heads[0]
    await every.answered(streaming(WORKING, HELLO, DONE))
    assert "traceparent" not in every.agent.heads[-1]


async def test_a_skill_with_a_schema_gets_its_arguments_unchanged(scene: Scene) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    params = {"skills": {"research": {"inputSchema": schema, "outputSchema": schema}}}
    scene.agent.extensions = [{"uri": "urn:isthmus:a2a:skill-schemas:1", "params": params}]
    await scene.handshake()
    await scene.answered(streaming(WORKING, DONE), arguments={"n": 7})
    (sent,) = scene.agent.sent()
    assert sent.message.parts == (DataPart(Raw(b'{"n": 7}'), "application/json"),)


async def test_invalid_arguments_are_not_sent(scene: Scene) -> None:
    listener = await scene.outcome({"message": 7})
    assert isinstance(listener.fault, BadArguments)
    assert scene.agent.asked == []


# -- what it answers -------------------------------------------------------------------------------------------------


async def test_the_artifacts_of_a_stream_are_the_result(every: Scene) -> None:
    updates = (WORKING, HELLO, made(TextPart(", "), is_more=True), made(TextPart("world"), is_more=True), DONE)
    listener = await every.answered(streaming(*updates))
    assert result_of(listener) == {
        "content": [{"type": "text", "text": "hello, world"}],
        "isError": False,
        "_meta": {"isthmus/agent": {"task_id": every.task_id, "context_id": CONTEXT}},
    }


async def test_every_kind_of_part_is_the_block_that_it_is(every: Scene) -> None:
    parts = (
        DataPart(Raw(b'{"b": 12345678901234567890, "a": 1.0}')),
        FilePart("aGk=", name="a b.txt", media_type="text/plain"),
        FilePart("aGk=", media_type="image/png"),
        FilePart("aGk=", media_type="audio/wav"),
        FilePart(url="https://x.example/r", name="r", media_type="text/html"),
    )
    listener = await every.answered(streaming(WORKING, made(*parts), DONE))
    shown = result_of(listener)
    assert shown["structuredContent"] == {"b": 12345678901234567890, "a": 1.0}
    data, file, image, audio, link = shown["content"]
    assert data == {"type": "text", "text": '{"b": 12345678901234567890, "a": 1.0}'}
    resource = {"uri": "a2a:file/2/a%20b.txt", "mimeType": "text/plain", "blob": "aGk="}
    assert file == {"type": "resource", "resource": resource}
    assert image == {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    assert audio == {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
    assert link == {"type": "resource_link", "uri": "https://x.example/r", "name": "r", "mimeType": "text/html"}


async def test_a_message_in_the_place_of_a_task_is_the_result(every: Scene) -> None:
    listener = await every.answered(answering(Message("m", "agent", (TextPart("hi"),), context="c-9")))
    assert texts(listener) == ["hi"]
    assert result_of(listener)["_meta"] == {"isthmus/agent": {"context_id": "c-9"}}


async def test_the_agents_final_message_is_part_of_the_result(every: Scene) -> None:
    listener = await every.answered(streaming(WORKING, HELLO, stands("completed", TextPart("That is all."))))
    assert texts(listener) == ["hello", "That is all."]


@pytest.mark.parametrize("state", ["failed", "rejected", "canceled"])
async def test_a_task_that_fails_is_an_error_with_its_content(every: Scene, state: Any) -> None:
    listener = await every.answered(streaming(WORKING, HELLO, stands(state, TextPart("No."))))
    assert result_of(listener)["isError"] is True
    assert texts(listener) == ["hello", "No."]
    silent = await every.answered(streaming(WORKING, stands(state)))
    (words,) = texts(silent)
    assert words.startswith("The agent ")


async def test_secrets_are_redacted_in_failures_and_kept_in_answers(every: Scene) -> None:
    every.link.redact = lambda text: text.replace("secret", "***")
    failed = await every.answered(streaming(WORKING, stands("failed", TextPart("not with secret"))))
    assert texts(failed) == ["not with ***"]
    done = await every.answered(streaming(WORKING, stands("completed", TextPart("it is secret"))))
    assert texts(done) == ["it is secret"]


async def test_a_login_that_is_needed_is_an_error_that_says_where(every: Scene) -> None:
    where = DataPart(Raw(b'{"url": "https://login.example/"}'))
    listener = await every.answered(streaming(WORKING, stands("auth_required", TextPart("Log in."), where)))
    assert result_of(listener)["isError"] is True
    assert texts(listener)[1:] == ["Log in.", '{"url": "https://login.example/"}']


async def test_messages_of_a_working_agent_are_progress(every: Scene) -> None:
    updates = (WORKING, stands("working", TextPart("one")), stands("working", TextPart("two")), DONE)
    listener = await every.answered(streaming(*updates), wants_progress=True)
    reports = [event.members for event in listener.events if isinstance(event, Progress)]
    assert [(bytes(report["progress"]), bytes(report["message"])) for report in reports] == [
        (b"1", b'"one"'),
        (b"2", b'"two"'),
    ]


async def test_a_caller_without_progress_finds_it_in_the_log(scene: Scene) -> None:
    listener = await scene.answered(streaming(WORKING, stands("working", TextPart("one")), DONE))
    (line,) = listener.events
    assert isinstance(line, LogMessage)
    assert (line.level, bytes(line.members["data"])) == ("info", b'"one"')


async def test_reports_of_another_hub_are_passed_on_as_they_are(scene: Scene) -> None:
    report = DataPart(Raw(b'{"progress":0.50,"total":2,"message":"half"}'))
    line = DataPart(Raw(b'{"level":"warning","data":{"x":1.0}}'))
    updates = (WORKING, stands("working", TextPart("half"), report), stands("working", line), DONE)
    listener = await scene.answered(streaming(*updates), wants_progress=True)
    progress, log = listener.events
    assert isinstance(progress, Progress)
    assert {key: bytes(value) for key, value in progress.members.items()} == {
        "progress": b"0.50",
        "total": b"2",
        "message": b'"half"',
    }
    assert isinstance(log, LogMessage)
    assert (log.level, bytes(log.members["data"])) == ("warning", b'{"x":1.0}')


# -- agents that cannot stream ---------------------------------------------------------------------------------------


async def test_an_agent_that_cannot_stream_is_looked_at_until_it_is_done(plain: Scene) -> None:
    looks = 0

    async def look(_: GetTask, out: Out) -> None:
        nonlocal looks
        looks += 1
        working = task("working", message=says(TextPart("still at it")))
        out.answer(working if looks < 3 else task("completed", Artifact("a", (TextPart("hello"),))))

    plain.agent.scripts[GetTask] = look
    listener = await plain.answered(answering(WORKING), wants_progress=True)
    assert texts(listener) == ["hello"]
    assert [type(asked) for asked in plain.agent.asked] == [SendMessage, GetTask, GetTask, GetTask]
    (sent,) = plain.agent.sent()
    assert (sent.waits, sent.is_stream) == (False, False)
    assert len(listener.events) == 1, "the same message is reported once"


async def test_an_answer_that_is_only_in_the_history_is_found(plain: Scene) -> None:
    done = task("completed", history=(Message("m1", "user", (TextPart("q"),)), says(TextPart("the answer"))))
    assert texts(await plain.answered(answering(done))) == ["the answer"]


async def test_an_agent_that_streams_and_answers_whole_is_listened_to(scene: Scene) -> None:
    scene.agent.tasks[TASK] = WORKING
    scene.agent.scripts[SubscribeToTask] = streaming(WORKING, HELLO, DONE)
    listener = await scene.answered(answering(WORKING))
    assert texts(listener) == ["hello"]
    assert [type(asked) for asked in scene.agent.asked] == [SendMessage, GetTask, SubscribeToTask]


# -- streams that break ----------------------------------------------------------------------------------------------


async def test_a_stream_that_breaks_is_gone_on_with_and_nothing_is_sent_twice(every: Scene) -> None:
    every.agent.tasks[TASK] = WORKING

    async def follow(_: SubscribeToTask, out: Out) -> None:
        every.agent.tasks[TASK] = task("completed", Artifact("a", (TextPart("all"),)))
        out.begin()
        out.send_updates(DONE)
        out.end()

    every.agent.scripts[SubscribeToTask] = follow
    listener = await every.answered(streaming(WORKING, made(TextPart("so"))))
    assert texts(listener) == ["all"]
    assert [type(asked) for asked in every.agent.asked] == [SendMessage, GetTask, SubscribeToTask, GetTask]


async def test_an_agent_that_forgets_ended_tasks_loses_no_result(scene: Scene) -> None:
    scene.agent.tasks[TASK] = WORKING

    async def follow(_: SubscribeToTask, out: Out) -> None:
        scene.agent.tasks.clear()
        out.begin()
        out.send_updates(HELLO, DONE)
        out.end()

    scene.agent.scripts[SubscribeToTask] = follow
    assert texts(await scene.answered(streaming(WORKING))) == ["hello"]


async def test_an_agent_that_cannot_be_listened_to_again_is_looked_at(scene: Scene) -> None:
    async def refuse(_: SubscribeToTask, out: Out) -> None:
        scene.agent.tasks[TASK] = task("completed", Artifact("a", (TextPart("all"),)))
        out.refuse(A2aProblem("unsupported_operation", "no"))

    scene.agent.tasks[TASK] = WORKING
    scene.agent.scripts[SubscribeToTask] = refuse
    assert texts(await scene.answered(streaming(WORKING))) == ["all"]


async def test_a_connection_that_breaks_before_anything_was_said_may_have_run_it(every: Scene) -> None:
    async def hang_up(_: SendMessage, out: Out) -> None:
        raise HangUp

    fault = (await every.answered(hang_up)).fault
    assert isinstance(fault, Lost)
    assert fault.executed == "unknown"
    assert len(every.agent.asked) == 1


async def test_an_agent_that_is_not_there_provably_ran_nothing(scene: Scene) -> None:
    await scene.agent.__aexit__()
    fault = (await scene.outcome()).fault
    assert isinstance(fault, Lost)
    assert fault.executed == "no"


async def test_an_agent_that_goes_away_in_the_middle_is_asked_a_few_times(scene: Scene) -> None:
    async def leave(_: SendMessage, out: Out) -> None:
        out.begin()
        out.send_updates(WORKING)
        scene.agent.scripts[GetTask] = hang_up
        out.end()

    async def hang_up(_: GetTask, out: Out) -> None:
        raise HangUp

    fault = (await scene.answered(leave)).fault
    assert isinstance(fault, Lost)
    assert fault.executed == "unknown"
    assert [type(asked) for asked in scene.agent.asked] == [SendMessage] + [GetTask] * (remote_task.FAILURES_MAX + 1)


# -- questions -------------------------------------------------------------------------------------------------------


async def test_an_agents_question_goes_to_the_caller_and_the_answer_to_the_task(every: Scene) -> None:
    every.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    _, listener = every.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))
    ((question, reply),) = listener.asked
    assert question.method == "elicitation/create"
    asked = json.loads(bytes(question.params))
    assert asked["message"] == "Which one?"
    assert list(asked["requestedSchema"]["properties"]) == ["message"]
    every.agent.scripts[SendMessage] = streaming(HELLO, DONE)
    reply(Answered(Raw(b'{"action":"accept","content":{"message":"the red one"}}')))
    await over(listener)
    assert texts(listener) == ["hello"]
    first, second = every.agent.sent()
    assert (second.task, second.context, second.message.parts) == (TASK, CONTEXT, (TextPart("the red one"),))
    assert first.message.id != second.message.id


async def test_a_schema_is_asked_for_and_its_values_are_sent_as_data(scene: Scene) -> None:
    form = b'{"type":"object","properties":{"n":{"type":"integer"}}}'
    wanted = DataPart(Raw(b'{"schema":%b}' % form))
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", wanted))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))
    ((question, reply),) = listener.asked
    assert form in bytes(question.params)
    scene.agent.scripts[SendMessage] = streaming(HELLO, DONE)
    reply(Answered(Raw(b'{"action":"accept","content":{"n":12345678901234567890}}')))
    await over(listener)
    assert scene.agent.sent()[1].message.parts == (DataPart(Raw(b'{"n":12345678901234567890}'), "application/json"),)


async def test_another_hubs_question_and_its_answer_are_passed_on_as_they_are(scene: Scene) -> None:
    params = b'{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}'
    passed_on = DataPart(Raw(b'{"method":"elicitation/create","params":%b}' % params))
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Who?"), passed_on))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))
    ((question, reply),) = listener.asked
    assert bytes(question.params) == params
    scene.agent.scripts[SendMessage] = streaming(HELLO, DONE)
    reply(Answered(Raw(b'{"action":"decline"}')))
    await over(listener)
    assert scene.agent.sent()[1].message.parts == (DataPart(Raw(b'{"action":"decline"}'), "application/json"),)


@pytest.mark.parametrize("reply", [Answered(Raw(b'{"action":"decline"}')), NOT_ASKED])
async def test_an_unanswered_question_ends_the_task(scene: Scene, reply: Any) -> None:
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))
    listener.asked[0][1](reply)
    assert isinstance(listener.fault, Unanswered)
    async with asyncio.timeout(SECONDS):
        await scene.agent.cancelled.wait()


async def test_a_caller_without_elicitation_learns_how_to_continue(every: Scene) -> None:
    listener = await every.answered(streaming(WORKING, stands("input_required", TextPart("Which one?"))))
    shown = result_of(listener)
    assert shown["isError"] is False
    assert shown["structuredContent"] == {"state": "input-required", "task_id": every.task_id, "context_id": CONTEXT}
    question, advice = texts(listener)
    assert question == "Which one?"
    assert every.task_id in advice
    again = {"message": "the red one", "task_id": every.task_id, "context_id": CONTEXT}
    assert texts(await every.answered(streaming(HELLO, DONE), arguments=again)) == ["hello"]
    assert every.agent.sent()[1].task == TASK


async def test_an_answer_that_may_not_have_arrived_is_not_asked_for_again(scene: Scene) -> None:
    question = stands("input_required", TextPart("Which one?"))
    scene.agent.scripts[SendMessage] = streaming(WORKING, question)
    _, listener = scene.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))
    scene.agent.tasks[TASK] = task("input_required", message=question.status.message)

    async def hang_up(_: SendMessage, out: Out) -> None:
        raise HangUp

    scene.agent.scripts[SendMessage] = hang_up
    listener.asked[0][1](Answered(Raw(b'{"action":"accept","content":{"message":"x"}}')))
    await over(listener)
    assert isinstance(listener.fault, Lost)
    assert (listener.fault.executed, len(listener.asked), len(scene.agent.sent())) == ("unknown", 1, 2)


def working_for_long(scene: Scene, looks: int) -> None:
    """The agent cannot be listened to again, and is done after so many looks."""
    left = looks

    async def look(_: GetTask, out: Out) -> None:
        nonlocal left
        left -= 1
        out.answer(WORKING if left else task("completed", Artifact("a", (TextPart("hello"),))))

    async def refuse(_: SubscribeToTask, out: Out) -> None:
        out.refuse(A2aProblem("unsupported_operation", "no"))

    scene.agent.scripts[GetTask], scene.agent.scripts[SubscribeToTask] = look, refuse


async def break_off(_: SendMessage, out: Out) -> None:
    out.send_some(stands("working", at=3.0))
    raise HangUp


async def test_an_answer_that_has_arrived_is_not_lost_with_its_stream(scene: Scene) -> None:
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Sure?"), at=2.0))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))
    working_for_long(scene, 2 * remote_task.DOUBTS_MAX)
    scene.agent.scripts[SendMessage] = break_off
    listener.asked[0][1](YES)
    await over(listener)
    assert texts(listener) == ["hello"]


async def test_a_task_that_is_gone_on_with_is_not_lost_with_its_stream(scene: Scene) -> None:
    await scene.answered(streaming(WORKING, stands("input_required", TextPart("Sure?"))))
    working_for_long(scene, 2 * remote_task.DOUBTS_MAX)
    again = {"message": "yes", "task_id": scene.task_id}
    assert texts(await scene.answered(break_off, arguments=again)) == ["hello"]


@pytest.mark.parametrize(
    "second",
    [
        TaskStatus("input_required", 2.0, says(TextPart("How old?"), id="other")),
        TaskStatus("input_required", 9.0, says(TextPart("Sure?"), id="other")),
        TaskStatus("input_required", 9.0),
    ],
    ids=["in the same second", "the same once more", "without words"],
)
async def test_a_second_question_is_asked_as_well(scene: Scene, second: TaskStatus) -> None:
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Sure?"), at=2.0))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(partial(has_asked, listener, 1))
    scene.agent.scripts[SendMessage] = streaming(TaskStatusUpdate(TASK, CONTEXT, second, is_last=True))
    listener.asked[0][1](YES)
    await until(partial(has_asked, listener, 2))
    scene.agent.scripts[SendMessage] = streaming(HELLO, DONE)
    listener.asked[1][1](YES)
    await over(listener)
    assert texts(listener) == ["hello"]


@pytest.mark.parametrize("words", [(TextPart("Sure?"),), ()])
async def test_a_question_that_is_shown_until_its_answer_is_read_is_asked_once(
    scene: Scene, words: tuple[TextPart, ...]
) -> None:
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Sure?"), at=2.0))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(partial(has_asked, listener, 1))
    scene.agent.scripts[SendMessage] = streaming(stands("input_required", *words, at=2.0), HELLO, DONE)
    listener.asked[0][1](YES)
    await over(listener)
    assert (texts(listener), len(listener.asked)) == (["hello"], 1)


async def test_artifacts_before_a_question_are_shown_with_it(every: Scene) -> None:
    listener = await every.answered(streaming(WORKING, HELLO, stands("input_required", TextPart("Sure?"))))
    assert texts(listener)[:2] == ["hello", "Sure?"]


async def test_no_caller_continues_a_task_of_another(every: Scene) -> None:
    await every.answered(streaming(WORKING, stands("input_required", TextPart("Pay?"))))
    again = {"message": "yes", "task_id": every.task_id}
    for other in (replace(ANYONE, name="other"), replace(ANYONE, tenant="other")):
        fault = (await every.outcome(again, caller=other)).fault
        assert isinstance(fault, BadArguments)
        assert f"task_id '{every.task_id}' is not a task of yours here" in fault.message
    assert len(every.agent.asked) == 1
    assert texts(await every.answered(streaming(HELLO, DONE), arguments=again)) == ["hello"]


def has_asked(listener: Listener, times: int) -> bool:
    return len(listener.asked) == times


async def test_an_agent_that_asks_for_ever_gets_nowhere(scene: Scene) -> None:
    async def ask(_: SendMessage, out: Out) -> None:
        out.begin()
        out.send_updates(stands("input_required", TextPart("Which one?"), at=len(scene.agent.asked)))
        out.end()

    scene.agent.scripts[SendMessage] = ask
    _, listener = scene.start(client_caps=ASKABLE)
    for number in range(1, ROUNDS_MAX + 1):
        await until(partial(has_asked, listener, number))
        listener.asked[-1][1](Answered(Raw(b'{"action":"accept","content":{"message":"x"}}')))
    await over(listener)
    assert isinstance(listener.fault, Unanswered)


# -- giving up -------------------------------------------------------------------------------------------------------


async def test_a_call_that_is_given_up_is_given_up_over_there(every: Scene) -> None:
    received = asyncio.Event()

    async def work(_: SendMessage, out: Out) -> None:
        out.begin()
        out.send_updates(WORKING, stands("working", TextPart("one")))
        received.set()
        await asyncio.Event().wait()

    every.agent.scripts[SendMessage] = work
    inflight, listener = every.start(wants_progress=True)
    await until(lambda: bool(listener.events))
    inflight.cancel("enough")
    assert isinstance(listener.fault, Cancelled)
    assert listener.fault.executed == "unknown"
    async with asyncio.timeout(SECONDS):
        await every.agent.cancelled.wait()
    assert every.agent.asked[-1] == CancelTask(TASK)


async def test_a_cancellation_before_the_task_has_an_id_waits_for_the_id(scene: Scene) -> None:
    may_say = asyncio.Event()

    async def work(_: SendMessage, out: Out) -> None:
        await may_say.wait()
        out.begin()
        out.send_updates(WORKING)
        await asyncio.Event().wait()

    scene.agent.scripts[SendMessage] = work
    inflight, listener = scene.start()
    await until(lambda: bool(scene.agent.asked))
    inflight.cancel("enough")
    assert isinstance(listener.fault, Cancelled)
    may_say.set()
    async with asyncio.timeout(SECONDS):
        await scene.agent.cancelled.wait()
    assert listener.ends == [listener.fault]


async def test_an_agent_that_takes_too_long_gets_a_cancel(scene: Scene) -> None:
    async def work(_: SendMessage, out: Out) -> None:
        out.begin()
        out.send_updates(WORKING)
        await asyncio.Event().wait()

    listener = await scene.answered(work, timeout=0.2)
    assert isinstance(listener.fault, TimedOut)
    assert listener.fault.executed == "unknown"
    async with asyncio.timeout(SECONDS):
        await scene.agent.cancelled.wait()


async def test_a_closed_link_cancels_at_its_agent(every: Scene) -> None:
    async def work(_: SendMessage, out: Out) -> None:
        out.begin()
        out.send_updates(WORKING, stands("working", TextPart("one")))
        await asyncio.Event().wait()

    every.agent.scripts[SendMessage] = work
    _, listener = every.start(wants_progress=True)
    await until(lambda: bool(listener.events))
    await every.link.aclose()
    assert isinstance(listener.fault, Lost)
    assert every.agent.asked[-1] == CancelTask(TASK)


async def test_an_agent_that_ignores_the_cancel_does_not_hold_a_closed_link(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.agent.scripts[CancelTask] = hang
    monkeypatch.setattr(link, "CLOSE_SECONDS", 0.01)
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))
    async with asyncio.timeout(SECONDS):
        await scene.link.aclose()
    assert isinstance(listener.fault, Lost)


MANY = 12
"""More than there are connections."""


async def hang(_: Any, out: Out) -> None:
    await asyncio.Event().wait()


def has_received(scene: Scene, kind: type, times: int) -> bool:
    return sum(isinstance(asked, kind) for asked in scene.agent.asked) == times


async def test_calls_that_are_given_up_before_they_have_a_name_leave_room_for_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_task, "TASK_ID_SECONDS", 600)
    scene.agent.scripts[SendMessage] = hang
    for number in range(MANY):
        inflight, _ = scene.start()
        await until(partial(has_received, scene, SendMessage, number + 1))
        inflight.cancel("enough")
    assert texts(await scene.answered(streaming(WORKING, HELLO, DONE))) == ["hello"]


async def test_tasks_whose_end_an_agent_does_not_acknowledge_leave_room_for_calls(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_task, "CANCEL_SECONDS", 600)
    monkeypatch.setattr(link, "CANCEL_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(link, "CLOSE_SECONDS", 0.01)
    scene.agent.scripts[CancelTask] = hang
    ask = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    for number in range(MANY):
        scene.agent.scripts[SendMessage] = ask
        inflight, listener = scene.start(client_caps=ASKABLE)
        await until(partial(has_asked, listener, 1))
        inflight.cancel("enough")
        await until(partial(has_received, scene, CancelTask, number + 1))
    assert texts(await scene.answered(streaming(WORKING, HELLO, DONE))) == ["hello"]


async def test_closing_a_link_ends_its_running_calls(scene: Scene) -> None:
    _, listener = scene.start()
    await until(lambda: bool(scene.agent.asked))
    await scene.link.aclose()
    assert isinstance(listener.fault, Lost)
    assert listener.fault.executed == "unknown"
    assert isinstance((await scene.outcome()).fault, NotConnected)


# -- what only hubs say ----------------------------------------------------------------------------------------------

LOGIN = (
    b'{"method":"elicitation/create","params":{"mode":"url","message":"Log in","url":"https://x","elicitationId":"e"}}'
)


async def test_a_login_that_another_hub_asks_for_is_passed_on_to_capable_callers(scene: Scene) -> None:
    scene.agent.scripts[SendMessage] = streaming(
        WORKING, stands("auth_required", TextPart("Log in"), DataPart(Raw(LOGIN)))
    )
    _, listener = scene.start(client_caps=ASKABLE | {"elicitation.url"})
    await until(lambda: bool(listener.asked))
    ((question, answer),) = listener.asked
    assert b'"mode":"url"' in bytes(question.params)
    scene.agent.scripts[SendMessage] = streaming(HELLO, DONE)
    answer(Answered(Raw(b'{"action":"accept"}')))
    await over(listener)
    assert texts(listener) == ["hello"]


async def test_a_caller_without_url_elicitation_learns_the_address(scene: Scene) -> None:
    login = stands("auth_required", TextPart("Log in"), DataPart(Raw(LOGIN)))
    listener = await scene.answered(streaming(WORKING, login), client_caps=ASKABLE)
    assert result_of(listener)["isError"] is True
    assert "https://x" in texts(listener)[-1]


async def test_a_tool_without_a_place_for_the_task_cannot_go_on_unasked(scene: Scene) -> None:
    params = {"skills": {"research": {"inputSchema": {"type": "object"}}}}
    scene.agent.extensions = [{"uri": "urn:isthmus:a2a:skill-schemas:1", "params": params}]
    await scene.handshake()
    listener = await scene.answered(streaming(WORKING, stands("input_required", TextPart("Which one?"))), arguments={})
    assert isinstance(listener.fault, Unanswered)
    async with asyncio.timeout(SECONDS):
        await scene.agent.cancelled.wait()


# -- what goes wrong late --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd", [replace(WORKING, id=""), replace(WORKING, id="x" * 1001), replace(WORKING, context="x" * 1001)]
)
async def test_a_task_without_a_usable_id_is_a_bad_reply(scene: Scene, odd: Task) -> None:
    fault = (await scene.answered(streaming(odd))).fault
    assert isinstance(fault, BadReply)
    assert "without an id" in fault.message


async def test_a_look_that_is_answered_with_nonsense_ends_the_call(plain: Scene) -> None:
    async def nonsense(_: GetTask, out: Out) -> None:
        out.body(b"{}")

    plain.agent.scripts[GetTask] = nonsense
    fault = (await plain.answered(answering(WORKING))).fault
    assert isinstance(fault, BadReply)
    async with asyncio.timeout(SECONDS):
        await plain.agent.cancelled.wait()


@pytest.mark.parametrize("status", [403, 429, 503])
async def test_a_look_that_is_turned_away_is_made_again(plain: Scene, status: int) -> None:
    times = 0

    async def refuse_once(_: GetTask, out: Out) -> None:
        nonlocal times
        times += 1
        if times == 1:
            out.body(b"", status)
        else:
            out.answer(task("completed", Artifact("a", (TextPart("hello"),))))

    plain.agent.scripts[GetTask] = refuse_once
    assert texts(await plain.answered(answering(WORKING))) == ["hello"]


async def test_an_answer_that_is_refused_ends_the_task(scene: Scene) -> None:
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))

    async def refuse(_: SendMessage, out: Out) -> None:
        out.refuse(A2aProblem("invalid_params", "not that"))

    scene.agent.scripts[SendMessage] = refuse
    listener.asked[0][1](Answered(Raw(b'{"action":"accept","content":{"message":"x"}}')))
    await over(listener)
    assert isinstance(listener.fault, ServerError)
    async with asyncio.timeout(SECONDS):
        await scene.agent.cancelled.wait()


async def test_an_answer_after_the_link_is_gone_is_dropped(scene: Scene) -> None:
    scene.agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    _, listener = scene.start(client_caps=ASKABLE)
    await until(lambda: bool(listener.asked))
    await scene.link.aclose()
    assert isinstance(listener.fault, Lost)
    listener.asked[0][1](Answered(Raw(b'{"action":"accept","content":{"message":"x"}}')))
    assert (listener.fault.executed, len(listener.ends), len(scene.agent.sent())) == ("unknown", 1, 1)


async def test_cancelling_a_task_with_the_callers_own_id_need_not_wait(scene: Scene) -> None:
    inflight, listener = scene.start({"message": "go", "task_id": scene.task_id})
    await until(lambda: bool(scene.agent.asked))
    inflight.cancel("enough")
    assert isinstance(listener.fault, Cancelled)
    async with asyncio.timeout(SECONDS):
        await scene.agent.cancelled.wait()


async def test_an_unsent_call_is_cancelled_silently(scene: Scene) -> None:
    inflight, listener = scene.start()
    inflight.cancel("enough")
    assert (listener.fault.executed, scene.agent.asked) == ("no", [])


@pytest.mark.parametrize("last", ["hang up", "nonsense", "another task", "silence"])
async def test_a_cancelled_call_that_waits_for_an_id_accepts_any_outcome(scene: Scene, last: str) -> None:
    may_say = asyncio.Event()

    async def work(_: SendMessage, out: Out) -> None:
        await may_say.wait()
        if last == "hang up":
            raise HangUp
        out.begin()
        if last == "nonsense":
            out.raw(b"data: nonsense\n\n")
        elif last == "another task":
            out.send_updates(replace(WORKING, id=""))
        out.end()

    scene.agent.scripts[SendMessage] = work
    inflight, listener = scene.start()
    await until(lambda: bool(scene.agent.asked))
    inflight.cancel("enough")
    may_say.set()
    scene.agent.scripts[SendMessage] = streaming(WORKING, HELLO, DONE)
    assert texts(await scene.outcome()) == ["hello"]
    assert len(listener.ends) == 1
    await scene.link.aclose()


async def test_the_wait_for_an_id_ends_with_the_link(scene: Scene) -> None:
    inflight, listener = scene.start()
    await until(lambda: bool(scene.agent.asked))
    inflight.cancel("enough")
    await scene.link.aclose()
    assert len(listener.ends) == 1


# -- how long it may take --------------------------------------------------------------------------------------------


async def test_updates_on_a_stream_are_signs_of_life(scene: Scene) -> None:
    scene.stage.server_queue.timeout = 0.3

    async def work(_: SendMessage, out: Out) -> None:
        out.begin()
        for step in range(6):
            out.send_updates(made(TextPart("."), is_more=step > 0))
            await asyncio.sleep(0.1)
        out.send_updates(DONE)
        out.end()

    assert texts(await scene.answered(work)) == ["......"]


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_a_poll_prolongs_the_call_if_it_shows_news(plain: Scene, *, is_stuck: bool) -> None:
    plain.stage.server_queue.timeout = 0.3
    looks = 0

    async def look(_: GetTask, out: Out) -> None:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.1)
        is_done = looks > 6
        words = says(TextPart("at work" if is_stuck else f"step {looks}"))
        out.answer(task("completed" if is_done else "working", message=words))

    plain.agent.scripts[GetTask] = look
    listener = await plain.answered(answering(WORKING))
    if is_stuck:
        assert isinstance(listener.fault, TimedOut)
    else:
        assert texts(listener) == ["step 7"]
