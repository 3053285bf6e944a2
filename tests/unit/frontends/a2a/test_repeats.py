"""A repeated message gets the outcome of the first, and nothing runs twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from isthmus.core.audit import Fact
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.journal import Document, OnWritten
from isthmus.core.tasks import record
from isthmus.core.tasks.engine import TaskEngine
from isthmus.frontends.a2a import service as a2a_services
from isthmus.model.calls import Question, Reply, Result
from isthmus.model.names import ServerName
from isthmus.model.tasks import DataPart, Message
from isthmus.storage.memory import MemoryJournal
from isthmus.wire.a2a.operations import SendMessage
from tests.unit.core.doubles import ANYONE, raw, tool
from tests.unit.core.tasks.doubles import HeldJournal, turns
from tests.unit.frontends.a2a.doubles import NOW, Hall, Office, envelope, hall, message, run
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS, connect_raw, request

KEY = "Idempotency-Key: k1"
JSON_LINE = "Content-Type: application/json"
QUESTION = Question(
    "elicitation/create",
    raw({"message": "Which?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "integer"}}}}),
)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - it comes about over a socket
            await asyncio.sleep(0)


async def both(first: Awaitable[Any], second: Awaitable[Any]) -> tuple[Any, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await asyncio.gather(first, second)


async def test_a_message_that_is_repeated_while_its_task_runs_joins_it() -> None:
    async with hall() as here:
        first = await here.task("SendMessage", run(**NOW))
        again = await here.task("SendMessage", run(**NOW))
        assert again["id"] == first["id"]
        waiting = asyncio.ensure_future(here.task("SendMessage", run()))
        await here.office.until_followed()
        here.office.finish()
        assert (await waiting)["status"]["state"] == "TASK_STATE_COMPLETED"
        assert len(here.office.sent) == 1


async def test_a_repeat_may_say_where_its_updates_are_to_be_sent() -> None:
    async with hall() as here:
        task = await here.task("SendMessage", run(**NOW))
        hook = {"url": "https://hook.example.com/a", "id": "p"}
        wanted: dict[str, Any] = {"configuration": {**NOW["configuration"], "taskPushNotificationConfig": hook}}
        for _ in range(2):
            assert (await here.task("SendMessage", run(**wanted)))["id"] == task["id"]
        listed = (await here.rpc("ListTaskPushNotificationConfigs", {"taskId": task["id"]}))["result"]["configs"]
        assert [config["url"] for config in listed] == [hook["url"]]


async def test_two_at_the_same_moment_are_one() -> None:
    journal = HeldJournal()
    async with hall(journal=journal) as here:
        sending = [asyncio.ensure_future(here.task("SendMessage", run(**NOW))) for _ in range(3)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not journal.waiting:  # noqa: ASYNC110 - it arrives over a socket
                await asyncio.sleep(0)
        journal.let_go()
        tasks = await asyncio.gather(*sending)
        assert len({task["id"] for task in tasks}) == 1
        assert len(here.office.sent) == 1


async def test_the_same_message_has_the_same_answer_for_ten_minutes_and_then_is_a_new_one() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        first = await here.task("SendMessage", run())
        here.office.seconds += a2a_services.JOINED_SECONDS - 1.0
        assert await here.task("SendMessage", run()) == first
        for count in (2, 3):
            here.office.seconds += a2a_services.JOINED_SECONDS
            later = await here.task("SendMessage", run())
            assert later["id"] != first["id"]
            assert await here.task("SendMessage", run()) == later
            assert len(here.office.sent) == count
            first = later


async def test_a_message_is_known_when_its_task_is_only_in_the_journal() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        first = await here.task("SendMessage", run())
        here.office.engine._store._cache.drop_where(lambda _: True)
        assert await here.task("SendMessage", run()) == first
        assert len(here.office.sent) == 1


class FailingJournal(MemoryJournal):
    """A journal that cannot be written, and perhaps not be read, once it `is_failing`."""

    is_failing = False
    can_read = True

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        if self.is_failing:
            done("refused")
        else:
            super().write(documents, done, facts)

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        if self.is_failing and not self.can_read:
            raise OSError("gone")
        return await super().read(kind, owner, id)


@pytest.mark.parametrize("lines", [(), (KEY,)])
@pytest.mark.parametrize("can_read", [True, False])
async def test_the_caller_of_a_message_that_ran_never_gets_not_executed(
    lines: tuple[str, ...], *, can_read: bool
) -> None:
    journal = FailingJournal()
    async with hall(journal=journal) as here:
        here.office.answer_at_once()
        first = await here.task("SendMessage", run(), *lines)
        here.office.engine._store._cache.drop_where(lambda _: True)
        journal.is_failing, journal.can_read = True, can_read
        again = await here.rpc("SendMessage", run(), *lines)
        if can_read:
            assert again["result"]["task"] == first
        else:
            assert again["error"]["data"][0]["metadata"]["executed"] == "unknown"
        assert len(here.office.sent) == 1


LARGE = "x" * 8_000_000
"""More than all that the kernel takes for a client that does not read."""


def answer_largely(here: Hall) -> None:
    result = Result(raw({"content": [{"type": "text", "text": LARGE}]}))
    here.office.stage.link.at_once = lambda inflight: inflight.finish(result)


async def test_a_large_answer_with_a_missing_part_is_returned_to_a_repeated_request() -> None:
    async with hall() as here:
        answer_largely(here)
        async with connect_raw(here.port, receive_bytes=4096) as raw_client:
            raw_client.say(request("/a2a", json.dumps(envelope("SendMessage", run())).encode(), JSON_LINE))
            await raw_client.receive_head()
            raw_client.leave()
        again = await here.task("SendMessage", run())
        assert again["artifacts"][0]["parts"][0]["text"] == LARGE
        assert len(here.office.sent) == 1


async def test_an_undelivered_answer_is_returned_to_a_repeated_request() -> None:
    async with hall() as here:
        async with connect_raw(here.port) as raw_client:
            body = json.dumps(envelope("SendMessage", run())).encode()
            raw_client.say(request("/a2a", body, "Content-Type: application/json"))
            await here.office.until_followed()
            raw_client.leave()
        await here.office.until_alone()
        here.office.finish()
        await here.office.engine.wait_idle()
        again = await here.task("SendMessage", run())
        assert again["status"]["state"] == "TASK_STATE_COMPLETED"
        assert len(here.office.sent) == 1


async def test_a_repeated_message_joins_the_stream_that_broke() -> None:
    async with hall() as here:
        async with here.following("SendStreamingMessage", run()) as events:
            first = await events.item()
            events.raw_client.leave()
        async with here.following("SendStreamingMessage", run()) as events:
            assert (await events.item())["task"]["id"] == first["task"]["id"]
            here.office.finish()
            last = [received["result"] for _, received in await events.rest()][-1]
            assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert len(here.office.sent) == 1
        async with here.following("SendStreamingMessage", run()) as events:
            assert (await events.item())["task"]["id"] == first["task"]["id"]


async def test_an_answer_that_ended_its_task_has_the_same_end_when_it_is_sent_again() -> None:
    async with hall() as here:
        replies: list[Reply] = []
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        here.office.sent[0].ask(QUESTION, replies.append)
        answer = message({"a": 1}, "m2", said={"taskId": task})
        ending = asyncio.create_task(here.task("SendMessage", answer))
        await until(lambda: len(replies) == 1)
        here.office.finish()
        first = await ending
        assert first["status"]["state"] == "TASK_STATE_COMPLETED"
        assert await here.task("SendMessage", answer) == first
        assert len(replies) == 1


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_caller_that_went_on_with_a_task_to_its_end_means_the_same_message_anew(*, is_cancelled: bool) -> None:
    """It knows the task from the first answer, which so has not been lost. A kit of A2A repeats its ids like this."""
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        if is_cancelled:
            await here.rpc("CancelTask", {"id": task})
        else:
            await here.task("SendMessage", message("hurry", "m2", said={"taskId": task}, **NOW))
            assert (await here.task("SendMessage", run(**NOW)))["id"] == task
            here.office.finish()
            await here.office.engine.wait_idle()
        assert (await here.task("SendMessage", run(**NOW)))["id"] != task


async def test_another_message_under_the_same_id_is_not_a_repeat() -> None:
    async with hall() as here:
        first = await here.task("SendMessage", run(**NOW))
        other = await here.task("SendMessage", run("files.write", **NOW))
        assert other["id"] != first["id"]
        assert [inflight.call.name for inflight in here.office.sent] == ["files.read", "files.write"]


async def test_the_same_words_in_another_context_are_not_a_repeat() -> None:
    async with hall() as here:
        first = await here.task("SendMessage", run(said={"contextId": "a"}, **NOW))
        other = await here.task("SendMessage", run(said={"contextId": "b"}, **NOW))
        assert (first["contextId"], other["contextId"]) == ("a", "b")
        assert len(here.office.sent) == 2


async def test_another_caller_s_message_is_not_a_repeat() -> None:
    async with hall() as here:
        mine, theirs = await both(
            here.task("SendMessage", run(**NOW)), here.task("SendMessage", run(**NOW), "X-Api-Key: other")
        )
        assert mine["id"] != theirs["id"]
        assert len(here.office.sent) == 2


async def test_messages_without_ids_are_never_repeats() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        params = {"message": {"role": "user", "parts": [{"type": "data", "content": {"tool": "files.read"}}]}}
        ids = {(await here.rpc("tasks/send", params))["result"]["id"] for _ in range(2)}
        assert len(ids) == 2


async def test_a_message_that_could_not_be_begun_may_be_said_again() -> None:
    journal = HeldJournal()
    async with hall(journal=journal) as here:
        sending = [asyncio.ensure_future(here.rpc("SendMessage", run(**NOW))) for _ in range(2)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not journal.waiting:  # noqa: ASYNC110 - it arrives over a socket
                await asyncio.sleep(0)
            journal.settle("refused")
            while not journal.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
        journal.let_go()
        results = await asyncio.gather(*sending)
        assert sorted("error" in each for each in results) == [False, True]
        assert [each["error"]["code"] for each in results if "error" in each] == [-32603]
        assert len(here.office.sent) == 1


async def test_after_a_crash_a_repeated_message_gets_the_lost_task() -> None:
    async with hall() as here:
        await here.task("SendMessage", run(**NOW))
        office = here.office
        after = TaskEngine(office.hub, office.journal, office.now)
        await after.recover()
        office.a2a_service._engine = after
        again = await here.task("SendMessage", run())
        assert again["status"]["state"] == "TASK_STATE_FAILED"
        assert len(office.sent) == 1


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_under_a_key_the_first_answer_is_given_for_a_day() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        first = await here.task("SendMessage", run(), KEY)
        assert await here.task("SendMessage", run(), KEY) == first
        here.office.seconds += record.KEY_SECONDS - 60.0
        assert await here.task("SendMessage", run(), KEY) == first
        here.office.seconds += 120.0
        later = await here.task("SendMessage", run(), KEY)
        assert later["id"] != first["id"]
        assert await here.task("SendMessage", run(), KEY) == later
        assert len(here.office.sent) == 2


async def test_the_same_message_under_a_key_is_one_in_whichever_binding_it_comes() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        first = await here.task("SendMessage", run(), KEY)
        answer = await here.post(run(), KEY, path="/a2a/rest/message:send")
        assert json.loads(answer.body)["task"]["id"] == first["id"]
        async with here.following("SendStreamingMessage", run(), KEY) as events:
            assert (await events.item())["task"]["id"] == first["id"]
        assert len(here.office.sent) == 1


async def test_the_same_message_may_be_written_otherwise_the_second_time() -> None:
    async with hall() as here:
        said = run(arguments={"path": "x", "more": {"a": 1, "b": 2}}, metadata={"c": 1, "d": 2}, **NOW)
        one, other = (json.dumps(envelope("SendMessage", said), sort_keys=way).encode() for way in (True, False))
        assert one != other
        for lines in ((), (KEY,)):
            received = [json.loads((await here.post(body, *lines)).body)["result"]["task"] for body in (one, other)]
            assert received[0]["id"] == received[1]["id"]
        assert len(here.office.sent) == 1


@pytest.mark.parametrize("lines", [((KEY,), ()), ((), (KEY,)), ((KEY,), ("Idempotency-Key: k2",))])
async def test_a_message_runs_once_also_if_it_comes_under_a_key_and_without(
    lines: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    async with hall() as here:
        here.office.answer_at_once()
        first = await here.task("SendMessage", run(), *lines[0])
        assert await here.task("SendMessage", run(), *lines[1]) == first
        assert len(here.office.sent) == 1
        here.office.seconds += record.KEY_SECONDS - 60.0
        if lines[1]:
            assert await here.task("SendMessage", run(), *lines[1]) == first, "the key holds for a day"


async def test_one_message_under_two_keys_at_the_same_moment_is_one() -> None:
    async with hall() as here:
        first, second = await both(
            here.task("SendMessage", run(**NOW), KEY), here.task("SendMessage", run(**NOW), "Idempotency-Key: k2")
        )
        assert first["id"] == second["id"]
        assert len(here.office.sent) == 1


async def test_a_key_with_another_message_is_refused() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        await here.task("SendMessage", run(), KEY)
        response = await here.rpc("SendMessage", run(arguments={"path": "x"}), KEY)
        assert response["error"]["code"] == -32602
        answer = await here.post(run(arguments={"path": "x"}), KEY, path="/a2a/rest/message:send")
        assert answer.status == 409
        assert len(here.office.sent) == 1


async def test_the_first_generation_s_own_names_of_tasks_go_with_keys() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        params = {
            "id": "mine",
            "message": {"role": "user", "parts": [{"type": "data", "data": {"tool": "files.read"}}]},
        }
        first = await here.rpc("tasks/send", params, KEY)
        assert await here.rpc("tasks/send", params, KEY) == first
        assert len(here.office.sent) == 1


async def test_a_key_is_its_caller_s_own() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        mine = await here.task("SendMessage", run(), KEY)
        theirs = await here.task("SendMessage", run(), KEY, "X-Api-Key: other")
        assert mine["id"] != theirs["id"]


async def test_two_with_one_key_at_the_same_moment_are_one() -> None:
    async with hall() as here:
        first, second = await both(
            here.task("SendMessage", run(**NOW), KEY), here.task("SendMessage", run(id="m1", **NOW), KEY)
        )
        assert first["id"] == second["id"]
        assert len(here.office.sent) == 1


@pytest.mark.parametrize("key", ["", "x" * 257])
async def test_a_key_has_a_length(key: str) -> None:
    async with hall() as here:
        response = await here.rpc("SendMessage", message("hello"), f"Idempotency-Key: {key}")
        assert response["error"]["code"] == -32602


async def test_a_key_with_an_expired_task_runs_nothing() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        first = await here.task("SendMessage", run(), KEY)
        await here.office.journal.prune("task", ["completed"], before=here.office.now() + 1, limit=9)
        here.office.engine.forget_before(here.office.now() + 1, 0.0)
        response = await here.rpc("SendMessage", run(), KEY)
        assert response["error"]["code"] == -32001
        assert first["id"] in response["error"]["message"]
        assert len(here.office.sent) == 1


async def test_the_key_and_the_task_are_kept_together_or_not_at_all() -> None:
    journal = HeldJournal()
    async with hall(journal=journal) as here:
        sending = asyncio.ensure_future(here.rpc("SendMessage", run(**NOW), KEY))
        await _until_waiting(journal)
        documents, _ = journal.waiting[0]
        assert [document.kind for document in documents] == ["task", "repeat"]
        journal.settle("refused")
        journal.is_held = False
        assert (await sending)["error"]["code"] == -32603
        assert (await _again(here))["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_key_does_not_stand_for_a_task_that_was_not_begun(*, is_kept: bool) -> None:
    journal = HeldJournal()
    async with hall(journal=journal) as here:
        sending = asyncio.ensure_future(here.rpc("SendMessage", run(**NOW), KEY))
        await _until_waiting(journal)
        journal.settle("unknown", is_kept=is_kept)
        again = asyncio.ensure_future(_again(here))
        assert (await here.rpc("ListTasks", {}))["result"]["tasks"] == []
        assert not is_kept or not sending.done()
        journal.let_go()
        assert (await sending)["error"]["code"] == -32603
        assert (await again)["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
        assert len(here.office.sent) == 1


async def _until_waiting(journal: HeldJournal) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not journal.waiting:  # noqa: ASYNC110 - it arrives over a socket
            await asyncio.sleep(0)


async def _again(here: Hall) -> Any:
    return await here.task("SendMessage", run(**NOW), KEY)


async def test_a_key_holds_for_a_message_that_goes_on_with_a_task_too() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", message("hello")))["id"]
        said = run(id="m2", said={"taskId": task}, **NOW)
        first = await here.task("SendMessage", said, KEY)
        assert (first["id"], len(here.office.sent)) == (task, 1)
        here.office.finish()
        again = await here.task("SendMessage", said, KEY)
        assert (again["id"], again["status"]["state"]) == (task, "TASK_STATE_COMPLETED")
        response = await here.rpc("SendMessage", run(id="m3", said={"taskId": task}), KEY)
        assert response["error"]["code"] == -32602
        assert "was used with another message" in response["error"]["message"]
        assert len(here.office.sent) == 1


async def test_a_key_that_was_not_kept_before_a_crash_costs_nothing() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", message("hello")))["id"]
        said = run(id="m2", said={"taskId": task}, **NOW)
        await here.task("SendMessage", said)
        here.office.finish()
        again = await here.task("SendMessage", said, KEY)
        assert again["status"]["state"] == "TASK_STATE_COMPLETED"
        assert await here.task("SendMessage", said, KEY) == again
        assert len(here.office.sent) == 1


async def test_a_refused_message_does_not_use_its_key() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        task = (await here.task("SendMessage", run()))["id"]
        refused = await here.rpc("SendMessage", run(id="m2", said={"taskId": task}), KEY)
        assert refused["error"]["code"] == -32004
        assert (await here.task("SendMessage", run(id="m3"), KEY))["status"]["state"] == "TASK_STATE_COMPLETED"


# -- the first generation, which goes on with what has ended -----------------------------------------------------------


def first(**arguments: Any) -> dict[str, Any]:
    """The parameters of `tasks/send`, under the caller's own name for its task."""
    part = {"type": "data", "data": {"tool": "files.read", "arguments": arguments}}
    return {"id": "mine", "message": {"role": "user", "parts": [part]}, "historyLength": 9}


