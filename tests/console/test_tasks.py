"""Tasks and sessions over REST: callers reach their own, operators reach all, and nothing beyond that."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.console.a2a_tasks import client, gate, opened, say, start
from tests.console.conftest import SERVER
from tests.faults.watching import eventually
from tests.fork_server import quick_isthmus
from tests.hubs import PATIENT, HubProcess, Raw, environment, serving, started, stdio, write_config

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("console_tasks")]

OPERATOR, ADA, EVE = (f"the-key-of-{name}-0123456789" for name in ("ops", "ada", "eve"))
CALLERS = {
    "ops": {"key": OPERATOR, "allow": ["*"], "operator": True},
    "ada": {"key": ADA, "allow": ["*"]},
    "eve": {"key": EVE, "allow": ["*"]},
}
STREAM = {"accept": "text/event-stream"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub with an operator and two callers."""
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with serving(tmp_path_factory.mktemp("tasks"), servers, callers=CALLERS, limits=PATIENT) as running:
        yield running


async def task(http: httpx2.AsyncClient, id: str, **query: str) -> Any:
    answer = await http.get(f"/v1/tasks/{id}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ended(http: httpx2.AsyncClient, id: str) -> Any:
    """The task once it has ended, as its stream says."""
    async with http.stream("GET", f"/v1/tasks/{id}", headers=STREAM) as stream:
        return [each async for each in events(stream)][-1][1]


async def events(stream: httpx2.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in stream.aiter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


async def test_a_task_has_its_tool_its_times_and_its_result(locked: HubProcess) -> None:
    async with client(locked, ADA) as http:
        id = await start(http, "desk.add", a=1, b=41)
        found = await ended(http, id)
        assert found == await task(http, id)
        assert (found["state"], found["server"], found["tool"]) == ("completed", "desk", "desk.add")
        assert (found["caller"], found["tenant"], found["protocol"]) == ("ada", "default", "a2a")
        assert (found["outcome"], found["executed"], found["message"]) == ("result", "yes", None)
        assert found["created"] <= found["updated"]
        assert found["result"]["content"][0]["text"] == "42"
        assert found["messages"][0]["parts"][0]["data"]["arguments"] == {"a": 1, "b": 41}


async def test_a_tool_that_fails_fails_its_task_and_a_name_finds_its_server(locked: HubProcess) -> None:
    async with client(locked, ADA) as http:
        found = await ended(http, await start(http, "fail"))
        assert (found["state"], found["outcome"], found["executed"]) == ("failed", "tool_error", "yes")
        assert (found["server"], found["tool"]) == ("desk", "desk.fail")
        refused = await ended(http, await start(http, "desk.nothing"))
        assert (refused["outcome"], refused["executed"]) == ("unknown_tool", "no")
        assert refused["message"].startswith("Unknown tool: desk.nothing")


async def test_a_stream_has_the_state_now_and_each_change_and_ends_with_the_task(
    locked: HubProcess, tmp_path: Path
) -> None:
    async with client(locked, ADA) as http, gate(tmp_path) as path:
        id = await start(http, "desk.steps", gate=str(path))
        async with http.stream("GET", f"/v1/tasks/{id}", headers=STREAM) as stream:
            notified = events(stream)
            name, first = await anext(notified)
            assert (name, first["id"], first["outcome"]) == ("task", id, None)
            with await opened(path) as held:
                held.write(b"..")
                rest = [each async for each in notified]
        received = [data["data"]["message"] for kind, data in rest if kind == "progress"]
        assert received[-1:] == ["step 2"]
        assert (rest[-1][0], rest[-1][1]["state"]) == ("task", "completed")


async def test_a_question_is_shown_to_its_caller_and_only_mentioned_to_others(locked: HubProcess) -> None:
    async with client(locked, ADA) as http, client(locked, OPERATOR) as ops:
        id = await start(http, "desk.sign")

        async def is_asked() -> bool:
            return bool((await task(http, id))["state"] == "input_required")

        await eventually(is_asked, "the server asks")
        own = await task(http, id)
        assert (own["message"], own["question"]["method"]) == ("Who signs?", "elicitation/create")
        other = await task(ops, id)
        assert (other["message"], other["question"]) == ("The server asks the caller something", None)
        await say(http, {"kind": "data", "data": {"name": "Ada"}}, task=id)
        found = await ended(http, id)
        assert found["state"] == "completed"
        assert [each["role"] for each in found["messages"]] == ["user", "agent", "user"]


async def test_a_caller_cannot_see_follow_or_cancel_anothers_task(locked: HubProcess, tmp_path: Path) -> None:
    async with client(locked, ADA) as ada, client(locked, EVE) as eve, gate(tmp_path) as path:
        id = await start(ada, "desk.steps", gate=str(path))
        for query in ("", "?caller=ada", "?caller=ada&tenant=default", "?caller=ada&content=true"):
            seen = await eve.get(f"/v1/tasks/{id}{query}")
            assert (seen.status_code, seen.json()["reason"]) == (404, "unknown_task")
            followed = await eve.get(f"/v1/tasks/{id}{query}", headers=STREAM)
            assert (followed.status_code, followed.json()["reason"]) == (404, "unknown_task")
        for query in ("", "?caller=ada", "?caller=ada&tenant=default"):
            cancelled = await eve.post(f"/v1/cancel/{id}{query}")
            assert (cancelled.status_code, cancelled.json()["reason"]) == (404, "unknown_task")
            listed = (await eve.get(f"/v1/tasks{query}")).json()["tasks"]
            assert [each for each in listed if each["caller"] != "eve"] == []
        async with eve.stream("GET", "/v1/tasks?caller=ada", headers=STREAM) as stream:
            following = events(stream)
            assert (await anext(following))[1]["tasks"] == []
        mine = await task(ada, id)
        assert mine["outcome"] is None
        assert (await ada.post(f"/v1/cancel/{id}")).json()["state"] == "canceled"


async def test_cancelling_returns_the_outcome_of_the_call(locked: HubProcess, tmp_path: Path) -> None:
    async with client(locked, ADA) as http, gate(tmp_path) as path:
        id = await start(http, "desk.steps", gate=str(path))
        held = await opened(path)
        cancelled = (await http.post(f"/v1/cancel/{id}")).json()
        held.close()
        assert (cancelled["state"], cancelled["outcome"], cancelled["executed"]) == ("canceled", "cancelled", "unknown")
        again = await http.post(f"/v1/cancel/{id}")
        assert (again.status_code, again.json()["reason"], again.json()["executed"]) == (409, "task_ended", "no")
        unknown = await http.post("/v1/cancel/none")
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "unknown_task")


async def test_an_operator_sees_all_tasks_and_their_content_only_if_it_asks(locked: HubProcess) -> None:
    async with client(locked, EVE) as eve, client(locked, OPERATOR) as ops:
        id = await start(eve, "desk.add", a=20, b=3)
        await ended(eve, id)
        listed = (await ops.get("/v1/tasks?caller=eve&limit=1")).json()["tasks"]
        assert [(each["id"], each["caller"], each["tenant"]) for each in listed] == [(id, "eve", "default")]
        found = await task(ops, id)
        assert (found["content"], found["result"], found["messages"], found["question"]) == (False, None, [], None)
        assert found["resultBytes"] > 0
        read = await task(ops, id, content="true", caller="eve", tenant="default")
        assert read["result"]["content"][0]["text"] == "23"
        assert read["messages"][0]["parts"][0]["data"]["tool"] == "desk.add"


async def test_an_operator_cancels_anothers_task(locked: HubProcess, tmp_path: Path) -> None:
    async with client(locked, EVE) as eve, client(locked, OPERATOR) as ops, gate(tmp_path) as path:
        id = await start(eve, "desk.steps", gate=str(path))
        held = await opened(path)
        answer = (await ops.post(f"/v1/cancel/{id}", params={"caller": "eve", "tenant": "default"})).json()
        held.close()
        assert (answer["state"], answer["content"]) == ("canceled", False)
        assert "an operator cancelled the task" in (await task(eve, id))["message"]


async def test_pages_neither_skip_nor_repeat_and_filters_narrow_them(tmp_path: Path) -> None:
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with serving(tmp_path, servers, callers=CALLERS, limits=PATIENT) as hub, client(hub, ADA) as http:
        ids = [await start(http, "desk.add", a=number, b=1) for number in range(5)]
        failed = await start(http, "desk.fail")
        for id in (*ids, failed):
            await ended(http, id)
        seen: list[str] = []
        cursor = ""
        while cursor or not seen:
            query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
            page = (await http.get("/v1/tasks", params=query)).json()
            seen += [each["id"] for each in page["tasks"]]
            cursor = page["next"]
        assert sorted(seen) == sorted([*ids, failed])
        for query, expected in (
            ({"state": "failed"}, [failed]),
            ({"state": "failed,completed", "tool": "fail"}, [failed]),
            ({"tool": "desk.fail"}, [failed]),
            ({"server": "other"}, []),
        ):
            page = (await http.get("/v1/tasks", params=query)).json()
            assert [each["id"] for each in page["tasks"]] == expected
        assert len((await http.get("/v1/tasks?server=desk")).json()["tasks"]) == 6
        for bad in ("limit=0", "limit=101", "limit=x", "state=lost", "cursor=x", "cursor=WzFd", "server="):
            answer = await http.get(f"/v1/tasks?{bad}")
            assert answer.status_code == (200 if bad == "server=" else 400), bad
        assert (await http.get(f"/v1/tasks/{failed}?content=perhaps")).status_code == 400


async def test_the_list_is_followed_as_tasks_change(locked: HubProcess) -> None:
    async with (
        client(locked, EVE) as eve,
        client(locked, OPERATOR) as ops,
        ops.stream("GET", "/v1/tasks?limit=1&tool=add", headers=STREAM) as stream,
    ):
        received = events(stream)
        assert (await anext(received))[0] == "tasks"
        id = await start(eve, "desk.add", a=2, b=2)
        await start(eve, "desk.fail")
        last: Any = None
        while last is None or last["state"] != "completed":
            name, data = await anext(received)
            assert (name, {each["tool"] for each in data["tasks"]}) == ("tasks", {"desk.add"})
            last = next((each for each in data["tasks"] if each["id"] == id), last)
        assert (last["caller"], last["executed"]) == ("eve", "yes")


async def test_tasks_of_mcp_are_tasks_too(locked: HubProcess, tmp_path: Path) -> None:
    async with Raw(locked.url, key=ADA) as caller, client(locked, ADA) as http, client(locked, EVE) as eve:
        about = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "Desk app", "version": "7"},
        }
        hello = await caller.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})
        headers = {"mcp-session-id": hello.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        params = {"name": "desk.add", "arguments": {"a": 3, "b": 4}, "task": {"ttl": 60_000}}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        answer = (await caller.post(body, headers)).text
        id = json.loads(answer[answer.index("{") :])["result"]["task"]["taskId"]
        found = await ended(http, id)
        assert (found["protocol"], found["tool"], found["state"]) == ("mcp", "desk.add", "completed")
        assert found["result"]["content"][0]["text"] == "7"
        assert (await eve.get(f"/v1/tasks/{id}")).status_code == 404
        assert id in [each["id"] for each in (await http.get("/v1/tasks")).json()["tasks"]]
        async with client(locked, OPERATOR) as ops:
            sessions = (await ops.get("/v1/sessions")).text
        shown = next(each for each in json.loads(sessions)["sessions"] if each["client"] == "Desk app")
        assert (shown["caller"], shown["frontend"], shown["clientVersion"]) == ("ada", "mcp", "7")
        assert (shown["protocol"], shown["calls"]) == ("2025-11-25", 0)
        assert shown["since"] <= shown["lastUsed"]
        assert headers["mcp-session-id"] not in sessions


async def test_sessions_are_for_operators_and_hold_nothing_to_take_over(locked: HubProcess) -> None:
    async with client(locked) as browser, client(locked, OPERATOR) as ops, client(locked, EVE) as eve:
        assert (await eve.get("/v1/sessions")).status_code == 403
        signed = await browser.post("/console/session", json={"key": EVE})
        async with eve.stream("GET", "/v1/tasks", headers=STREAM) as stream:
            following = events(stream)  # without a name it would be closed at once, and the stream with it
            await anext(following)
            answer = await ops.get("/v1/sessions")
        found = answer.json()
        shown = [each for each in found["sessions"] if each["frontend"] == "console"]
        assert [each["caller"] for each in shown] == ["eve"]
        assert found["total"] == len(found["sessions"])
        assert {"frontend": "rest", "caller": "eve", "tenant": "default", "streams": 1} in found["streams"]
        for secret in (EVE, signed.json()["csrf"], *browser.cookies.values()):
            assert secret not in answer.text


async def test_indistinguishable_callers_get_a_task_by_its_id_and_no_list(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"desk": stdio([sys.executable, str(SERVER)])}, limits=PATIENT)
    # Not a local hub: everybody who reaches it is the same anonymous caller, and nobody an operator.
    async with (
        started(tmp_path, "--config", str(config), "--host", "0.0.0.0", "--insecure") as hub,
        client(hub) as http,
    ):
        id = await start(http, "desk.add", a=1, b=1)
        assert (await ended(http, id))["result"]["content"][0]["text"] == "2"
        for headers in ({}, STREAM):
            listed = await http.get("/v1/tasks", headers=headers)
            assert (listed.status_code, listed.json()["reason"]) == (403, "forbidden")
        assert (await http.get("/v1/sessions")).status_code == 403


