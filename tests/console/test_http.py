"""The console over HTTP: its files, its sessions, and the stream of calls that it reads."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from isthmus.cli.main import main
from isthmus.frontends.console.http import FOLDER, static_files
from tests.console.conftest import SERVER
from tests.faults.watching import eventually
from tests.hubs import CHECKOUT, PATIENT, TRUSTED, HubProcess, serving, stdio, write_config

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("console_http")]

OPERATOR = "the-key-of-ops-0123456789"
CALLER = "the-key-of-cal-0123456789"
CALLERS = {
    "ops": {"key": OPERATOR, "allow": ["*"], "operator": True},
    "cal": {"key": CALLER, "allow": ["desk.add"]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub with callers."""
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with serving(tmp_path_factory.mktemp("locked"), servers, callers=CALLERS, limits=PATIENT) as running:
        yield running


def client(hub: HubProcess, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", headers=headers, timeout=30.0, verify=TRUSTED)


async def sign_in(http: httpx2.AsyncClient, key: str) -> dict[str, Any]:
    answer = await http.post("/console/session", json={"key": key})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_browser_gets_the_console_and_a_program_the_card(locked: HubProcess) -> None:
    async with client(locked) as http:
        seen = await http.get("/", headers={"accept": "text/html,application/xhtml+xml"})
        assert (seen.status_code, seen.headers["location"]) == (303, "console/")
        page = await http.get("/console/")
        assert page.headers["content-type"].startswith("text/html")
        card = await http.get("/", headers={"accept": "application/json", "authorization": f"Bearer {OPERATOR}"})
        assert "skills" in card.json()


async def test_files_are_compressed_and_revalidated(locked: HubProcess) -> None:
    async with client(locked) as http:
        for name in static_files():
            answer = await http.get(f"/console/{name}")
            assert answer.headers["content-encoding"] == "gzip"
            again = await http.get(f"/console/{name}", headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert (await http.get("/console/../console/api.js.map")).status_code == 404
        assert (await http.post("/console/api.js")).status_code == 405


async def test_the_libraries_are_the_pinned_ones() -> None:
    """`make vendor` builds the file again; it is the same byte for byte."""
    folder = FOLDER / "vendor"
    about = json.loads((folder / "VENDOR.json").read_text())
    assert hashlib.sha256((folder / "ui.js").read_bytes()).hexdigest() == about["sha256"]
    pinned = json.loads((CHECKOUT / "tests/console/vendor/package.json").read_text())["dependencies"]
    assert {each["name"]: each["version"] for each in about["packages"]}.items() <= pinned.items()
    licenses = (folder / "LICENSES.txt").read_text()
    assert all(f"{each['name']}\n" in licenses for each in about["packages"])


async def test_a_session_stands_for_the_key_of_a_caller(locked: HubProcess) -> None:
    async with client(locked) as http:
        assert (await http.get("/v1/servers")).status_code == 401
        assert (await http.get("/console/session")).json()["caller"] is None
        session = await sign_in(http, OPERATOR)
        assert (session["caller"], session["operator"], session["needsKey"]) == ("ops", True, True)
        assert (await http.get("/v1/stats")).status_code == 200
        cookie = (await http.post("/console/session", json={"key": CALLER})).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert CALLER not in cookie
        # The session is now the other caller's, who is not an operator and may only add.
        assert (await http.get("/v1/stats")).status_code == 403
        assert [tool["name"] for tool in (await http.get("/v1/tools")).json()["tools"]] == ["desk.add"]


async def test_a_key_in_a_header_wins_over_the_cookie(locked: HubProcess) -> None:
    async with client(locked) as http:
        await sign_in(http, OPERATOR)
        assert (await http.get("/v1/stats", headers={"authorization": f"Bearer {CALLER}"})).status_code == 403
        assert (await http.get("/v1/stats", headers={"x-api-key": "wrong"})).status_code == 401


async def test_signing_out_ends_the_session(locked: HubProcess) -> None:
    async with client(locked) as http:
        session = await sign_in(http, OPERATOR)
        cookie = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
        ended = await http.delete("/console/session", headers={"x-csrf-token": session["csrf"]})
        assert ended.json()["caller"] is None
        assert (await http.get("/v1/servers", headers={"cookie": cookie})).status_code == 401


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"key": 5}', b'{"key": ""}', b'{"key": "\\u00e9"}', b"{" * 500, b'"' + b"k" * 9000]
)
async def test_a_body_that_is_no_key_is_a_clear_error(locked: HubProcess, body: bytes) -> None:
    async with client(locked) as http:
        answer = await http.post("/console/session", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]) == (400, 'Send a JSON object with the "key" of a caller')


