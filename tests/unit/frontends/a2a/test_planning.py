"""From an instruction to a call, within the caller's view."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from isthmus.core.access.policy import Policy
from isthmus.core.catalog.view import View
from isthmus.core.ports import OpenTarget, TargetSpec, UnopenedTarget
from isthmus.frontends.a2a.caller_messages import (
    EMPTY,
    BadInstruction,
    CommandInstruction,
    Form,
    Instruction,
    Saying,
    ToolInstruction,
)
from isthmus.frontends.a2a.planning import OFFERED_MAX, CallerView, SentMessage, TargetCall, TaskPlan, plan
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Call, Outcome, Result, Surface
from isthmus.model.fault_table import Cancelled, Fault, NotConnected, TargetRefused
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.tasks import ABSENT, Message
from isthmus.wire.mcp.modern import LOG_KEY
from isthmus.wire.mcp.tasks import RELATED
from tests.unit.core.doubles import ANYONE, DONE, SERVER, Listener, Stage, call, prompt, raw, ready, resource, tool

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "context_id": {}}}
OFFER = ready(
    tool("read"),
    tool("files.list"),
    tool("look-up"),
    tool("hear", inputSchema=SCHEMA),
    tool("deaf", inputSchema={"type": "object", "properties": {"path": {"type": "string"}}}),
    prompts=[prompt()],
    resources=[resource("file:///a")],
)
CLOSED = NotConnected(ServerName("bank"), "HTTP 401", status=401, login="https://bank.example/in")
SAID = Message("m1", "user", (), metadata=raw({"k": 1}))


class Sight(CallerView):
    """What one caller sees of a hub with one server."""

    def __init__(self, caller: Caller = ANYONE) -> None:
        self.hub = Stage.of(OFFER).hub
        super().__init__(self.hub, caller, None)
        self.named: list[TargetSpec] = []
        self.found: ServerName | UnopenedTarget | Fault = TargetRefused("Not there")
        self.lost: NotConnected | None = None
        """Why the server with the tools is away."""

    def view(self, surface: Surface) -> View:
        return self.hub.snapshot.view(self.caller.grants, surface)

    def has_server(self, server: str) -> bool:
        return server == "bank" or server in self.view(EVERYTHING).servers

    def never_listed(self, server: str) -> NotConnected | None:
        return CLOSED if server == "bank" else None

    def unreached(self, surface: Surface, name: str) -> NotConnected | None:
        server, tool = (surface.server, name) if surface.style == "own" else name.partition(".")[::2]
        may_call = Policy(self.caller.grants).allows(ServerName("bank"), FeatureName(tool))
        return CLOSED if server == "bank" and tool and may_call else None

    def not_connected(self, server: str) -> NotConnected | None:
        return self.lost if server == "files" else self.never_listed(server)

    def find(self, target: TargetSpec) -> ServerName | UnopenedTarget | Fault:
        self.named.append(target)
        return self.found

    def plan(self, instruction: Instruction, text_tool: str | None = None) -> TaskPlan:
        return plan(instruction, self, SentMessage(SAID, "talk", text_tool))


def called(made: TaskPlan) -> Call:
    assert isinstance(made.call, Call), made.ending
    return made.call


def reason(made: TaskPlan) -> str:
    assert made.call is None
    assert made.ending is not None
    return made.ending.reason


@pytest.mark.parametrize(
    ("name", "server", "found"),
    [
        ("files.read", None, "files.read"),
        ("read", None, "files.read"),
        ("read", "files", "files.read"),
        ("files.read", "files", "files.read"),
        ("files.list", "files", "files.files.list"),
        ("mcp_files_read", None, "files.read"),
        ("mcp_files_look-up", None, "files.look-up"),
        ("mcp_files_look_up", None, "files.look-up"),
    ],
)
async def test_a_tool_is_found_by_any_of_its_names(name: str, server: str | None, found: str) -> None:
    call = called(Sight().plan(ToolInstruction(name, raw({"a": 1}), server)))
    assert (call.name, call.arguments) == (found, raw({"a": 1}))


async def test_a_task_call_gets_all_events_and_can_be_asked() -> None:
    call = called(Sight().plan(ToolInstruction("files.read", raw({}))))
    assert call.wants_progress
    assert call.log_level == "info"
    assert "elicitation" in call.client_caps
    assert (call.session, call.shares_link) == ("talk", True)


@pytest.mark.parametrize(("name", "server"), [("reed", None), ("read", "other"), ("", "files"), ("a.b.c", None)])
async def test_an_unknown_tool_is_a_task_that_failed(name: str, server: str | None) -> None:
    made = Sight().plan(ToolInstruction(name, raw({}), server))
    assert reason(made) == "unknown_tool"
    assert made.state == "failed"


async def test_hidden_tools_are_neither_found_nor_suggested() -> None:
    blind = Sight(Caller("blind", "default", Grants(("other.*",))))
    made = blind.plan(ToolInstruction("files.read", raw({})))
    assert reason(made) == "unknown_tool"
    assert made.ending is not None
    assert "did you mean" not in made.ending.message
    assert reason(blind.plan(CommandInstruction("files", "tools/list"))) == "unknown_server"


async def test_a_denied_tool_is_as_unknown_by_each_of_its_names() -> None:
    some = Sight(Caller("some", "default", Grants(("files.hear",))))
    for name in ("files.read", "read", "mcp_files_read"):
        made = some.plan(ToolInstruction(name, raw({})))
        assert reason(made) == "unknown_tool"
        assert made.ending is not None
        assert made.ending.message.removeprefix(f"Unknown tool: {name}") in ("", "; did you mean files.hear?")


async def test_a_command_calls_its_server_under_the_server_s_own_names() -> None:
    params = {"name": "read", "arguments": {"x": 1}, "_meta": {"k": 2}}
    made = Sight().plan(CommandInstruction("files", "tools/call", raw(params), id=raw(5)))
    call = called(made)
    assert (call.surface.server, call.name, call.arguments, call.kind) == ("files", "read", raw({"x": 1}), "tool")
    assert call.meta == {"k": raw(2)}
    assert made.brief.id == raw(5)
    read = called(Sight().plan(CommandInstruction("files", "resources/read", raw({"uri": "file:///a"}))))
    assert (read.kind, read.name) == ("resource", "file:///a")


FORGED = {
    "task": {"ttl": 1},
    "requestState": "theirs",
    "RequestState": "theirs",
    "inputResponses": {},
    "own": 1,
    "_meta": {LOG_KEY: "debug", "progressToken": 1, RELATED: {"taskId": "theirs"}, "trace": "t"},
}
"""What a command may hold that is not its caller's to say to a server that others use too, and what is."""


