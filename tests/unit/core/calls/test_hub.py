"""Calls start in the hub, pass its stages, and servers come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from isthmus.core.calls.hub import STAGES, Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import FeatureLists, ServerStatus
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.ports import ListLoad
from isthmus.core.settings import CALL_SECONDS, Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Call, ClientCapabilities, Kind, Surface
from isthmus.model.fault_table import (
    BadArguments,
    Bug,
    Cancelled,
    Draining,
    NotConnected,
    ServerError,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
)
from isthmus.model.names import ServerName
from tests.unit.core.doubles import (
    ANYONE,
    DONE,
    SERVER,
    HeldLink,
    Listener,
    Notes,
    Stage,
    call,
    prompt,
    ready,
    resource,
    template,
    tool,
)

SLOW = ServerName("slow")
TEXT = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def starting(hub: Hub, server: ServerName = SLOW) -> None:
    hub.open_server_queue(ServerQueue(server, hub.limits), ServerStatus(server))


async def test_a_call_that_the_hub_answers_itself_has_a_deadline_and_can_be_withdrawn() -> None:
    stage, link, listener = Stage(), HeldLink(), Listener()
    inflight = stage.hub.start_builtin(call(kind="task_result"), listener, link)
    assert (inflight.timeout, stage.hub.running()) == (3600.0, 0)
    assert stage.hub.deadlines.pending() == [inflight]
    inflight.cancel("enough")
    assert link.withdrawn == [(inflight, "enough")]
    assert isinstance(listener.fault, Cancelled)


async def test_a_call_goes_to_the_link_of_its_server_with_its_deadline() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    assert stage.link.sent == [inflight]
    assert (inflight.target.feature.name, inflight.timeout) == ("read", CALL_SECONDS)
    assert not listener.ends


async def test_the_caller_may_wait_less_than_the_server_allows_but_not_more() -> None:
    stage = Stage()
    assert stage.start(call(timeout=5.0))[0].timeout == 5.0
    assert stage.start(call(timeout=500.0))[0].timeout == CALL_SECONDS


async def test_an_unknown_tool_and_a_denied_one_end_alike() -> None:
    stage = Stage(tool("read"), tool("write"))
    limited = Caller("limited", "default", Grants(("files.read",)))
    denied = stage.start(call("files.write", caller=limited))[1].fault
    unknown = stage.start(call("files.wrote", caller=limited))[1].fault
    assert isinstance(denied, UnknownTool)
    assert isinstance(unknown, UnknownTool)
    assert denied.message.replace("write", "wrote") == unknown.message
    assert (denied.server, denied.executed) == (unknown.server, unknown.executed) == (None, "no")
    assert stage.link.sent == []
    assert [server for _, server, _ in stage.notes.ends] == [None, None]


async def test_arguments_that_the_schema_refuses_never_reach_the_server() -> None:
    stage = Stage(tool("read", inputSchema=TEXT))
    fault = stage.start(call(arguments={"path": 7}))[1].fault
    assert isinstance(fault, BadArguments)
    assert fault.message.startswith("Invalid arguments for files.read: path: 7 ")
    assert stage.link.sent == []
    assert stage.server_queue.running == 0


async def test_a_draining_hub_takes_nothing_new_and_lets_the_rest_end() -> None:
    stage = Stage()
    running, listener = stage.start()
    stage.hub.refuse_new_calls()
    assert isinstance(stage.start()[1].fault, Draining)
    assert stage.hub.running() == 1
    running.finish(DONE)
    assert listener.ends == [DONE]
    assert stage.hub.running() == 0


async def test_a_tool_whose_server_queue_is_gone_is_not_connected() -> None:
    stage = Stage()
    del stage.hub.server_queues[SERVER]
    fault = stage.start()[1].fault
    assert isinstance(fault, NotConnected)
    assert fault.why == "it was removed"


async def test_a_defect_in_a_stage_costs_one_call_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Hub, inflight: InFlight) -> None:
        if inflight.call.name == "files.broken":
            raise ZeroDivisionError

    monkeypatch.setattr("isthmus.core.calls.hub.STAGES", (broken, *STAGES))
    stage = Stage()
    fault = stage.start(call("files.broken"))[1].fault
    assert isinstance(fault, Bug)
    assert fault.incident in fault.message
    assert fault.executed == "unknown"
    assert not stage.start()[1].ends


async def test_watchers_are_notified_of_changes_and_of_nothing_else() -> None:
    stage = Stage()
    received: list[int] = []
    unwatch = stage.hub.watch(lambda: received.append(stage.hub.snapshot.version))
    stage.hub.publish(ready(tool()))  # as it was
    assert received == []
    stage.hub.publish(ready(tool(), tool("write")))
    unwatch()
    stage.hub.publish(ready())
    assert len(received) == 1
    assert stage.hub.snapshot.version == received[0] + 1


async def test_servers_that_change_together_make_one_snapshot() -> None:
    hub = Stage().hub
    before = hub.snapshot
    starting(hub)
    hub.publish(ServerStatus(SLOW, "ready", is_settled=True))
    hub.close_server_queue(SERVER)
    after = hub.snapshot
    assert after is hub.snapshot
    assert after.version == before.version + 1
    assert {name: server_status.state for name, server_status in after.server_statuses.items()} == {SLOW: "ready"}
    assert SERVER in before.server_statuses


async def test_a_server_that_comes_and_goes_unseen_leaves_nothing() -> None:
    hub = Stage().hub
    starting(hub)
    hub.close_server_queue(SLOW)
    assert hub.snapshot.server_statuses.keys() == {SERVER}


async def test_a_broken_watcher_keeps_notifications_from_no_other() -> None:
    stage = Stage()
    received: list[str] = []

    def broken() -> None:
        raise RuntimeError("a defect of a frontend")

    stage.hub.watch(broken)
    stage.hub.watch(lambda: received.append("told"))
    stage.hub.publish(ready())
    await asyncio.sleep(0)  # a machine that stood still meanwhile has the second told in the next turn
    assert received == ["told"]


async def test_many_watchers_do_not_keep_the_loop_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.core.calls.hub.NOTIFY_SECONDS", -1.0)  # each takes longer than all may
    stage = Stage()
    received: list[str] = []
    for name in ("one", "two", "three"):
        stage.hub.watch(partial(received.append, name))
    leave = stage.hub.watch(partial(received.append, "gone"))
    stage.hub.publish(ready())
    assert received == ["one"]
    asyncio.get_running_loop().call_soon(received.append, "somebody else")
    await asyncio.sleep(0)
    assert received == ["one", "two", "somebody else"]
    leave()
    stage.hub.publish(ready(tool("write")))  # who has not heard of the last one comes first, and hears once of both
    for _ in range(5):
        await asyncio.sleep(0)
    assert received == ["one", "two", "somebody else", "three", "one", "two"]


async def test_a_call_keeps_the_tool_that_it_found() -> None:
    stage = Stage()
    inflight, _ = stage.start()
    stage.hub.publish(ready())
    assert inflight.target.feature == tool()
    assert isinstance(stage.start()[1].fault, UnknownTool)


async def test_a_listing_waits_for_a_first_attempt_that_is_under_way() -> None:
    stage = Stage(limits=Limits(listing_seconds=60.0))
    starting(stage.hub)
    assert stage.hub.settling
    listing = asyncio.ensure_future(stage.hub.view(ANYONE.grants, EVERYTHING))
    await asyncio.sleep(0)
    assert not listing.done()
    stage.hub.publish(ready(tool("find", SLOW), server=SLOW))
    async with asyncio.timeout(30):
        assert list((await listing).routes) == ["files.read", "slow.find"]
    assert not stage.hub.settling


async def test_a_listing_waits_for_no_news_that_came_after_it() -> None:
    stage = Stage(limits=Limits(listing_seconds=60.0))
    starting(stage.hub)
    stage.hub.publish(ready(tool("find", SLOW), server=SLOW))
    stage.hub.unsettle(SERVER)
    listing = asyncio.ensure_future(stage.hub.view(ANYONE.grants, EVERYTHING))
    await asyncio.sleep(0)
    stage.hub.unsettle(SLOW)
    stage.hub.settled(SERVER)
    async with asyncio.timeout(5):
        assert list((await listing).routes) == ["files.read", "slow.find"]
    assert stage.hub.settling.keys() == {SLOW}


async def test_a_hub_that_shuts_down_answers_a_listing_without_the_servers_that_start() -> None:
    stage = Stage(limits=Limits(listing_seconds=60.0))
    starting(stage.hub)
    listing = asyncio.ensure_future(stage.hub.view(ANYONE.grants, EVERYTHING))
    await asyncio.sleep(0)
    stage.hub.stop_waiting("the hub is shutting down")
    async with asyncio.timeout(5):
        view = await listing
    assert list(view.routes) == ["files.read"]
    assert view.missing[SLOW].state == "starting"


async def test_a_listing_has_a_deadline_and_names_the_missing_servers() -> None:
    stage = Stage(limits=Limits(listing_seconds=0.01))
    starting(stage.hub)
    async with asyncio.timeout(30):
        view = await stage.hub.view(ANYONE.grants, EVERYTHING)
        again = await stage.hub.view(ANYONE.grants, EVERYTHING)  # its patience is used up
    assert list(view.routes) == ["files.read"]
    assert view.missing[SLOW].state == "starting"
    assert again is view


async def test_a_failed_first_attempt_ends_the_wait_as_well() -> None:
    stage = Stage()
    starting(stage.hub)
    stage.hub.publish(ServerStatus(SLOW, "retrying", "no such program", is_settled=True))
    assert not stage.hub.settling
    view = await stage.hub.view(ANYONE.grants, EVERYTHING)
    assert view.missing[SLOW].reason == "no such program"


async def test_one_servers_listing_waits_for_that_server_only() -> None:
    stage = Stage(limits=Limits(listing_seconds=60.0))
    starting(stage.hub)
    async with asyncio.timeout(30):
        view = await stage.hub.view(ANYONE.grants, Surface("own", SERVER))
    assert list(view.routes) == ["read"]


async def test_news_of_an_unsettled_server_keeps_listings_waiting() -> None:
    stage = Stage()
    starting(stage.hub)
    stage.hub.publish(ServerStatus(SLOW, detail="still installing"))
    assert stage.hub.settling


async def test_a_hub_counts_running_and_waiting_calls_of_all_server_queues() -> None:
    hub = Hub(Limits(max_calls=1), Notes())
    assert hub.running() == 0
    stage = Stage(limits=Limits(max_calls=1))
    for _ in range(3):
        stage.start()
    assert stage.hub.running() == 3


async def test_a_call_is_recorded_once_with_how_it_ended() -> None:
    stage = Stage()
    inflight, _ = stage.start()
    inflight.finish(DONE)
    stage.start(call("nobody.knows"))
    assert [(name, server, type(outcome)) for name, server, outcome in stage.notes.ends] == [
        ("files.read", SERVER, type(DONE)),
        ("nobody.knows", None, UnknownTool),
    ]


async def test_arguments_travel_as_they_were_written() -> None:
    stage = Stage()
    text = msgspec.Raw(b'{ "path" :  1.0e2 }')
    inflight = stage.hub.start(msgspec.structs.replace(call(), arguments=text), Listener())
    assert bytes(inflight.call.arguments) == bytes(text)


# -- servers that are replaced, and the end ------------------------------------------------------------------------


def replacement(stage: Stage) -> HeldLink:
    """A new server queue in place of the server's, with a link of its own."""
    server_queue, link = ServerQueue(SERVER, stage.hub.limits), HeldLink()
    server_queue.attach(link)
    stage.hub.open_server_queue(server_queue, ready(tool()))
    return link


