"""The doctor, over servers that are really broken: each gets its code, and the sentence that fixes it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults import light_server
from tests.hubs import CHECKOUT, run, serving, stdio, write_config

pytestmark = pytest.mark.usefixtures("no_leftovers")

MOVED_TO = "https://moved.example/mcp"
FLEET = {"members": "od*", "hide_members": False}
SECRET = "hunter2-hunter2"


@asynccontextmanager
async def answering() -> AsyncIterator[int]:
    """A web server that answers every request with the status in its path; yields its port."""
    conversations: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        conversations.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                status = (await read_path(reader)).split("/")[1]
                head = f"HTTP/1.1 {status} X\r\nlocation: {MOVED_TO}\r\ncontent-type: text/plain\r\ncontent-length: 2"
                out.write(f"{head}\r\n\r\nno".encode())
        out.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for conversation in conversations:
        conversation.cancel()
    await asyncio.gather(*conversations, return_exceptions=True)


async def read_path(reader: asyncio.StreamReader) -> str:
    """Read a whole request, and return what it asks for."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(length[1]) if length else 0)
    return head.split()[1]


async def doctor(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    return await command("doctor", *words, env=env)


async def command(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command, and return its exit code and what it printed."""
    ended = await run(*words, folder=CHECKOUT, env=env)
    return ended.code, ended.out + ended.err


def shell(script: str) -> dict[str, Any]:
    return stdio(["/bin/sh", "-c", script])


async def test_each_way_to_be_broken_has_its_code(tmp_path: Path, deaf_port: int) -> None:
    (tmp_path / "taken.py").write_text("import nothing_like_that\n")
    async with answering() as port:
        url = f"http://127.0.0.1:{port}"
        servers = {
            "died": shell("echo starting >&2; echo 'no licence' >&2; exit 3"),
            "shot": shell("kill -9 $$"),
            "mute": shell("exec 1>&-; read line"),
            "printing": shell("echo 'hello, I am no MCP server'"),
            "absent": {"command": "no-such-program-anywhere"},
            "homeless": {"command": "/bin/sh", "cwd": str(tmp_path / "nowhere")},
            "refused": {"url": f"http://127.0.0.1:{deaf_port}/mcp"},
            "unnamed": {"url": "http://no-such-host.invalid/mcp"},
            "locked": {"url": f"{url}/401/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}},
            "forbidden": {"url": f"{url}/403/mcp"},
            "as_http": {"url": f"{url}/405/mcp", "type": "http"},
            "as_sse": {"url": f"{url}/405/mcp", "type": "sse"},
            "socket": {"url": f"ws://127.0.0.1:{port}/404"},
            "elsewhere": {"url": f"{url}/404/mcp"},
            "page": {"url": f"{url}/200/"},
            "ill": {"url": f"{url}/503/mcp"},
            "module": {"python": "taken", "path": str(tmp_path)},
            "moved": {"url": f"{url}/308/"},
            "early": {**shell(UNWILLING), "era": "modern"},
            "no_rpc": {"rpc": f"{url}/404/rpc"},
            "mcp_as_rpc": {"rpc": f"{url}/406/mcp"},
            "off": {"command": "x", "disabled": True},
            "well": stdio(light_server.command("well")),
        }
        config = write_config(tmp_path, servers)
        code, out = await doctor("--config", str(config), "--wait", "30", "--json")
    assert code == 1, out
    response = json.loads(out)
    assert {found["server"]: found["code"] for found in response["findings"]} == {
        "died": "ISD-101",
        "shot": "ISD-101",
        "mute": "ISD-101",
        "printing": "ISD-101",
        "absent": "ISD-102",
        "homeless": "ISD-102",
        "refused": "ISD-103",
        "unnamed": "ISD-103",
        "locked": "ISD-104",
        "forbidden": "ISD-104",
        "as_http": "ISD-105",
        "as_sse": "ISD-105",
        "socket": "ISD-105",
        "elsewhere": "ISD-106",
        "page": "ISD-106",
        "ill": "ISD-107",
        "module": "ISD-108",
        "moved": "ISD-112",
        "early": "ISD-113",
        "no_rpc": "ISD-106",
        "mcp_as_rpc": "ISD-105",
        "off": "ISD-501",
    }
    died = next(found for found in response["findings"] if found["server"] == "died")
    assert died["message"] == "exited with code 3; its last output: no licence"
    printing = next(found for found in response["findings"] if found["server"] == "printing")
    assert "hello, I am no MCP server (on standard output" in printing["message"]
    fixes = {found["server"]: found["fix"].partition(f"{config}, ")[2] for found in response["findings"]}
    assert fixes["moved"].startswith("set url to https://moved.example")
    assert fixes["early"].startswith("remove era")
    assert fixes["mcp_as_rpc"].startswith("write url instead of rpc")
    assert all(found["fix"] for found in response["findings"])
    assert SECRET not in out


UNWILLING = """while read line; do
  printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\\n' \
    "$(printf %s "$line" | sed 's/.*"id":\\([0-9]*\\).*/\\1/')"
done"""
"""Answers every request with an error, as an earlier server does when it is asked what it is."""


async def test_a_server_that_says_nothing_is_waited_for_as_long_as_is_asked(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"silent": shell("while read line; do :; done")})
    code, out = await doctor("--config", str(config), "--wait", "0.5", "--json")
    assert code == 1, out
    assert [(found["server"], found["code"]) for found in json.loads(out)["findings"]] == [("silent", "ISD-109")]


ONLY_PROMPTS = """
import json, sys
ANSWERS = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"prompts": {}}, "serverInfo": {"name": "p"}},
    "prompts/list": {"prompts": [{"name": "ask"}]},
}
for line in sys.stdin:
    request = json.loads(line)
    known = ANSWERS.get(request["method"])
    answer = {"error": {"code": -32601, "message": "no"}} if known is None else {"result": known}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


