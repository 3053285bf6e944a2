"""Shared by the tests of several frameworks: a service over two real servers, and the permissions of a user.

`docs` is on the official SDK (`served_stdio`, which tells what it is sent); `raw` has none, and dies when told to.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from isthmus.library import (
    BlockingToolService,
    Tool,
    ToolRequest,
    ToolResult,
    ToolService,
    ToolStatus,
    UserContext,
    UserPermissions,
)
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_log_folders import slot_file
from tests.library.services import raw_server, with_servers

CHECKOUT = Path(__file__).resolve().parents[3]
SECONDS = 20.0
POLL_SECONDS = 0.01

SEARCHER = UserContext("ann", permissions=UserPermissions(["docs.search"]))
"""May search, and nothing else."""

FAILURES: list[tuple[str, dict[str, Any], str, str]] = [
    ("mcp_docs_refuse", {}, "error", r"the archive is closed$"),
    ("mcp_docs_search", {"query": 7}, "invalid_parameters", r"^Invalid arguments for docs\.search: query: 7 is not "),
    ("mcp_docs_hang", {"token": "slow"}, "timeout", r"^Server docs did not answer within 0\.1 s"),
    # A call before it has been started again fails as not connected.
    ("mcp_raw_pay", {"nonce": "lost", "mode": "die_after_ledger"}, "unavailable", r"^(Lost s|S)erver raw "),
    ("mcp_mine_look", {}, "not_found", r"^there is nothing at that place$"),
    ("mcp_docs_go", {}, "unauthorized", r"^user 'bob' may not use docs\.go: its permissions do not cover it"),
    ("mcp_builtin_passing", {}, "not_found", r"^There is no tool 'mcp_builtin_passing'\."),
]
"""A call for each way to fail, its status, and a pattern of what is said of it.

`look` says itself how it ended; `go` is denied to `ALL_BUT_GO`; `passing` is gone when it is called.
"""
EXECUTED = FAILURES[:5]
"""Those of tools that the model is shown."""

UNREADABLE: list[tuple[str, str, str, str]] = [
    (
        "mcp_docs_search",
        "{nonsense",
        "invalid_parameters",
        r"^Invalid arguments for docs\.search: they are not a JSON ",
    ),
    (
        "mcp_docs_search",
        '["a list"]',
        "invalid_parameters",
        r"^Invalid arguments for docs\.search: they are not a JSON ",
    ),
]
"""The same for arguments that are no object, of models whose providers hand them on as text."""

MISSES: list[tuple[str, UserContext | None, str, str]] = [
    ("mcp_docs_serch", None, "not_found", "There is no tool 'mcp_docs_serch'. Did you mean mcp_docs_search"),
    ("mcp_docs_erse", SEARCHER, "not_found", "There is no tool 'mcp_docs_erse'. Did you mean mcp_docs_search?"),
    ("mcp_docs_go", SEARCHER, "unauthorized", "user 'ann' may not use docs.go: its permissions do not cover it."),
    ("mcp_gone_find", None, "unavailable", "There is no tool 'mcp_gone_find'. Server gone is not connected: "),
    ("mcp_gone_find", SEARCHER, "unauthorized", "user 'ann' may not use mcp_gone_find: its permissions do not cover"),
]
"""Names that a model makes up, or should not know: whose run it is, how the call ends, and what is said of it."""

READER = UserContext("rita", permissions=UserPermissions(["docs.search", "docs.index"]))
TYPED = ["search", "mcp.index", "docs.erase"]
"""The names that a user types; `READER` may not use the last."""

SUE = UserContext("sue", permissions=UserPermissions(["builtin.echo", "builtin.chat_log"]))
"""May use two of the built-in tools."""

LOGGED = [("mcp_builtin_ech", "unknown_tool"), ("mcp_builtin_timestamp", "unknown_tool")]
"""What the audit log has of a made-up name, and of a tool that is not `SUE`'s to use."""

ALL_BUT_GO = UserContext("bob", permissions=UserPermissions(["*"], restrictions={"tools": ["docs.go"]}))