async def test_calls_on_a_replaced_server_queue_count_until_they_end_and_new_ones_go_to_the_new() -> None:
    stage = Stage()
    old, listener = stage.start()
    link = replacement(stage)
    new, _ = stage.start()
    assert (stage.link.sent, link.sent, stage.hub.running()) == ([old], [new], 2)
    old.finish(DONE)
    new.finish(DONE)
    assert (listener.ends, stage.hub.running()) == ([DONE], 0)


async def test_server_queues_that_were_left_are_forgotten_with_their_last_call() -> None:
    stage = Stage()
    running, _ = stage.start()
    for _ in range(10):
        replacement(stage)
    assert len(stage.hub._leaving) == 2  # the one with a call, and the latest
    running.finish(DONE)
    replacement(stage)
    assert len(stage.hub._leaving) == 1


async def test_a_closed_server_queue_is_invisible_and_delays_no_listing() -> None:
    stage = Stage()
    starting(stage.hub)
    running, listener = stage.start()
    stage.hub.close_server_queue(SLOW)
    stage.hub.close_server_queue(SERVER)
    assert not stage.hub.settling
    assert (stage.hub.snapshot.server_statuses, stage.hub.server_queues) == ({}, {})
    assert stage.hub.running() == 1
    running.finish(DONE)
    assert listener.ends == [DONE]


