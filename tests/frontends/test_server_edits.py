"""Operators preview servers to add, and enable and disable those that are there, over REST; anyone searches tools."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.console.conftest import SERVER
from tests.faults.watching import eventually
from tests.hubs import PATIENT, TRUSTED, HubProcess, serving, started, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("server_edits")]

OPERATOR = "the-key-of-ops-0123456789"
CALLER = "the-key-of-cal-0123456789"
CALLERS = {
    "ops": {"key": OPERATOR, "allow": ["*"], "operator": True},
    "cal": {"key": CALLER, "allow": ["*"]},
}
SECRET = "sk-secret-that-nobody-logs-0123456789"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "other.json").write_text(json.dumps({"mcpServers": {"guest": stdio([sys.executable, str(SERVER)])}}))
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    tables: dict[str, Any] = {
        "callers": CALLERS,
        "limits": PATIENT,
        "log": {"level": "debug"},
        "import": ["other.json"],
    }
    async with serving(folder, servers, **tables) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def ops(hub: HubProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with client(hub, OPERATOR) as http:
        yield http


def client(hub: HubProcess, key: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", headers=headers, timeout=30.0, verify=TRUSTED)


def content(file: Path) -> bytes:
    return file.read_bytes()


async def previewed(http: httpx2.AsyncClient, text: str, **more: str) -> dict[str, Any]:
    answer = await http.post("/v1/configuration/preview", json={"text": text, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def state(http: httpx2.AsyncClient, server: str) -> str:
    return str((await http.get(f"/v1/servers/{server}")).json()["state"])


async def is_ready(hub: HubProcess, server: str) -> None:
    for node in hub.each:
        async with client(node, OPERATOR) as http:

            async def ready(http: httpx2.AsyncClient = http) -> bool:
                return await state(http, server) == "ready"

            await eventually(ready, f"{server} is ready")


# -- adding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "form", "name"),
    [
        ('{"mcpServers": {"notes": {"command": "npx", "args": ["-y", "notes"]}}}', "json", "notes"),
        ('{"servers": {"notes": {"type": "stdio", "command": "npx", "args": ["-y", "notes"]}}}', "json", "notes"),
        ('[mcp_servers.notes]\ncommand = "npx"\nargs = ["-y", "notes"]', "toml", "notes"),
        ('{"command": "npx", "args": ["-y", "notes"]}', "json", "notes"),
        ("npx -y notes", "command", "notes"),
    ],
)
async def test_every_kind_of_paste_is_previewed_for_the_hubs_own_file(
    ops: httpx2.AsyncClient, text: str, form: str, name: str
) -> None:
    found = await previewed(ops, text)
    assert (found["form"], Path(found["file"]).name, found["isNewFile"]) == (form, "isthmus.json", False)
    [server] = found["servers"]
    assert (server["name"], server["outcome"], server["transport"]) == (name, "new", "stdio")
    assert json.loads(f"{{{found['text']}}}") == {name: {"command": "npx", "args": ["-y", "notes"]}}
    assert server["command"] == f"isthmus add notes --config {found['file']} -- npx -y notes"
    assert found["findings"] == []


async def test_a_url_is_previewed_and_findings_have_their_fix(ops: httpx2.AsyncClient) -> None:
    text = '{"url": "https://search.example/mcp", "headers": {"Authorization": "Bearer ${NOT_SET}"}}'
    found = await previewed(ops, text)
    assert found["servers"][0]["name"] == "search"
    [finding] = found["findings"]
    assert "${NOT_SET}" in finding["problem"]
    assert finding["code"] == "ISC-101"
    assert finding["fix"]


async def test_a_preview_writes_and_starts_nothing(hub: HubProcess, ops: httpx2.AsyncClient, tmp_path: Path) -> None:
    before = (await ops.get("/v1/servers")).json()
    file = Path((await previewed(ops, "https://a.example/mcp"))["file"])
    before_it, mark = content(file), tmp_path / "was-run"
    await previewed(ops, f"touch {mark}", name="toucher")
    assert content(file) == before_it
    assert not mark.exists()
    after = (await ops.get("/v1/servers")).json()
    assert [each["name"] for each in after["servers"]] == [each["name"] for each in before["servers"]]


async def test_a_taken_name_gets_another_and_a_chosen_one_is_used(ops: httpx2.AsyncClient) -> None:
    assert (await previewed(ops, '{"desk": {"command": "other"}}'))["servers"][0]["name"] == "desk-2"
    assert (await previewed(ops, "npx -y notes", name="memo"))["servers"][0]["name"] == "memo"


@pytest.mark.parametrize("text", ["", "{", "a\nb", "npx | sh", '{"x": 1}', "x" * 200_000, "y" * 600_000])
async def test_a_text_that_is_no_server_gets_a_clear_problem(ops: httpx2.AsyncClient, text: str) -> None:
    answer = await ops.post("/v1/configuration/preview", json={"text": text})
    problem = answer.json()
    assert (answer.status_code, problem["reason"], problem["executed"]) == (422, "not_a_server", "no")
    assert len(problem["detail"]) > 20


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"text": 5}', '{"text": "npx a", "name": ""}', '{"text": "a", "name": 1}']
)
async def test_a_body_that_is_no_paste_is_a_bad_request(ops: httpx2.AsyncClient, body: str) -> None:
    answer = await ops.post("/v1/configuration/preview", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["reason"]) == (400, "bad_request")


async def test_secrets_that_are_pasted_are_not_logged(hub: HubProcess, ops: httpx2.AsyncClient) -> None:
    texts = (
        json.dumps({"mcpServers": {"a": {"command": "a", "env": {"API_KEY": SECRET}}}}),
        json.dumps({"mcpServers": {"a": {"command": 5, "env": {"API_KEY": SECRET}}}}),
        f"https://ada:{SECRET}@search.example/mcp?api_key={SECRET}",
        f"API_KEY={SECRET} npx -y notes --token {SECRET} | tee",
        f'[servers.a]\nurl = "https://a.example"\nheaders = {{ Authorization = "Bearer {SECRET}" ',
    )
    for text in texts:
        await ops.post("/v1/configuration/preview", json={"text": text})
    found = await previewed(ops, texts[0])
    assert found["servers"][0]["hasSecrets"]
    broken = await previewed(ops, texts[1])
    assert SECRET not in json.dumps(broken["findings"])
    assert "debug" in "".join(hub.said)
    assert SECRET not in "".join(hub.said)


async def test_a_hub_without_a_file_names_the_one_that_it_would_find(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    async with started(tmp_path, env=env) as hub, client(hub, OPERATOR) as http:
        found = await previewed(http, "npx -y notes")
        assert (found["file"], found["isNewFile"]) == (str(tmp_path / "isthmus.toml"), True)
        (tmp_path / "isthmus.toml").write_text(found["text"])

        async def is_there() -> bool:
            return "notes" in [each["name"] for each in (await http.get("/v1/servers")).json()["servers"]]

        await eventually(is_there, "the hub follows the file")


# -- enabling and disabling --------------------------------------------------------------------------------------------


async def test_a_disabled_server_finishes_its_calls_and_its_tools_are_gone(
    hub: HubProcess, ops: httpx2.AsyncClient, tmp_path: Path
) -> None:
    await is_ready(hub, "desk")
    files = [node.config for node in hub.each]
    before = [content(file) for file in files]
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    call = asyncio.create_task(ops.post("/v1/tools/desk.steps", json={"gate": str(gate)}))
    writer = await asyncio.to_thread(open, gate, "wb", 0)
    try:
        answer = await ops.post("/v1/disable/desk")
        switched = answer.json()
        assert switched.pop("note") in [f"Saved in {each}." for each in files]
        assert switched == {"name": "desk", "enabled": False, "saved": True}
        assert await state(ops, "desk") == "disabled"
        names = [tool["name"] for tool in (await ops.get("/v1/tools")).json()["tools"]]
        assert not [name for name in names if name.startswith("desk.")]
        refused = await ops.post("/v1/tools/desk.add", json={"a": 1, "b": 2})
        assert refused.json()["executed"] == "no"
        assert [json.loads(content(file))["servers"]["desk"]["disabled"] for file in files] == [True] * len(files)
        again = await ops.post("/v1/disable/desk")
        assert (again.status_code, again.json()["enabled"]) == (200, False)
        writer.write(b"..")
    finally:
        writer.close()
    ended = await call
    assert ended.json()["content"][0]["text"] == "two steps"
    assert (await ops.post("/v1/restart/desk")).json()["reason"] == "not_restartable"
    assert (await ops.post("/v1/enable/desk")).json()["enabled"] is True
    await is_ready(hub, "desk")
    assert [content(file) for file in files] == before
    assert (await ops.post("/v1/tools/desk.add", json={"a": 1, "b": 2})).json()["content"][0]["text"] == "3"
    lines = [line["text"] for line in (await ops.get("/v1/logs/desk")).json()["lines"]]
    assert lines.index("disabled") < lines.index("enabled")


async def test_a_server_of_another_file_is_disabled_until_the_configuration_is_read_again(
    hub: HubProcess, ops: httpx2.AsyncClient
) -> None:
    await is_ready(hub, "guest")
    answer = (await ops.post("/v1/disable/guest")).json()
    assert answer["saved"] is False
    assert answer["note"].startswith("Until the configuration is read again or the hub restarts, because guest is not")
    assert await state(ops, "guest") == "disabled"
    assert (await ops.post("/v1/enable/guest")).json()["enabled"] is True
    await is_ready(hub, "guest")
    await ops.post("/v1/disable/guest")
    hub.process.send_signal(signal.SIGHUP)
    await is_ready(hub, "guest")


async def test_only_servers_of_the_configuration_can_be_switched(ops: httpx2.AsyncClient) -> None:
    assert (await ops.post("/v1/disable/builtin")).json()["reason"] == "not_switchable"
    assert (await ops.post("/v1/disable/nothing")).json()["reason"] == "unknown_server"
    assert (await ops.get("/v1/disable/desk")).status_code == 405


async def test_a_file_that_is_written_as_toml_keeps_its_comments(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    text = '# mine\n[hub]\nstate = "state"\n\n[servers.away]\nurl = "http://127.0.0.1:9/mcp"  # later\n'
    file.write_text(text)
    async with started(tmp_path) as hub, client(hub, OPERATOR) as http:
        assert (await http.post("/v1/disable/away")).json()["saved"] is True
        assert tomllib.loads(file.read_text())["servers"]["away"]["disabled"] is True
        assert file.with_name("isthmus.toml.bak").read_text() == text
        assert (await http.post("/v1/enable/away")).json()["saved"] is True
        assert file.read_text() == text


@pytest.mark.parametrize("path", ["/v1/configuration/preview", "/v1/enable/desk", "/v1/disable/desk"])
async def test_all_of_it_is_for_operators(hub: HubProcess, path: str) -> None:
    async with client(hub, CALLER) as http:
        answer = await http.post(path, json={"text": "npx -y notes"})
        assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden")


# -- searching ---------------------------------------------------------------------------------------------------------


async def test_tools_are_searched_by_words_and_names_come_first(hub: HubProcess, ops: httpx2.AsyncClient) -> None:
    await is_ready(hub, "desk")

    async def found(query: str, **more: str) -> list[str]:
        listed = (await ops.get("/v1/tools", params={"query": query, **more})).json()
        return [tool["name"] for tool in listed["tools"]]

    assert await found("ADD desk") == ["desk.add"]
    assert await found("echo text") == ["builtin.echo"]
    assert (await found("text"))[0] != "desk.add"
    assert await found("add", server="guest") == ["guest.add"]
    assert await found("no such words") == []
    for wrong in ("", "x" * 201):
        assert (await ops.get("/v1/tools", params={"query": wrong})).status_code == 400
    assert (await ops.get("/v1/prompts", params={"query": "x"})).status_code == 400
