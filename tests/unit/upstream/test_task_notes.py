"""What is noted of tasks from what servers answer, and from what they tell by themselves."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.exchange import Aside, Report
from isthmus.core.watch.tasks import Place, Task
from isthmus.model.calls import Call, Kind, Surface
from isthmus.model.events import Progress
from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.model.tasks import TaskState
from isthmus.upstream.dialect import ModernDialect
from isthmus.upstream.waiters import CallWaiter
from isthmus.wire.mcp.messages import Implementation
from isthmus.wire.mcp.tasks import KNOWN, STATUS
from tests.unit.core.doubles import ANYONE, SERVER, HeldLink, Listener, Stage, call, raw, ready, tool
from tests.unit.upstream.scripted import NAME, Scripted

ABLE: frozenset[Ability] = frozenset({"tools", "tasks", "task_handles"})


class PlacedLink(HeldLink):
    """A link that says where its calls were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Place()

    def place_of(self, inflight: InFlight) -> Place | None:
        return self.place


class Carrying:
    """What a link keeps of a request."""

    def __init__(self, id: object) -> None:
        self.id = id


def staged() -> Stage:
    stage = Stage.of(ready(tool(), abilities=ABLE))
    stage.link = PlacedLink()
    stage.server_queue.attach(stage.link)
    return stage


def answer(stage: Stage, asked: Call, result: object) -> list[Task]:
    """Have a call answered; returns what is known afterwards."""
    inflight, listener = stage.start(asked)
    CallWaiter(inflight).result(raw(result))
    assert len(listener.ends) == 1
    return stage.hub.tasks.of(ANYONE)


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
    knows = call(client_caps=frozenset({KNOWN}))
    (task,) = answer(staged(), knows, {"resultType": "task", "taskId": "t", "status": "working", "ttlMs": 5000})
    assert (task.state.id, task.state.ttl_seconds) == ("t", 5.0)


async def test_a_link_that_does_not_say_where_notes_a_task_that_nobody_can_be_told_of() -> None:
    (task,) = answer(Stage.of(ready(tool(), abilities=ABLE)), ASKING, {"task": STATE})
    assert task.place is None


@pytest.mark.parametrize("result", [{"content": []}, {"task": {"taskId": "t"}}, {"task": 1}, {"task": {"status": "x"}}])
async def test_what_names_no_task_is_no_task(result: object) -> None:
    assert answer(staged(), ASKING, result) == []


async def test_what_is_answered_about_a_task_is_noted() -> None:
    stage = staged()
    answer(stage, ASKING, {"task": STATE})
    (task,) = answer(stage, about("t"), {**STATE, "status": "input_required"})
    assert task.state.status == "input_required"
    (task,) = answer(stage, about("t"), {**STATE, "taskId": "other", "status": "failed"})
    assert task.state.status == "input_required"
    (task,) = answer(stage, about("t", "task_cancel"), {**STATE, "status": "cancelled"})
    assert task.state.status == "cancelled"


async def test_a_server_without_a_lane_of_the_hubs_notes_nothing() -> None:
    stage = staged()
    stage.server_queue.tasks = None
    assert answer(stage, ASKING, {"task": STATE}) == []


class Reporting(Listener):
    """An exchange whose caller hears of progress afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[Progress] = []

    def reporter(self) -> Report:
        return self.later.append


@pytest.mark.parametrize(("carriage", "reports"), [(7, 1), (Carrying(7), 1), (Carrying("7"), 0), (None, 0)])
async def test_progress_that_comes_after_the_answer_is_its_requests(carriage: object, reports: int) -> None:
    stage, exchange = staged(), Reporting()
    inflight = stage.hub.start(ASKING, exchange)
    inflight.carriage = carriage
    assert isinstance(stage.link, PlacedLink)
    CallWaiter(inflight).result(raw({"task": STATE}))
    stage.hub.tasks.progressed(stage.link.place, 7, lambda: Progress({}))
    assert len(exchange.later) == reports


# -- what links are told -------------------------------------------------------------------------------------------


async def test_a_link_passes_on_how_a_task_stands_and_where_that_was_said() -> None:
    link, heard = Scripted(), list[tuple[ServerName, Place, TaskState]]()
    link.on_task = lambda server, place, state: heard.append((server, place, state))
    link.noted(STATUS, {key: raw(value) for key, value in STATE.items()})
    link.noted(STATUS, {"taskId": raw("t")})
    ((server, place, state),) = heard
    assert (server, place, state.id, state.status) == (NAME, link.place, "t", "working")
    assert (link.place.is_process, link.place.is_lost) == (False, False)


async def test_a_modern_server_that_was_not_asked_to_tell_is_not_heard() -> None:
    link, heard = Scripted(), list[str]()
    link.dialect = ModernDialect(Implementation("isthmus", "1"))
    link.on_task = lambda _server, _place, state: heard.append(state.id)
    link.noted(STATUS, {key: raw(value) for key, value in STATE.items()})
    assert heard == []


async def test_a_link_passes_on_progress_of_what_nobody_waits_for() -> None:
    link, heard = Scripted(), list[tuple[Place, int, Progress]]()
    link.on_progress = lambda place, request, event: heard.append((place, request, event()))
    link._progressed({"progressToken": raw(7), "progress": raw(1), "_meta": raw({})})
    assert heard == [(link.place, 7, Progress({"progress": raw(1), "_meta": raw({})}, NAME))]


async def test_what_the_hub_gave_up_asking_by_itself_asks_nothing_later() -> None:
    class Glance(Listener, Aside):
        """What the hub asks in a caller's name."""

    stage, link = staged(), Scripted()
    link._stray(stage.hub.start(about("t"), Glance()))
    assert link.strays is None
    link._stray(stage.hub.start(about("t"), Listener()))
    assert link.strays == ""