async def test_shutting_down_withdraws_calls_of_every_server_queue() -> None:
    stage = Stage(limits=Limits(max_calls=1))
    calls = [stage.start()[1] for _ in range(2)]
    replacement(stage)
    calls.append(stage.start()[1])
    stage.hub.cancel_all("the hub is shutting down")
    assert [listener.fault.reason for listener in calls] == ["cancelled"] * 3
    assert stage.hub.running() == 0


# -- what single callers are listed --------------------------------------------------------------------------------

ABLE: ClientCapabilities = frozenset({"elicitation"})
MORE = {ABLE: FeatureLists((tool("read"), tool("ask")), abilities=frozenset({"tools"}))}


class Pupil:
    """Learns when the test says so."""

    def __init__(self, stage: Stage, *, knows: bool = False) -> None:
        self.stage = stage
        self.learning = None if knows else ListLoad(asyncio.get_running_loop().create_future(), stage.hub.now())
        self.asked: list[tuple[Caller, ClientCapabilities]] = []
        stage.hub.open_server_queue(stage.server_queue, ready(tool()), learner=self)

    def load_lists(self, caller: Caller, client_caps: ClientCapabilities) -> ListLoad | None:
        self.asked.append((caller, client_caps))
        return self.learning

    def know(self) -> None:
        """Publish what such callers are listed."""
        self.stage.hub.publish(msgspec.structs.replace(ready(tool()), variants=MORE))
        assert self.learning is not None
        self.learning.done.set_result(None)