async def test_a_command_says_nothing_in_the_hub_s_name() -> None:
    call = called(Sight().plan(CommandInstruction("files", "tools/call", raw({"name": "read", **FORGED}))))
    assert (call.meta, call.extra) == ({"trace": raw("t")}, {"own": raw(1)})


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"])
async def test_the_tasks_of_a_configured_server_are_not_asked_after_by_commands(method: str) -> None:
    made = Sight().plan(CommandInstruction("files", method, raw({"taskId": "theirs"})))
    assert (reason(made), made.state) == ("bad_instruction", "failed")
    assert made.ending is not None
    assert method in made.ending.message


@pytest.mark.parametrize(
    ("method", "member", "names"),
    [
        ("tools/list", "tools", ["read", "files.list", "look-up", "hear", "deaf"]),
        ("prompts/list", "prompts", ["ask"]),
    ],
)
async def test_lists_are_answered_from_the_callers_view(method: str, member: str, names: list[str]) -> None:
    made = Sight().plan(CommandInstruction("files", method))
    assert made.state == "completed"
    assert made.ending is not None
    response: dict[str, Any] = json.loads(bytes(made.ending.result))
    assert [entry["name"] for entry in response[member]] == names


async def test_a_tool_s_name_is_a_method_too_as_it_is_for_servers_without_mcp() -> None:
    call = called(Sight().plan(CommandInstruction("files", "files.list", raw({"x": 1}))))
    assert (call.surface.server, call.name, call.arguments, call.kind) == ("files", "files.list", raw({"x": 1}), "tool")


async def test_other_methods_are_pinged_or_refused() -> None:
    assert Sight().plan(CommandInstruction("files", "ping")).state == "completed"
    made = Sight().plan(CommandInstruction("files", "initialize"))
    assert reason(made) == "bad_instruction"
    assert reason(Sight().plan(CommandInstruction("files", "tools/call", raw({})))) == "bad_instruction"
    assert reason(Sight().plan(CommandInstruction("nobody", "ping"))) == "unknown_server"


# -- servers that require a login before they list their methods ----------------------------------------------------