def seconds_for(status: str) -> float | None:
    """How long a call that is to fail in this way may take; only `hang` is cut short, on however busy a machine."""
    return 0.1 if status == "timeout" else None


class Looking(Tool):
    """A tool of the program's own, which finds nothing."""

    async def execute(self, tool_request: ToolRequest) -> ToolResult:
        """See `Tool`."""
        return ToolResult(self.name, ToolStatus.NOT_FOUND, error_message="there is nothing at that place")


@contextmanager
def serving(folder: Path) -> Iterator[ToolService]:
    """A service over both servers, and one that never comes; `folder / "ledger"` is what `docs` notes."""
    docs = {
        "name": "docs",
        "command": sys.executable,
        "args": ["-m", "tests.frameworks.inside.served_stdio"],
        "env": {
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)]),
            "LEDGER": str(folder / "ledger"),
        },
        "cwd": str(CHECKOUT),
    }
    gone = {"name": "gone", "command": str(folder / "nothing")}
    with BlockingToolService(with_servers(docs, raw_server(ledger=folder / "payments"), gone)) as tools:
        assert list(tools.failures) == ["gone"]
        tools.service.register_tool(Looking("look", "mine"))
        yield tools.service


@asynccontextmanager
async def audited(folder: Path) -> AsyncIterator[ToolService]:
    """A service over the built-in tools that keeps an audit log there."""
    service = ToolService()
    await service.initialize({"audit": "batched", "state": folder})
    async with service:
        yield service


async def calls_in(folder: Path) -> list[dict[str, Any]]:
    """The records of calls in that log."""
    async with audit_sqlite.open_reader(slot_file(folder, 1)) as log:
        records = [json.loads(row.content) async for row in log.rows()]
    return [each for each in records if each["event"] == "call"]


async def refused_in(folder: Path) -> list[tuple[str, str]]:
    """The names and outcomes of what was not executed, in a log that has calls of `SUE` in one conversation only."""
    calls = await calls_in(folder)
    (whose,) = {(each["caller"], each["tenant"], each["session"]) for each in calls}
    assert (whose[:2], bool(whose[2])) == (("sue", "users"), True)
    assert "result" in [each["outcome"] for each in calls], "nothing to compare the conversation with"
    return [(each["name"], each["outcome"]) for each in calls if each["executed"] == "no"]


@asynccontextmanager
async def counted(folder: Path) -> AsyncIterator[tuple[ToolService, Callable[[], int]]]:
    """A service over one server with the tool `tick`, and how often that server was asked what it has."""
    ledger = folder / "lists"
    program = [str(Path(__file__).parent / "counted_server.py"), str(ledger)]
    server = {"name": "counted", "command": sys.executable, "args": program}
    service = ToolService()
    await service.initialize(with_servers(server))
    try:
        yield service, lambda: len(ledger.read_text().splitlines())
    finally:
        await service.shutdown()


async def let_go(service: ToolService) -> None:
    """Let `docs.index` take one more step."""
    assert (await service.execute_tool(ToolRequest("docs.go"))).is_success


async def wait_until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what nobody announces.

    Raises:
        TimeoutError: it did not come in time.
    """
    async with asyncio.timeout(SECONDS):
        while not await is_so():  # noqa: ASYNC110 (another process does it, and cannot wake us)
            await asyncio.sleep(POLL_SECONDS)


async def wait_for_note(folder: Path, line: str) -> None:
    """Wait until the server `docs` has noted something."""
    ledger = folder / "ledger"

    async def is_noted() -> bool:
        return ledger.exists() and line in ledger.read_text().splitlines()

    await wait_until(is_noted)


async def run_example(name: str, *, is_chatty: bool = False) -> None:
    """Run an example of this checkout as it is, in this process: frameworks take long to import.

    Its server may be another that has the same tools, and logs, and reports progress in no words.
    """
    main = runpy.run_path(str(CHECKOUT / "examples" / "library" / f"{name}.py"), run_name="example")["main"]
    if is_chatty:
        (server,) = main.__globals__["CONFIG"]["mcp_servers"]
        server["args"] = [str(CHECKOUT / "tests" / "examples" / "chatty_server.py")]
    await asyncio.wait_for(main(), SECONDS)
