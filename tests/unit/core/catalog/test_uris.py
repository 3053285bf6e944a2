"""URIs of several servers side by side, and which of them a template may stand for."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.catalog.names import (
    PRECISE_MAX,
    Pair,
    TemplateClaims,
    TemplateShape,
    is_qualified,
    qualified,
    split_qualified,
    uri_table,
)
from isthmus.model.names import FeatureName, ServerName

steady = settings(deadline=None, derandomize=True, max_examples=200)
"""The same examples every time, however busy the machine is."""


def pair(server: str, uri: str) -> Pair:
    return ServerName(server), FeatureName(uri)


# -- clashes -------------------------------------------------------------------------------------------------------


def test_a_uri_that_one_server_has_is_shown_as_it_is() -> None:
    assert uri_table([pair("a", "file:///x")]) == {pair("a", "file:///x"): "file:///x"}


def test_a_uri_that_several_have_is_kept_by_none_of_them() -> None:
    table = uri_table([pair("a", "file:///x"), pair("b", "file:///x"), pair("b", "file:///y")])
    assert table == {
        pair("a", "file:///x"): "isthmus://hub/a/file:///x",
        pair("b", "file:///x"): "isthmus://hub/b/file:///x",
        pair("b", "file:///y"): "file:///y",
    }


def test_a_server_cannot_list_what_is_shown_as_anothers() -> None:
    forged = qualified(ServerName("a"), "file:///x")
    table = uri_table([pair("a", "file:///x"), pair("z", "file:///x"), pair("z", forged)])
    assert table[pair("a", "file:///x")] == forged
    assert table[pair("z", forged)] == qualified(ServerName("z"), forged)


def test_a_qualified_uri_says_whose_it_is() -> None:
    for uri in ("file:///x", "", "a/b", "isthmus://hub/b/x"):
        shown = qualified(ServerName("a-b"), uri)
        assert is_qualified(shown)
        assert split_qualified(shown) == ("a-b", uri)


URIS = st.sampled_from(["x", "y", "a/x", "isthmus://hub/", "isthmus://hub/a/x", "isthmus://hub/b/x", "{x}"])
PAIRS = st.lists(st.builds(pair, st.sampled_from(["a", "b", "a-b"]), URIS), max_size=12)


@given(PAIRS)
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
def test_a_template_stands_for_what_has_its_literal_parts_in_order(template: str, uri: str, *, fits: bool) -> None:
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
def test_fitting_is_what_trying_every_way_finds(parts: list[str], uri: str) -> None:
    assert TemplateShape("{v}".join(parts)).fits(uri) is _naively(tuple(parts), uri)


@given(st.lists(LITERALS, min_size=1, max_size=5), st.lists(LITERALS, min_size=4, max_size=4))
@steady
def test_whatever_the_variables_are_the_result_fits(parts: list[str], values: list[str]) -> None:
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
def test_a_template_claims_what_it_may_stand_for_of_its_own_scheme(
    template: str, uri: str, *, is_claimed: bool
) -> None:
    claims = TemplateClaims([pair("owner", template)])
    assert claims.by_others(ServerName("other"), uri) == is_claimed
    assert not claims.by_others(ServerName("owner"), uri)


def test_a_server_with_very_many_templates_claims_their_scheme() -> None:
    claims = TemplateClaims(pair("owner", f"db://t{n}/{{id}}") for n in range(PRECISE_MAX + 1))
    assert claims.by_others(ServerName("other"), "db://elsewhere")
    assert not claims.by_others(ServerName("other"), "file:///x")
    few = TemplateClaims(pair("owner", f"db://t{n}/{{id}}") for n in range(PRECISE_MAX))
    assert not few.by_others(ServerName("other"), "db://elsewhere")
