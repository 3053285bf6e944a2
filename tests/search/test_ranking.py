"""How tools are ranked: by words, their forms and synonyms, better than plain rankings do; and that the docs say so."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.search import (
    MANY,
    by_index,
    by_plain_bm25,
    by_substring,
    many_routes,
    quality_of,
    quality_table,
    read_queries,
    read_routes,
)
from isthmus.core.catalog.search_ranking import NoFullTextSearch, ToolIndex, stem, words_of
from isthmus.core.catalog.view import Route
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from tests.search.record import read_servers

PAGE = Path(__file__).parent.parent.parent / "docs" / "search.md"


def route(server: str, name: str, description: str = "", exposed: str = "", **definition: object) -> Route:
    members = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in definition.items()}
    if description:
        members["description"] = msgspec.Raw(msgspec.json.encode(description))
    return Route(Tool.of(ServerName(server), FeatureName(name), members), exposed or f"{server}.{name}")


def index_of(*routes: Route, **tags: list[str]) -> ToolIndex:
    index = ToolIndex()
    index.update({each.exposed: each for each in routes}, {name.replace("__", "."): of for name, of in tags.items()})
    return index


FILES = (
    route("fs", "read_file", "Read the complete contents of a file."),
    route("fs", "writeFile", "Write a file."),
    route("fs", "delete-file", "Delete a file."),
    route("fs", "list_directory", "List what a directory has."),
    route("mail", "send", "Send a message to somebody.", inputSchema={"properties": {"recipientAddress": {}}}),
    route("tracker", "create_issue", "Open an issue in a repository."),
)


# -- quality -----------------------------------------------------------------------------------------------------------


def test_the_data_are_as_the_documentation_says() -> None:
    routes, queries, servers = read_routes(), read_queries(), read_servers()
    page = PAGE.read_text()
    assert f"{len(routes):,} tools of {len(servers)} servers" in page
    assert f"{len(queries)} queries" in page
    assert {answer for query in queries for answer in query.answers} <= routes.keys()
    assert {each.feature.server for each in routes.values()} == {each.server for each in servers}


def test_every_recorded_server_has_a_licence_that_lets_its_definitions_be_copied() -> None:
    assert {each.licence for each in read_servers()} <= {"MIT", "Apache-2.0", "BSD-3-Clause", "ISC"}


def test_the_ranking_beats_plain_ones_by_a_margin_also_for_unseen_queries() -> None:
    routes, queries = read_routes(), read_queries()
    ours, bm25, substring = (make(routes) for make in (by_index, by_plain_bm25, by_substring))
    for half, first, five in (("tuning", 0.12, 0.15), ("held-out", 0.08, 0.06)):
        chosen = [query for query in queries if query.half == half]
        found, plain, simple = (quality_of(search, chosen) for search in (ours, bm25, substring))
        assert found.hit_1 >= plain.hit_1 + first
        assert found.hit_5 >= plain.hit_5 + five
        assert found.mrr >= plain.mrr + 0.06
        assert found.hit_5 >= simple.hit_5 + 0.5


def test_the_documentation_has_the_figures_that_the_command_prints() -> None:
    assert "\n".join(quality_table()) in PAGE.read_text()


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("createIssue", ["create", "issue"]),
        ("create_issue", ["create", "issue"]),
        ("create-issue", ["create", "issue"]),
        ("parseHTTPResponse2", ["parse", "http", "response", "2"]),
        ("API-post-page", ["api", "post", "page"]),
        ("größe_ändern", ["größe", "ändern"]),
        ("", []),
    ],
)
def test_names_are_split_into_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_endings_do_not_matter() -> None:
    assert stem("files") == stem("file")
    assert stem("searching") == stem("searched") == stem("search")
    assert stem("repositories") == stem("repository")


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("readFile", "fs.read_file"),
        ("deleting files", "fs.delete-file"),
        ("remove document", "fs.delete-file"),
        ("show folder", "fs.list_directory"),
        ("raed file", "fs.read_file"),
        ("writefile", "fs.writeFile"),
        ("recipient address", "mail.send"),
        ("make a ticket", "tracker.create_issue"),
        ("repo", "tracker.create_issue"),
        ("direct", "fs.list_directory"),
        ("tracker", "tracker.create_issue"),
    ],
)
def test_a_tool_is_found_by_forms_synonyms_typing_errors_and_beginnings(query: str, first: str) -> None:
    assert index_of(*FILES).search(query, 3)[0] == first


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("buy a lamp", "shop.order"),
        ("what does it cost", "shop.price_list"),
        ("is my parcel delivered", "shop.shipment"),
        ("find things", "shop.find"),
    ],
)
def test_a_shop_is_searched_by_the_words_of_its_customers(query: str, first: str) -> None:
    tools = {"find": "Find items.", "order": "Order an item.", "price_list": "", "shipment": "Where a package is."}
    assert index_of(*(route("shop", name, text) for name, text in tools.items())).search(query, 3)[0] == first


def test_the_first_sentence_of_a_description_counts_more_than_the_rest() -> None:
    said = route("b", "two", "Fold large zeta widgets on request. Its colour can be chosen.")
    mentioned = route("a", "one", "Print. No zeta widgets.")
    assert index_of(mentioned, said).search("zeta widgets", 2) == ["b.two", "a.one"]


def test_a_tool_that_deletes_comes_first_only_if_the_query_says_so() -> None:
    index = index_of(route("x", "drop_view"), route("x", "make_view"))
    assert index.search("view", 1) == ["x.make_view"]
    assert index.search("remove view", 1) == ["x.drop_view"]


def test_a_query_without_words_lists_tools_by_name() -> None:
    index = index_of(*FILES, fs__read_file=["safe"])
    assert index.search("", 2) == ["fs.delete-file", "fs.list_directory"]
    assert index.search("?!", 9, server="mail") == ["mail.send"]
    assert index.search("", 9, tag="safe") == ["fs.read_file"]
    assert index.search("read", 9, tag="safe") == ["fs.read_file"]
    assert index.search("read", 9, server="mail") == []
    assert index.search("read", 9, server="unknown") == []


def test_a_name_of_a_set_is_searched_for_and_not_the_servers_own() -> None:
    index = index_of(route("tracker", "x1", exposed="report_bug"))
    assert index.search("report", 1) == ["report_bug"]


# -- changes -----------------------------------------------------------------------------------------------------------


def test_an_index_follows_changes() -> None:
    index = index_of(*FILES)
    changed = route("fs", "read_file", "Play a melody.")
    index.update({each.exposed: each for each in (changed, *FILES[2:])}, {"mail.send": ["new"]})
    assert len(index) == len(FILES) - 1
    assert index.search("melody", 5) == ["fs.read_file"]
    assert "fs.writeFile" not in index.search("write file", 5)
    assert index.search("", 5, tag="new") == ["mail.send"]


def test_a_changed_index_ranks_like_a_new_one() -> None:
    routes = read_routes()
    some = dict(list(routes.items())[::3])
    index = ToolIndex()
    for each in (some, routes, {}, routes):
        index.update(each)
    fresh = by_index(routes)
    for query in read_queries()[::7]:
        assert index.search(query.query, 10) == fresh(query.query)


def test_ten_thousand_tools_are_searched() -> None:
    index = ToolIndex()
    index.update(many_routes(read_routes()))
    assert len(index) == MANY
    assert all(name.endswith(".kubectl_logs") for name in index.search("kubectl logs", 10))
    assert len(index.search("list", 10)) == 10


# -- what servers may write --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "definition",
    [
        {"description": 5, "title": ["x"], "inputSchema": "x"},
        {"description": "x" * 1_000_000},
        {"description": "\0 \ud800".encode("utf-8", "replace").decode()},
        {"description": "\" OR name:* NEAR(a b) AND -x ^y {z} ' ; DROP TABLE tools --"},
        {"inputSchema": {"properties": []}},
        {"inputSchema": {"properties": {f"argument{number}": {} for number in range(10_000)}}},
    ],
    ids=["wrong types", "long", "NUL", "operators", "no properties", "many arguments"],
)
def test_no_definition_breaks_the_index(definition: dict[str, object]) -> None:
    index = index_of(*FILES, route("odd", "odd_tool", **definition))  # type: ignore[arg-type]
    assert index.search("odd tool", 1) == ["odd.odd_tool"]
    assert index.search("read file", 1) == ["fs.read_file"]


def test_a_sqlite_without_fts5_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("fts5", "no_such_module"), *parameters)

    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: Without(":memory:"))
    with pytest.raises(NoFullTextSearch, match=r"tool search needs SQLite with FTS5, which the SQLite .* does not"):
        ToolIndex()