async def test_a_revoked_key_ends_its_session_and_its_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, {})
    words = ["--operator", "--allow", "*", "--json", "--config", str(config)]
    assert main(["token", "create", "guest", *words]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    async with serving(tmp_path) as hub, client(hub) as http:
        await sign_in(http, key)
        assert (await http.get("/v1/servers")).status_code == 200
        async with http.stream("GET", "/v1/activity", headers={"accept": "text/event-stream"}) as stream:
            assert main(["token", "revoke", "guest", "--config", str(config)]) == 0
            async for _ in stream.aiter_lines():
                pass  # it ends by itself

        async def is_denied() -> bool:
            return (await http.get("/v1/servers")).status_code == 401

        await eventually(is_denied, "the session ended")


async def test_one_setting_switches_the_console_off(tmp_path: Path) -> None:
    async with serving(tmp_path, hub={"console": False}) as hub, client(hub) as http:
        assert (await http.get("/console/")).status_code == 404
        assert (await http.post("/console/session", json={"key": "x"})).status_code == 404
        card = await http.get("/", headers={"accept": "text/html"})
        assert "skills" in card.json()


async def test_a_short_list_of_tools_is_sent_when_it_changed(locked: HubProcess) -> None:
    async with client(locked, authorization=f"Bearer {OPERATOR}") as http:
        whole = (await http.get("/v1/tools")).json()["tools"]
        answer = await http.get("/v1/tools?fields=title,description")
        assert answer.json().keys() == {"tools"}
        keys = ("name", "title", "description")
        short = [{key: tool[key] for key in keys if key in tool} for tool in whole]
        assert answer.json()["tools"] == short
        names = (await http.get("/v1/tools?fields=name")).json()["tools"]
        assert names == [{"name": tool["name"]} for tool in whole]
        known = {"if-none-match": answer.headers["etag"]}
        again = await http.get("/v1/tools?fields=description,title", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert (await http.get("/v1/tools?fields=name", headers=known)).status_code == 200
        wrong = await http.get("/v1/tools?fields=name,inputSchema")
        assert (wrong.status_code, wrong.json()["reason"]) == (400, "bad_request")
        other = {**known, "authorization": f"Bearer {CALLER}"}
        assert len((await http.get("/v1/tools?fields=title,description", headers=other)).json()["tools"]) == 1


async def test_the_list_of_servers_is_sent_when_it_changed(tmp_path: Path) -> None:
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with serving(tmp_path, servers, limits=PATIENT) as hub, client(hub) as http:
        await http.get("/v1/tools")  # waits until the server is there
        answer = await http.get("/v1/servers")
        known = {"if-none-match": answer.headers["etag"]}
        again = await http.get("/v1/servers", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        await http.post("/v1/tools/desk.die", json={})

        async def is_seen() -> bool:
            return (await http.get("/v1/servers", headers=known)).status_code == 200

        await eventually(is_seen, "the state has changed")


async def test_activity_has_the_last_calls_for_operators_only(locked: HubProcess) -> None:
    async with client(locked, authorization=f"Bearer {OPERATOR}") as http:
        for number in range(3):
            await http.post("/v1/tools/desk.add", json={"a": number, "b": 1})
        await http.post("/v1/tools/desk.nothing", json={})
        calls = (await http.get("/v1/activity?limit=4")).json()["calls"]
        assert [call["outcome"] for call in calls] == ["result", "result", "result", "unknown_tool"]
        assert [call["number"] for call in calls] == list(range(calls[0]["number"], calls[0]["number"] + 4))
        first = calls[0]
        known = (first["caller"], first["frontend"], first["name"], first["server"], first["executed"])
        assert known == ("ops", "rest", "desk.add", "desk", "yes")
        assert (calls[3]["executed"], calls[3]["message"]) == ("no", "Unknown tool: desk.nothing")
        for wrong in ("-1", "501", "x", "1.5", "9" * 40):
            assert (await http.get(f"/v1/activity?limit={wrong}")).status_code == 400
    async with client(locked, authorization=f"Bearer {CALLER}") as http:
        assert (await http.get("/v1/activity")).status_code == 403


async def test_activity_is_streamed_in_batches(locked: HubProcess) -> None:
    async with (
        client(locked, authorization=f"Bearer {OPERATOR}") as http,
        http.stream("GET", "/v1/activity?limit=0", headers={"accept": "text/event-stream"}) as stream,
    ):
        events = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))
        assert await anext(events) == []
        for _ in range(25):
            await http.post("/v1/tools/desk.add", json={"a": 1, "b": 1})
        numbers: list[int] = []
        while len(numbers) < 25:
            numbers += [call["number"] for call in await anext(events)]
        assert numbers == list(range(numbers[0], numbers[0] + 25))


async def test_definitions_are_approved_by_operators_and_by_fingerprint_only(locked: HubProcess) -> None:
    async with client(locked, authorization=f"Bearer {OPERATOR}") as http:
        assert (await http.get("/v1/definitions")).json() == {"pending": []}
        for body in ({}, {"fingerprint": 1}, {"fingerprint": None}):
            assert (await http.post("/v1/definitions/desk.add", json=body)).json()["reason"] == "bad_request"
        unknown = await http.post("/v1/definitions/desk.add", json={"fingerprint": "00"})
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "unknown_definition")
    async with client(locked, authorization=f"Bearer {CALLER}") as http:
        assert (await http.get("/v1/definitions")).status_code == 403
        assert (await http.post("/v1/definitions/desk.add", json={"fingerprint": "00"})).status_code == 403


