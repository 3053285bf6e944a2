"""T77: a caller finds or calls a forbidden tool by `search_tools` and `call_tool`, or a text breaks the search.

Answer: both use the caller's own view. The index of a search has the tools of that view and no others, so that neither
ranks, counts nor suggestions depend on hidden ones: here every answer is the same, to the byte, as that of a hub that
does not have them. The words of queries and definitions never reach the language of the search: they are split into
letters and digits first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.hubs import PATIENT, HubProcess, Raw, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN = '''
def find_book(title: str) -> str:
    """Find a book by its title."""
    return title


def lend_book(title: str) -> str:
    """Lend a book."""
    return title
'''
HIDDEN = '''
def find_payroll(employee: str) -> str:
    """Find the payroll of an employee. A book of salaries, a title, a loan, a book."""
    return "secret"


def lend_money(employee: str) -> str:
    """Lend money, a book, a title."""
    return "secret"
'''
HOSTILE = """
from isthmus import tool


@tool(description='" OR name : * ) NEAR(a b, 5) AND NOT ^x {name title} - \\' ; DROP TABLE tools; -- "*')
def odd(text: str) -> str:
    return text


@tool(description="a\\0b " + "book " * 200_000)
def long(text: str) -> str:
    return text
"""
KEY = "key-of-the-reader-0123456789"
READER = {"key": KEY, "allow": ["library.*"]}
QUERIES = [
    "",
    "book",
    "find",
    "lend",
    "payroll",
    "employee salaries",
    "money",
    "secret",
    "find_payroll",
    "staff",
    "title",
    "loan",
    "libary bok",
]
NAMES = ["staff.find_payroll", "staff.lend_money", "find_payroll", "staff.x", "library.find_bok", "builtin.echo", "zzz"]
ATTACKS = [
    '"',
    '""',
    "'",
    "*",
    "^",
    "name : *",
    "book AND",
    "book OR",
    "NOT book",
    "NEAR(book title, 5)",
    "{name title} : book",
    "labels : n0n",
    "n0n",
    "m0m",
    'book" OR "x',
    "book) OR (x",
    "-book",
    "+",
    "book\0title",
    "\0",
    "\ufffe book",
    "'; DROP TABLE tools; --",
    "?1",
    ":name",
    "book " * 199,
    "x" * 1000,
    "é" * 1000,
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
]


def _write(folder: Path, modules: dict[str, str]) -> None:
    folder.mkdir()
    for name, source in modules.items():
        (folder / f"{name}_tools.py").write_text(source)


@asynccontextmanager
async def library(folder: Path, **modules: str) -> AsyncIterator[HubProcess]:
    _write(folder, modules)
    servers = {name: {"python": f"{name}_tools", "path": "."} for name in modules}
    tables: dict[str, Any] = {"hub": {"expose": "search"}, "callers": {"reader": READER}, "limits": PATIENT}
    async with serving(folder, servers, **tables) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hubs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[HubProcess, HubProcess]]:
    """A hub with tools that the caller may not call, and one without these."""
    folder = tmp_path_factory.mktemp("hubs")
    async with library(folder / "a", library=OPEN, staff=HIDDEN) as full, library(folder / "b", library=OPEN) as bare:
        yield full, bare


async def answers(hub: HubProcess, name: str, arguments: dict[str, Any]) -> list[str]:
    """What the caller is answered by MCP and by REST."""
    async with Raw(hub.url, key=KEY) as raw:
        by_mcp = await raw.call(name, arguments)
        by_rest = await raw.http.post(f"http://127.0.0.1:{hub.port}/v1/tools/{name}", json=arguments)
        return [str(by_mcp), by_rest.text]


@pytest.mark.parametrize("query", QUERIES)
async def test_no_search_depends_on_tools_that_the_caller_may_not_call(
    hubs: tuple[HubProcess, HubProcess], query: str
) -> None:
    for detail in ("names", "full"):
        for wanted in ({}, {"server": "staff"}, {"tag": "x"}, {"limit": 1}):
            arguments = {"query": query, "detail": detail, **wanted}
            full, bare = [await answers(hub, "search_tools", arguments) for hub in hubs]
            assert full == bare
            assert "payroll" not in str(full)
            assert "staff" not in str(full) or wanted.get("server") == "staff"  # what the caller said itself


@pytest.mark.parametrize("name", NAMES)
async def test_forbidden_tools_are_unknown_to_call_tool(hubs: tuple[HubProcess, HubProcess], name: str) -> None:
    full, bare = [await answers(hub, "call_tool", {"name": name, "arguments": {"employee": "e"}}) for hub in hubs]
    assert full == bare
    assert all("unknown_tool" in answer and "secret" not in answer for answer in full)


async def test_suggestions_are_tools_of_the_caller_only(hubs: tuple[HubProcess, HubProcess]) -> None:
    async with Raw(hubs[0].url, key=KEY) as raw:
        refused = await raw.call("call_tool", {"name": "staff.find_payrol_book"})
        assert "did you mean library." in refused["error"]["message"]
        assert "staff.find_payroll " not in refused["error"]["message"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hostile(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with library(tmp_path_factory.mktemp("hostile") / "c", library=OPEN + HOSTILE) as running:
        yield running


@pytest.mark.parametrize("query", ATTACKS, ids=repr)
async def test_no_query_and_no_description_breaks_the_search(hostile: HubProcess, query: str) -> None:
    async with Raw(hostile.url, key=KEY) as raw:
        answer = await raw.call("search_tools", {"query": query})
        assert "isError" not in answer["result"], answer
        refused = await raw.call("call_tool", {"name": query})
        assert refused["error"]["data"]["reason"] == "unknown_tool"


async def test_a_query_of_a_megabyte_is_refused(hostile: HubProcess) -> None:
    async with Raw(hostile.url, key=KEY) as raw:
        for query in ("book " * 200_000, '"' * 1_000_000, "\0" * 500_000):
            refused = await raw.call("search_tools", {"query": query})
            assert refused["error"]["data"] == {"reason": "bad_arguments", "executed": "no"}
        unknown = await raw.call("call_tool", {"name": "book " * 200_000})
        assert unknown["error"]["data"]["reason"] == "unknown_tool"
