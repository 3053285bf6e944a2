"""What a tool is called, and which tool a person means."""

from __future__ import annotations

import pytest

from isthmus.core.catalog import names
from isthmus.core.catalog.names import AmbiguousName, Pair, canonical, llm_aliases, llm_table, resolve, suggestions
from isthmus.model.names import FeatureName, ServerName


def pair(server: str, tool: str) -> Pair:
    return ServerName(server), FeatureName(tool)


PAIRS = [pair("web", "search"), pair("files", "search"), pair("files", "read.all"), pair("builtin", "echo")]


def test_the_canonical_name_is_the_server_a_dot_and_the_tool() -> None:
    assert canonical(pair("files", "read.all")) == "files.read.all"


def test_a_plain_pair_keeps_its_plain_name_for_language_models() -> None:
    assert llm_table([pair("my-web", "search.all")]) == {pair("my-web", "search.all"): "mcp_my_web_search_all"}


def test_a_tool_keeps_its_hyphens_and_a_server_does_not() -> None:
    assert llm_table([pair("my-web", "get-weather")]) == {pair("my-web", "get-weather"): "mcp_my_web_get-weather"}


def test_underscores_for_hyphens_are_an_alias_unless_a_tool_has_that_name_or_two_would_share_it() -> None:
    names = ["mcp_m_get-weather", "mcp_m_set-x", "mcp_m_set_x", "mcp_m_a-b_c", "mcp_m_a_b-c", "mcp_m_plain"]
    assert llm_aliases(names) == {"mcp_m_get_weather": "mcp_m_get-weather"}


@pytest.mark.parametrize("others", [[], [("m", "天气"), ("m", "__")]])
def test_a_tool_that_loses_letters_has_digits_whatever_else_there_is(others: list[tuple[str, str]]) -> None:
    table = llm_table([pair("m", "翻译"), pair("m", "查询weather"), *(pair(*other) for other in others)])
    assert table[pair("m", "翻译")] == "mcp_m_b19dd1"
    assert table[pair("m", "查询weather")] == "mcp_m___weather_fff956"
    assert table.get(pair("m", "__"), "mcp_m___") == "mcp_m___"
    assert llm_table([pair("m", "café")]) == {pair("m", "café"): "mcp_m_cafe"}


def test_pairs_that_flatten_to_one_text_all_get_digits() -> None:
    table = llm_table([pair("web", "search_query"), pair("web_search", "query"), pair("web", "other")])
    assert table[pair("web", "other")] == "mcp_web_other"
    clashing = [table[pair("web", "search_query")], table[pair("web_search", "query")]]
    assert all(name.startswith("mcp_web_search_query_") and len(name) == 27 for name in clashing)
    assert clashing[0] != clashing[1]


def test_a_long_name_is_cut_and_gets_digits() -> None:
    table = llm_table([pair("s", "x" * 100), pair("s", "x" * 99)])
    assert {len(name) for name in table.values()} == {64}
    assert len(set(table.values())) == 2


def test_digits_that_are_taken_give_way_to_the_next_ones() -> None:
    wanted = pair("web", "search")
    first = names._with_digits("mcp_web_search", wanted, set())
    second = names._with_digits("mcp_web_search", wanted, {first})
    assert first != second
    assert second.startswith("mcp_web_search_")


def test_a_pair_without_free_digits_is_a_defect_and_not_a_guess() -> None:
    class Everything(set[str]):
        def __contains__(self, name: object) -> bool:
            return True

    with pytest.raises(AssertionError, match="no free name"):
        names._with_digits("mcp_web_search", pair("web", "search"), Everything())


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("files.search", pair("files", "search")),
        ("files.read.all", pair("files", "read.all")),
        ("read.all", pair("files", "read.all")),
        ("mcp.read.all", pair("files", "read.all")),
        ("echo", pair("builtin", "echo")),
        ("builtin.echo", pair("builtin", "echo")),
        ("mcp.echo", None),
        ("nothing", None),
        ("files.nothing", None),
        ("", None),
    ],
)
def test_a_name_that_a_person_writes_finds_its_tool(said: str, meant: Pair | None) -> None:
    assert resolve(said, PAIRS) == meant


def test_a_built_in_tool_wins_over_servers_with_one_of_that_name() -> None:
    both = [*PAIRS, pair("files", "echo"), pair("web", "echo")]
    assert resolve("echo", both) == pair("builtin", "echo")


@pytest.mark.parametrize("said", ["search", "mcp.search"])
def test_an_ambiguous_name_is_an_error_that_lists_the_candidates(said: str) -> None:
    with pytest.raises(AmbiguousName) as told:
        resolve(said, PAIRS)
    assert told.value.candidates == ["files.search", "web.search"]
    assert "files.search, web.search" in str(told.value)


def test_mcp_names_are_those_of_servers_only() -> None:
    one = [pair("files", "echo"), pair("builtin", "echo")]
    assert resolve("mcp.echo", one) == pair("files", "echo")


def test_names_that_look_like_another_are_suggested_whichever_part_does() -> None:
    known = [canonical(each) for each in PAIRS]
    assert suggestions("files.serch", known)[0] == "files.search"
    assert suggestions("serach", known)[:2] == ["web.search", "files.search"]
    assert suggestions("nothing", known) == []
    assert len(suggestions("tool", [f"s{n}.tool" for n in range(9)])) == 3


def test_names_in_other_letters_or_at_another_server_are_suggested() -> None:
    assert suggestions("FILES.SEARCH", ["files.search"]) == ["files.search"]
    assert suggestions("elsewhere.PAY", ["a.Pay", "b.pay", "b.find"]) == ["a.Pay", "b.pay"]
    assert suggestions("nowhere.", ["a."]) == []


def test_of_an_endless_name_the_beginning_is_compared() -> None:
    assert suggestions("x" * 1_000_000, ["s." + "x" * 128]) == ["s." + "x" * 128]
