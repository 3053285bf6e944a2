"""One call in detail, over HTTP: its way through the hub, and arguments and results while they are captured."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import pytest_asyncio

from isthmus.cli.audit import show_tail
from tests.console.conftest import SERVER
from tests.faults.watching import eventually
from tests.hubs import PATIENT, TRUSTED, HubProcess, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("console_activity")]

OPERATOR = "the-key-of-ops-0123456789"
CALLER = "the-key-of-cal-0123456789"
SECRET = 's3cret-of-the-"desk"-42'
CALLERS = {
    "ops": {"key": OPERATOR, "allow": ["*"], "operator": True},
    "cal": {"key": CALLER, "allow": ["*"]},
}


class Watched(NamedTuple):
    """A hub with callers, its operator, and its configuration."""

    hub: HubProcess
    http: httpx2.AsyncClient
    config: Path


def client(hub: HubProcess, key: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", headers=headers, timeout=30.0, verify=TRUSTED)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    command = [sys.executable, str(SERVER)]
    servers = {"desk": stdio(command, env={"DESK_TOKEN": SECRET}), "narrow": stdio(command, max_calls=1)}
    async with (
        serving(folder, servers, callers=CALLERS, limits=PATIENT) as hub,
        client(hub, OPERATOR) as http,
    ):
        yield Watched(hub, http, folder / "isthmus.json")


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_captured(watched: Watched) -> None:
    assert (await watched.http.delete("/v1/activity/capture")).json() == {"capture": None}


async def call(http: httpx2.AsyncClient, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    return (await http.post(f"/v1/tools/{name}", json=arguments or {}, **more)).json()


async def last(http: httpx2.AsyncClient, name: str) -> dict[str, Any]:
    """The details of the last call of a tool."""
    calls = (await http.get("/v1/activity?limit=500")).json()["calls"]
    number = next(each["number"] for each in reversed(calls) if each["name"] == name)
    details: dict[str, Any] = (await http.get(f"/v1/activity/{number}")).json()
    return details


def words(details: dict[str, Any]) -> list[str]:
    return [each["step"] for each in details["steps"]]


async def audited(watched: Watched) -> list[dict[str, Any]]:
    """The records about captures, the oldest first."""
    with redirect_stdout(io.StringIO()) as out:
        await show_tail(watched.config, 1000, follows=False, is_json=True)
    records = [json.loads(line)["record"] for line in out.getvalue().splitlines()]
    return [each for each in records if each["event"].startswith("capture.")]


# -- the way of a call -------------------------------------------------------------------------------------------------


async def test_a_call_is_received_sent_answered_and_done_in_this_order(watched: Watched) -> None:
    await call(watched.http, "desk.add", {"a": 1, "b": 2})
    details = await last(watched.http, "desk.add")
    assert words(details) == ["received", "sent", "first_byte", "done"]
    times = [each["seconds"] for each in details["steps"]]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0, details["call"]["seconds"])
    assert (details["tool"], details["isCut"]) == ("desk.add", False)
    assert details["arguments"] is details["result"] is None


async def test_a_call_that_waits_shows_the_queue_and_a_slow_one_its_progress(watched: Watched, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    stream = {"accept": "text/event-stream"}
    slow = asyncio.ensure_future(watched.http.post("/v1/tools/narrow.steps", json={"gate": str(gate)}, headers=stream))
    writer = await asyncio.to_thread(open, gate, "wb", 0)
    waiting = asyncio.ensure_future(call(watched.http, "narrow.add", {"a": 1, "b": 2}))

    async def is_queued() -> bool:
        servers = (await watched.http.get("/v1/stats")).json()["servers"]
        return next(bool(each["queued"]) for each in servers if each["name"] == "narrow")

    await eventually(is_queued, "the second call waits")
    writer.write(b"..")
    writer.close()
    await asyncio.gather(slow, waiting)
    queued, steps = await last(watched.http, "narrow.add"), await last(watched.http, "narrow.steps")
    assert words(queued) == ["received", "queued", "sent", "first_byte", "done"]
    assert queued["steps"][2]["seconds"] > queued["steps"][1]["seconds"]
    assert words(steps) == ["received", "sent", "first_byte", "progress", "progress", "done"]
    for details in (queued, steps):
        times = [each["seconds"] for each in details["steps"]]
        assert times == sorted(times)


async def test_a_call_that_was_not_sent_has_no_such_step(watched: Watched) -> None:
    await call(watched.http, "desk.nothing")
    details = await last(watched.http, "desk.nothing")
    assert (words(details), details["tool"]) == (["received", "done"], None)


async def test_a_call_that_waits_for_the_audit_log_shows_it(tmp_path: Path) -> None:
    strict = {"audit": "strict"}
    async with serving(tmp_path, hub=strict, callers=CALLERS) as hub, client(hub, OPERATOR) as http:
        await call(http, "builtin.echo", {"text": "x"})
        details = await last(http, "builtin.echo")
    assert words(details) == ["received", "checked", "sent", "first_byte", "done"]
    assert details["steps"][1]["seconds"] > 0


async def test_calls_are_shown_to_operators_only_and_by_number(watched: Watched) -> None:
    await call(watched.http, "desk.add", {"a": 1, "b": 2})
    number = (await last(watched.http, "desk.add"))["call"]["number"]
    for wrong in ("0", str(number + 10_000), "9" * 15):
        answer = await watched.http.get(f"/v1/activity/{wrong}")
        assert (answer.status_code, answer.json()["reason"]) == (404, "unknown_call")
    for wrong in ("x", "-1", "9" * 16, "1/2"):
        assert (await watched.http.get(f"/v1/activity/{wrong}")).status_code == 400
    async with client(watched.hub, CALLER) as http:
        assert (await http.get(f"/v1/activity/{number}")).status_code == 403
        assert (await http.post("/v1/activity/capture", json={"seconds": 5})).status_code == 403
        assert (await http.delete("/v1/activity/capture")).status_code == 403


# -- capture -----------------------------------------------------------------------------------------------------------


async def test_arguments_and_results_are_captured_on_request_only(watched: Watched) -> None:
    before = len(await audited(watched))
    state = (await watched.http.post("/v1/activity/capture", json={"seconds": 600})).json()["capture"]
    assert (state["isOn"], state["by"], state["calls"]) == (True, "ops", 0)
    assert 590 < state["until"] - state["since"] <= 600
    await call(watched.http, "desk.look", {"text": "one"})
    details = await last(watched.http, "desk.look")
    assert json.loads(details["arguments"]["text"]) == {"text": "one"}
    assert '\\"one\\"' in details["result"]["text"]
    assert details["arguments"] == {"text": '{"text":"one"}', "bytes": 14, "isCut": False, "isRedacted": False}
    ended = (await watched.http.post("/v1/activity/capture", json={"seconds": 0})).json()["capture"]
    assert (ended["isOn"], ended["calls"]) == (False, 1)
    await call(watched.http, "desk.look", {"text": "two"})
    assert (await last(watched.http, "desk.look"))["arguments"] is None
    number = details["call"]["number"]
    assert (await watched.http.get(f"/v1/activity/{number}")).json()["arguments"] is not None
    assert (await watched.http.delete("/v1/activity/capture")).json() == {"capture": None}
    assert (await watched.http.get(f"/v1/activity/{number}")).json()["arguments"] is None

    async def is_written() -> bool:
        return len(await audited(watched)) - before >= 4

    await eventually(is_written, "the audit log has the capture")
    records = (await audited(watched))[before:]
    assert [each["event"] for each in records] == ["capture.started", "capture.read", "capture.ended", "capture.read"]
    assert {each["caller"] for each in records} == {"ops"}
    assert (records[0]["seconds"], records[1]["call"], records[2]["calls"]) == (600, number, 1)
    assert "one" not in json.dumps(records)


async def test_a_capture_ends_by_itself_and_every_viewer_sees_it(watched: Watched) -> None:
    stream = watched.http.stream("GET", "/v1/activity?limit=0", headers={"accept": "text/event-stream"})
    async with stream as answer:
        lines = aiter(answer.aiter_lines())

        async def next_capture() -> Any:
            async for line in lines:
                if line == "event: capture":
                    return json.loads((await anext(lines))[6:])
            raise AssertionError("the stream ended")

        await watched.http.post("/v1/activity/capture", json={"seconds": 0.3})
        assert (await next_capture())["isOn"]
        assert not (await next_capture())["isOn"]
    assert not (await watched.http.get("/v1/activity?limit=0")).json()["capture"]["isOn"]
    await call(watched.http, "desk.look", {"text": "late"})
    assert (await last(watched.http, "desk.look"))["arguments"] is None


async def test_a_capture_is_bounded_in_length_and_number(watched: Watched) -> None:
    await watched.http.post("/v1/activity/capture", json={"seconds": 60})
    await call(watched.http, "desk.look", {"text": "é" * 10_000})
    details = await last(watched.http, "desk.look")
    for captured in (details["arguments"], details["result"]):
        assert (len(captured["text"]), captured["isCut"], captured["isRedacted"]) == (4096, True, False)
        assert captured["bytes"] > 20_000
    for _ in range(210):
        await call(watched.http, "builtin.echo", {"text": "x"})
    state = (await watched.http.get("/v1/activity?limit=0")).json()["capture"]
    assert (state["isOn"], state["calls"]) == (False, 200)


async def test_a_capture_may_be_of_one_tool_server_or_caller_only(watched: Watched) -> None:
    async with client(watched.hub, CALLER) as other:
        for only, caught in (
            ({"tool": "desk.look"}, [True, True, False]),
            ({"server": "builtin"}, [False, False, True]),
            ({"caller": "cal", "server": "desk"}, [False, True, False]),
        ):
            await watched.http.post("/v1/activity/capture", json={"seconds": 60, **only})
            calls = []
            for http, name in ((watched.http, "desk.look"), (other, "desk.look"), (watched.http, "builtin.echo")):
                await call(http, name, {"text": "x"})
                calls.append((await last(watched.http, name))["arguments"] is not None)
            assert calls == caught, only


async def test_secrets_of_a_server_are_not_captured(watched: Watched) -> None:
    await watched.http.post("/v1/activity/capture", json={"seconds": 60})
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in SECRET)
    padding = "x" * 4080  # the secret begins before the end of what is kept
    for text in (
        json.dumps(SECRET)[1:-1],
        escaped,
        padding + json.dumps(SECRET)[1:-1],
        padding + escaped + "y" * 50_000,
    ):
        body = f'{{"text":"{text}"}}'.encode()
        await watched.http.post("/v1/tools/desk.look", content=body, headers={"content-type": "application/json"})
        details = await last(watched.http, "desk.look")
        assert details["arguments"]["isRedacted"]
        for captured in (details["arguments"], details["result"]):
            assert "s3cret" not in captured["text"]
            assert "\\u0073\\u0033" not in captured["text"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"seconds": -1}', b'{"seconds": 601}', b'{"seconds": "9"}', b'{"seconds": 1e999}',
     b'{"seconds": 5, "tool": ""}', b'{"seconds": 5, "all": true}', b'{"seconds": 5, "seconds": 6}', b"{" * 999],
)  # fmt: skip
async def test_a_body_that_orders_no_capture_is_a_clear_error(watched: Watched, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = await watched.http.post("/v1/activity/capture", content=body, headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (400, "bad_request")
    assert '"seconds"' in answer.json()["detail"]
