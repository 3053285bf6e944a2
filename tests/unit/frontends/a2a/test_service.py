"""Operations on tasks; each caller reaches only its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias

import pytest
from msgspec import Raw
from structlog.testing import capture_logs

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.tasks import storage_limits
from isthmus.core.tasks.live_task import LiveTask
from isthmus.frontends.a2a import service
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Question, Reply
from isthmus.model.names import ServerName
from isthmus.model.tasks import DataPart, FilePart, Message, TextPart
from isthmus.storage.memory import MemoryJournal
from isthmus.wire.a2a.operations import A2aProblem, CancelTask, DialectName, GetTask, ListTasks, SendMessage
from tests.unit.core.doubles import ANYONE, raw
from tests.unit.core.tasks.doubles import HeldJournal, turns
from tests.unit.frontends.a2a.doubles import OTHER, Office

QUESTION = Question(
    "elicitation/create",
    raw({"message": "Which?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "integer"}}}}),
)


def saying(what: Any, id: str = "m1", **more: Any) -> SendMessage:
    part = TextPart(what) if isinstance(what, str) else DataPart(raw(what))
    return SendMessage(Message(id, "user", (part,)), **more)


RUN = {"tool": "files.read"}


async def begun(office: Office, said: SendMessage | None = None, *, dialect: DialectName = "1.0") -> LiveTask:
    live = await office.a2a_service.send(ANYONE, dialect, said or saying(RUN))
    assert isinstance(live, LiveTask), live
    return live


async def refused(office: Office, said: SendMessage, *, caller: Caller = ANYONE, dialect: DialectName = "1.0") -> str:
    response = await office.a2a_service.send(caller, dialect, said)
    assert isinstance(response, A2aProblem), response
    return response.kind


# -- saying something --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["0.1", "agentvault"])
async def test_a_message_without_an_id_is_given_one_before_it_is_kept(dialect: DialectName) -> None:
    office = Office()
    live = await begun(office, saying(RUN, ""), dialect=dialect)
    document = await office.journal.read("task", live.record.owner.key, live.record.id)
    assert document is not None
    assert live.record.said[0].id
    assert live.record.said[0].id.encode() in (document.body or b"")


async def test_every_task_has_a_context_and_a_caller_may_name_it() -> None:
    office = Office()
    assert (await begun(office)).record.context
    assert (await begun(office, saying(RUN, "m2", context="talk"))).record.context == "talk"


@pytest.mark.parametrize("more", [{"task": "t" * 257}, {"context": "c" * 257}])
async def test_ids_have_a_length(more: dict[str, str]) -> None:
    office = Office()
    assert await refused(office, saying(RUN, **more), dialect="0.1") == "invalid_params"
    assert office.sent == []


async def test_only_the_first_generation_names_its_tasks() -> None:
    office = Office()
    assert await refused(office, saying(RUN, task="mine")) == "task_not_found"
    assert (await begun(office, saying(RUN, "", task="mine"), dialect="0.1")).record.id == "mine"
    other = saying({**RUN, "arguments": {"path": "/"}}, "", task="mine")
    assert await refused(office, other, dialect="0.1") == "unsupported_operation"


async def test_a_storage_failure_is_reported_as_the_hubs_own_problem() -> None:
    journal = HeldJournal()
    office = Office(journal=journal)

    def refuse(documents: object, done: Any, facts: object = ()) -> None:
        office.engine._loop.call_soon(done, "refused")

    journal.write = refuse  # type: ignore[method-assign]
    response = await office.a2a_service.send(ANYONE, "1.0", saying(RUN))
    assert isinstance(response, A2aProblem)
    assert (response.kind, response.details) == ("internal", {"executed": "no", "retryAfter": "1"})
    assert office.sent == []


class SlowJournal(MemoryJournal):
    """One that takes its time to say how much there is."""

    def __init__(self) -> None:
        super().__init__()
        self.may_weigh = asyncio.Event()
        self.may_weigh.set()

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        await self.may_weigh.wait()
        return await super().weigh(kinds, owner)


async def test_a_message_to_a_task_evicted_meanwhile_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_limits, "FRESH_SECONDS", 0.0)
    office = Office(journal=(journal := SlowJournal()))
    await begun(office, saying("hello"))
    live = await begun(office, saying("hello", "m2"))
    await turns()
    # So much that the journal is asked before more is said; by then there is less.
    (count,) = office.engine.storage_quota._usages.values()
    most = count.open_bytes * 4
    monkeypatch.setattr(office.engine.storage_quota, "most", lambda _: most)
    await journal.trim("task", live.record.owner.key, [live.record.state], bytes=1, limit=1)
    journal.may_weigh.clear()
    saying_more = asyncio.create_task(begun(office, saying(RUN, "m3", task=live.record.id)))
    await turns()
    office.engine._store._cache.drop(live.key)
    found = await office.engine.find(live.record.owner, live.record.id)
    journal.may_weigh.set()
    assert await saying_more is found
    assert found is not None
    assert [said.id for said in found.record.said if said.role == "user"] == ["m2", "m3"]


@pytest.mark.parametrize("key", [None, "key"])
async def test_exceeding_the_storage_quota_is_not_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    office = Office()
    live = await begun(office, saying("hello"))
    await turns()
    monkeypatch.setattr(office.engine.storage_quota, "most", lambda _: 2_000)
    for said in (saying("hello", "m2"), saying(RUN, "m3", task=live.record.id)):
        response = await office.a2a_service.send(ANYONE, "1.0", said, key)
        assert isinstance(response, A2aProblem)
        assert (response.kind, response.details) == ("unsupported_operation", {"executed": "no"})
        assert "[a2a] keep_bytes" in response.message


async def test_a_wrong_instruction_is_a_task_that_failed() -> None:
    office = Office()
    live = await begun(office, saying({"tool": "files.nothing"}))
    assert live.record.state == "failed"
    assert live.record.ending is not None
    assert live.record.ending.reason == "unknown_tool"


async def test_a_tool_that_the_caller_may_not_see_is_as_unknown_as_one_that_is_not_there() -> None:
    office = Office()
    some = Caller("some", "default", ANYONE.grants.__class__(("files.read",)))
    endings = []
    for name in ("files.write", "files.wrote"):
        live = await office.a2a_service.send(some, "1.0", saying({"tool": name}, name))
        assert isinstance(live, LiveTask)
        assert live.record.ending is not None
        endings.append((live.record.state, live.record.ending.message.replace(name, "?")))
    assert endings[0] == endings[1]


# -- going on ----------------------------------------------------------------------------------------------------------


async def test_plain_words_are_asked_for_an_instruction_and_the_next_message_gives_it() -> None:
    office = Office()
    live = await begun(office, saying("please read something"))
    assert live.record.state == "input_required"
    assert [message.role for message in live.record.said] == ["user", "agent"]
    again = await office.a2a_service.send(ANYONE, "1.0", saying("hm", "m2", task=live.record.id))
    assert again is live
    assert office.sent == []
    went_on = await office.a2a_service.send(ANYONE, "1.0", saying(RUN, "m3", task=live.record.id))
    assert went_on is live
    assert live.stored is not None
    assert live.stored.state == "working"
    assert len(office.sent) == 1
    assert [message.id for message in live.record.said if message.role == "user"] == ["m1", "m2", "m3"]


async def test_an_instruction_that_came_late_and_is_wrong_fails_the_task() -> None:
    office = Office()
    live = await begun(office, saying("hello"))
    await office.a2a_service.send(ANYONE, "1.0", saying({"tool": "no.such"}, "m2", task=live.record.id))
    assert live.stored is not None
    assert live.stored.state == "failed"


async def test_words_go_to_the_tool_for_them_if_there_is_one() -> None:
    office = Office(A2aSettings(text_tool="files.hear"))
    live = await begun(office, saying("hello", context="talk"))
    assert office.sent[0].call.name == "files.hear"
    received = bytes(office.sent[0].call.arguments)
    assert received == b'{"text":"hello","message_id":"m1","context_id":"talk","metadata":{}}'
    assert live.record.state == "working"


async def test_that_the_tool_for_words_takes_none_is_logged_once() -> None:
    office = Office(A2aSettings(text_tool="files.read"))
    with capture_logs() as logs:
        for number in range(2):
            live = await begun(office, saying("hello", f"m{number}"))
            assert (live.record.state, office.sent) == ("input_required", [])
    assert [line["reason"] for line in logs] == ["text_tool files.read has no argument named text"]


@pytest.mark.parametrize(
    "said",
    [
        {"tool": "gone.x"},
        {"target_mcp_server_id": "gone", "tool_name": "x", "arguments": {}},
        {"mcp_target_url": "gone", "mcp_method": "ping"},
        {"mcp_target_url": "gone", "mcp_method": "tools/list"},
        {"mcp_target_url": "gone", "mcp_method": "tools/call", "mcp_params": {"name": "x"}},
    ],
)
async def test_of_a_server_that_was_never_reached_just_that_is_said(said: dict[str, Any]) -> None:
    office = Office()
    server_queue = ServerQueue(ServerName("gone"), office.hub.limits)
    office.hub.open_server_queue(
        server_queue, ServerStatus(server_queue.server, "retrying", "no such host", is_settled=True)
    )
    record = (await begun(office, saying(said))).record
    assert record.ending is not None
    assert (record.state, record.ending.reason, record.ending.executed) == ("failed", "not_connected", "no")
    some = Caller("some", "default", Grants(("files",)))
    other = await office.a2a_service.send(some, "1.0", saying(said, "m2"))
    assert isinstance(other, LiveTask)
    assert other.record.ending is not None
    assert other.record.ending.reason in ("unknown_tool", "unknown_server")


async def test_a_question_is_answered_by_the_next_message_if_that_fits() -> None:
    office = Office()
    live = await begun(office)
    replies: list[Reply] = []
    office.sent[0].ask(QUESTION, replies.append)
    await turns()
    task = live.record.id
    assert await refused(office, saying({"a": "no number"}, "m2", task=task)) == "invalid_params"
    assert replies == []
    assert await office.a2a_service.send(ANYONE, "1.0", saying({"a": 1}, "m3", task=task)) is live
    assert len(replies) == 1
    assert await refused(office, saying({"a": 1}, "m4", task=task)) == "unsupported_operation"


async def test_an_answer_that_is_given_again_is_given_once() -> None:
    office = Office()
    live = await begun(office)
    replies: list[Reply] = []
    office.sent[0].ask(QUESTION, replies.append)
    await turns()
    for _ in range(2):
        assert await office.a2a_service.send(ANYONE, "1.0", saying({"a": 1}, "m2", task=live.record.id)) is live
    assert len(replies) == 1
    assert [message.id for message in live.record.said] == ["m1", f"{live.record.id}-question-1", "m2"]


async def test_a_repeated_answer_may_be_spelt_differently() -> None:
    office = Office()
    live = await begun(office)
    office.sent[0].ask(QUESTION, lambda _: None)
    await turns()
    for text in (b'{"a":1,"b":2}', b'{ "b": 2, "a": 1 }'):
        await begun(office, SendMessage(Message("m2", "user", (DataPart(Raw(text)),)), task=live.record.id))
    assert [message.id for message in live.record.said] == ["m1", f"{live.record.id}-question-1", "m2"]


@pytest.mark.parametrize("what", [RUN, {"a": 1}, [1], '{"tool": "files.read"}', '{"a": 1}'])
async def test_a_running_task_keeps_words_and_takes_nothing_that_is_to_be_done(what: Any) -> None:
    office = Office()
    live = await begun(office)
    assert await office.a2a_service.send(ANYONE, "1.0", saying("hurry", "m2", task=live.record.id)) is live
    assert await refused(office, saying(what, "m3", task=live.record.id)) == "unsupported_operation"
    assert live.stored is not None
    assert [message.id for message in live.stored.said] == ["m1", "m2"]
    assert live.stored.state == "working"
    assert len(office.sent) == 1


async def running(office: Office) -> LiveTask:
    return await begun(office)


async def undecided(office: Office) -> LiveTask:
    return await begun(office, saying("hello"))


async def asking(office: Office) -> LiveTask:
    live = await begun(office)
    office.sent[0].ask(QUESTION, lambda _: None)
    await turns()
    return live


async def ended(office: Office) -> LiveTask:
    office.answer_at_once()
    return await begun(office, dialect="0.1")


Stand: TypeAlias = Callable[[Office], Awaitable[LiveTask]]
STANDS: list[tuple[Stand, DialectName]] = [(running, "1.0"), (undecided, "1.0"), (asking, "1.0"), (ended, "0.1")]
"""How a task may stand when the next message comes, and who may send one then."""


@pytest.mark.parametrize(("stand", "dialect"), STANDS)
async def test_a_task_takes_only_so_many_messages(
    stand: Stand, dialect: DialectName, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office()
    live = await stand(office)
    monkeypatch.setattr(service, "SAID_MAX", len(live.record.said) + 1)
    answer: Any = {"a": 1} if stand is asking else "hurry"
    assert await office.a2a_service.send(ANYONE, dialect, saying(answer, "m2", task=live.record.id)) is live
    more = saying("hurry!", "m3", task=live.record.id)
    assert await refused(office, more, dialect=dialect) == "unsupported_operation"
    assert await office.a2a_service.send(ANYONE, dialect, saying(answer, "m2", task=live.record.id)) is live, (
        "said again"
    )


@pytest.mark.parametrize(("stand", "dialect"), STANDS)
async def test_later_messages_of_a_task_are_bounded_in_bytes(
    stand: Stand, dialect: DialectName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SAID_BYTES_MAX", 1_000)
    office = Office()
    live = await stand(office)
    before = live.record.said
    large = saying("x" * 1_000, "m2", task=live.record.id)
    assert await refused(office, large, dialect=dialect) == "unsupported_operation"
    assert live.record.said == before
    small = saying({"a": 1} if stand is asking else "hurry", "m3", task=live.record.id)
    assert await office.a2a_service.send(ANYONE, dialect, small) is live


async def test_an_ended_task_takes_no_message() -> None:
    office = Office()
    live = await begun(office)
    office.finish()
    assert await refused(office, saying("more", "m3", task=live.record.id)) == "unsupported_operation"


@pytest.mark.parametrize("file", [FilePart("aGk=", media_type="image/png"), FilePart(url="https://example.com/a")])
async def test_a_file_is_refused_and_not_lost(file: FilePart) -> None:
    office = Office()
    said = SendMessage(Message("m1", "user", (DataPart(raw(RUN)), file)))
    assert await refused(office, said) == "content_type_not_supported"
    assert office.sent == []


async def test_a_task_stays_in_its_context() -> None:
    office = Office()
    live = await begun(office, saying("hello", context="talk"))
    assert await refused(office, saying(RUN, "m2", task=live.record.id, context="other")) == "invalid_params"


# -- asking, listing, giving up ----------------------------------------------------------------------------------------


async def test_a_task_is_nothing_to_anybody_else() -> None:
    office = Office()
    live = await begun(office)
    id = live.record.id
    service = office.a2a_service
    assert isinstance(await service.get(ANYONE, GetTask(id)), type(live.record))
    problems = [
        await service.get(OTHER, GetTask(id)),
        await service.cancel(OTHER, CancelTask(id)),
        await service.find(OTHER, id),
    ]
    unknown = await service.get(OTHER, GetTask("x" * len(id)))
    assert isinstance(unknown, A2aProblem)
    for problem in problems:
        assert isinstance(problem, A2aProblem)
        assert (problem.kind, problem.message.replace(id, "?")) == ("task_not_found", "Task not found: ?")
    assert await refused(office, saying(RUN, task=id), caller=OTHER) == "task_not_found"
    page = await service.list(OTHER, ListTasks())
    assert not isinstance(page, A2aProblem)
    assert (page.tasks, page.total) == ((), 0)


async def test_lists_are_narrowed_paged_and_up_to_date() -> None:
    office = Office()
    for number in range(3):
        await begun(office, saying(RUN, f"m{number}", context="a" if number else "b"))
    office.finish(0)
    await turns()
    page = await office.a2a_service.list(ANYONE, ListTasks(page_size=2, has_artifacts=True))
    assert not isinstance(page, A2aProblem)
    assert [task.status.state for task in page.tasks] == ["completed", "working"]
    assert page.tasks[0].artifacts
    rest = await office.a2a_service.list(ANYONE, ListTasks(page_size=2, page_token=page.next_token))
    assert not isinstance(rest, A2aProblem)
    assert [task.status.state for task in rest.tasks] == ["working"]
    assert (page.total, rest.next_token) == (3, "")
    counts = [
        await office.a2a_service.list(ANYONE, asked)
        for asked in (
            ListTasks(state="working"),
            ListTasks(state="submitted"),
            ListTasks(context="b"),
            ListTasks(updated_after=9e9),
        )
    ]
    assert [0 if isinstance(found, A2aProblem) else found.total for found in counts] == [2, 0, 1, 0]
    bare = await office.a2a_service.list(ANYONE, ListTasks(context="b"))
    assert not isinstance(bare, A2aProblem)
    assert bare.tasks[0].artifacts == ()


@pytest.mark.parametrize("asked", [ListTasks(page_size=0), ListTasks(page_size=101), ListTasks(page_token="nonsense")])
async def test_a_list_that_cannot_be_given_is_a_problem(asked: ListTasks) -> None:
    response = await Office().a2a_service.list(ANYONE, asked)
    assert isinstance(response, A2aProblem)
    assert response.kind == "invalid_params"


async def test_giving_a_task_up_reaches_its_server_and_is_done_once() -> None:
    office = Office()
    live = await begun(office)
    assert await office.a2a_service.cancel(ANYONE, CancelTask(live.record.id)) is live
    assert len(office.stage.link.withdrawn) == 1
    response = await office.a2a_service.cancel(ANYONE, CancelTask(live.record.id))
    assert isinstance(response, A2aProblem)
    assert response.kind == "task_not_cancelable"
