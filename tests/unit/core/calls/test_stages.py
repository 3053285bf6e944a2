"""The stages of a call that is not a plain one: other kinds, defaults, and what is unknown."""

from __future__ import annotations

import json

import msgspec
import pytest

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.rules import ToolRules
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import CALL_SECONDS, Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Call, Kind, Surface
from isthmus.model.faults import NotConnected, ServerError, UnknownPrompt, UnknownResource, UnknownTool
from isthmus.model.names import ServerName
from tests.unit.core.doubles import (
    ANYONE,
    DONE,
    SERVER,
    Listener,
    Stage,
    call,
    prompt,
    ready,
    resource,
    template,
    tool,
)

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
async def test_what_is_unknown_and_what_is_denied_end_alike(kind: Kind, fault: type, message: str) -> None:
    stage = Stage.of(OFFER)
    nobody = Caller("nobody", "default", Grants(()))
    denied = stage.start(call("web.x", kind=kind, caller=nobody))[1].fault
    assert isinstance(denied, fault)
    assert (denied.message, denied.executed, denied.server) == (message, "no", None)
    hidden = {"prompt": "files.ask", "prompt_argument": "files.ask", "uri_argument": TREE, "resource": "file:///notes"}
    unseen = stage.start(call(hidden[kind], kind=kind, caller=nobody))[1].fault
    assert unseen.message == message.replace("web.x", hidden[kind])
    assert stage.link.sent == []


async def test_a_resource_that_several_servers_have_is_told_with_what_could_be_meant() -> None:
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


async def test_a_resource_whose_lane_has_no_link_says_why() -> None:
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


async def test_a_call_that_nobody_waits_for_may_take_as_long_as_anything() -> None:
    inflight, _ = Stage.of(ready(tool())).start(msgspec.structs.replace(call(), lasts=True))
    assert inflight.timeout == Limits().hard_seconds > Limits().call_seconds


async def test_a_task_of_a_server_that_has_gone_did_not_hear_of_it() -> None:
    stage = Stage()
    _, told = stage.start(msgspec.structs.replace(call("t"), kind="task", surface=Surface("own", ServerName("gone"))))
    assert isinstance(told.fault, NotConnected)
    assert told.fault.executed == "no"
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
async def test_a_method_is_unknown_to_those_from_whom_something_of_its_server_is_kept(grants: Grants) -> None:
    stage = versed()
    assert isinstance(stage.start(method(caller=Caller("ann", "default", grants)))[1].fault, UnknownTool)
    assert stage.link.sent == []


async def test_a_method_is_for_those_who_may_use_what_dialled_in_under_an_agent() -> None:
    stage = versed(msgspec.structs.replace(OFFER, agent="home"))
    inflight, _ = stage.start(method(caller=Caller("relay:home", "default", Grants(("agent:home",)))))
    assert stage.link.sent == [inflight]


@pytest.mark.parametrize(
    "surface", [EVERYTHING, Surface("own"), Surface("own", ServerName("web")), Surface("llm", SERVER)]
)
async def test_a_method_is_of_one_server_alone(surface: Surface) -> None:
    assert isinstance(versed().start(method(surface=surface))[1].fault, UnknownTool)


async def test_a_method_would_tell_what_the_operator_does_not_show() -> None:
    stage = versed(msgspec.structs.replace(OFFER, rules=ToolRules(hidden=("write",))))
    assert isinstance(stage.start(method())[1].fault, UnknownTool)


@pytest.mark.parametrize("name", ["", "two words", "line\r\nbreak", "x" * 129, "läuten"])
async def test_what_no_method_is_called_goes_nowhere(name: str) -> None:
    stage = versed()
    assert isinstance(stage.start(method(name))[1].fault, UnknownTool)
    assert stage.link.sent == []


async def test_a_server_without_methods_says_that_it_has_not_this_one() -> None:
    stage = Stage.of(OFFER)
    fault = stage.start(method("read"))[1].fault
    assert isinstance(fault, ServerError)
    assert (fault.code, fault.message, fault.server) == (-32601, "Method not found: read", SERVER)
    assert stage.link.sent == []


async def test_of_a_server_that_is_away_a_method_hears_why() -> None:
    stage = versed()
    stage.server_queue.detach("its socket was closed", is_failure=True)
    assert isinstance(stage.start(method())[1].fault, NotConnected)