def patient() -> Limits:
    return Limits(listing_seconds=60.0)


async def test_a_listing_waits_for_the_callers_own_list() -> None:
    stage = Stage(limits=patient())
    pupil = Pupil(stage)
    listing = asyncio.ensure_future(stage.hub.view_for(ANYONE, EVERYTHING, ABLE))
    await asyncio.sleep(0)
    assert not listing.done()
    pupil.know()
    async with asyncio.timeout(30):
        assert list((await listing).routes) == ["files.read", "files.ask"]
    assert pupil.asked == [(ANYONE, ABLE)]


async def test_a_caller_without_client_capabilities_waits_for_no_other_list() -> None:
    stage = Stage(limits=patient())
    pupil = Pupil(stage)
    async with asyncio.timeout(30):
        assert list((await stage.hub.view_for(ANYONE, EVERYTHING)).routes) == ["files.read"]
    assert pupil.asked == []


async def test_a_listing_does_not_wait_for_ever_and_each_server_has_its_time_once() -> None:
    stage = Stage(limits=Limits(listing_seconds=0.01))
    Pupil(stage)
    async with asyncio.timeout(30):
        for _ in range(2):
            assert list((await stage.hub.view_for(ANYONE, EVERYTHING, ABLE)).routes) == ["files.read"]


async def test_hidden_servers_are_not_asked_for_the_callers_list() -> None:
    stage = Stage(limits=patient())
    pupil = Pupil(stage)
    stranger = Caller("stranger", "default", Grants(("other",)))
    async with asyncio.timeout(30):
        assert list((await stage.hub.view_for(stranger, EVERYTHING, ABLE)).routes) == []
        await stage.hub.view_for(ANYONE, Surface("own", SLOW), ABLE)
    assert pupil.asked == []


async def test_a_call_for_an_unlisted_name_starts_once_it_is_known() -> None:
    stage = Stage(limits=patient())
    pupil = Pupil(stage)
    inflight, listener = stage.start(call("files.ask", client_caps=ABLE))
    _, unknown = stage.start(call("files.nothing", client_caps=ABLE))
    assert (stage.link.sent, listener.ends, unknown.ends) == ([], [], [])
    pupil.know()
    async with asyncio.timeout(30):
        await unknown.ended.wait()
    assert isinstance(unknown.fault, UnknownTool)
    assert stage.link.sent == [inflight]
    inflight.finish(DONE)
    assert listener.ends == [DONE]