@pytest.mark.parametrize(
    "instruction",
    [
        ToolInstruction("bank.pay", raw({})),
        ToolInstruction("pay", raw({}), "bank"),
        ToolInstruction("bank.pay", raw({}), "bank"),
        CommandInstruction("bank", "tools/list"),
        CommandInstruction("bank", "tools/call", raw({"name": "pay"})),
        CommandInstruction("bank", "resources/list"),
        CommandInstruction("bank", "ping"),
    ],
)
async def test_a_target_call_refused_by_the_hub_ends_like_a_refused_call(instruction: Instruction) -> None:
    made, listener = Sight().plan(instruction), Listener()
    assert isinstance(made.call, TargetCall)
    assert made.call.start(listener).outcome is CLOSED
    assert listener.ends == [CLOSED]


async def test_a_server_that_is_listed_and_away_is_not_pinged() -> None:
    sight = Sight()
    sight.lost = NotConnected(ServerName("files"), "it ended")
    made, listener = sight.plan(CommandInstruction("files", "ping")), Listener()
    assert isinstance(made.call, TargetCall)
    assert made.call.start(listener).outcome is sight.lost
    assert sight.plan(CommandInstruction("files", "tools/list")).state == "completed"


async def test_a_caller_without_permission_gets_no_login_request() -> None:
    some = Sight(Caller("some", "default", Grants(("bank.see",))))
    assert reason(some.plan(ToolInstruction("bank.pay", raw({})))) == "unknown_tool"
    assert reason(some.plan(ToolInstruction("bank", raw({})))) == "unknown_tool"
    assert some.plan(ToolInstruction("bank.see", raw({}))).call is not None


# -- servers that are named by their addresses -------------------------------------------------------------------------


class Way:
    """An aim, and what is done when its server is reached."""

    def __init__(self) -> None:
        self.then: Callable[[OpenTarget | Fault], None] = lambda _: None

    def open(self, then: Callable[[OpenTarget | Fault], None]) -> Callable[[], None]:
        self.then = then
        return lambda: None


ADDRESS = "https://tools.example.com"


async def test_an_address_is_looked_up_with_its_path_and_headers() -> None:
    sight = Sight()
    made = sight.plan(CommandInstruction(ADDRESS, "ping", path="/mcp", headers={"x": "y"}))
    assert sight.named == [TargetSpec(ADDRESS, "/mcp", {"x": "y"})]
    assert (reason(made), made.state) == ("target_refused", "rejected")


async def test_one_that_is_configured_is_that_server() -> None:
    sight = Sight()
    sight.found = ServerName("files")
    assert (
        called(sight.plan(CommandInstruction(ADDRESS, "tools/call", raw({"name": "read"})))).surface.server == "files"
    )


async def test_a_configured_server_gets_no_headers() -> None:
    made = Sight().plan(CommandInstruction("files", "ping", headers={"x": "y"}))
    assert (reason(made), made.state) == ("target_refused", "rejected")


async def test_a_bad_command_is_refused_before_anybody_is_dialled() -> None:
    sight = Sight()
    assert reason(sight.plan(CommandInstruction(ADDRESS, "tools/call", raw({})))) == "bad_instruction"
    assert sight.named == []


@pytest.mark.parametrize(
    ("method", "params", "told"),
    [
        ("tools/list", {}, ["read", "files.list", "look-up", "hear", "deaf"]),
        ("ping", {}, []),
    ],
)
async def test_methods_without_a_call_are_answered_once_the_server_is_reached(
    method: str, params: dict[str, Any], told: list[str]
) -> None:
    listener, way = reached(method, params)
    way.then(OpenTarget(Stage.of(OFFER).hub, SERVER))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert [entry["name"] for entry in json.loads(bytes(outcome.payload)).get("tools", [])] == told


def only_result(listener: Listener) -> Any:
    """The one result in which a task's work ended."""
    (outcome,) = listener.ends
    assert isinstance(outcome, Result), outcome
    return json.loads(bytes(outcome.payload))


def reached(method: str, params: dict[str, Any], id: msgspec.Raw = ABSENT) -> tuple[Listener, Way]:
    """A task whose server is being reached."""
    sight, way, listener = Sight(Caller("nobody", "default", Grants(()))), Way(), Listener()
    sight.found = way
    made = sight.plan(CommandInstruction(ADDRESS, method, raw(params), id=id))
    assert isinstance(made.call, TargetCall)
    made.call.start(listener)
    return listener, way


async def test_all_of_a_server_that_a_caller_named_is_its_to_call() -> None:
    _, way = reached("tools/call", {"name": "read", "arguments": {"x": 1}})
    stage = Stage.of(OFFER)
    way.then(OpenTarget(stage.hub, SERVER))
    (inflight,) = stage.link.sent
    assert (inflight.name, inflight.call.arguments, inflight.call.caller.name) == ("read", raw({"x": 1}), "nobody")
    assert inflight.call.session == "talk"