async def test_the_first_generation_reopens_a_task_that_has_ended() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        states = []
        for number in (1, 2, 2):
            response = (await here.rpc("tasks/send", first(n=number)))["result"]
            states.append((response["id"], response["status"]["state"], response["artifacts"][0]["parts"][0]["text"]))
        assert states == [("mine", "completed", '{"n": 1}')] + [("mine", "completed", '{"n": 2}')] * 2
        assert len(here.office.sent) == 3
        kept = (await here.rpc("tasks/get", {"id": "mine", "historyLength": 9}))["result"]
        assert len(kept["history"]) == 3


async def test_an_answer_that_its_caller_missed_is_given_again_and_nothing_runs_twice() -> None:
    async with hall() as here:
        async with connect_raw(here.port) as raw_client:
            body = json.dumps(envelope("tasks/send", first(n=1))).encode()
            raw_client.say(request("/a2a", body, "Content-Type: application/json"))
            await here.office.until_followed()
        await here.office.until_alone()
        here.office.finish()
        response = (await here.rpc("tasks/send", first(n=1)))["result"]
        assert (response["status"]["state"], len(here.office.sent)) == ("completed", 1)
        here.office.answer_at_once()
        await here.rpc("tasks/send", first(n=1))
        assert len(here.office.sent) == 2


