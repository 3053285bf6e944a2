"""Tasks of servers and their callers: listed and announced to the owner, forgotten in time, never confused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import structlog

from isthmus.core.watch import server_tasks as module
from isthmus.core.watch.server_tasks import KEEP_SECONDS, LinkSession, ServerTask, ServerTasks, hub_task
from isthmus.model.callers import Caller
from isthmus.model.calls import Progress
from isthmus.model.names import ServerName
from isthmus.model.tasks import ServerTaskState
from tests.unit.core.doubles import ANYONE

OTHER = Caller("other", ANYONE.tenant, ANYONE.grants)
NAMESAKE = Caller(ANYONE.name, "another tenant", ANYONE.grants)
A, B = ServerName("a"), ServerName("b")
HERE = LinkSession()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def state(id: str, status: str = "working", ttl: float | None = None) -> ServerTaskState:
    return ServerTaskState(id, status, status in ("completed", "failed", "cancelled"), ttl, {})


def registered(*ids: str, caller: Caller = ANYONE, place: LinkSession | None = HERE) -> ServerTasks:
    tasks = ServerTasks(Clock())
    for id in ids:
        tasks.created(caller, A, place, state(id))
    return tasks


def listed(tasks: ServerTasks, caller: Caller = ANYONE, session: str = "") -> list[tuple[str, str]]:
    return [(task.state.id, task.state.status) for task in tasks.tasks_for(caller, session)]


TaskUpdates = list[tuple[str, str, bool]]


def listening(tasks: ServerTasks, caller: Caller = ANYONE, session: str = "") -> tuple[TaskUpdates, Callable[[], None]]:
    received: TaskUpdates = []

    def tell(task: ServerTask, is_other: bool) -> None:  # noqa: FBT001 - the type of a listener
        received.append((task.state.id, task.state.status, is_other))

    return received, tasks.listen(caller, session, tell)


# -- tasks of the hub's own ----------------------------------------------------------------------------------------


def test_the_status_of_a_hub_task_reaches_only_its_caller() -> None:
    tasks = ServerTasks(Clock())
    (mine, _), (others, _) = listening(tasks), listening(tasks, OTHER)
    task = hub_task(ANYONE, A, "", state("t"))
    for status in ("working", "input_required", "completed"):
        tasks.announce(task, state("t", status))
    assert mine == [("t", "working", False), ("t", "input_required", True), ("t", "completed", True)]
    assert (others, listed(tasks)) == ([], [])


def test_where_callers_cannot_be_distinguished_only_the_asking_conversation_is_notified() -> None:
    anybody = Caller("anybody", ANYONE.tenant, ANYONE.grants, is_anyone=True)
    tasks = ServerTasks(Clock())
    (one, leave), (other, _) = [listening(tasks, anybody, session) for session in ("one", "other")]
    kept = hub_task(anybody, A, "one", state("kept"))
    for id, session in (("passed", "one"), ("nobody's", "")):
        tasks.created(anybody, A, HERE, state(id), session=session)
    for _ in range(2):
        tasks.announce(kept, state("kept"))
        for id in ("passed", "nobody's"):
            tasks.notified(A, HERE, state(id))
        leave()
    assert (one, other) == ([("kept", "working", False), ("passed", "working", False)], [])


def test_the_asking_conversation_is_notified_if_it_listens() -> None:
    tasks = ServerTasks(Clock())
    (one, leave), (other, _) = listening(tasks, session="one"), listening(tasks, session="other")
    task = hub_task(ANYONE, A, "one", state("t"))
    tasks.announce(task, state("t", "input_required"))
    leave()
    tasks.announce(task, state("t", "completed"))
    assert [status for _, status, _ in one] == ["input_required"]
    assert [status for _, status, _ in other] == ["completed"]


# -- listing -------------------------------------------------------------------------------------------------------


def test_everybody_is_listed_its_own_in_the_order_in_which_they_were_made() -> None:
    tasks = registered("2", "1")
    tasks.created(OTHER, A, HERE, state("3"))
    tasks.created(NAMESAKE, B, HERE, state("1"))
    assert listed(tasks) == [("2", "working"), ("1", "working")]
    assert (listed(tasks, OTHER), listed(tasks, NAMESAKE)) == ([("3", "working")], [("1", "working")])
    assert [task.number for task in tasks.tasks_for(ANYONE)] == [1, 2]


def test_task_states_in_a_servers_answers_are_recorded() -> None:
    tasks = registered("1", "2")
    tasks.answered(ANYONE, A, HERE, state("1", "input_required"))
    tasks.answered(ANYONE, A, HERE, state("2", "completed"))
    tasks.answered(ANYONE, A, HERE, state("2"))  # said before the end, and heard after it
    tasks.answered(ANYONE, A, HERE, state("3"))
    tasks.answered(OTHER, A, HERE, state("1", "failed"))
    assert listed(tasks) == [("1", "input_required"), ("2", "completed")]


def test_an_answer_of_another_link_counts_only_if_the_first_is_lost() -> None:
    tasks = registered("1", place=(place := LinkSession()))
    tasks.answered(ANYONE, A, LinkSession(), state("1", "input_required"))
    assert listed(tasks) == [("1", "working")]
    place.is_lost = True
    tasks.answered(ANYONE, A, LinkSession(), state("1", "input_required"))
    assert listed(tasks) == [("1", "input_required")]


def test_a_task_ends_with_the_process_that_it_was_made_in() -> None:
    place = LinkSession(is_process=True)
    tasks = registered("1", place=place)
    place.is_lost = True
    tasks.notified(A, place, state("1", "completed"))
    assert (listed(tasks), len(tasks)) == ([], 0)


def test_a_task_is_forgotten_when_its_server_says() -> None:
    clock = Clock()
    tasks = ServerTasks(clock)
    tasks.created(ANYONE, A, HERE, state("1", ttl=10.0))
    tasks.created(ANYONE, A, HERE, state("2"))
    clock.now += 9.0
    tasks.answered(ANYONE, A, HERE, state("1", ttl=10.0))
    assert len(listed(tasks)) == 2
    clock.now += 1.0
    received, _ = listening(tasks)
    tasks.notified(A, HERE, state("1", ttl=10.0))
    assert (listed(tasks), received) == ([("2", "working")], [])
    clock.now += KEEP_SECONDS - 11.0
    tasks.answered(ANYONE, A, HERE, state("2"))
    clock.now += KEEP_SECONDS - 1.0
    assert len(listed(tasks)) == 1
    clock.now += 1.0
    assert (listed(tasks), len(tasks)) == ([], 0)


def test_tasks_forgotten_by_their_server_are_forgotten() -> None:
    tasks = registered("1")
    (task,) = tasks.tasks_for(ANYONE)
    tasks.forget(task)
    tasks.forget(task)
    assert (listed(tasks), len(tasks)) == ([], 0)


def test_for_one_more_the_first_that_ended_goes_and_else_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EACH_MAX", 3)
    tasks = registered("1", "2", "3")
    for ended in ("3", "2"):
        tasks.answered(ANYONE, A, HERE, state(ended, "completed"))
    found = []
    for id in "4567":
        tasks.created(ANYONE, A, HERE, state(id))
        found.append("".join(task.state.id for task in tasks.tasks_for(ANYONE)))
    assert found == ["124", "145", "456", "567"]


def test_no_owner_crowds_out_others_before_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EACH_MAX", 3)
    monkeypatch.setattr(module, "ALL_MAX", 5)
    tasks = registered("1", "2")
    for id in "abcdef":
        tasks.created(OTHER, A, HERE, state(id))
    assert (len(tasks.tasks_for(ANYONE)), len(tasks.tasks_for(OTHER)), len(tasks)) == (2, 3, 5)
    tasks.created(NAMESAKE, A, HERE, state("x"))
    assert (listed(tasks), len(tasks)) == ([("2", "working")], 5)


# -- telling -------------------------------------------------------------------------------------------------------


def test_only_listeners_of_the_same_caller_are_notified() -> None:
    tasks = registered("1")
    (mine, leave), (others, _), (namesakes, _) = (listening(tasks, who) for who in (ANYONE, OTHER, NAMESAKE))
    tasks.notified(A, HERE, state("1"))
    tasks.notified(A, HERE, state("1", "input_required"))
    assert mine == [("1", "working", False), ("1", "input_required", True)]
    leave()
    leave()
    tasks.notified(A, HERE, state("1"))
    assert (len(mine), others, namesakes) == (2, [], [])
    assert listed(tasks) == [("1", "working")]


def test_an_end_is_notified_once_and_nothing_after_it() -> None:
    tasks = registered("1", "2")
    received, _ = listening(tasks)
    tasks.answered(ANYONE, A, HERE, state("1", "completed"))  # one conversation asked, which another does not hear
    for status in ("working", "completed", "completed", "failed", "working"):
        tasks.notified(A, HERE, state("1", status))
    assert received == [("1", "completed", True)]
    assert listed(tasks)[0] == ("1", "completed")


@pytest.mark.parametrize("server", [A, B])
def test_notifications_on_another_link_or_server_do_not_match_the_task(server: ServerName) -> None:
    tasks = registered("1")
    received, _ = listening(tasks)
    tasks.notified(server, LinkSession() if server == A else HERE, state("1", "failed"))
    assert (received, listed(tasks)) == ([], [("1", "working")])


def test_if_a_link_gives_one_id_to_two_callers_neither_is_notified() -> None:
    tasks = registered("1")
    tasks.created(OTHER, A, HERE, state("1"))
    (mine, _), (others, _) = listening(tasks), listening(tasks, OTHER)
    tasks.notified(A, HERE, state("1", "completed"))
    assert (mine, others) == ([], [])
    assert (listed(tasks), listed(tasks, OTHER)) == ([("1", "working")], [("1", "working")])


def test_a_reused_id_belongs_to_its_last_owner() -> None:
    tasks = registered("1")
    tasks.answered(ANYONE, A, HERE, state("1", "completed"))
    tasks.created(OTHER, A, HERE, state("1"))
    received, _ = listening(tasks, OTHER)
    tasks.notified(A, HERE, state("1", "failed"))
    assert (listed(tasks), received) == ([], [("1", "failed", True)])
    tasks.created(OTHER, A, HERE, state("1"))
    assert listed(tasks, OTHER) == [("1", "working")]


def test_an_id_reused_by_a_new_link_belongs_to_its_new_caller() -> None:
    place, later = LinkSession(), LinkSession()
    tasks = registered("1", "2", place=place)
    assert not tasks.belongs_to_other(ANYONE, A, "1")
    place.is_lost = True
    tasks.created(OTHER, A, later, state("1"))
    assert listed(tasks) == [("2", "working")]
    assert tasks.belongs_to_other(ANYONE, A, "1")
    assert not tasks.belongs_to_other(ANYONE, A, "2")
    assert not tasks.belongs_to_other(OTHER, A, "1")
    later.is_lost = True
    assert not tasks.belongs_to_other(ANYONE, A, "1")


def test_links_that_count_alike_are_not_confused() -> None:
    places = {ANYONE: LinkSession(), OTHER: LinkSession()}
    tasks = ServerTasks(Clock())
    for caller, place in places.items():
        tasks.created(caller, A, place, state("1"))
    (mine, _), (others, _) = listening(tasks), listening(tasks, OTHER)
    tasks.notified(A, places[OTHER], state("1", "failed"))
    assert (mine, others) == ([], [("1", "failed", True)])
    assert not any(tasks.belongs_to_other(caller, A, "1") for caller in places)


def test_the_asking_conversation_is_notified_while_it_listens_and_then_the_callers_others() -> None:
    tasks = ServerTasks(Clock())
    tasks.created(ANYONE, A, HERE, state("1"), session="x")
    (asked, leave), (another, _) = listening(tasks, session="x"), listening(tasks, session="y")
    tasks.notified(A, HERE, state("1"))
    assert (len(asked), len(another)) == (1, 0)
    leave()
    tasks.notified(A, HERE, state("1"))
    assert (len(asked), len(another)) == (1, 1)


def test_conversations_with_processes_of_their_own_know_their_own_tasks_by_the_same_id() -> None:
    tasks, places = ServerTasks(Clock()), {"x": LinkSession(), "y": LinkSession()}
    for session, place in places.items():
        tasks.created(ANYONE, A, place, state("1"), session=session)
    ears = {session: listening(tasks, session=session) for session in ("x", "y", "z")}
    tasks.notified(A, places["x"], state("1", "failed"))
    ears["y"][1]()
    tasks.notified(A, places["y"], state("1"))
    assert {session: received for session, (received, _) in ears.items()} == {
        "x": [("1", "failed", True)],
        "y": [],
        "z": [],
    }
    found = [listed(tasks, session=session) for session in ("x", "y", "z")]
    assert found == [[("1", "failed")], [("1", "working")], []]


def test_a_broken_listener_costs_only_itself() -> None:
    tasks = registered("1")

    def broken(_task: ServerTask, _is_other: bool) -> None:  # noqa: FBT001 - the type of a listener
        raise RuntimeError("broken")

    tasks.listen(ANYONE, "", broken)
    received, _ = listening(tasks)
    with structlog.testing.capture_logs() as logs:
        tasks.notified(A, HERE, state("1"))
    assert [entry["event"] for entry in logs] == ["a listener of a task failed"]
    assert len(received) == 1


# -- progress ------------------------------------------------------------------------------------------------------


def test_progress_of_the_request_that_a_task_was_made_by_is_reported_until_it_ends() -> None:
    tasks, received = ServerTasks(Clock()), list[Progress]()
    tasks.created(ANYONE, A, HERE, state("1"), request=7, report=received.append)
    tasks.created(ANYONE, A, HERE, state("2"), request=8)
    for place, request in ((HERE, 7), (HERE, 8), (LinkSession(), 7), (HERE, -1)):
        tasks.progressed(place, request, lambda: Progress({}))
    assert len(received) == 1
    tasks.notified(A, HERE, state("1", "completed"))
    tasks.progressed(HERE, 7, lambda: Progress({}))
    assert len(received) == 1
    (task, _) = tasks.tasks_for(ANYONE)
    tasks.forget(task)
    tasks.progressed(HERE, 7, lambda: Progress({}))
    assert (len(received), tasks._reporting) == (1, {})


def test_a_report_that_fails_costs_only_itself() -> None:
    def broken(_event: Progress) -> None:
        raise RuntimeError("broken")

    tasks = ServerTasks(Clock())
    tasks.created(ANYONE, A, HERE, state("1"), request=7, report=broken)
    with structlog.testing.capture_logs() as logs:
        tasks.progressed(HERE, 7, lambda: Progress({}))
    assert [entry["event"] for entry in logs] == ["a listener of a task failed"]