async def test_a_call_that_was_put_off_does_not_wait_for_ever() -> None:
    stage = Stage(limits=Limits(listing_seconds=0.01))
    Pupil(stage)
    _, listener = stage.start(call("files.ask", client_caps=ABLE))
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, UnknownTool)
    assert len(stage.notes.ends) == 1


async def test_a_call_that_is_withdrawn_while_it_is_put_off_never_starts() -> None:
    stage = Stage(limits=patient())
    pupil = Pupil(stage)
    inflight, listener = stage.start(call("files.ask", client_caps=ABLE))
    inflight.cancel("by the caller")
    pupil.know()
    await asyncio.sleep(0)
    assert isinstance(listener.fault, Cancelled)
    assert stage.link.sent == []


async def test_a_known_missing_tool_fails_at_once() -> None:
    stage = Stage(limits=patient())
    Pupil(stage, knows=True)
    assert isinstance(stage.start(call("files.ask", client_caps=ABLE))[1].fault, UnknownTool)
    assert isinstance(stage.start(call("files.ask"))[1].fault, UnknownTool)


async def test_a_closed_server_is_not_asked_for_its_list() -> None:
    stage = Stage(limits=patient())
    pupil = Pupil(stage)
    stage.hub.close_server_queue(SERVER)
    stage.hub.open_server_queue(ServerQueue(SERVER, stage.hub.limits), ready(tool()))
    async with asyncio.timeout(30):
        await stage.hub.view_for(ANYONE, EVERYTHING, ABLE)
    assert pupil.asked == []


async def test_slow_watchers_are_left_alone_for_a_while_and_then_notified_once() -> None:
    stage = Stage()
    clock = Clock(stage)
    received: list[int] = []

    def look() -> None:
        received.append(stage.hub.snapshot.version)
        clock.seconds += 0.02

    stage.hub.watch(look)
    for number in range(100):
        stage.hub.publish(ready(tool(f"t{number}")))
    assert len(received) == 1
    clock.seconds += 0.08
    clock.turn()
    assert received[1:] == [stage.hub.snapshot.version]
    clock.seconds += 1.0
    stage.hub.publish(ready())
    assert len(received) == 3


class Clock:
    """The time that a hub goes by, in the test's hands, and what it wants done later."""

    def __init__(self, stage: Stage) -> None:
        self.seconds = 0.0
        self._later: list[tuple[float, Callable[[], None]]] = []
        stage.hub._loop = self  # type: ignore[assignment]

    def time(self) -> float:
        return self.seconds

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        self._later.append((when, callback))

    def turn(self) -> None:
        due, self._later = self._later, []
        for when, callback in due:
            assert when <= self.seconds
            callback()


async def test_a_caller_of_one_server_waits_for_no_other() -> None:
    stage = Stage(limits=Limits(listing_seconds=30.0))
    stage.hub.open_server_queue(ServerQueue(SLOW, stage.hub.limits), ServerStatus(SLOW))
    async with asyncio.timeout(5):
        view = await stage.hub.view(ANYONE.grants, Surface("own", SERVER))
    assert list(view.routes) == ["read"]


TREE = "file:///{path}"
OFFER = ready(tool(), prompts=[prompt()], resources=[resource("file:///notes")], templates=[template(TREE)])


@pytest.mark.parametrize(
    ("kind", "name", "own"),
    [
        ("tool", "files.read", "read"),
        ("prompt", "files.ask", "ask"),
        ("prompt_argument", "files.ask", "ask"),
        ("uri_argument", TREE, TREE),
        ("resource", "file:///notes", "file:///notes"),
        ("resource", "isthmus://hub/files/file:///new", "file:///new"),
    ],
)
async def test_a_call_of_any_kind_is_sent_under_its_servers_own_name(kind: Kind, name: str, own: str) -> None:
    stage = Stage.of(OFFER)
    inflight, listener = stage.start(call(name, kind=kind))
    assert stage.link.sent == [inflight]
    assert (inflight.name, inflight.call.name, inflight.timeout) == (own, name, CALL_SECONDS)
    assert not listener.ends