async def test_an_operators_actions_on_tasks_are_in_the_audit_log(tmp_path: Path) -> None:
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with (
        serving(tmp_path, servers, callers=CALLERS, limits=PATIENT) as hub,
        client(hub, ADA) as ada,
        client(hub, OPERATOR) as ops,
    ):
        id = await start(ada, "desk.sign")
        await task(ada, id)
        await task(ops, id)
        await task(ops, id, content="true")
        assert (await ops.post(f"/v1/cancel/{id}")).status_code == 200
    words = quick_isthmus("audit", "export", "--config", str(tmp_path / "isthmus.json"))
    export = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env=environment())
    records = [json.loads(line)["record"] for line in (await export.communicate())[0].splitlines()]
    about = {"id": id, "caller": "ada", "tenant": "default", "by": "ops"}
    noted = [each for each in records if each["event"].startswith("task.")]
    assert [each["event"] for each in noted] == ["task.read", "task.cancelled"]
    assert all(about.items() <= each.items() for each in noted)


async def test_tasks_of_two_callers_with_one_id_differ_by_caller(locked: HubProcess) -> None:
    for key in (ADA, EVE):
        async with client(locked, key) as http:  # only this generation lets callers choose the id
            message = {
                "role": "user",
                "parts": [{"type": "data", "data": {"tool": "desk.add", "arguments": {"a": 1, "b": 1}}}],
            }
            params = {"id": "chosen", "message": message}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/send", "params": params}
            assert "result" in (await http.post("/a2a", json=body)).json()
    async with client(locked, OPERATOR) as ops:
        unclear = await ops.get("/v1/tasks/chosen")
        assert (unclear.status_code, unclear.json()["reason"]) == (400, "bad_request")
        assert "caller=NAME" in unclear.json()["detail"]
        assert (await task(ops, "chosen", caller="eve"))["caller"] == "eve"
