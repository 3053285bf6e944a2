"""The example extensions, installed as a package and used by hubs that run as their users run them."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import signal
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from isthmus.core.journal import Document
from tests.frontends.wire import until
from tests.hubs import CHECKOUT, PATIENT, TRUSTED, HubProcess, Raw, environment, isthmus, serving, write_config
from tests.supply.building import built
from tests.unit.storage.test_documents import write

PACKAGE = CHECKOUT / "examples" / "extensions"
SECRET = "0123456789abcdef0123456789abcdef"
ADMIN_KEY = "admin-0123456789abcdef"
EVERYTHING = {
    "identity": ["tickets"],
    "policy": ["words"],
    "storage": ["lines"],
    "secrets": ["mounted"],
    "importers": ["toolbox"],
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed: built, and unpacked as an installer unpacks it."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(built(PACKAGE, folder / "wheel")) as wheel:
        wheel.extractall(folder / "packages")
    return folder / "packages"


@pytest.fixture
def tickets(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that hands out tickets."""
    monkeypatch.syspath_prepend(installed)
    yield importlib.import_module("isthmus_examples.tickets")
    for name in [name for name in sys.modules if name.startswith("isthmus_examples")]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the extensions look for."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "admin-key").write_text(f"{ADMIN_KEY}\n")
    notes = CHECKOUT / "examples" / "notes_server.py"
    (tmp_path / "toolbox.ini").write_text(f"[notes]\nrun = {sys.executable} {notes}\n")
    return tmp_path


def tables(folder: Path) -> dict[str, Any]:
    received = {
        "tickets": {"secret": "env:TICKET_SECRET", "allow": ["notes.*"]},
        "words": {"words": ["list"], "except": ["admin"]},
        "mounted": {"folder": str(folder / "secrets")},
    }
    return {
        "import": ["toolbox"],
        "extensions": {**EVERYTHING, "settings": received},
        "storage": {"url": f"lines:{folder / 'tasks.jsonl'}"},
        "callers": {"admin": {"key": "mounted:admin-key", "allow": ["*"]}},
        "limits": PATIENT,
    }


def variables(installed: Path) -> dict[str, str]:
    paths = [str(CHECKOUT / "src"), str(installed), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(paths), "TICKET_SECRET": SECRET}


