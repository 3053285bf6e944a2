"""The hub's description of itself, and the calls that it makes from requests."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.credentials.sealing import ProcessSealer
from isthmus.frontends.mcp.exchange import call_reply, cancelled_reply, event_notification, updated_params
from isthmus.frontends.mcp.input_required import ModernClientInput
from isthmus.frontends.mcp.methods import client_capabilities, list_passes, render_list
from isthmus.frontends.mcp.subscriptions import McpClient
from isthmus.model.calls import EVERYTHING, Call, LogMessage, Result
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import Request, finish
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from isthmus.wire.mcp.messages import Era
from tests.unit.core.doubles import ANYONE, DONE, PROGRESS, raw, tool
from tests.unit.frontends.mcp.doubles import LOG_KEY, META, NOTES, OFFER, Hosted, members

ID = msgspec.Raw(b"1")


def read(hosted: Hosted, method: str, params: dict[str, Any], level: Any = None) -> tuple[Call, msgspec.Raw | None]:
    request = Request(ID, method, members(params))
    meta = modern.check(request, None)
    assert meta is None or isinstance(meta, dict)
    made = hosted.mcp_methods.read_call(request, ANYONE, EVERYTHING, meta, level)
    assert isinstance(made, tuple)
    return made


ANSWERS = {"requestState": "mine", "inputResponses": {"q": {"action": "accept"}}}
SPELT = {"RequestState": "mine", "inputresponses": {}}


async def test_a_legacy_caller_brings_no_answers_without_questions() -> None:
    for name, params in (("tools/call", {"name": "files.read"}), ("resources/read", {"uri": NOTES})):
        call, _ = read(Hosted(), name, {**params, **ANSWERS, **SPELT, "own": 1})
        assert list(call.extra) == ["own"]


async def test_a_modern_caller_brings_its_answers_in_their_own_spelling() -> None:
    hosted = Hosted()
    asked = {"name": "files.read", "_meta": META, **ANSWERS, **SPELT, "own": 1}
    assert list(read(hosted, "tools/call", asked)[0].extra) == ["own"], "it cannot be asked"
    hosted.mcp_methods.client_input = ModernClientInput(ProcessSealer(), hosted.hub.limits)
    assert list(read(hosted, "tools/call", asked)[0].extra) == [*ANSWERS, "own"]


async def test_a_list_is_rendered_once_for_each_view_era_and_kind() -> None:
    view = Hosted().hub.snapshot.view(ANYONE.grants, EVERYTHING)
    rendered = [
        render_list(view, era, shape)
        for era in ("legacy", "modern")
        for shape in (TOOLS, PROMPTS, RESOURCES, TEMPLATES)
    ]
    assert len({bytes(text) for text in rendered}) == 8
    assert render_list(view, "modern", RESOURCES) is render_list(view, "modern", RESOURCES)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_pages_are_kept_if_a_caller_reaches_them_from_the_first_one(era: Era) -> None:
    tools = tuple(tool(f"t{number}", description="x" * 100) for number in range(20))
    hub = Hosted(msgspec.structs.replace(OFFER, tools=tools)).hub
    view = hub.snapshot.view(ANYONE.grants, EVERYTHING)

    def page(after: str | None) -> bytes | None:
        return finish(list_passes(view, era, TOOLS, None, after=after, page_bytes=1_000))

    first = page(None)
    assert first is not None
    names = [each["name"] for each in json.loads(first)["tools"]]
    assert 1 < len(names) < 20
    assert base64.urlsafe_b64decode(json.loads(first)["nextCursor"]).decode() == names[-1]
    assert page(names[-1]) is page(names[-1])
    assert page(names[0]) is not page(names[0]), "any name can be a cursor, and not each page is kept"
    assert page("files.unknown") is None
    seen, after = list(names), names[-1]
    while (last := json.loads(page(after) or b"")).get("nextCursor"):
        seen += [each["name"] for each in last["tools"]]
        after = seen[-1]
    assert [*seen, *(each["name"] for each in last["tools"])] == list(view.routes)


async def test_every_list_names_each_server_that_is_missing_and_why_but_not_where_it_is() -> None:
    hosted = Hosted()
    away = ServerStatus(ServerName("web"), "retrying", "connection refused by 10.1.2.3:9", tools=(), is_settled=True)
    hosted.hub.publish(away)
    view = hosted.hub.snapshot.view(ANYONE.grants, EVERYTHING)
    for shape in (TOOLS, PROMPTS, RESOURCES, TEMPLATES):
        assert json.loads(render_list(view, "legacy", shape))["_meta"]["isthmus/missing"] == {
            "web": {"state": "retrying", "reason": "connection refused by its address", "listed": False}
        }


async def test_members_of_the_envelope_end_here_and_the_others_travel() -> None:
    call, token = read(
        Hosted(),
        "resources/read",
        {
            "uri": NOTES,
            "extra": 1,
            "_meta": {**META, LOG_KEY: "info", "trace": "t", "progressToken": 5, "ProgressToken": 6},
        },
    )
    assert (call.meta, call.extra) == (members({"trace": "t"}), members({"extra": 1}))
    assert (call.kind, call.log_level, call.wants_progress, token) == ("resource", "info", True, raw(5))


async def test_the_level_of_an_earlier_caller_is_that_of_its_session() -> None:
    hosted = Hosted()
    assert read(hosted, "prompts/get", {"name": "files.ask"}, "error")[0].log_level == "error"
    assert read(hosted, "prompts/get", {"name": "files.ask", "_meta": META}, "error")[0].log_level is None
    wrong = {"name": "files.ask", "_meta": {**META, LOG_KEY: "loud"}}
    assert read(hosted, "prompts/get", wrong)[0].log_level is None


async def test_the_log_level_of_a_modern_call_is_requested_once_from_the_servers() -> None:
    hosted = Hosted()
    read(hosted, "prompts/get", {"name": "files.ask", "_meta": {**META, LOG_KEY: "loud"}})
    assert hosted.hub.levels.lowest is None
    read(hosted, "prompts/get", {"name": "files.ask", "_meta": {**META, LOG_KEY: "info"}})
    assert hosted.hub.levels.lowest == "info"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_initializing_client_learns_which_hubs_are_here_and_behind(era: Any) -> None:
    hosted = Hosted()
    hosted.hub.publish(ServerStatus(ServerName("web"), "ready", is_settled=True, hubs={"another": 0, "far": 2}))
    method = "initialize" if era == "legacy" else "server/discover"
    params: dict[str, Any] = {"protocolVersion": "2025-11-25"} if era == "legacy" else {"_meta": META}
    response = await hosted.mcp_methods.answer(
        Request(ID, method, members(params)), McpClient(hosted.hub, ANYONE, EVERYTHING), era
    )
    hubs = json.loads(response.body)["result"]["_meta"]["isthmus/hubs"]
    assert hubs == {hosted.hub.id: 0, "another": 1, "far": 3}


@pytest.mark.parametrize(("era", "is_typed"), [("legacy", False), ("modern", True)])
def test_a_result_of_the_callers_own_era_is_not_touched(era: Any, *, is_typed: bool) -> None:
    odd = msgspec.Raw(b'{ "n" : 1.0e2 }')
    assert b'"result":{ "n" : 1.0e2 }' in call_reply(ID, Result(odd, is_typed=is_typed), era).body


def test_events_are_sent_in_order_of_arrival() -> None:
    line = LogMessage("info", members({"level": "info", "data": 1}))
    assert json.loads(event_notification(line, None) or b"")["params"] == {"level": "info", "data": 1}
    assert event_notification(PROGRESS, None) is None
    assert json.loads(event_notification(PROGRESS, raw("t")) or b"")["params"] == {"progressToken": "t", "progress": 1}


def test_small_words() -> None:
    assert json.loads(cancelled_reply(ID).body)["error"]["data"] == {"executed": "no", "reason": "cancelled"}
    assert updated_params('a"b') == {"uri": b'"a\\"b"'}
    assert call_reply(ID, DONE, "legacy").code is None


def test_client_capabilities_come_with_each_modern_request_and_once_in_legacy() -> None:
    can: dict[str, Any] = {"elicitation": {}}
    modern = Request(ID, "tools/list", members({"_meta": {"io.modelcontextprotocol/clientCapabilities": can}}))
    greeting = Request(ID, "initialize", members({"capabilities": can}))
    later = Request(ID, "tools/list", members({"capabilities": can, "_meta": {}}))
    known = frozenset({"roots"})
    assert client_capabilities(modern, "modern", known) == {"elicitation"}
    assert client_capabilities(later, "modern", known) == frozenset()
    assert client_capabilities(greeting, "legacy", known) == {"elicitation"}
    assert client_capabilities(later, "legacy", known) == known
