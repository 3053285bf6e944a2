"""Commands that edit files: `init`, `add`, `remove`, `enable`, `disable`; and servers of files in other folders."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.cli.main import main
from tests.fork_server import quick_isthmus
from tests.hubs import environment, started

pytestmark = pytest.mark.usefixtures("no_leftovers")

RUN_SECONDS = 60.0
ECHO = """
import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}},
             "serverInfo": {"name": "e", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in ("where", "who")]}
    elif m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": os.getcwd()}]}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in a folder, with a clean home: `run("add", …, folder=…)`."""
    for name in [name for name in os.environ if name.startswith(("ISTHMUS_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOKEN", "t0ken")

    def run(*words: str, folder: Path = tmp_path) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def project(folder: Path, program: str = ECHO) -> Path:
    """A project with a server whose argument is relative to it, and a folder beside it."""
    (folder / "proj").mkdir()
    (folder / "here").mkdir()
    (folder / "proj" / "server.py").write_text(program)
    entry = {"command": sys.executable, "args": ["server.py"]}
    (folder / "proj" / "mcp.json").write_text(json.dumps({"mcpServers": {"echo": entry}}))
    return folder / "here"


def test_small_mistakes_are_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    before = "[hub]\nport = 1\n\n[servers.a]\ncommand = 'false'\ndisabled = true\n"
    file.write_text(before)
    code, _, err = run("add", "web", "htp://foo")
    assert (code, err.splitlines()[0]) == (2, "isthmus: htp is not a scheme of servers: htp://foo")
    for words in (["call", "a.add"], ["tools", "a.add"], ["prompt", "a.add"]):
        code, _, err = run(*words)
        assert (code, "server a is disabled" in err, "`isthmus enable a`" in err) == (1, True, True), err
    assert run("add", "b", "--no-check", "--", "true")[0] == 0
    assert run("remove", "b")[0] == 0
    assert file.read_text() == before
    assert run("add", "c", "--no-check", "--", "true")[0] == 0
    assert run("remove", "a")[0] == 0
    assert file.read_text() == '[hub]\nport = 1\n\n[servers.c]\ncommand = "true"\n'


def test_the_doctor_groups_findings_and_normalises_the_path(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    entry = {"command": "false", "disabled": True}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a b": entry, "c d": entry}}))
    code, out, _ = run("doctor", "--config", "sub/../mcp.json")
    assert code == 3
    assert f"configuration: {tmp_path / 'mcp.json'}\n" in out
    assert "ISC-208 2 findings: server-renamed" in out
    assert "(" not in out.partition("access:")[0]


def test_a_server_of_another_folders_file_runs_in_that_folder(run: Run, tmp_path: Path) -> None:
    here = project(tmp_path)
    code, out, err = run("call", "echo.where", "--config", "../proj/mcp.json", folder=here)
    assert (code, out.strip()) == (0, str(tmp_path / "proj")), err
    code, out, err = run("doctor", "--config", "../proj/mcp.json", folder=here)
    assert f"its servers run in {tmp_path / 'proj'}, where their relative arguments start" in out
    code, out, err = run("import", "../proj/mcp.json", folder=here)
    assert code == 0, err
    assert f"echo runs in {tmp_path / 'proj'} (cwd), the folder of its file." in err
    assert tomllib.loads((here / "isthmus.toml").read_text())["servers"]["echo"]["cwd"] == str(tmp_path / "proj")
    code, out, err = run("call", "echo.where", folder=here)
    assert (code, out.strip()) == (0, str(tmp_path / "proj")), err


def test_a_server_that_does_not_start_shows_its_last_words(run: Run, tmp_path: Path) -> None:
    here = project(tmp_path, "import sys\nprint('a')\nprint('no licence', file=sys.stderr)\nsys.exit(3)")
    config = ("--config", "../proj/mcp.json")
    code, out, err = run("call", "echo.where", *config, folder=here)
    assert (code, "exited with code 3; its last output: no licence" in err) == (1, True), err
    code, out, err = run("servers", *config, folder=here)
    assert (code, "exited with code 3; its last output: no licence" in out) == (0, True), out
    code, out, err = run("tools", *config, folder=here)
    assert "exited with code 3; its last output: no licence" in err


# -- init, add, remove, enable, disable ------------------------------------------------------------------------------


def echo_server(folder: Path) -> list[str]:
    """A command that starts a server with two tools, by a relative path."""
    (folder / "server.py").write_text(ECHO)
    return [sys.executable, "server.py"]


def test_a_first_hour(run: Run, tmp_path: Path) -> None:
    """Each command does what it says, twice the same, with the comments of the file kept."""
    command = echo_server(tmp_path)
    code, out, err = run("init")
    file = tmp_path / "isthmus.toml"
    assert (code, out) == (0, f"Wrote {file} with 0 servers.\n"), err
    template = file.read_text()
    assert tomllib.loads(template) == {"hub": {}}

    code, out, err = run("add", "echo", "--env", "A=b", "--env", "TOKEN", "--", *command)
    assert (code, out) == (0, f"Added echo to {file}: 2 tools.\n"), err
    assert file.read_text().startswith(template)
    entry = {"command": command[0], "args": ["server.py"], "env": {"A": "b", "TOKEN": "env:TOKEN"}, "cwd": "."}
    assert tomllib.loads(file.read_text())["servers"] == {"echo": entry}
    added = file.read_text()
    code, out, err = run("add", "echo", "--env", "A=b", "--env", "TOKEN", "--", *command)
    assert (code, out) == (0, f"echo is in {file} already.\n"), err
    assert file.read_text() == added

    code, out, err = run("disable", "echo")
    assert (code, out) == (0, f"Disabled echo in {file}.\n"), err
    assert tomllib.loads(file.read_text())["servers"]["echo"]["disabled"] is True
    code, out, err = run("disable", "echo")
    assert (code, out) == (0, "echo is disabled already.\n"), err
    code, out, err = run("enable", "echo")
    assert (code, out) == (0, f"Enabled echo in {file}.\n"), err
    assert file.read_text() == added

    code, out, err = run("remove", "ecko")
    assert (code, err) == (2, f"isthmus: {file} has no server 'ecko'\nDid you mean echo?\n")
    code, out, err = run("remove", "echo")
    assert (code, out) == (0, f"Removed echo from {file}.\n"), err
    assert file.read_text().rstrip() == template.rstrip()


def test_a_server_is_known_by_its_name_in_the_file_and_in_the_hub(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"my server": {"command": "false", "disabled": True}}}))
    assert run("enable", "my-server")[:2] == (0, f"Enabled my-server in {file}.\n")
    assert run("disable", "my server")[:2] == (0, f"Disabled my server in {file}.\n")
    assert run("remove", "my-server")[:2] == (0, f"Removed my-server from {file}.\n")
    assert json.loads(file.read_text()) == {"mcpServers": {}}