async def run(folder: Path, env: dict[str, str], *words: str) -> tuple[int | None, str]:
    """Run a command in a folder and return its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment(env), cwd=folder
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, output.decode()


async def test_a_hub_with_one_of_each(installed: Path, folder: Path, tickets: Any) -> None:
    env = variables(installed)
    alice = tickets.ticket(SECRET, "alice", 600)
    async with serving(folder, env=env, **tables(folder)) as hub:
        async with Raw(hub.url, key=ADMIN_KEY) as admin:  # its key is a mounted file
            assert {"notes.add", "notes.list"} <= set(await admin.names())  # its server is another program's
        async with Raw(hub.url, key=alice) as caller:  # who is known by a ticket alone
            assert await caller.names() == ["notes.add"]  # the policy keeps the other one from it
            refused, unknown = await caller.call("notes.list"), await caller.call("notes.nothing")
            assert json.dumps(refused).replace("notes.list", "X") == json.dumps(unknown).replace("notes.nothing", "X")
        for bad in (tickets.ticket(SECRET, "alice", -1), alice[:-1], alice.replace("alice", "admin"), "x.9.é"):
            async with Raw(hub.url) as caller:
                answer = await caller.post({}, {"x-api-key": bad.encode()})  # type: ignore[dict-item]
                assert answer.status_code == 401, bad
        task = await agent_request(hub, alice, "message/send", message("notes.add", text="milk"))
        assert task["status"]["state"] == "completed"
    assert task["id"] in (folder / "tasks.jsonl").read_text()
    async with serving(folder, env=env, **tables(folder)) as hub:
        again = await agent_request(hub, alice, "tasks/get", {"id": task["id"]})
        assert again["status"]["state"] == "completed"
        write_config(folder, {}, **{**tables(folder), "extensions": {**EVERYTHING, "policy": []}})
        hub.process.send_signal(signal.SIGHUP)
        await until(partial(has_refused, hub))
        async with Raw(hub.url, key=alice) as caller:
            assert await caller.names() == ["notes.add"]  # a policy cannot be taken away from a hub that runs


async def has_refused(hub: HubProcess) -> bool:
    return any("configuration refused" in line for line in hub.said)


def message(tool: str, **arguments: str) -> dict[str, Any]:
    part = {"kind": "data", "data": {"tool": tool, "arguments": arguments}}
    said = {"kind": "message", "messageId": "m1", "role": "user", "parts": [part]}
    return {"message": said, "configuration": {"blocking": True}}


async def agent_request(hub: HubProcess, key: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(verify=TRUSTED, timeout=60) as http:
        answer = await http.post(f"http://127.0.0.1:{hub.port}/a2a", json=body, headers=headers)
    result: dict[str, Any] = answer.json()["result"]
    return result


@pytest.mark.usefixtures("tickets")
async def test_documents_survive_a_crash_in_the_middle_of_a_line(tmp_path: Path) -> None:
    opener = importlib.import_module("isthmus_examples.lines").opener({})
    file = tmp_path / "tasks.jsonl"
    for number in range(3):
        journal = await opener(f"lines:{file}")
        assert await write(journal, Document("task", "me", f"t{number}", 1, 1.0, b"{}")) == "kept"
        await journal.aclose()
        with file.open("ab") as stream:
            stream.write(b'{"documents":[["task"')
    journal = await opener(f"lines:{file}")
    assert [(await journal.read("task", "me", f"t{number}")) is not None for number in range(3)] == [True] * 3
    await journal.aclose()


async def test_an_installed_package_that_no_configuration_names_is_not_loaded(installed: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, callers={"planner": {"key": "mounted:planner-0123456789", "allow": ["*"]}})
    code = (
        "import sys; from pathlib import Path; from isthmus.config.load import load;"
        f"load(Path({str(config)!r}), {{}}, Path(), Path()); print('isthmus_examples' in sys.modules)"
    )
    # What would be a reference for an extension is a key like any other.
    assert await run(tmp_path, variables(installed), sys.executable, "-c", code) == (0, "False\n")


async def test_an_unusable_extension_ends_the_start_with_3_and_is_named(installed: Path, folder: Path) -> None:
    env = variables(installed) | {"TICKET_SECRET": "short"}
    config = write_config(folder, {}, **tables(folder))
    code, said = await run(folder, env, *isthmus("serve", "--config", str(config), "--port", "0"))
    assert code == 3, said
    assert "extensions.identity.tickets" in said
    assert "isthmus_examples.tickets:Tickets" in said
    assert "secret must be a text of at least 32 characters" in said


async def test_servers_of_the_other_program_are_taken_over_for_good(installed: Path, folder: Path) -> None:
    (folder / "isthmus.toml").write_text('[extensions]\nimporters = ["toolbox"]\n')
    code, said = await run(folder, variables(installed), *isthmus("import", "toolbox"))
    assert code == 0, said
    written = (folder / "isthmus.toml").read_text()
    assert "[servers.notes]" in written
    assert "notes_server.py" in written


async def test_access_shows_refusals_of_a_policy(installed: Path, folder: Path) -> None:
    (folder / "secrets" / "reader-key").write_text("reader-0123456789abcdef\n")
    received = tables(folder)
    received["callers"]["reader"] = {"key": "mounted:reader-key", "allow": ["notes.*"]}
    config = write_config(folder, {}, **received)
    env = variables(installed)
    code, said = await run(folder, env, *isthmus("access", "reader", "--config", str(config)))
    assert code == 0, said
    assert re.search(r"notes\.list +a policy of extensions\.policy refuses it", said)
    code, said = await run(folder, env, *isthmus("config", "show", "--config", str(config)))
    assert "extensions.policy" in said
    assert SECRET not in said
