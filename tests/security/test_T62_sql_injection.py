"""T62: text of a caller becomes part of a statement, or leads to another's rows.

The answer: every statement is the code's own text, and every value goes beside it. What is put together at run time is
made of a few words of ours, each known by name here. Every statement about what is kept names its owner, but for those
of the hub's own upkeep. There are no roles of the database for single callers, so row-level security has nobody to hold
back: one process with one role writes all of it, and callers never speak to the database.
"""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from isthmus.core.journal import Document, JournalEntry, place_of
from isthmus.storage.postgres import PostgresJournal
from isthmus.storage.settings import StorageSettings
from isthmus.storage.sqlite import SqliteJournal
from tests.databases import Database, running
from tests.security.source import dotted, with_words
from tests.unit.storage.test_documents import write

T = TypeVar("T")
SQL = re.compile(
    r"\b(SELECT\s|INSERT\s+INTO|UPDATE\s+\w+\s+(AS\s+\w+\s+)?SET|DELETE\s+FROM|CREATE\s+\w+|DROP\s+\w+|PRAGMA|WHERE\s)"
)
MARKS = {"_marks(states)", "', '.join(['(?, ?, ?, ?)'] * size)"}
OWN_WORDS = {
    "BY_OWNER",
    "BY_STATE",
    "COLUMNS",
    "PLACE",
    "ROWS",
    "REVISIONS",
    "SCHEMA",
    "where",
    "order",
    "limit",
    "bytes",
    "narrowed",
    "schema",
    *("columns", "weights", "values[1:]", "MATCHES_MAX", "CANDIDATES_MAX"),  # of the index of tools: constants too
    *("rows", "audit", "anchor", "anchor_columns", "anchor_values"),  # of the audit log: constants of one function
    *("chain", "self.number", "self._writing_as"),  # numbers that the database gave
    *MARKS,
}
"""What statements are put together of: constants, our own conditions and orders, marks for values, numbers of the
database, and the name of the operator's schema, of which `StorageSettings` takes small letters, digits and _ only."""

ODD = [
    "' OR '1'='1",
    "'; DROP TABLE documents; --",
    '"; DELETE FROM documents; --',
    "me' --",
    "me\\'; SELECT 1; --",
    "$1",
    "?1",
    ":kind",
    "%s",
    "{}",
    "me\x00",
    "\ud800",
    "%",
    "_",
    "NULL",
    "",
    "é\u202e",
    "x" * 5000,
]
words = some.one_of(some.sampled_from(ODD), some.text(max_size=20))


def test_no_statement_has_anything_in_it_but_our_own_words() -> None:
    found = {expression for _, expression in put_together()}
    assert found <= OWN_WORDS, f"a value belongs beside a statement, not into it: {found - OWN_WORDS}"
    assert found, "the test looks at nothing"


def put_together() -> Iterator[tuple[str, str]]:
    """What statements are put together of at run time, by module."""
    for name, found in with_words(r"SELECT |INSERT INTO|UPDATE |DELETE FROM|CREATE |PRAGMA"):
        for node in found:
            if isinstance(node, ast.JoinedStr) and SQL.search(_text_of(node)):
                holes = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
                yield from ((name, ast.unparse(hole)) for hole in holes)
            if isinstance(node, ast.Call) and dotted(node.func).endswith(".format") and "storage" in name:
                given = [
                    *node.args,
                    *(each.value for each in node.keywords if not isinstance(each.value, ast.Constant)),
                ]
                yield from ((name, ast.unparse(each)) for each in given if not isinstance(each, ast.JoinedStr))
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Mod | ast.Add)
                and SQL.search(_text_of(node.left))
            ):
                yield name, ast.unparse(node.right)


def _text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    return str(node.value) if isinstance(node, ast.Constant) else ""


def test_databases_are_spoken_to_where_things_are_stored_and_nowhere_else() -> None:
    known = set()
    for name, found in with_words(r"sqlite3|asyncpg"):
        calls = {dotted(node.func) for node in found if isinstance(node, ast.Call)}
        if calls & {"sqlite3.connect", "asyncpg.connect", "asyncpg.create_pool"}:
            known.add(name.partition("/")[0])
    assert known == {"storage", "core"}, "core has the index of tools, in memory"


# -- whatever anybody says ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with running() as made:
        yield made


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqliteJournal | PostgresJournal]:
    if request.param == "sqlite":
        made: SqliteJournal | PostgresJournal = SqliteJournal(tmp_path)
    else:
        made = await PostgresJournal.open(StorageSettings(request.getfixturevalue("database").url()))
    yield made
    await made.aclose()


OURS = Document("task", "me", "mine", 1, 1.0, b"{}", "talk", "working")
ROUNDS = 40


async def test_any_input_is_a_value_and_reaches_no_other_callers_rows(journal: SqliteJournal | PostgresJournal) -> None:
    assert await write(journal, OURS) == "kept"
    for said in generated():
        await say_everywhere(journal, *said)
    assert await journal.read("task", "me", "mine") == OURS
    assert [each.id for each in (await journal.page("task", "me", limit=9)).documents] == ["mine"]


def generated() -> list[tuple[str, str, str, str, str]]:
    """What is said in each place; the odd ones first, and then whatever comes to mind."""
    found = [(odd,) * 5 for odd in ODD]

    @settings(max_examples=ROUNDS, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(some.tuples(words, words, words, words, words))
    def gather(said: tuple[str, str, str, str, str]) -> None:
        found.append(said)

    gather()
    return found


async def say_everywhere(
    journal: SqliteJournal | PostgresJournal, kind: str, owner: str, id: str, group: str, state: str
) -> None:
    """Use these in all that a journal can be asked."""
    body = f"{owner} {id}".encode("utf-8", "surrogatepass")
    said = Document(f"k{kind}", owner, id, 1, 5.0, body, group, state)
    verdict = await write(journal, said)
    found = await asked(journal.read(said.kind, owner, id))
    assert found in ((said, None) if verdict != "kept" else (said,))
    page = await asked(journal.page(said.kind, owner, group=group, states=[state], limit=5))
    assert page is None or verdict != "kept" or said in page.documents
    await asked(journal.page("task", owner, group=group, states=[state, "working"], limit=5))
    assert await asked(journal.all_in(said.kind, [state], limit=5, after=said)) in ([], None)
    newest = await asked(journal.newest(said.kind, [state], owners=[owner], limit=5))
    assert newest is None or verdict != "kept" or said in newest
    assert await asked(journal.newest(said.kind, [state], limit=5, before=place_of(said))) in ([], None)
    named = await asked(journal.named(said.kind, id, limit=50))
    assert named is None or verdict != "kept" or said in named
    await asked(journal.commit([JournalEntry(said.kind, owner, 1.0, msgspec.Raw(b"{}"))]))
    entries = await asked(journal.latest(said.kind, owner, 5))
    assert all(entry.owner == owner for entry in entries or ())
    await asked(journal.prune(said.kind, [state], before=99.0, limit=50))
    with pytest.raises(ValueError):  # noqa: PT011 - each journal has its own sentence
        await journal.page("task", "me", limit=5, token=f"{id}'")


async def asked(answer: Awaitable[T]) -> T | None:
    """An answer, or None where a text cannot be kept at all: NUL and halves of characters."""
    try:
        return await answer
    except (OSError, ValueError):
        return None