def test_a_server_that_does_not_work_is_not_added(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{\n  // mine\n  "mcpServers": {}\n}\n')
    before = (tmp_path / "mcp.json").read_bytes()
    words = (sys.executable, "-c", "import sys; sys.exit('no licence')")
    code, out, err = run("add", "bad", "--", *words)
    assert (code, out) == (1, "")
    assert "bad does not work: exited with code 1; its last output: no licence" in err
    assert "Nothing was written; --no-check adds it all the same." in err
    assert (tmp_path / "mcp.json").read_bytes() == before
    code, out, err = run("add", "bad", "--no-check", "--", *words)
    assert (code, out) == (0, f"Added bad to {tmp_path / 'mcp.json'}, not checked.\n"), err
    text = (tmp_path / "mcp.json").read_text()
    assert "// mine" in text
    code, out, err = run("add", "bad", "http://127.0.0.1:1/mcp", "--header", "X: y: z", "--no-check")
    assert (code, "--replace replaces it" in err) == (2, True), err
    code, out, err = run("add", "bad", "http://127.0.0.1:1/mcp", "--header", "X: y: z", "--no-check", "--replace")
    assert (code, out) == (0, f"Replaced bad in {tmp_path / 'mcp.json'}, not checked.\n"), err
    assert '"X": "y: z"' in (tmp_path / "mcp.json").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "builtin", "http://x"), "builtin is the name of the hub's own tools"),
        (("add", "a.b", "http://x"), "a server cannot be called 'a.b'"),
        (("add", "a", "http://x", "--env", "A=b"), "--env is for a command, and http://x is an address"),
        (("add", "a", "--header", "A: b", "--", "npx"), "--header is for an address, and npx is a command"),
        (("add", "a", "npx", "-y", "b"), "Options of the server's command come after --"),
        (("add", "a", "ftp://x", "--no-check"), "ftp is not a scheme"),
        (("add", "a", "--no-check", "--config", "x" * 300, "--", "npx", "y" * 300), "does not exist"),
        (("remove", "a"), "there is no configuration here"),
        (("init", "--into", "x.json"), "--into must be a TOML file, got x.json"),
    ],
)
def test_mistakes_are_named(run: Run, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    code, _, err = run(*words)
    assert (code in (2, 3), says in err, "Traceback" in err) == (True, True, False), err


def test_init_imports_the_chosen_servers(run: Run, tmp_path: Path) -> None:
    cursor = tmp_path / "home/.cursor/mcp.json"
    cursor.parent.mkdir(parents=True)
    cursor.write_text(json.dumps({"mcpServers": {"files": {"command": "npx", "args": ["-y", "x"]}}}))
    code, out, err = run("init", "--into", "none.toml")
    assert (code, out) == (0, f"Wrote {tmp_path / 'none.toml'} with 0 servers.\n")
    assert f"Cursor, {cursor}: files\n  not imported: --import cursor or --yes imports them" in err
    code, out, err = run("init", "--yes", "--port", "9000")
    file = tmp_path / "isthmus.toml"
    assert (code, out) == (0, f"Wrote {file} with 1 server.\n"), err
    table = tomllib.loads(file.read_text())
    assert table == {"hub": {"port": 9000}, "servers": {"files": {"command": "npx", "args": ["-y", "x"]}}}
    code, out, err = run("init")
    assert (code, f"{file} is there already" in err) == (3, True)
    code, out, err = run("init", "--user", "--no-import")
    assert (code, out) == (0, f"Wrote {tmp_path}/home/.config/isthmus/isthmus.toml with 0 servers.\n"), err


def test_init_without_an_answer_does_not_hide_the_servers_of_an_mcp_json(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"files": {"command": "npx", "args": ["-y", "x"]}}}))
    code, out, err = run("init")
    assert (code, out, file.exists()) == (2, "", False), err
    assert f"{tmp_path / 'mcp.json'} would no longer be read, so isthmus.toml was not written" in err
    assert "--yes imports its servers; --no-import writes the file without them." in err
    code, out, err = run("init", "--yes")
    assert (code, out) == (0, f"Wrote {file} with 1 server.\n"), err