@pytest.mark.parametrize("lines", [(), (KEY,)])
async def test_the_same_again_while_it_runs_is_answered_with_its_end(lines: tuple[str, ...]) -> None:
    async with hall() as here:
        one = asyncio.create_task(here.rpc("tasks/send", first(n=1)))
        await here.office.until_sent()
        again = [asyncio.create_task(here.rpc("tasks/send", first(n=1), *lines)) for _ in range(2)]
        await here.office.until_followed(3)
        here.office.finish()
        async with asyncio.timeout(PATIENCE_SECONDS):
            ends = [(await received)["result"]["status"]["state"] for received in (one, *again)]
        assert ends == ["completed"] * 3
        assert len(here.office.sent) == 1


async def test_two_of_the_first_generation_at_the_same_moment_are_one() -> None:
    office = Office()
    late = ServerQueue(ServerName("late"), office.hub.limits)
    office.hub.open_server_queue(late, ServerStatus(late.server, "starting"))
    said = SendMessage(Message("", "user", (DataPart(raw({"tool": "late.read"})),)), task="mine")
    two = [asyncio.create_task(office.a2a_service.send(ANYONE, "0.1", said)) for _ in range(2)]
    await turns()
    assert not any(task.done() for task in two), "both wait for the server that is late"
    late.attach(office.stage.link)
    read = tool(server=late.server)
    office.hub.publish(ServerStatus(late.server, "ready", is_settled=True, tools=(read,)))
    one, other = await both(*two)
    assert one is other
    assert len(office.sent) == 1


