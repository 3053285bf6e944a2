"""Streams: a follower gets the current state and all later updates in order, independent of other followers."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.frontends.a2a.task_stream import (
    PIECE,
    PIECE_LENGTH,
    artifact_chunks,
    chunk_count,
    is_long,
    is_settled,
    updates_of,
)
from isthmus.frontends.http.request_cycle import CROWDED_BYTES
from isthmus.model.calls import LogMessage, Progress, Question
from isthmus.model.fault_table import ServerError
from isthmus.model.tasks import Artifact, DataPart, FilePart, Part, TaskArtifactUpdate, TaskState, TextPart
from tests.unit.core.doubles import SERVER, raw
from tests.unit.frontends.a2a.doubles import NOW, OTHER, Events, Hall, hall, message, run
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS

QUESTION = Question("elicitation/create", raw({"message": "Which?", "requestedSchema": {"type": "object"}}))
VAULT = {"type": "data", "content": {"target_mcp_server_id": "files", "tool_name": "read", "arguments": {}}}


def progress(number: int) -> Progress:
    return Progress({"progress": raw(number), "message": raw(f"step {number}")})


def states(told: list[tuple[str | None, Any]]) -> list[str]:
    updates = [each["result"]["statusUpdate"] for _, each in told if "statusUpdate" in each["result"]]
    return [update["status"]["state"] for update in updates]


async def texts(events: Events, count: int) -> list[str]:
    """The words of the next reports."""
    items = [await events.item() for _ in range(count)]
    return [item["statusUpdate"]["status"]["message"]["parts"][0]["text"] for item in items]


async def test_reports_leave_while_the_tool_still_runs_and_the_end_comes_last() -> None:
    async with hall() as here, here.following("SendStreamingMessage", run()) as events:
        first = await events.item()
        assert first["task"]["status"]["state"] == "TASK_STATE_WORKING"
        for number in range(3):
            here.office.sent[0].emit(progress(number))
            # Heard before the next one is made: nothing waits for more to come.
            assert await texts(events, 1) == [f"step {number}"]
        here.office.sent[0].emit(LogMessage("info", {"data": raw("a line")}))
        assert (await events.item())["statusUpdate"]["status"]["message"]["parts"] == [
            {"data": {"data": "a line"}, "mediaType": "application/json"}
        ]
        here.office.finish()
        rest = await events.rest()
        assert [next(iter(each["result"])) for _, each in rest] == ["artifactUpdate", "statusUpdate"]
        assert states(rest) == ["TASK_STATE_COMPLETED"]


async def test_a_caller_that_loses_permission_gets_no_more_and_the_task_goes_on() -> None:
    async with hall() as here:
        async with (
            here.following("SendStreamingMessage", run()) as mine,
            here.following("SendStreamingMessage", run(), "X-Api-Key: other") as theirs,
        ):
            await mine.item()
            await theirs.item()
            here.frontend.retain({OTHER})
            here.office.sent[0].emit(progress(1))
            (_, last), *rest = await mine.rest()
            assert (last["error"]["code"], rest) == (-32600, [])
            here.office.sent[1].emit(progress(2))
            assert await texts(theirs, 1) == ["step 2"]
        # Nor who was let in before and follows it only now.
        async with here.following("SendStreamingMessage", run()) as late:
            assert [next(iter(each)) for _, each in await late.rest()][-1] != "result"
        here.office.finish(0)
        task = (await here.rpc("ListTasks", {"status": "TASK_STATE_COMPLETED"}))["result"]["tasks"]
        assert len(task) == 1


async def test_any_number_of_listeners_get_the_same_and_one_that_leaves_costs_the_others_nothing() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        async with (
            here.following("SubscribeToTask", {"id": task}) as one,
            here.following("tasks/resubscribe", {"id": task}) as two,
            here.following("SubscribeToTask", {"id": task}) as leaving,
        ):
            firsts = [await events.item() for events in (one, two, leaving)]
            assert {first.get("task", first)["id"] for first in firsts} == {task}
            leaving.raw_client.leave()
            await _until_listeners(here, 2)
            here.office.sent[0].emit(progress(1))
            here.office.finish()
            assert states(await one.rest()) == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
            last = (await two.rest())[-1][1]["result"]
            assert (last["kind"], last["status"]["state"], last["final"]) == ("status-update", "completed", True)


async def test_when_all_have_left_the_task_goes_on_and_its_end_waits_for_a_new_listener() -> None:
    async with hall() as here:
        async with here.following("SendStreamingMessage", run()) as events:
            task = (await events.item())["task"]["id"]
            events.raw_client.leave()
        await here.office.until_alone()
        assert here.office.sent[0].outcome is None
        assert here.office.stage.link.withdrawn == []
        here.office.finish()
        await here.office.engine.wait_idle()
        found = await here.task("GetTask", {"id": task})
        assert found["status"]["state"] == "TASK_STATE_COMPLETED"
        assert found["artifacts"][0]["parts"] == [{"text": "done"}]


async def test_a_stream_ends_with_a_question_and_the_next_message_s_stream_goes_on() -> None:
    async with hall() as here:
        replies: list[object] = []
        async with here.following("SendStreamingMessage", run()) as events:
            task = (await events.item())["task"]["id"]
            here.office.sent[0].ask(QUESTION, replies.append)
            assert states(await events.rest()) == ["TASK_STATE_INPUT_REQUIRED"]
        answer = {"message": {"messageId": "m2", "role": "ROLE_USER", "taskId": task, "parts": [{"data": {"a": 1}}]}}
        async with here.following("SendStreamingMessage", answer) as events:
            await events.item()
            assert len(replies) == 1
            here.office.finish()
            assert states(await events.rest())[-1] == "TASK_STATE_COMPLETED"


async def test_a_subscriber_stays_through_a_question() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        replies: list[object] = []
        here.office.sent[0].ask(QUESTION, replies.append)
        async with here.following("SubscribeToTask", {"id": task}) as events:
            assert (await events.item())["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            part = {"data": {"a": 1}}
            answer = {"messageId": "m2", "role": "ROLE_USER", "taskId": task, "parts": [part]}
            await here.task("SendMessage", {"message": answer, **NOW})
            assert len(replies) == 1
            here.office.finish()
            assert states(await events.rest()) == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]


@pytest.mark.parametrize("method", ["SubscribeToTask", "tasks/resubscribe"])
async def test_an_ended_task_cannot_be_subscribed_to(method: str) -> None:
    async with hall() as here:
        here.office.answer_at_once()
        task = (await here.task("SendMessage", run()))["id"]
        assert (await here.rpc(method, {"id": task}))["error"]["code"] == -32004


LONG = "all the world's a stage " * 30_000
KEY_LINE = "Idempotency-Key: k"


async def test_a_listener_that_returns_for_a_long_answer_gets_the_same_as_the_others() -> None:
    async with hall() as here:
        async with here.following("SendStreamingMessage", run(), KEY_LINE) as events:
            await events.item()
            here.office.finish(content=[{"type": "text", "text": LONG}])
            stayed = await events.rest()
        async with here.following("SendStreamingMessage", run(), KEY_LINE) as events:
            first = (await events.item())["task"]
            assert (first["status"]["state"], first.get("artifacts", [])) == ("TASK_STATE_WORKING", [])
            came_back = await events.rest()
        assert came_back == stayed
        assert len(came_back) == 4
        pieces = [each["result"]["artifactUpdate"]["artifact"]["parts"][0]["text"] for _, each in came_back[:-1]]
        assert "".join(pieces) == LONG
        assert states(came_back) == ["TASK_STATE_COMPLETED"]


async def test_a_listener_that_returns_for_a_short_answer_gets_it_at_once() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        await here.task("SendMessage", run(), KEY_LINE)
        async with here.following("SendStreamingMessage", run(), KEY_LINE) as events:
            ((_, received),) = await events.rest()
        assert received["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert len(received["result"]["task"]["artifacts"]) == 1


async def test_agentvault_replays_earlier_events_and_follows_later_ones() -> None:
    async with hall() as here:
        sent = await here.rpc("tasks/send", {"message": {"role": "user", "parts": [VAULT]}})
        task = sent["result"]["id"]
        async with here.following("tasks/sendSubscribe", {"id": task}) as early:
            assert (await early.next())[0] == "task_status"
            here.office.finish()
            followed = await early.rest()
        async with here.following("tasks/sendSubscribe", {"id": task}) as late:
            replayed = await late.rest()
        for received in (followed, replayed):
            assert [name for name, _ in received] == ["task_message", "task_status"]
            assert received[0][1]["message"]["parts"][0]["content"]["success"] is True
            assert received[1][1]["state"] == "COMPLETED"


async def test_the_first_generation_replays_an_ended_task() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        part = {"type": "data", "data": {"tool": "files.read"}}
        await here.rpc("tasks/send", {"id": "mine", "message": {"role": "user", "parts": [part]}})
        async with here.following("tasks/resubscribe", {"id": "mine"}) as events:
            received = [each["result"] for _, each in await events.rest()]
        assert received[-1]["status"]["state"] == "completed"
        assert received[-1]["final"] is True
        assert any("artifact" in each for each in received)


async def test_a_slow_reader_misses_progress_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hall() as here, here.following("SendStreamingMessage", run()) as events:
        await events.item()
        [telling] = next(iter(here.office.engine._store._running.values())).listeners
        peer = telling._peer  # type: ignore[attr-defined]
        with monkeypatch.context() as crowded:
            crowded.setattr(type(peer), "buffered_bytes", lambda _: CROWDED_BYTES + 1)
            here.office.sent[0].emit(progress(1))
        here.office.sent[0].emit(progress(2))
        assert await texts(events, 1) == ["step 2"]
        with monkeypatch.context() as crowded:
            crowded.setattr(type(peer), "buffered_bytes", lambda _: CROWDED_BYTES + 1)
            here.office.finish()
            await here.office.engine.wait_idle()
        assert states(await events.rest()) == ["TASK_STATE_COMPLETED"]


async def test_two_reports_of_one_moment_are_two() -> None:
    async with hall() as here:
        here.office.now = lambda: 1_700_000_000.0  # type: ignore[method-assign]
        sent = await here.rpc("tasks/send", {"message": {"role": "user", "parts": [VAULT]}})
        async with here.following("tasks/sendSubscribe", {"id": sent["result"]["id"]}) as events:
            await events.next()
            for number in range(2):
                here.office.sent[0].emit(progress(number))
            here.office.finish()
            names = [name for name, _ in await events.rest()]
        assert names.count("task_status") == 3


# -- listening again ---------------------------------------------------------------------------------------------------


def report_ids(told: list[Any]) -> list[str]:
    """The ids of the messages that are in updates of how a task stands."""
    found = [each["statusUpdate"]["status"].get("message") for each in told if "statusUpdate" in each]
    return [message["messageId"] for message in found if message is not None]


async def test_a_cut_off_listener_starts_again_or_continues_after_the_last_event() -> None:
    async with hall() as here:
        async with here.following("SendStreamingMessage", run()) as events:
            task = (await events.item())["task"]["id"]
            here.office.sent[0].emit(progress(0))
            assert await texts(events, 1) == ["step 0"]
            place = events.place
            events.raw_client.leave()
        await here.office.until_alone()
        for number in (1, 2):
            here.office.sent[0].emit(progress(number))
        async with (
            here.following("SubscribeToTask", {"id": task}, f"Last-Event-ID: {place}") as after,
            here.following("SubscribeToTask", {"id": task}) as whole,
            here.following("SubscribeToTask", {"id": task}, "Last-Event-ID: of another kind") as odd,
        ):
            for events in (after, whole, odd):
                assert (await events.item())["task"]["id"] == task
            here.office.sent[0].emit(progress(3))
            assert await texts(after, 3) == ["step 1", "step 2", "step 3"]
            assert await texts(whole, 4) == [f"step {number}" for number in range(4)]
            assert await texts(odd, 4) == [f"step {number}" for number in range(4)]
            assert after.place == whole.place


async def test_every_listener_ends_with_the_same_reports() -> None:
    async with hall() as here, here.following("SendStreamingMessage", run()) as first:
        received = [[await first.item()]]
        task = received[0][0]["task"]["id"]
        here.office.sent[0].emit(progress(0))
        async with here.following("SubscribeToTask", {"id": task}) as second:
            received.append([await second.item()])
            here.office.sent[0].emit(LogMessage("info", {"data": raw("a line")}))
            async with here.following("SubscribeToTask", {"id": task}) as third:
                received.append([await third.item()])
                here.office.sent[0].emit(progress(1))
                here.office.finish()
                for each, events in zip(received, (first, second, third), strict=True):
                    each += [told["result"] for _, told in await events.rest()]
    ids = [report_ids(each) for each in received]
    assert len(set(ids[0])) == 3
    assert ids[0] == ids[1] == ids[2]
    statuses = [[each["statusUpdate"] for each in told if "statusUpdate" in each] for told in received]
    assert statuses[0] == statuses[1] == statuses[2]


async def test_reports_are_forgotten_with_the_end_of_their_task() -> None:
    async with hall() as here:
        await here.task("SendMessage", run(**NOW))
        live = next(iter(here.office.engine._store._running.values()))
        here.office.sent[0].emit(progress(0))
        assert len(live.reports.after(0)) == 1
        here.office.finish()
        await here.office.engine.wait_idle()
        assert live.reports.after(0) == []


async def test_a_listener_that_joins_at_a_question_gets_earlier_reports_and_then_the_question() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        here.office.sent[0].emit(progress(0))
        here.office.sent[0].ask(QUESTION, lambda _: None)
        async with here.following("SubscribeToTask", {"id": task}) as events:
            assert (await events.item())["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert await texts(events, 1) == ["step 0"]
            assert (await events.item())["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        async with here.following("tasks/resubscribe", {"id": task}) as events:
            received = [each["result"] for _, each in await events.rest()]
        assert [each["status"]["state"] for each in received] == ["input-required", "working", "input-required"]
        assert [each.get("final") for each in received] == [None, False, True]


async def test_the_answer_to_a_question_gets_no_report_from_before_it() -> None:
    async with hall() as here:
        async with here.following("SendStreamingMessage", run()) as events:
            task = (await events.item())["task"]["id"]
            here.office.sent[0].emit(progress(0))
            here.office.sent[0].ask(QUESTION, lambda _: here.office.sent[0].emit(progress(1)))
            assert len(await events.rest()) == 2
        answer = {"message": {"messageId": "m2", "role": "ROLE_USER", "taskId": task, "parts": [{"data": {"a": 1}}]}}
        async with here.following("SendStreamingMessage", answer) as events:
            await events.item()
            assert await texts(events, 1) == ["step 1"]


async def test_agentvault_and_the_first_generation_get_earlier_reports_too() -> None:
    async with hall() as here:
        vault = (await here.rpc("tasks/send", {"message": {"role": "user", "parts": [VAULT]}}))["result"]["id"]
        here.office.sent[0].emit(progress(0))
        async with here.following("tasks/sendSubscribe", {"id": vault}) as events:
            await events.next()
            name, report = await events.next()
            assert (name, report["message"]) == ("task_status", "step 0")
        part = {"type": "data", "data": {"tool": "files.read"}}
        first = {"id": "mine", "message": {"role": "user", "parts": [part]}}
        async with here.following("tasks/sendSubscribe", first) as events:
            await events.item()
            here.office.sent[1].emit(progress(0))
            said = (await events.item())["status"]["message"]["parts"]
        async with here.following("tasks/resubscribe", {"id": "mine"}) as events:
            await events.item()
            assert (await events.item())["status"]["message"]["parts"] == said


async def test_an_artifact_comes_part_by_part() -> None:
    async with hall() as here:
        live_parts = [{"type": "text", "text": str(number)} for number in range(3)]
        async with here.following("SendStreamingMessage", run()) as events:
            await events.item()
            here.office.finish(content=live_parts)
            received = [each["result"].get("artifactUpdate") for _, each in await events.rest()]
        pieces = [
            (piece.get("append", False), piece.get("lastChunk", False)) for piece in received if piece is not None
        ]
        assert pieces == [(False, False), (True, False), (True, True)]


async def test_waiting_for_an_answer_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.frontends.a2a.http.WAIT_SECONDS", 0.01)
    async with hall() as here, asyncio.timeout(PATIENCE_SECONDS):
        task = await here.task("SendMessage", run())
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        here.office.finish()


async def _until_listeners(here: Hall, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sum(len(live.listeners) for live in here.office.engine._store._running.values()) != count:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("state", "settled"),
    [("submitted", False), ("working", False), ("input_required", True), ("auth_required", True), ("failed", True)],
)
async def test_a_task_is_settled_when_it_is_the_caller_s_turn(state: TaskState, *, settled: bool) -> None:
    async with hall() as here:
        await here.task("SendMessage", run(**NOW))
        live = next(iter(here.office.engine._store._running.values()))
        here.office.engine.change(live, state=state)
        assert is_settled(live.record) is settled
        assert not [update for update in updates_of(live.record) if isinstance(update, TaskArtifactUpdate)]


async def test_a_hub_that_goes_away_ends_the_streams_on_which_nothing_follows() -> None:
    async with hall() as here:
        waiting = await here.task("SendMessage", message("which?", "m1"))
        working = await here.task("SendMessage", run("files.read", "m2", **NOW))
        async with (
            here.following("SubscribeToTask", {"id": waiting["id"]}) as idle,
            here.following("SubscribeToTask", {"id": working["id"]}) as busy,
        ):
            for events in (idle, busy):
                await events.item()
            here.frontend.end_streams()
            assert await idle.rest() == []
            here.office.finish()
            assert states(await busy.rest()) == ["TASK_STATE_COMPLETED"]
        # A subscriber that comes now gets the state, and its stream ends.
        async with here.following("SubscribeToTask", {"id": waiting["id"]}) as late:
            assert [next(iter(each["result"])) for _, each in await late.rest()] == ["task"]


async def test_a_hub_that_goes_away_waits_for_no_answer_to_a_question() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        async with here.following("SubscribeToTask", {"id": task}) as early:
            await early.item()
            here.office.sent[0].ask(QUESTION, lambda _: None)
            assert (await early.item())["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            here.frontend.end_streams()
            assert await early.rest() == []


async def test_a_task_that_rests_while_the_hub_shuts_down_is_reported_and_ends_its_streams() -> None:
    async with hall() as here:
        task = await here.task("SendMessage", run(**NOW))
        async with here.following("SubscribeToTask", {"id": task["id"]}) as events:
            await events.item()
            here.frontend.end_streams()
            asgi_request = {"mode": "url", "url": "https://bank.example", "message": "Log in"}
            here.office.sent[0].finish(ServerError(SERVER, -32042, "no", raw({"elicitations": [asgi_request]})))
            assert states(await events.rest()) == ["TASK_STATE_AUTH_REQUIRED"]


def chunks_of(*parts: Part) -> list[tuple[Part, bool, bool]]:
    pieces = artifact_chunks(Artifact("result", parts, "name"))
    return [(piece.artifact.parts[0], piece.is_more, piece.is_complete) for piece in pieces]


def test_a_small_part_is_one_piece_as_it_is() -> None:
    parts: tuple[Part, ...] = (TextPart(""), FilePart("aGk=", name="a"), DataPart(Raw(b"1")), FilePart(url="x:y"))
    assert chunks_of(*parts) == [
        (parts[0], False, False),
        (parts[1], True, False),
        (parts[2], True, False),
        (parts[3], True, True),
    ]


def test_an_artifact_without_parts_has_no_pieces() -> None:
    assert chunks_of() == []


@settings(max_examples=20, deadline=None)
@given(st.text(min_size=1, max_size=9), st.integers(0, 3 * PIECE_LENGTH))
def test_a_text_is_the_same_when_its_pieces_are_put_together(unit: str, length: int) -> None:
    whole = (unit * (length // len(unit) + 1))[:length]
    pieces = [part for part, _, _ in chunks_of(TextPart(whole, "text/plain"))]
    assert all(isinstance(part, TextPart) and part.media_type == "text/plain" for part in pieces)
    texts = [part.text for part in pieces if isinstance(part, TextPart)]
    assert "".join(texts) == whole
    assert all(len(text) <= PIECE_LENGTH and text.encode() for text in texts[:-1])


@pytest.mark.parametrize("size", [PIECE_LENGTH, 3 * PIECE_LENGTH // 4 + 1, 2 * PIECE_LENGTH + 5])
def test_every_piece_of_a_file_is_base64_by_itself(size: int) -> None:
    whole = bytes(position % 251 for position in range(size))
    pieces = [part for part, _, _ in chunks_of(FilePart(base64.b64encode(whole).decode(), name="a", media_type="b/c"))]
    contents = [part.content or "" for part in pieces if isinstance(part, FilePart)]
    assert len(contents) == len(pieces) > 1
    assert b"".join(base64.b64decode(content, validate=True) for content in contents) == whole
    assert {(part.name, part.media_type) for part in pieces if isinstance(part, FilePart)} == {("a", "b/c")}


def test_a_piece_adds_its_number_to_the_parts_metadata() -> None:
    large = TextPart("x" * (PIECE_LENGTH + 1), metadata=Raw(b'{"a":1}'))
    pieces = chunks_of(TextPart("first"), large)
    assert [is_more for _, is_more, _ in pieces] == [False, True, True]
    assert [is_complete for _, _, is_complete in pieces] == [False, False, True]
    marks = [json.loads(bytes(part.metadata)) for part, _, _ in pieces[1:]]
    assert marks == [{"a": 1, PIECE: {"part": 1, "piece": number, "pieces": 2}} for number in range(2)]


@pytest.mark.parametrize(
    "part",
    [
        DataPart(Raw(b'"' + b"x" * 3 * PIECE_LENGTH + b'"')),
        FilePart("a" * (PIECE_LENGTH + 3)),
        FilePart("aaa\n" * PIECE_LENGTH),
        FilePart(url="https://a/" + "b" * 2 * PIECE_LENGTH),
    ],
)
def test_uncuttable_parts_stay_whole(part: Part) -> None:
    assert chunk_count(part) == 1


def test_a_part_is_cut_in_its_final_form() -> None:
    whole = b'"' + b"x" * PIECE_LENGTH + b'"'
    told_as = FilePart(base64.b64encode(whole).decode(), media_type="application/json")
    artifact = Artifact("result", (TextPart("first"), DataPart(Raw(whole))))
    pieces = list(artifact_chunks(artifact, lambda part: told_as if isinstance(part, DataPart) else part))
    assert [piece.is_complete for piece in pieces] == [False, False, True]
    parts = [piece.artifact.parts[0] for piece in pieces[1:]]
    assert b"".join(base64.b64decode(part.content or "") for part in parts if isinstance(part, FilePart)) == whole
    assert [json.loads(bytes(part.metadata))[PIECE]["part"] for part in parts] == [1, 1]


HALF = PIECE_LENGTH // 2


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((), False),
        ((TextPart("x" * HALF), DataPart(Raw(b"1" * HALF)), FilePart(url="https://a/b")), False),
        ((TextPart("x" * HALF), DataPart(Raw(b"1" * HALF)), FilePart("aaaa")), True),
        ((TextPart("x" * (PIECE_LENGTH + 1)),), True),
    ],
)
def test_an_artifact_is_long_if_it_is_more_than_a_piece(parts: tuple[Part, ...], *, expected: bool) -> None:
    assert is_long(Artifact("result", parts)) is expected
