"""The audit log over REST: pages, filters, exports and verification of a real log, on both kinds of storage."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from isthmus.app.audit_reader import from_thread
from isthmus.cli.audit import export_log
from isthmus.core.audit import Point, follow
from tests.console.conftest import SERVER
from tests.databases import running
from tests.faults.watching import eventually
from tests.hubs import PATIENT, TRUSTED, HubProcess, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("rest_audit")]

OPERATOR = "the-key-of-ops-0123456789"
CALLER = "the-key-of-cal-0123456789"
CALLERS = {
    "ops": {"key": OPERATOR, "allow": ["*"], "operator": True},
    "cal": {"key": CALLER, "allow": ["desk.add"]},
}
# A call that is carried to another node is in both logs.
SERVERS = {"desk": stdio([sys.executable, str(SERVER)], placement="node")}
CALLS = 6


def client(hub: HubProcess, key: str = OPERATOR) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", headers=headers, timeout=60.0, verify=TRUSTED)


@asynccontextmanager
async def audited(folder: Path, **tables: Any) -> AsyncIterator[HubProcess]:
    """A hub with a few records, all of them written."""
    async with serving(folder, SERVERS, callers=CALLERS, limits=PATIENT, **tables) as hub:
        async with client(hub) as http:
            for number in range(CALLS):
                await http.post("/v1/tools/desk.add", json={"a": number, "b": 1})
            await http.post("/v1/tools/desk.fail", json={})
            async with client(hub, CALLER) as other:
                await other.post("/v1/tools/desk.fail", json={})

            async def is_written() -> bool:
                page = (await http.get("/v1/audit?event=call")).json()
                return len(page["records"]) == CALLS + 2

            await eventually(is_written, "all calls are in the log")
        yield hub


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgres"])
async def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("audit")
    if request.param == "sqlite":
        async with audited(folder) as found:
            yield found
        return
    with running() as database:
        async with audited(folder, storage={"url": database.url()}) as found:
            yield found


async def records(http: httpx2.AsyncClient, query: str = "") -> list[dict[str, Any]]:
    answer = await http.get(f"/v1/audit?{query}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["records"]
    return found


async def test_records_come_newest_first_in_pages(hub: HubProcess) -> None:
    async with client(hub) as http:
        whole = await records(http)
        chains: dict[Any, list[int]] = {}
        for each in whole:
            chains.setdefault(each.get("slot"), []).append(each["number"])
        assert len(chains) == len(hub.each)
        for numbers in chains.values():
            assert numbers == list(range(numbers[0], 0, -1))
        assert whole[-1]["record"]["event"] == "hub.started"
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"next": ""}
        while (cursor := page["next"]) is not None:
            page = (await http.get(f"/v1/audit?limit=3{cursor and f'&cursor={cursor}'}")).json()
            assert len(page["records"]) <= 3
            found += page["records"]
        assert found == whole
        assert page["mode"] == "batched"


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("caller=cal", 1),
        ("caller=ops&event=call", CALLS + 1),
        ("server=desk&tool=desk.add", CALLS),
        ("tool=*.fail", 2),
        ("tool=*f*l", 2),
        ("outcome=tool_error", 1),
        ("outcome=unknown_tool", 1),
        ("event=hub.*", 1),
        ("since=1h&event=call", CALLS + 2),
        ("until=2020-01-01", 0),
        ("since=2020-01-01&until=2120-01-01T00:00:00Z&caller=nobody", 0),
    ],
)
async def test_records_are_filtered(hub: HubProcess, query: str, count: int) -> None:
    async with client(hub) as http:
        assert len(await records(http, query)) == (len(hub.each) if "hub." in query else count)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "cursor=x",
        "cursor=1",
        "cursor=1:" + "9" * 40,
        "since=soon",
        "until=99999-01-01",
        "format=xml",
        "caller=a&caller=b",
    ],
)
async def test_a_bad_question_is_a_clear_error(hub: HubProcess, query: str) -> None:
    async with client(hub) as http:
        answer = await http.get(f"/v1/audit?{query}")
        assert (answer.status_code, answer.json()["reason"]) == (400, "bad_request")


async def test_an_export_has_every_record_as_it_is_stored(hub: HubProcess) -> None:
    async with client(hub) as http:
        whole = await records(http)
        for answer in (
            await http.get("/v1/audit?format=jsonl"),
            await http.get("/v1/audit", headers={"accept": "application/x-ndjson"}),
        ):
            assert answer.headers["content-type"] == "application/x-ndjson"
            assert [json.loads(line) for line in answer.text.splitlines()] == whole[::-1]
        assert (await http.get("/v1/audit?format=jsonl&caller=nobody")).text == ""
        one = await http.get("/v1/audit?format=jsonl&caller=cal")
        assert [json.loads(line)["record"]["caller"] for line in one.text.splitlines()] == ["cal"]


async def test_an_intact_log_is_said_to_be_intact(hub: HubProcess) -> None:
    async with client(hub) as http:
        response = (await http.post("/v1/audit/verify")).json()
        logs = response["slots"] or [response]  # one for each node
        count = sum(each["records"] for each in logs)
        assert (response["good"], response["bad"], count) == (True, None, len(await records(http)))
        for log in logs:
            name = f"The audit log of node {log['node']}" if "node" in log else "The audit log"
            assert f"{name} is intact: {log['records']} records, 1 to {log['last']}." in response["said"]
        async with http.stream("POST", "/v1/audit/verify", headers={"accept": "text/event-stream"}) as stream:
            lines = [line async for line in stream.aiter_lines() if line]
        assert lines[0] == "event: progress"
        assert json.loads(lines[1][6:]) == {"records": 0, "total": count}
        result = json.loads(lines[-1][6:])
        assert (lines[-2], result["good"], result["last"]) == ("event: result", True, response["last"])


@pytest.mark.one_process(
    "it changes the SQLite file of a hub; tests/cluster_database/test_audit.py has the chains of nodes"
)
async def test_a_tampered_log_is_reported_with_its_first_bad_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with audited(tmp_path) as hub, client(hub) as http:
        with closing(sqlite3.connect(tmp_path / "state" / "journal.db", isolation_level=None)) as journal:
            journal.execute("UPDATE audit SET content = replace(content, 'ops', 'cal') WHERE number = 3")
        response = (await http.post("/v1/audit/verify")).json()
        why = "it was changed, or does not follow the record before it"
        assert (response["good"], response["records"], response["bad"]) == (False, 2, {"record": 3, "why": why})
        assert response["said"] == [f"The audit log failed verification: record 3: {why}"]
        assert len(await records(http)) >= CALLS, "it can be read all the same"
        exported = (await http.get("/v1/audit?format=jsonl")).text
        assert await export_log(tmp_path / "isthmus.json", None, None, "jsonl") == 0
        assert exported == capsys.readouterr().out


async def test_a_hub_without_a_log_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, {}, hub={"audit": "off"}) as hub, client(hub) as http:
        assert (await http.get("/v1/audit")).json() == {"mode": "off", "records": [], "next": None, "scanned": 0}
        for answer in (await http.get("/v1/audit?format=jsonl"), await http.post("/v1/audit/verify")):
            assert (answer.status_code, answer.json()["reason"]) == (404, "no_audit_log")


@pytest.mark.one_process("it lengthens the SQLite file of a hub, and one hub verifies one log at a time")
async def test_a_long_log_is_verified_one_at_a_time_and_a_reader_may_leave(tmp_path: Path) -> None:
    async with audited(tmp_path):
        pass
    lengthen(tmp_path / "state" / "journal.db", 60_000)
    async with serving(tmp_path, SERVERS, callers=CALLERS, limits=PATIENT) as hub, client(hub) as http:
        async with http.stream("POST", "/v1/audit/verify", headers={"accept": "text/event-stream"}) as stream:
            events = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))
            assert (await anext(events))["total"] > 60_000
            second = await http.post("/v1/audit/verify")
            assert (second.status_code, second.json()["reason"]) == (429, "busy")
            # Calls are served meanwhile.
            assert (await http.post("/v1/tools/desk.add", json={"a": 1, "b": 1})).status_code == 200
        async with http.stream("GET", "/v1/audit?format=jsonl") as export:
            assert await anext(export.aiter_lines())

        async def is_free() -> bool:
            return (await http.post("/v1/audit/verify")).status_code == 200

        await eventually(is_free, "the verification that nobody reads has ended", within=60.0)
        # A rare record is found in steps.
        page = (await http.get("/v1/audit?caller=cal")).json()
        assert (page["records"], page["scanned"], page["next"] is None) == ([], 50_000, False)
        page = (await http.get(f"/v1/audit?caller=cal&cursor={page['next']}")).json()
        assert ([each["record"]["caller"] for each in page["records"]], page["next"]) == (["cal"], None)


def lengthen(journal: Path, count: int) -> None:
    """Add records to the log of a hub that has ended."""
    with closing(sqlite3.connect(journal, isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        number, at, digest = store.execute(
            "SELECT number, at, digest FROM audit ORDER BY number DESC LIMIT 1"
        ).fetchone()
        point, rows = Point(number, digest), []
        content = json.dumps({"at": at, "event": "note", "text": "x" * 100}, separators=(",", ":")).encode()
        for _ in range(count):
            point = follow(point, content)
            rows.append((point.number, at, content, point.digest))
        store.executemany("INSERT INTO audit VALUES (?, ?, ?, ?)", rows)
        store.execute("COMMIT")


async def test_a_thread_ends_when_its_reader_stops() -> None:
    ended = asyncio.get_running_loop().create_future()
    emitted: list[int] = []

    async def work(emit: Any) -> None:
        for number in range(1000):
            emit(number)
            emitted.append(number)

    found = []
    async for number in from_thread(work, ended):
        found.append(number)
        if number == 3:
            ended.set_result(None)
    assert found[:4] == [0, 1, 2, 3]
    assert len(emitted) < 20