async def test_a_name_for_language_models_may_be_called_with_underscores_for_its_hyphens() -> None:
    stage = Stage.of(ready(tool("get-weather"), tool("set-x"), tool("set_x")))
    llm = Surface("llm")
    found = [stage.start(call(name, surface=llm))[0].name for name in ("mcp_files_get_weather", "mcp_files_set_x")]
    assert found == ["get-weather", "set_x"]
    nobody = Caller("nobody", "default", Grants(("files.set-x",)))
    denied = ("mcp_files_get_weather", "mcp_files_set_x")
    assert all(stage.start(call(name, surface=llm, caller=nobody))[1].fault for name in denied)


@pytest.mark.parametrize(
    ("kind", "fault", "message"),
    [
        ("prompt", UnknownPrompt, "Unknown prompt: web.x"),
        ("prompt_argument", UnknownPrompt, "Unknown prompt: web.x"),
        ("uri_argument", UnknownResource, "Resource not found: web.x"),
        ("resource", UnknownResource, "Resource not found: web.x"),
    ],
)
async def test_unknown_and_denied_names_end_alike(kind: Kind, fault: type, message: str) -> None:
    stage = Stage.of(OFFER)
    nobody = Caller("nobody", "default", Grants(()))
    denied = stage.start(call("web.x", kind=kind, caller=nobody))[1].fault
    assert isinstance(denied, fault)
    assert (denied.message, denied.executed, denied.server) == (message, "no", None)
    hidden = {"prompt": "files.ask", "prompt_argument": "files.ask", "uri_argument": TREE, "resource": "file:///notes"}
    unseen = stage.start(call(hidden[kind], kind=kind, caller=nobody))[1].fault
    assert unseen.message == message.replace("web.x", hidden[kind])
    assert stage.link.sent == []


async def test_a_resource_that_several_servers_have_is_answered_with_the_candidates() -> None:
    stage = Stage.of(OFFER)
    web = ServerName("web")
    stage.hub.open_server_queue(
        ServerQueue(web, stage.hub.limits), ready(server=web, resources=[resource("file:///notes", web)], templates=[])
    )
    fault = stage.start(call("file:///notes", kind="resource"))[1].fault
    assert "isthmus://hub/files/file:///notes or isthmus://hub/web/file:///notes" in fault.message


async def test_defaults_are_filled_in_before_the_check_and_reach_the_server() -> None:
    strict = tool(
        "read", inputSchema={"type": "object", "required": ["root"], "properties": {"root": {"type": "string"}}}
    )
    stage = Stage.of(ready(strict, rules=ToolRules(defaults={"read": {"root": "/srv"}})))
    inflight, _ = stage.start(call(arguments={"path": 1}))
    assert json.loads(bytes(inflight.call.arguments)) == {"path": 1, "root": "/srv"}
    assert stage.start(call(arguments={"root": 7}))[1].fault.reason == "bad_arguments"


async def test_a_tool_without_defaults_gets_the_callers_own_bytes() -> None:
    stage = Stage.of(ready(tool(), rules=ToolRules(defaults={"write": {"root": "/srv"}})))
    text = msgspec.Raw(b'{ "path" : 1 }')
    inflight = stage.hub.start(msgspec.structs.replace(call(), arguments=text), Listener())
    assert inflight.call.arguments is text


async def test_a_resource_whose_server_queue_has_no_link_says_why() -> None:
    stage = Stage.of(OFFER)
    stage.server_queue.detach("it crashed", is_failure=True)
    fault = stage.start(call("file:///notes", kind="resource"))[1].fault
    assert isinstance(fault, NotConnected)
    assert fault.why == "it crashed"


async def test_the_result_of_a_task_is_waited_for_as_long_as_anything_may_take() -> None:
    stage = Stage.of(msgspec.structs.replace(ready(tool()), abilities=frozenset({"tools", "tasks"})))
    own = Surface("own", SERVER)
    waiting, _ = stage.start(msgspec.structs.replace(call("t"), kind="task_result", surface=own))
    asking, _ = stage.start(msgspec.structs.replace(call("t"), kind="task", surface=own))
    assert (waiting.name, waiting.timeout) == ("t", stage.hub.limits.hard_seconds)
    assert asking.timeout == stage.hub.limits.call_seconds < waiting.timeout