def test_init_says_where_servers_run_and_which_have_secrets(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    entry = {"command": "python3", "args": ["./server.py"], "env": {"API_KEY": "sk-1234567890abcdef1234"}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"memory": entry}}))
    code, out, err = run("init", "--import", str(folder / "mcp.json"))
    assert (code, "with 1 server" in out) == (0, True), err
    assert f"memory runs in {folder} (cwd), the folder of its file." in err
    assert "memory contains plaintext secrets. Only you may read the file; env:NAME is safer." in err


async def test_a_running_hub_follows_before_add_ends(tmp_path: Path) -> None:
    command = echo_server(tmp_path)
    file = tmp_path / "isthmus.toml"
    file.write_text(f'[hub]\nstate = "{tmp_path}/state"\n')
    home = {"HOME": str(tmp_path / "home")}
    async with started(tmp_path, "--config", str(file), env=home):

        async def printed(*words: str) -> str:
            process = await asyncio.create_subprocess_exec(
                *quick_isthmus(*words),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment(home), cwd=tmp_path,
            )  # fmt: skip
            out, _ = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
            assert process.returncode == 0, out.decode()
            return out.decode()

        assert "has not started it yet" not in await printed("add", "echo", "--no-check", "--", *command)
        assert "\necho " in await printed("servers")