async def test_tasks_of_a_server_that_a_caller_named_are_its_own() -> None:
    stage = Stage.of(ready(tool("read"), abilities=frozenset({"tools", "tasks"})))
    for method, params in (("tools/call", {"name": "read", **FORGED}), ("tasks/get", {"taskId": "mine"})):
        reached(method, params)[1].then(OpenTarget(stage.hub, SERVER))
    begun, asked = (inflight.call for inflight in stage.link.sent)
    assert (begun.meta, list(begun.extra)) == ({"trace": raw("t")}, ["task", "own"])
    assert (asked.kind, asked.name) == ("task", "mine")


@pytest.mark.parametrize("method", ["tools/jump", "logging/setLevel", "resources/subscribe"])
async def test_a_method_that_the_hub_does_not_know_is_for_the_server_to_answer(method: str) -> None:
    _, way = reached(method, {"level": "debug", "_meta": {"own": 1, "progressToken": 2}})
    stage = Stage.of(OFFER)
    setattr(stage.link, "takes_methods", True)  # noqa: B010 - it is a link of a kind that does
    way.then(OpenTarget(stage.hub, SERVER))
    (inflight,) = stage.link.sent
    assert (inflight.call.kind, inflight.name, list(inflight.call.meta)) == ("method", method, ["own"])
    assert json.loads(bytes(inflight.call.arguments))["level"] == "debug"


async def test_a_second_greeting_is_answered_with_the_first() -> None:
    listener, way = reached("initialize", {"protocolVersion": "2025-06-18"})
    way.then(OpenTarget(Stage.of(OFFER).hub, SERVER, initialize_result=raw({"protocolVersion": "2025-11-25"})))
    assert only_result(listener) == {"protocolVersion": "2025-11-25"}


async def test_that_a_client_is_initialized_need_not_be_said_again() -> None:
    listener, way = reached("notifications/initialized", {})
    way.then(OpenTarget(Stage.of(OFFER).hub, SERVER))
    assert only_result(listener) == {}


async def test_a_notification_has_no_answer() -> None:
    listener, way = reached("notifications/cancelled", {})
    way.then(OpenTarget(Stage.of(OFFER).hub, SERVER))
    assert "'notifications/cancelled' is a notification" in listener.fault.message


async def test_methods_named_as_accepted_are_accepted() -> None:
    made = Sight().plan(CommandInstruction("files", "tools/jump"))
    assert made.ending is not None
    named = made.ending.message.partition(" must be one of ")[2].split(", ")
    assert {"ping", "tools/call", "tools/list", "resources/templates/list", "completion/complete"} <= set(named)
    assert not [method for method in named if method.startswith("tasks/")]


async def test_a_server_without_mcp_gets_the_callers_words() -> None:
    _, way = reached("tools/jump", {"high": 1.50})
    stage = Stage.of(ready(is_unlisted=True))
    way.then(OpenTarget(stage.hub, SERVER, is_plain=True))
    (inflight,) = stage.link.sent
    assert (inflight.name, json.loads(bytes(inflight.call.arguments))) == ("tools/jump", {"high": 1.5})


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_request_keeps_the_id_that_its_caller_gave_it(*, is_plain: bool) -> None:
    _, way = reached("tools/call", {"name": "read"}, id=raw("order-7"))
    stage = Stage.of(ready(is_unlisted=True) if is_plain else OFFER)
    way.then(OpenTarget(stage.hub, SERVER, is_plain=is_plain))
    (inflight,) = stage.link.sent
    assert inflight.call.request_id == raw("order-7")


async def test_a_command_without_an_id_is_given_one() -> None:
    ids = {bytes(Sight().plan(CommandInstruction("files", "ping")).brief.id) for _ in range(2)}
    assert len(ids) == 2


async def test_a_bad_instruction_keeps_its_form() -> None:
    made = Sight().plan(BadInstruction("execute", "no"))
    assert (reason(made), made.brief.form) == ("bad_instruction", "execute")
    assert Sight().plan(BadInstruction("command", "no", raw(7))).brief.id == raw(7)
    assert bytes(Sight().plan(BadInstruction("command", "no")).brief.id).startswith(b'"')


@pytest.mark.parametrize("name", ["files.hear", "hear"])
async def test_plain_text_goes_to_the_text_tool_with_its_arguments(name: str) -> None:
    call = called(Sight().plan(Saying("hello"), name))
    assert call.name == "files.hear"
    assert json.loads(bytes(call.arguments)) == {"text": "hello", "context_id": "talk"}