async def test_a_call_without_a_waiting_caller_may_take_as_long_as_anything() -> None:
    inflight, _ = Stage.of(ready(tool())).start(msgspec.structs.replace(call(), lasts=True))
    assert inflight.timeout == Limits().hard_seconds > Limits().call_seconds


async def test_a_task_request_to_a_vanished_server_was_not_executed() -> None:
    stage = Stage()
    _, received = stage.start(
        msgspec.structs.replace(call("t"), kind="task", surface=Surface("own", ServerName("gone")))
    )
    assert isinstance(received.fault, NotConnected)
    assert received.fault.executed == "no"
    _, lost = stage.start(msgspec.structs.replace(call("t"), kind="task"))
    assert isinstance(lost.fault, UnknownTool)


# -- any method of one server ----------------------------------------------------------------------------------------

OWN = Surface("own", SERVER)


def method(name: str = "prompts/list", caller: Caller | None = None, surface: Surface = OWN) -> Call:
    return call(name, {"cursor": "a"}, kind="method", surface=surface, caller=caller or ANYONE)


def versed(server_status: ServerStatus = OFFER) -> Stage:
    """A server that can be asked for anything."""
    stage = Stage.of(server_status)
    setattr(stage.link, "takes_methods", True)  # noqa: B010 - it is a link of a kind that is
    return stage


async def test_any_method_is_sent_to_a_server_on_its_own_surface() -> None:
    stage = versed()
    inflight, listener = stage.start(method())
    assert stage.link.sent == [inflight]
    assert (inflight.name, inflight.target.feature.server, inflight.timeout) == ("prompts/list", SERVER, CALL_SECONDS)
    inflight.finish(DONE)
    assert listener.ends == [DONE]


@pytest.mark.parametrize(
    "grants",
    [Grants(()), Grants(("files.read",)), Grants(("*",), ("files.write",)), Grants(("agent:home",)), Grants(("web",))],
)
async def test_a_method_is_unknown_to_callers_with_partial_permissions(grants: Grants) -> None:
    stage = versed()
    assert isinstance(stage.start(method(caller=Caller("ann", "default", grants)))[1].fault, UnknownTool)
    assert stage.link.sent == []


async def test_a_method_is_for_callers_that_may_use_the_agents_servers() -> None:
    stage = versed(msgspec.structs.replace(OFFER, agent="home"))
    inflight, _ = stage.start(method(caller=Caller("relay:home", "default", Grants(("agent:home",)))))
    assert stage.link.sent == [inflight]


@pytest.mark.parametrize(
    "surface", [EVERYTHING, Surface("own"), Surface("own", ServerName("web")), Surface("llm", SERVER)]
)
async def test_a_method_is_of_one_server_alone(surface: Surface) -> None:
    assert isinstance(versed().start(method(surface=surface))[1].fault, UnknownTool)


async def test_a_method_is_unknown_where_the_operator_hides_tools() -> None:
    stage = versed(msgspec.structs.replace(OFFER, rules=ToolRules(hidden=("write",))))
    assert isinstance(stage.start(method())[1].fault, UnknownTool)


@pytest.mark.parametrize("name", ["", "two words", "line\r\nbreak", "x" * 129, "läuten"])
async def test_invalid_method_names_are_not_sent(name: str) -> None:
    stage = versed()
    assert isinstance(stage.start(method(name))[1].fault, UnknownTool)
    assert stage.link.sent == []


async def test_a_server_without_methods_says_that_it_has_not_this_one() -> None:
    stage = Stage.of(OFFER)
    fault = stage.start(method("read"))[1].fault
    assert isinstance(fault, ServerError)
    assert (fault.code, fault.message, fault.server) == (-32601, "Method not found: read", SERVER)
    assert stage.link.sent == []


async def test_a_method_of_an_absent_server_gets_the_reason() -> None:
    stage = versed()
    stage.server_queue.detach("its socket was closed", is_failure=True)
    assert isinstance(stage.start(method())[1].fault, NotConnected)