async def test_a_server_with_prompts_and_without_tools_is_well(tmp_path: Path) -> None:
    (tmp_path / "prompts.py").write_text(ONLY_PROMPTS)
    config = write_config(tmp_path, {"prompts": stdio([sys.executable, str(tmp_path / "prompts.py")])})
    code, out = await doctor("--config", str(config))
    assert (code, "ISD-" in out) == (0, False), out


async def test_a_plain_server_that_cannot_list_its_tools_is_well_and_unlisted(tmp_path: Path) -> None:
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        config = write_config(tmp_path, {"plain": {"rpc": f"http://127.0.0.1:{port}/rpc"}})
        code, out = await doctor("--config", str(config))
        strict = write_config(tmp_path, {"plain": {"rpc": f"http://127.0.0.1:{port}/rpc", "pin": "strict"}})
        code_if_strict, out_if_strict = await doctor("--config", str(strict))
    assert code == 0, out
    assert "ISD-404 plain: it has no tools/list (no such method): nothing is listed" in out
    assert "to list its methods, declare them, each as [servers.plain.tools.TOOL]" in out
    assert code_if_strict == 1, out_if_strict
    assert "ISD-111 plain: it has no tools/list" in out_if_strict


async def refuse(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
    """Answer one request of JSON-RPC with an error."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        asked = json.loads(await reader.readexactly(int(length[1]) if length else 0))
        error = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no such method"}}
        body = json.dumps(error).encode()
        out.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n")
        out.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
    out.close()


async def test_a_servers_last_output_is_reported_without_its_database_password(tmp_path: Path) -> None:
    database = f"postgres://me:{SECRET}@db/x"
    words = {"env": {"DATABASE_URL": database, "API_KEY": 9876543210}}
    server = {**shell("echo cannot open $DATABASE_URL as $API_KEY or $0 >&2; exit 1"), **words}
    code, out = await doctor("--config", str(write_config(tmp_path, {"db": server})))
    assert code == 1, out
    assert "its last output: cannot open *** as *** or" in out
    assert SECRET not in out
    assert "9876543210" not in out


async def test_problems_that_servers_share_are_reported_too(tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    script.write_text(ODD)
    odd = [sys.executable, "-S", "-E", str(script)]
    servers = {
        "web": stdio([*odd, "search_query"]),
        "web_search": stdio([*odd, "query"]),
        "unset": {**stdio(light_server.command("a")), "env": {"TOKEN": "${NOBODY_SET_THIS}"}},
    }
    code, out = await doctor("--config", str(write_config(tmp_path, servers)))
    assert code == 3, "a finding in the configuration is enough"
    assert "ISC-101 isthmus.json: servers.unset.env.TOKEN" in out
    assert "ISD-301 web: web.search_query and web_search.query would both be mcp_web_search_query" in out
    assert "ISD-303 web: web and web_search have the same URI: file:///x" in out
    grouped = r"ISD-403 2 findings: [a-z-]+\n    web: arguments of web.search_query .*\n    web_search: .*\n    fix: "
    assert re.search(grouped, out), out
    assert out.endswith("the servers in the table are well\nthe configuration has 1 problem: see above\n"), out


ODD = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    schema = {"type": "object", "properties": {"a": {"pattern": "(?<=b)c"}}}
    result = {
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "resources": {}}},
        "tools/list": {"tools": [{"name": sys.argv[1], "inputSchema": schema}]},
        "resources/list": {"resources": [{"uri": "file:///x", "name": "x"}]},
        "resources/templates/list": {"resourceTemplates": []},
    }.get(asked["method"])
    if "id" in asked and result is not None:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"resultType": "complete", **result}}
        print(json.dumps(answer), flush=True)
"""


async def test_tools_that_wait_for_approval_are_reported_with_the_command_that_approves_them(tmp_path: Path) -> None:
    server = {**stdio(light_server.command("a")), "pin": "approve"}
    code, out = await doctor("--config", str(write_config(tmp_path, {"new": server})))
    assert code == 0, out
    assert re.search(r"· ISD-406 .*'\w+' is withheld\n", out, re.DOTALL), out
    assert "    fix: review and approve them: isthmus approve new\n" in out
    assert "ISD-401" not in out


async def test_codes_are_listed_without_looking_at_anything() -> None:
    code, out = await doctor("--codes")
    assert code == 0
    assert "ISD-101  server-died" in out
    assert "ISC-101  unresolved-variable" in out


async def test_a_running_hub_is_asked_and_no_server_started_again(tmp_path: Path) -> None:
    starts, script = tmp_path / "starts", tmp_path / "counted.py"
    script.write_text(f"with open({str(starts)!r}, 'a') as file:\n    file.write('started ')\n{ODD}")
    broken = shell("echo 'no licence' >&2; exit 3")
    servers, fleets = {"odd": stdio([sys.executable, str(script), "query"]), "broken": broken}, {"odds": FLEET}
    async with serving(tmp_path, servers, fleets=fleets) as hub:
        named = ("--config", str(tmp_path / "isthmus.json"))
        note = f"Using the hub that runs at http://127.0.0.1:{hub.port}; --private starts another.\n"
        code, out = await doctor(*named)
        assert (code, note in out) == (1, True), out
        assert "exited with code 3; its last output: no licence" in out
        assert "fix: run it by hand and read its output: /bin/sh -c " in out
        assert "configuration: " in out
        code, reached = await command("access", "local", *named)
        assert (code, note in reached) == (0, True), reached
        assert "odd.query" in reached
        assert "odds.query" in reached
        assert "file:///x" in reached
        assert "broken is retrying: exited with code 3" in reached
        assert starts.read_text() == "started "
        assert await command("access", "local", "--private", *named) == (0, reached.replace(note, ""))
        code, changes = await command("access", "--diff", named[1], *named)
        assert (code, changes.startswith(f"{note}Nothing changes for any caller.\n")) == (0, True), changes
        assert starts.read_text() == "started " * 2
        await doctor("--private", *named)
        assert starts.read_text() == "started " * 3