async def test_something_else_while_it_runs_is_not_taken() -> None:
    async with hall() as here:
        one = asyncio.create_task(here.rpc("tasks/send", first(n=1)))
        await here.office.until_sent()
        skilled = first(n=1)
        skilled["message"]["metadata"] = {"skill": "files.write"}
        for params in (first(n=2), skilled):
            assert (await here.rpc("tasks/send", params))["error"]["code"] == -32004
        here.office.finish()
        await one


async def test_two_questions_may_have_the_same_answer() -> None:
    async with hall() as here:
        replies: list[Reply] = []
        one = asyncio.create_task(here.rpc("tasks/send", first(n=1)))
        await here.office.until_sent()
        here.office.sent[0].ask(QUESTION, replies.append)
        assert (await one)["result"]["status"]["state"] == "input-required"
        yes = {**first(), "message": {"role": "user", "parts": [{"type": "data", "data": {"a": 1}}]}}
        two = asyncio.create_task(here.rpc("tasks/send", yes))
        await until(lambda: len(replies) == 1)
        here.office.sent[0].ask(QUESTION, replies.append)
        assert (await two)["result"]["status"]["state"] == "input-required"
        three = asyncio.create_task(here.rpc("tasks/send", yes))
        await until(lambda: len(replies) == 2)
        here.office.finish()
        assert (await three)["result"]["status"]["state"] == "completed"