async def test_a_tool_without_properties_gets_everything() -> None:
    call = called(Sight().plan(Saying("hello"), "files.read"))
    assert json.loads(bytes(call.arguments)) == {
        "text": "hello",
        "message_id": "m1",
        "context_id": "talk",
        "metadata": {"k": 1},
    }


async def test_words_are_not_lost_on_a_tool_that_takes_none() -> None:
    made = Sight().plan(Saying("hello"), "files.deaf")
    assert (made.call, made.state) == (None, "input_required")
    assert "files.deaf" in made.note
    assert Sight().plan(Saying("hello"), "files.hear").note == ""


async def test_words_under_a_tool_s_name_are_its_arguments_as_far_as_it_takes_them() -> None:
    call = called(Sight().plan(ToolInstruction("hear", EMPTY, words="hello")))
    assert json.loads(bytes(call.arguments)) == {"text": "hello", "context_id": "talk"}
    made = Sight().plan(ToolInstruction("files.deaf", EMPTY, words="hello"))
    assert reason(made) == "bad_instruction"
    assert made.ending is not None
    assert "files.deaf takes no text" in made.ending.message


@pytest.mark.parametrize("form", ["execute", "command"])
async def test_words_where_an_instruction_of_its_own_form_is_needed_fail(form: Form) -> None:
    made = Sight().plan(Saying("hello", form), "files.hear")
    assert (reason(made), made.state, made.brief.form) == ("bad_instruction", "failed", form)


@pytest.mark.parametrize("name", [None, "files.gone"])
async def test_without_a_tool_for_words_those_that_fit_are_offered(name: str | None) -> None:
    made = Sight().plan(Saying("can you hear me"), name)
    assert (made.call, made.state) == (None, "input_required")
    assert made.offer[0] == "files.hear"
    assert len(made.offer) <= OFFERED_MAX


class FakeTarget:
    """An aim that is reached when the test says so."""

    def __init__(self) -> None:
        self.is_given_up = False

    def open(self, then: Callable[[OpenTarget | Fault], None]) -> Callable[[], None]:
        self.then = then
        return self._give_up

    def _give_up(self) -> None:
        self.is_given_up = True


class Scene:
    """A target call that has begun."""

    def __init__(self, work: Call | Outcome) -> None:
        self.way, self.listener = FakeTarget(), Listener()
        self.stage = Stage.of(ready(tool("read")))
        self.underway = TargetCall(self.way, lambda _: work).start(self.listener)

    def outcome(self) -> Outcome | None:
        return self.underway.outcome

    def reach(self) -> None:
        self.way.then(OpenTarget(self.stage.hub, SERVER))


async def test_at_its_server_an_target_call_is_the_call_that_is_made_there() -> None:
    scene = Scene(call())
    assert (scene.outcome(), scene.stage.link.sent) == (None, [])
    scene.reach()
    (inflight,) = scene.stage.link.sent
    assert scene.outcome() is None
    inflight.finish(DONE)
    assert (scene.outcome(), scene.listener.ends) == (DONE, [DONE])


async def test_an_immediate_outcome_ends_when_the_server_is_reached() -> None:
    scene = Scene(DONE)
    scene.reach()
    assert (scene.underway.outcome, scene.listener.ends) == (DONE, [DONE])


async def test_a_server_that_is_not_reached_is_the_end() -> None:
    scene, fault = Scene(call()), NotConnected(SERVER, "nobody is there")
    scene.way.then(fault)
    assert (scene.underway.outcome, scene.listener.ends) == (fault, [fault])


async def test_given_up_on_its_way_it_has_not_run_and_does_not_arrive() -> None:
    scene = Scene(call())
    scene.underway.cancel("enough")
    assert scene.way.is_given_up
    scene.reach()
    scene.underway.cancel("again")
    assert scene.stage.link.sent == []
    assert isinstance(scene.listener.fault, Cancelled)
    assert scene.listener.fault.executed == "no"


@pytest.mark.parametrize("is_done", [False, True])
async def test_given_up_at_its_server_it_is_withdrawn_there(*, is_done: bool) -> None:
    scene = Scene(call())
    scene.reach()
    (inflight,) = scene.stage.link.sent
    if is_done:
        inflight.finish(DONE)
    scene.underway.cancel("enough")
    assert len(scene.listener.ends) == 1
    assert isinstance(inflight.outcome, Cancelled) is not is_done
