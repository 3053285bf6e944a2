"""Commands that edit files: `init`, `add`, `remove`, `enable`, `disable`; and servers of files in other folders."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from pathlib import Path

import pytest

from tests.hubs import environment, isthmus

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


async def run(folder: Path, *words: str, stdin: str = "", home: Path | None = None) -> tuple[int, str, str]:
    """Run the command in a folder with a clean home."""
    pipe = asyncio.subprocess.PIPE
    env = environment({"HOME": str(home or folder / "home")})
    process = await asyncio.create_subprocess_exec(
        *isthmus(*words), stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=folder
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            out, err = await process.communicate(stdin.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def project(folder: Path, program: str = ECHO) -> Path:
    """A project with a server whose argument is relative to it, and a folder beside it."""
    (folder / "proj").mkdir()
    (folder / "here").mkdir()
    (folder / "proj" / "server.py").write_text(program)
    entry = {"command": sys.executable, "args": ["server.py"]}
    (folder / "proj" / "mcp.json").write_text(json.dumps({"mcpServers": {"echo": entry}}))
    return folder / "here"


async def test_a_server_of_another_folders_file_runs_in_that_folder(tmp_path: Path) -> None:
    here = project(tmp_path)
    code, out, err = await run(here, "call", "echo.where", "--config", "../proj/mcp.json")
    assert (code, out.strip()) == (0, str(tmp_path / "proj")), err
    code, out, err = await run(here, "import", "../proj/mcp.json")
    assert code == 0, err
    assert f"echo runs in {tmp_path / 'proj'} (cwd), the folder of its file." in err
    assert tomllib.loads((here / "isthmus.toml").read_text())["servers"]["echo"]["cwd"] == str(tmp_path / "proj")
    code, out, err = await run(here, "call", "echo.where")
    assert (code, out.strip()) == (0, str(tmp_path / "proj")), err


async def test_a_server_that_does_not_start_shows_its_last_words(tmp_path: Path) -> None:
    here = project(tmp_path, "import sys\nprint('a')\nprint('no licence', file=sys.stderr)\nsys.exit(3)")
    config = ("--config", "../proj/mcp.json")
    code, out, err = await run(here, "call", "echo.where", *config)
    assert (code, "exited with code 3; its last output: no licence" in err) == (1, True), err
    code, out, err = await run(here, "servers", *config)
    assert (code, "exited with code 3; its last output: no licence" in out) == (0, True), out
    code, out, err = await run(here, "tools", *config)
    assert "exited with code 3; its last output: no licence" in err