async def test_a_repeated_request_after_a_question_may_answer_it_as_the_first() -> None:
    async with hall() as here:
        replies: list[Reply] = []
        one = asyncio.create_task(here.rpc("tasks/send", first(n=1)))
        await here.office.until_sent()
        here.office.sent[0].ask(QUESTION, replies.append)
        await one
        yes = {**first(), "message": {"role": "user", "parts": [{"type": "data", "data": {"a": 1}}]}}
        async with connect_raw(here.port) as raw_client:
            raw_client.say(request("/a2a", json.dumps(envelope("tasks/send", yes)).encode(), JSON_LINE))
            await until(lambda: len(replies) == 1)
        await here.office.until_alone()
        here.office.sent[0].ask(QUESTION, replies.append)
        assert (await here.rpc("tasks/get", {"id": "mine"}))["result"]["status"]["state"] == "input-required"
        two = asyncio.create_task(here.rpc("tasks/send", yes))
        await until(lambda: len(replies) == 2)
        here.office.finish()
        await two


async def test_a_reopened_task_is_stored_and_may_end_differently() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        await here.rpc("tasks/send", first(n=1))
        bad = {**first(), "message": {"role": "user", "parts": [{"type": "data", "data": {"tool": "files.gone"}}]}}
        assert (await here.rpc("tasks/send", bad))["result"]["status"]["state"] == "failed"
        words = {**first(), "message": {"role": "user", "parts": [{"type": "text", "text": "and now"}]}}
        assert (await here.rpc("tasks/send", words))["result"]["status"]["state"] == "input-required"
        document = await here.office.journal.read("task", "default\nanyone", "mine")
        assert document is not None
        assert document.state == "input_required"


async def test_other_generations_do_not_reopen_ended_tasks() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        task = (await here.task("SendMessage", run()))["id"]
        response = await here.rpc("SendMessage", run(id="m2", said={"taskId": task}))
        assert response["error"]["code"] == -32004


async def test_only_a_few_sent_ends_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_services, "DELIVERED_MAX", 1)
    async with hall() as here:
        here.office.answer_at_once()
        for name in ("mine", "other"):
            await here.rpc("tasks/send", {**first(n=1), "id": name})
        await here.rpc("tasks/send", first(n=1))
        assert len(here.office.sent) == 2
