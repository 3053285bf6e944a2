"""T22: a client over the network gives the hub a `command`, and the hub runs it.

Answer: what a server is started with comes from the operator's files and command line, or from the program that has the
hub inside itself, and from nowhere else. No frontend can reach what starts processes: that is shown by who imports
whom, so that a new route which could fails here; and every route there is, is asked to start one, by everybody.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx2

from isthmus.frontends.rest.operation_table import OPERATIONS
from tests.conftest import children
from tests.hubs import CHECKOUT, TRUSTED, HubProcess, serving

SOURCES = CHECKOUT / "src"

STARTING = {"isthmus.transport.process", "isthmus.upstream.stdio", "subprocess", "multiprocessing"}
"""What can start a process, or leads there by one more import."""

OPERATORS = {
    "isthmus.config.entries_to_settings",  # files
    "isthmus.cli.dial",  # the command line: `isthmus dial URL -- COMMAND`
    "isthmus.library.server_config",  # the program that has the hub inside itself
}
"""The only modules that may say what is started."""

KEYS = {"ann": "key-of-ann-0123456789abcdef", "bob": "key-of-bob-0123456789abcdef"}
CALLERS = {
    "ann": {"key": KEYS["ann"], "allow": ["*"], "tenant": "acme", "targets": True},
    "bob": {"key": KEYS["bob"], "allow": ["builtin.*"], "tenant": "other"},
}
NOT_THERE = (
    "/v1/servers", "/v1/servers/evil", "/v1/servers/test", "/v1/import", "/v1/config", "/v1/reload", "/v1/targets",
    "/config", "/reload", "/admin", "/servers", "/mcp/evil", "/register", "/v1/relay/servers",
)  # fmt: skip
"""Where other hubs take servers."""


@cache
def imports_of(module: str) -> frozenset[str]:
    path = SOURCES / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{each.name}" for each in node.names)
    return frozenset(found)


def reached_from(module: str) -> set[str]:
    """Everything that is imported when a module is."""
    found, waiting = {module}, [module]
    while waiting:
        new = imports_of(waiting.pop()) - found
        found |= new
        waiting += [each for each in new if each.startswith("isthmus")]
    return found


def modules(*rooms: str) -> list[str]:
    files = itertools.chain.from_iterable((SOURCES / "isthmus" / room).rglob("*.py") for room in rooms)
    return sorted(".".join(file.relative_to(SOURCES).with_suffix("").parts) for file in files)


def makers_of(name: str) -> set[str]:
    """The modules that make a value of this class."""
    found = set()
    for module in modules(""):
        text = (SOURCES / Path(*module.split("."))).with_suffix(".py").read_text("utf-8")
        if f"{name}(" not in text:
            continue
        calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        if any(isinstance(func, ast.Name | ast.Attribute) and _last(func) == name for func in calls):
            found.add(module)
    return found


def _last(func: ast.Name | ast.Attribute) -> str:
    return func.id if isinstance(func, ast.Name) else func.attr


def test_no_frontend_can_reach_code_that_starts_processes() -> None:
    frontends = modules("frontends", "wire", "identity", "upstream/targets", "upstream/dialin")
    assert len(frontends) > 60
    assert {
        frontend: reached_from(frontend) & STARTING for frontend in frontends if reached_from(frontend) & STARTING
    } == {}


def test_the_closure_would_find_a_frontend_that_can() -> None:
    assert "isthmus.transport.process" in reached_from("isthmus.app.links")


def test_only_files_the_command_line_and_programs_define_commands() -> None:
    assert makers_of("StdioSettings") == OPERATORS
    assert makers_of("StdioLink") == {"isthmus.app.links"}


# -- every route, by everybody ---------------------------------------------------------------------------------------


def entries(pwned: Path) -> Iterator[dict[str, Any]]:
    """A server with a command, in every form that this hub or another one takes."""
    touch = {"command": "touch", "args": [str(pwned)]}
    yield touch
    yield {"name": "evil", **touch}
    yield {"server": touch, "servers": {"evil": touch}, "mcpServers": {"evil": touch}}
    yield {"name": "evil", "transport": "stdio", "config": touch, "url": f"stdio:touch {pwned}"}


def instructions(pwned: Path) -> Iterator[dict[str, Any]]:
    """The same as what agents and MCP clients say."""
    touch = {"command": "touch", "args": [str(pwned)]}
    for target in (f"stdio:touch {pwned}", f"stdio://touch/{pwned}", f"file:///bin/touch?{pwned}", f"touch {pwned}"):
        data = {"mcp_target_url": target, "mcp_method": "tools/list", "mcp_params": touch, **touch}
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": data}]}
        yield {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    for method in ("initialize", "servers/add", "tools/call", "resources/read"):
        params = {"name": "evil", "uri": f"stdio:touch {pwned}", "arguments": touch, "_meta": touch, **touch}
        yield {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def paths() -> list[str]:
    own = {operation.path.partition("{")[0] + ("evil" if "{" in operation.path else "") for operation in OPERATIONS}
    frontends = {"/", "/mcp", "/a2a", "/a2a/", "/a2a/rest/v1/message:send", "/messages", "/mcp_endpoint/mcp/"}
    return sorted({*own, *frontends, *NOT_THERE})


async def test_no_route_starts_a_process(tmp_path: Path) -> None:
    pwned = tmp_path / "pwned"
    bodies = [*entries(pwned), *instructions(pwned)]
    asked = [
        *itertools.product(("POST",), paths(), bodies),
        *itertools.product(("PUT", "PATCH"), paths(), bodies[:1]),
    ]
    async with serving(tmp_path, callers=CALLERS) as hub:
        before = await servers(hub)
        for who in (None, *KEYS):
            headers = {} if who is None else {"authorization": f"Bearer {KEYS[who]}"}
            at = f"http://127.0.0.1:{hub.port}"
            async with httpx2.AsyncClient(base_url=at, headers=headers, timeout=20, verify=TRUSTED) as http:
                for method, path, body in asked:
                    answer = await http.request(method, path, content=json.dumps(body), headers=json_headers(body))
                    assert answer.status_code != 201, (method, path)
                    assert who is not None or answer.status_code >= 400, (method, path, answer.status_code)
        assert children(hub.pid) == set()
        assert await servers(hub) == before
    assert not pwned.exists()


def json_headers(body: dict[str, Any]) -> dict[str, str]:
    base = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    return {**base, "mcp-method": body["method"]} if "method" in body else base


async def servers(hub: HubProcess) -> Any:
    async with httpx2.AsyncClient(verify=TRUSTED) as http:
        headers = {"authorization": f"Bearer {KEYS['ann']}"}
        answer = await http.get(f"http://127.0.0.1:{hub.port}/v1/servers", headers=headers)
    assert answer.status_code == 200
    return [server["name"] for server in answer.json()["servers"]]
