"""Sessions: bound to their caller and surface, limited, forgotten when idle. The clock is the test's."""

from __future__ import annotations

import pytest

from isthmus.core.watch.server_tasks import LinkSession, ServerTask, ServerTasks
from isthmus.frontends.http.request_cycle import CROWDED_BYTES
from isthmus.frontends.mcp import http_streams as module
from isthmus.frontends.mcp.http_streams import IDLE_SECONDS, UNSENT_TASKS_MAX, HttpSessions, SessionStream
from isthmus.frontends.mcp.subscriptions import CallerSubscriptions, McpClient, TaskStatusNotifier
from isthmus.frontends.mcp.tasks import public_id
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.fault_table import Cancelled
from isthmus.model.names import ServerName
from isthmus.model.tasks import ServerTaskState
from isthmus.wire.mcp.messages import CHANGED, UPDATED
from isthmus.wire.sse import SseDecoder
from tests.unit.core.doubles import ANYONE, DONE, SERVER, Stage, raw
from tests.unit.frontends.mcp.doubles import NOTES, Hosted, events

OTHER = Caller("other", "default", Grants(("*",)))


class RecordingStream:
    """A stream that records its messages."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.ends = 0
        self.listener = SessionStream(self.chunks.append, self._end)

    def _end(self) -> None:
        self.ends += 1

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in events(self.chunks)]

    @property
    def uris(self) -> list[str]:
        return [message["params"]["uri"] for message in events(self.chunks) if "params" in message]

    @property
    def last_id(self) -> str:
        decoder = SseDecoder()
        decoder.feed(b"".join(self.chunks))
        assert decoder.last_event_id is not None
        return decoder.last_event_id


def test_a_session_is_found_by_its_caller_on_its_surface_only() -> None:
    sessions = HttpSessions()
    session = sessions.open(ANYONE, EVERYTHING, 0.0)
    assert sessions.find(session.id, ANYONE, EVERYTHING, 1.0) is session
    assert sessions.find(session.id, OTHER, EVERYTHING, 1.0) is None
    assert sessions.find(session.id, ANYONE, Surface("own", ServerName("files")), 1.0) is None
    assert sessions.find("another", ANYONE, EVERYTHING, 1.0) is None


def test_a_namesake_of_another_tenant_has_sessions_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 1)
    sessions = HttpSessions()
    namesake = Caller(ANYONE.name, "elsewhere", ANYONE.grants)
    own, theirs = sessions.open(ANYONE, EVERYTHING, 0.0), sessions.open(namesake, EVERYTHING, 0.0)
    assert sessions.find(own.id, ANYONE, EVERYTHING, 1.0) is own, "nobody is crowded out by another tenant"
    assert sessions.find(own.id, namesake, EVERYTHING, 1.0) is None
    assert own.store is not theirs.store


def test_nothing_is_left_of_a_client_without_a_session() -> None:
    sessions = HttpSessions()
    for number in range(100):
        sessions.close(sessions.open(Caller(f"token-{number}", "default", ANYONE.grants), EVERYTHING, 0.0))
    assert (sessions._by_owner, sessions._stores) == ({}, {})


def test_ids_are_long_and_do_not_repeat() -> None:
    sessions = HttpSessions()
    ids = {sessions.open(ANYONE, EVERYTHING, 0.0).id for _ in range(100)}
    assert len(ids) == 100
    assert min(map(len, ids)) >= 32


def test_an_idle_session_is_forgotten_and_a_used_one_is_not() -> None:
    sessions = HttpSessions()
    session = sessions.open(ANYONE, EVERYTHING, 0.0)
    assert sessions.find(session.id, ANYONE, EVERYTHING, IDLE_SECONDS) is session
    assert sessions.find(session.id, ANYONE, EVERYTHING, 2 * IDLE_SECONDS) is session
    assert sessions.find(session.id, ANYONE, EVERYTHING, 3 * IDLE_SECONDS + 1) is None
    assert len(sessions) == 0


def test_beyond_the_limit_the_one_unused_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    sessions = HttpSessions()
    first, second = sessions.open(ANYONE, EVERYTHING, 0.0), sessions.open(ANYONE, EVERYTHING, 1.0)
    sessions.find(first.id, ANYONE, EVERYTHING, 2.0)
    third = sessions.open(ANYONE, EVERYTHING, 3.0)
    found = [sessions.find(session.id, ANYONE, EVERYTHING, 4.0) for session in (first, second, third)]
    assert found == [first, None, third]


async def test_ending_a_session_cancels_its_calls_and_one_with_calls_is_not_idle() -> None:
    sessions = HttpSessions()
    session = sessions.open(ANYONE, EVERYTHING, 0.0)
    inflight, listener = Stage().start()
    session.track(b"1", inflight, None)
    assert sessions.find(session.id, ANYONE, EVERYTHING, 2 * IDLE_SECONDS) is session
    sessions.close(session)
    assert isinstance(listener.fault, Cancelled)
    assert sessions.find(session.id, ANYONE, EVERYTHING, 2 * IDLE_SECONDS) is None


async def test_the_end_of_a_session_is_reported_when_its_calls_have_ended() -> None:
    received: list[tuple[str, bool]] = []
    inflight, listener = Stage().start()
    sessions = HttpSessions(on_close=lambda id: received.append((id, bool(listener.ends))))
    session = sessions.open(ANYONE, EVERYTHING, 0.0)
    session.track(b"1", inflight, None)
    sessions.close(session)
    assert received == [(session.id, True)]


async def test_a_call_that_ended_is_let_go_and_one_of_the_same_id_is_kept() -> None:
    session = HttpSessions().open(ANYONE, EVERYTHING, 0.0)
    stage = Stage()
    (first, _), (second, _) = stage.start(), stage.start()
    received: list[str] = []
    end_first = session.track(b"1", first, lambda: received.append("first"))
    end_second = session.track(b"1", second, None)
    first.finish(DONE)
    end_first()
    assert (session.calls, received) == ({b"1": second}, ["first"])
    end_second()
    assert session.calls == {}


def test_a_caller_with_many_sessions_crowds_out_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 3)
    sessions = HttpSessions()
    quiet = sessions.open(OTHER, EVERYTHING, 0.0)
    first, *_ = [sessions.open(ANYONE, EVERYTHING, 1.0) for _ in range(10)]
    assert sessions.find(first.id, ANYONE, EVERYTHING, 2.0) is None
    assert sessions.find(quiet.id, OTHER, EVERYTHING, 2.0) is quiet
    assert len(sessions) == 4


# -- updates of resources ------------------------------------------------------------------------------------------


def test_updates_are_sent_on_the_open_stream_and_missed_ones_first() -> None:
    session = HttpSessions().open(ANYONE, EVERYTHING, 0.0)
    received = RecordingStream()
    for uri in ("b", "a", "b"):
        session.resource_updated(uri)
    session.open_stream(received.listener)
    assert received.uris == ["b", "a"]
    session.resource_updated("c")
    session.streams.remove(received.listener)
    session.resource_updated("d")
    assert (received.uris, list(session.unsent_updates)) == (["b", "a", "c"], ["d"])


def test_an_unfollowed_resource_is_notified_neither_late_nor_again() -> None:
    session = HttpSessions().open(ANYONE, EVERYTHING, 0.0)
    first, second, third = RecordingStream(), RecordingStream(), RecordingStream()
    session.open_stream(first.listener)
    session.resource_updated("a")
    received = first.last_id
    session.resource_updated("b")
    session.resource_updated("c")
    session.streams.remove(first.listener)
    session.resource_updated("d")
    session.resource_updated("e")
    for uri in ("c", "d"):
        session.forget_resource(uri)
    session.open_stream(second.listener, received)
    assert second.uris == ["b", "e"]
    session.open_stream(third.listener, received)
    assert third.uris == ["b", "e"]


def test_of_two_streams_the_later_one_gets_events_and_the_earlier_takes_over_when_it_ends() -> None:
    session = HttpSessions().open(ANYONE, EVERYTHING, 0.0)
    old, new = RecordingStream(), RecordingStream()
    session.open_stream(old.listener)
    session.open_stream(new.listener)
    session.resource_updated("a")
    assert [session.list_changed("tools", received.listener) for received in (old, new)] == [False, True]
    session.streams.remove(new.listener)
    session.resource_updated("b")
    assert session.list_changed("tools", old.listener)
    assert (old.methods, new.methods) == ([UPDATED, CHANGED["tools"]],) * 2
    assert (old.uris, new.uris, session.unsent_updates) == (["b"], ["a"], {})


def test_a_stream_that_ends_before_the_later_one_changes_nothing() -> None:
    session = HttpSessions().open(ANYONE, EVERYTHING, 0.0)
    old, new = RecordingStream(), RecordingStream()
    session.open_stream(old.listener)
    session.open_stream(new.listener)
    session.streams.remove(old.listener)
    session.resource_updated("a")
    assert (old.uris, new.uris) == ([], ["a"])


def test_a_client_with_a_last_event_id_gets_missed_and_later_events() -> None:
    session = HttpSessions().open(ANYONE, EVERYTHING, 0.0)
    first, second, third = RecordingStream(), RecordingStream(), RecordingStream()
    session.open_stream(first.listener)
    session.resource_updated("a")
    received = first.last_id
    session.resource_updated("b")  # into a connection that had broken
    session.streams.remove(first.listener)
    session.resource_updated("c")
    session.open_stream(second.listener, received)
    assert second.uris == ["b", "c"]
    session.open_stream(third.listener, second.last_id)
    assert third.uris == []


def test_a_session_that_listens_is_in_use() -> None:
    sessions = HttpSessions()
    session = sessions.open(ANYONE, EVERYTHING, 0.0)
    session.open_stream(RecordingStream().listener)
    assert sessions.find(session.id, ANYONE, EVERYTHING, 2 * IDLE_SECONDS) is session


async def test_a_session_that_ends_drops_its_subscriptions() -> None:
    hosted, sessions = Hosted(), HttpSessions()
    session = sessions.open(ANYONE, EVERYTHING, 0.0)
    session.subscriptions = CallerSubscriptions(McpClient(hosted.hub, ANYONE, EVERYTHING), session.resource_updated)
    session.subscriptions.set_level("debug")
    assert await session.subscriptions.subscribe(NOTES) is None
    sessions.close(session)
    assert hosted.is_forgotten()


def test_a_session_that_ends_ends_its_streams() -> None:
    sessions, received = HttpSessions(), [RecordingStream(), RecordingStream()]
    session = sessions.open(ANYONE, EVERYTHING, 0.0)
    for each in received:
        session.open_stream(each.listener)
    sessions.close(session)
    assert [each.ends for each in received] == [1, 1]


def test_every_unused_session_is_swept_also_behind_one_that_is_in_use() -> None:
    sessions = HttpSessions()
    busy, idle = sessions.open(ANYONE, EVERYTHING, 0.0), sessions.open(ANYONE, EVERYTHING, 0.0)
    theirs, later = sessions.open(OTHER, EVERYTHING, 0.0), sessions.open(OTHER, EVERYTHING, 1.0)
    busy.open_stream(RecordingStream().listener)
    sessions.sweep(IDLE_SECONDS + 1.0)
    left = [sessions.find(each.id, each.caller, EVERYTHING, 1.0) for each in (busy, idle, theirs, later)]
    assert left == [busy, None, None, later]


@pytest.mark.parametrize(
    ("version", "can_resume"), [("2025-03-26", False), ("2025-06-18", False), ("2025-11-25", True)]
)
def test_only_the_latest_legacy_version_knows_of_streams_that_end_early(version: str, *, can_resume: bool) -> None:
    assert HttpSessions().open(ANYONE, EVERYTHING, 0.0, version).can_resume is can_resume


def test_the_sessions_of_one_caller_share_a_store() -> None:
    sessions = HttpSessions()
    one, two = (sessions.open(ANYONE, EVERYTHING, 0.0) for _ in range(2))
    assert one.store is two.store
    assert sessions.open(OTHER, EVERYTHING, 0.0).store is not one.store


def test_only_the_sessions_of_known_callers_are_retained() -> None:
    sessions = HttpSessions()
    mine, theirs = sessions.open(ANYONE, EVERYTHING, 0.0), sessions.open(OTHER, EVERYTHING, 0.0)
    sessions.retain({OTHER})
    assert sessions.find(mine.id, ANYONE, EVERYTHING, 1.0) is None
    assert sessions.find(theirs.id, OTHER, EVERYTHING, 1.0) is theirs


def test_a_dropped_caller_loses_its_sessions_and_their_calls() -> None:
    sessions = HttpSessions()
    theirs, ours = sessions.open(OTHER, EVERYTHING, 0.0), sessions.open(ANYONE, EVERYTHING, 0.0)
    sessions.retain({ANYONE})
    assert sessions.find(theirs.id, OTHER, EVERYTHING, 1.0) is None
    assert sessions.find(ours.id, ANYONE, EVERYTHING, 1.0) is ours
    other_things = Caller(ANYONE.name, ANYONE.tenant, Grants(("files.*",)))
    sessions.retain({other_things})
    assert len(sessions) == 0


# -- tasks ---------------------------------------------------------------------------------------------------------


def tasks(*ids: str) -> list[ServerTask]:
    known = ServerTasks(lambda: 0.0)
    for id in ids:
        members = {"taskId": raw(id), "status": raw("working")}
        known.created(
            ANYONE,
            SERVER,
            LinkSession(),
            ServerTaskState(id, "working", is_terminal=False, ttl_seconds=None, members=members),
        )
    return known.tasks_for(ANYONE)


def test_the_status_of_a_task_is_sent_on_the_stream_or_when_there_is_one() -> None:
    session, received = HttpSessions().open(ANYONE, EVERYTHING, 0.0), RecordingStream()
    (task,) = tasks("t")
    session.task_changed(task)
    session.task_changed(task)
    session.open_stream(received.listener)
    session.task_changed(task)
    assert [chunk.count(b"notifications/tasks/status") for chunk in received.chunks] == [1, 1]
    assert public_id(ANYONE, SERVER, "t").encode() in received.chunks[-1]


def test_of_tasks_without_a_listener_the_latest_are_remembered() -> None:
    session, received = HttpSessions().open(ANYONE, EVERYTHING, 0.0), RecordingStream()
    for task in tasks(*map(str, range(UNSENT_TASKS_MAX + 1))):
        session.task_changed(task)
    session.open_stream(received.listener)
    assert len(received.chunks) == UNSENT_TASKS_MAX
    assert public_id(ANYONE, SERVER, "1").encode() in received.chunks[0]


async def test_a_session_that_ends_gets_no_task_status() -> None:
    hosted, sessions = Hosted(), HttpSessions()
    session = sessions.open(ANYONE, EVERYTHING, 0.0)
    session.task_status = TaskStatusNotifier(McpClient(hosted.hub, ANYONE, EVERYTHING), session.task_changed)
    sessions.close(session)
    assert not hosted.hub.tasks._listeners


def test_progress_is_for_listeners_that_are_not_far_behind() -> None:
    session, chunks, unsent = HttpSessions().open(ANYONE, EVERYTHING, 0.0), list[bytes](), 0
    session.send_report(b"1")
    session.open_stream(SessionStream(chunks.append, lambda: None, lambda: unsent))
    session.send_report(b"2")
    unsent = CROWDED_BYTES + 1
    session.send_report(b"3")
    assert [b"2" in chunk for chunk in chunks] == [True]