async def test_the_configurations_problems_are_shown_to_operators(tmp_path: Path) -> None:
    callers = {**CALLERS, "bad": {"key": "short", "allow": ["*"]}}
    async with serving(tmp_path, callers=callers) as hub:
        async with client(hub, authorization=f"Bearer {OPERATOR}") as http:
            (finding,) = (await http.get("/v1/configuration")).json()["findings"]
            assert (finding["file"], finding["path"]) == ("isthmus.json", "callers.bad.key")
            assert finding["problem"]
            assert finding["fix"]
            assert "short" not in finding["problem"]
        async with client(hub, authorization=f"Bearer {CALLER}") as http:
            assert (await http.get("/v1/configuration")).status_code == 403


async def test_hubs_of_one_host_do_not_sign_each_other_out(locked: HubProcess, tmp_path: Path) -> None:
    async with serving(tmp_path, {}, callers=CALLERS) as other, client(locked) as http:
        await sign_in(http, OPERATOR)
        # Browsers send the cookies of a host to all of its ports.
        answer = await http.post(f"http://127.0.0.1:{other.port}/console/session", json={"key": CALLER})
        assert answer.json()["caller"] == "cal"
        assert (await http.get("/console/session")).json()["caller"] == "ops"


async def test_times_are_finer_than_a_millisecond_and_a_server_without_tools_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, {"away": {"command": "/no/such/program"}}) as hub, client(hub) as http:
        for _ in range(5):
            await http.post("/v1/tools/builtin.echo", json={"text": "x"})
        calls = (await http.get("/v1/activity")).json()["calls"]
        assert any(abs(each["seconds"] * 1000 - round(each["seconds"] * 1000)) > 1e-3 for each in calls)
        refused = await http.post("/v1/tools/away.look", json={})
        assert refused.json()["server"] == "away"
        text = (await http.get("/metrics")).text
        assert any('server="away"' in line for line in text.splitlines() if line.startswith("isthmus_calls_total"))
