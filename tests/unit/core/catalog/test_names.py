"""Names of tools on each surface, and URIs of resources."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.catalog import names
from isthmus.core.catalog.names import (
    PRECISE_MAX,
    AmbiguousName,
    Pair,
    TemplateClaims,
    TemplateShape,
    canonical,
    is_qualified,
    llm_aliases,
    llm_table,
    qualified,
    resolve,
    split_qualified,
    suggestions,
    uri_table,
)
from isthmus.model.names import FeatureName, ServerName
from tests.choices import IS_FULL


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
def test_a_name_that_loses_letters_always_gets_digits(others: list[tuple[str, str]]) -> None:
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
    first = names.with_digits("mcp_web_search", wanted, set())
    second = names.with_digits("mcp_web_search", wanted, {first})
    assert first != second
    assert second.startswith("mcp_web_search_")


def test_a_pair_without_free_digits_is_a_defect_and_not_a_guess() -> None:
    class Everything(set[str]):
        def __contains__(self, name: object) -> bool:
            return True

    with pytest.raises(AssertionError, match="no free name"):
        names.with_digits("mcp_web_search", pair("web", "search"), Everything())


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
    with pytest.raises(AmbiguousName) as received:
        resolve(said, PAIRS)
    assert received.value.candidates == ["files.search", "web.search"]
    assert "files.search, web.search" in str(received.value)


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


steady = settings(deadline=None, derandomize=True, max_examples=200 if IS_FULL else 66)
"""The same examples every time, however busy the machine is."""


def pair_of_uris(server: str, uri: str) -> Pair:
    return ServerName(server), FeatureName(uri)


# -- clashes -------------------------------------------------------------------------------------------------------


def test_a_uri_that_one_server_has_is_shown_as_it_is() -> None:
    assert uri_table([pair_of_uris("a", "file:///x")]) == {pair_of_uris("a", "file:///x"): "file:///x"}


def test_a_uri_that_several_have_is_kept_by_none_of_them() -> None:
    table = uri_table([pair_of_uris("a", "file:///x"), pair_of_uris("b", "file:///x"), pair_of_uris("b", "file:///y")])
    assert table == {
        pair_of_uris("a", "file:///x"): "isthmus://hub/a/file:///x",
        pair_of_uris("b", "file:///x"): "isthmus://hub/b/file:///x",
        pair_of_uris("b", "file:///y"): "file:///y",
    }


def test_a_server_cannot_forge_another_servers_uri() -> None:
    forged = qualified(ServerName("a"), "file:///x")
    table = uri_table([pair_of_uris("a", "file:///x"), pair_of_uris("z", "file:///x"), pair_of_uris("z", forged)])
    assert table[pair_of_uris("a", "file:///x")] == forged
    assert table[pair_of_uris("z", forged)] == qualified(ServerName("z"), forged)


def test_a_qualified_uri_names_its_server() -> None:
    for uri in ("file:///x", "", "a/b", "isthmus://hub/b/x"):
        shown = qualified(ServerName("a-b"), uri)
        assert is_qualified(shown)
        assert split_qualified(shown) == ("a-b", uri)


URIS = st.sampled_from(["x", "y", "a/x", "isthmus://hub/", "isthmus://hub/a/x", "isthmus://hub/b/x", "{x}"])
URIS_PAIRS = st.lists(st.builds(pair_of_uris, st.sampled_from(["a", "b", "a-b"]), URIS), max_size=12)


@given(URIS_PAIRS)
@steady
def test_every_uri_that_is_shown_belongs_to_one_server_and_names_no_other(pairs: list[Pair]) -> None:
    table = uri_table(pairs)
    assert table.keys() == set(pairs)
    assert len(set(table.values())) == len(table)
    for (server, uri), shown in table.items():
        assert shown in (uri, qualified(server, uri))
        assert not is_qualified(shown) or shown == qualified(server, uri)


# -- templates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("file:///x", "file:///x", True),
        ("file:///x", "file:///xy", False),
        ("file:///{path}", "file:///a/b", True),
        ("file:///{path}", "file:///", True),
        ("file:///{path}", "File:///a", False),
        ("db://{table}/rows/{id}", "db://users/rows/7", True),
        ("db://{table}/rows/{id}", "db://users/7", False),
        ("db://{table}/rows/{id}", "db:///rows/", True),
        ("ab{x}bc", "abc", False),
        ("ab{x}bc", "abbc", True),
        ("{+anything}", "", True),
        ("{a}{b}", "whatever", True),
        ("{a}.{b}.json", "one.two.json", True),
        ("{a}.{b}.json", "one.json", False),
        ("odd{", "odd{", True),
        ("odd{", "odd", False),
    ],
)
def test_a_template_matches_uris_with_its_literal_parts_in_order(template: str, uri: str, *, fits: bool) -> None:
    assert TemplateShape(template).fits(uri) is fits


def _naively(parts: tuple[str, ...], uri: str) -> bool:
    """Whether `uri` is the parts in order with anything between them, by trying every way to cut it."""

    @cache
    def rest(part: int, start: int) -> bool:
        text = parts[part]
        if part == len(parts) - 1:
            return uri[start:].endswith(text)
        starts = range(start, len(uri) + 1)
        return any(uri.startswith(text, at) and rest(part + 1, at + len(text)) for at in starts)

    if len(parts) == 1:
        return uri == parts[0]
    return uri.startswith(parts[0]) and rest(1, len(parts[0]))


LITERALS = st.text("ab", max_size=4)


@given(st.lists(LITERALS, min_size=1, max_size=5), st.text("ab", max_size=14))
@steady
def test_template_matching_equals_exhaustive_search(parts: list[str], uri: str) -> None:
    assert TemplateShape("{v}".join(parts)).fits(uri) is _naively(tuple(parts), uri)


@given(st.lists(LITERALS, min_size=1, max_size=5), st.lists(LITERALS, min_size=4, max_size=4))
@steady
def test_expanded_templates_match(parts: list[str], values: list[str]) -> None:
    expanded = parts[0] + "".join(value + part for value, part in zip(values, parts[1:], strict=False))
    assert TemplateShape("{v}".join(parts)).fits(expanded)


def test_the_more_is_literal_the_more_it_weighs() -> None:
    assert (
        TemplateShape("file:///home/{path}").weight
        > TemplateShape("file:///{path}").weight
        > TemplateShape("{uri}").weight
        == 0
    )


@pytest.mark.parametrize(
    "template",
    ["{a}" * 600, "{" * 2000, "{a}b" * 400, "b{a}" * 400 + "c", "{a" * 1000 + "}", "{a}" + "b" * 1900],
)
def test_a_template_made_to_take_ages_does_not(template: str) -> None:
    # An expression with as many wildcards would not end in a lifetime: that this returns at all is what is shown.
    shape = TemplateShape(template)
    for uri in ("b" * 8000, "b" * 8000 + "d", "ab" * 4000):
        shape.fits(uri)


# -- what templates claim ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "uri", "is_claimed"),
    [
        ("db://t/{id}", "db://t/1", True),
        ("db://t/{id}", "db://u/1", False),
        ("db://{table}/rows", "db://t/rows", True),
        ("db://{table}/rows", "db://t/columns", False),
        ("db2://{x}", "db://t/1", False),
        ("{anything}", "db://t/1", False),
        ("{scheme}://x", "db://x", False),
        ("no scheme", "no scheme", False),
    ],
)
def test_a_template_claims_matching_uris_of_its_own_scheme(template: str, uri: str, *, is_claimed: bool) -> None:
    claims = TemplateClaims([pair_of_uris("owner", template)])
    assert claims.by_others(ServerName("other"), uri) == is_claimed
    assert not claims.by_others(ServerName("owner"), uri)


def test_a_server_with_very_many_templates_claims_their_scheme() -> None:
    claims = TemplateClaims(pair_of_uris("owner", f"db://t{n}/{{id}}") for n in range(PRECISE_MAX + 1))
    assert claims.by_others(ServerName("other"), "db://elsewhere")
    assert not claims.by_others(ServerName("other"), "file:///x")
    few = TemplateClaims(pair_of_uris("owner", f"db://t{n}/{{id}}") for n in range(PRECISE_MAX))
    assert not few.by_others(ServerName("other"), "db://elsewhere")
