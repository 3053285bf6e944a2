"""The same matrix read as plain JSON, because models of the SDKs might hide differences."""

from __future__ import annotations

import json
from typing import Any, Literal, cast

import httpx2
import pytest

from tests.hubs import META, Raw
from tests.matrix.field import KINDS, Kind
from tests.matrix.matrix_sessions import MatrixSessions
from tests.matrix.session_steps import LEGACY, MODERN
from tests.matrix.test_cells import TOOLS

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("matrix")]

Era = Literal["legacy", "modern"]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
both_eras = pytest.mark.parametrize("era", ["legacy", "modern"])


@both_eras
@every_kind
async def test_a_listing_is_the_servers_own_json(sessions: MatrixSessions, kind: Kind, era: Era) -> None:
    # In the legacy era only a server without sessions can be asked by hand in one request.
    plain = Kind(kind.program, kind.spoken, "stateless")

    direct, *_ = await ask(sessions.field.peers[plain.name].url, "tools/list", {}, kind.spoken)
    through, *_ = await ask(sessions.field.hub.url_of(kind.name), "tools/list", {}, era)

    # To an earlier caller the hub adds that it runs tools as tasks, for servers that do not.
    own = {"execution": {"taskSupport": "optional"}} if era == "legacy" else {}
    assert tools_of(through) == {name: {**tool, **own} for name, tool in tools_of(direct).items()}
    assert ("resultType" in through["result"]) == (era == "modern")
    assert ("ttlMs" in through["result"]) == (era == "modern")


@both_eras
@every_kind
async def test_progress_carries_the_callers_own_token_and_the_result_comes_last(
    sessions: MatrixSessions, kind: Kind, era: Era
) -> None:
    call = {"name": "slow", "arguments": {"seconds": 0, "steps": 8}, "_meta": {"progressToken": "my own"}}

    *reports, answer = await ask(sessions.field.hub.url_of(kind.name), "tools/call", call, era)

    assert [report["method"] for report in reports] == ["notifications/progress"] * 8
    assert [report["params"]["progress"] for report in reports] == list(range(1, 9))
    assert {report["params"]["progressToken"] for report in reports} == {"my own"}
    assert answer["id"] == "an id"
    assert answer["result"]["content"][0]["text"] == "8 steps"
    assert ("resultType" in answer["result"]) == (era == "modern")


@both_eras
@every_kind
async def test_the_callers_token_does_not_reach_the_server(sessions: MatrixSessions, kind: Kind, era: Era) -> None:
    call = {"name": "meta", "arguments": {}, "_meta": {"progressToken": "my own"}}

    (answer,) = await ask(sessions.field.hub.url_of(kind.name), "tools/call", call, era)

    assert "my own" not in answer["result"]["content"][0]["text"]


def tools_of(listing: dict[str, Any]) -> dict[str, Any]:
    """The tools that were there from the start, by name; other sessions add more."""
    return {tool["name"]: tool for tool in listing["result"]["tools"] if tool["name"] in TOOLS}


async def ask(url: str, method: str, params: dict[str, Any], era: Era) -> list[dict[str, Any]]:
    """Ask by hand, without a session, and return every message of the answer."""
    own = META if era == "modern" else {}
    body = {
        "jsonrpc": "2.0",
        "id": "an id",
        "method": method,
        "params": {**params, "_meta": {**params.get("_meta", {}), **own}},
    }
    named = {"mcp-name": params["name"]} if "name" in params else {}
    modern = {"mcp-protocol-version": MODERN, "mcp-method": method, **named}
    async with Raw(url) as raw:
        answer = await raw.post(body, modern if era == "modern" else {"mcp-protocol-version": LEGACY})
    return messages_of(answer)


def messages_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The messages of an HTTP answer, be it JSON or a stream of events."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        return [answer.json()]
    lines = [line.removeprefix("data:").strip() for line in answer.text.splitlines() if line.startswith("data:")]
    return [cast("dict[str, Any]", json.loads(line)) for line in lines if line]
