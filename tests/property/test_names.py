"""Names on every surface: one to one, legal, the same for everybody, and found again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.access.policy import Policy
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.names import (
    BUILTIN,
    LLM_LENGTH_MAX,
    AmbiguousName,
    CanonicalNames,
    Pair,
    canonical,
    llm_form,
    llm_table,
    resolve,
)
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.model.callers import Grants
from isthmus.model.calls import Surface
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from tests.choices import IS_FULL

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
ALL = Grants(("*",))

# Names that meet: few letters, the separators of every form, and some that must be cut.
SERVERS = st.one_of(
    st.sampled_from(["a", "a_b", "a-b", "b", "mcp", "builtin", "web", "web_search", "x" * 50]),
    st.from_regex(r"[A-Za-z0-9_-]{1,50}", fullmatch=True),
).map(ServerName)
TOOLS = st.one_of(
    st.sampled_from(["b", "b_c", "b.c", "b-c", "c", "search_query", "query", "b c", "ä", "y" * 64, "y" * 256]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=256),
).map(FeatureName)
PAIRS = st.lists(st.tuples(SERVERS, TOOLS), unique=True, max_size=25)

steady = settings(deadline=None, derandomize=True, max_examples=60 if IS_FULL else 20)
"""The same examples every time, however busy the machine is."""


def snapshot(pairs: Iterable[Pair]) -> Snapshot:
    tools: dict[ServerName, tuple[Tool, ...]] = {}
    for server, name in pairs:
        tools[server] = (*tools.get(server, ()), Tool.of(server, name, {}))
    server_statuses = {server: ServerStatus(server, "ready", tools=found) for server, found in tools.items()}
    return Snapshot(1, server_statuses, CheckCache(limit_bytes=1024))


@given(PAIRS)
@steady
def test_every_table_leads_back_to_the_pair(pairs: list[Pair]) -> None:
    names = CanonicalNames()
    for table in ({pair: names[pair] for pair in pairs}, llm_table(pairs)):
        assert set(table) == set(pairs)
        back = {name: pair for pair, name in table.items()}
        assert all(back[table[pair]] == pair for pair in pairs)


@given(PAIRS)
@steady
def test_names_for_language_models_are_legal_and_short(pairs: list[Pair]) -> None:
    names = llm_table(pairs).values()
    assert all(LEGAL.fullmatch(name) and len(name) <= LLM_LENGTH_MAX for name in names)
    assert all(name.startswith("mcp_") for name in names)


@given(PAIRS, st.randoms(use_true_random=False))
@steady
def test_a_name_does_not_depend_on_the_order_of_the_tools(pairs: list[Pair], random: Random) -> None:
    shuffled = random.sample(pairs, len(pairs))
    assert llm_table(shuffled) == llm_table(pairs)


@given(PAIRS, st.tuples(SERVERS, TOOLS))
@steady
def test_another_tool_changes_only_names_that_it_clashes_with(pairs: list[Pair], more: Pair) -> None:
    before, after = llm_table(pairs), llm_table([*pairs, more])
    changed = {pair for pair in pairs if before[pair] != after[pair]}
    assert all(llm_form(pair) == llm_form(more) for pair in changed)


@given(PAIRS)
@steady
def test_a_canonical_name_splits_at_its_first_dot(pairs: list[Pair]) -> None:
    for pair in pairs:
        server, dot, tool = canonical(pair).partition(".")
        assert (server, dot, tool) == (pair[0], ".", pair[1])


@given(PAIRS)
@steady
def test_every_surface_shows_every_tool_once_and_leads_to_it(pairs: list[Pair]) -> None:
    taken = snapshot(pairs)
    for style in ("canonical", "llm"):
        routes = taken.view(ALL, Surface(style)).routes
        assert {(route.feature.server, route.feature.name) for route in routes.values()} == set(pairs)
        assert len(routes) == len(pairs)
        assert all(route.exposed == name for name, route in routes.items())
    for server in {server for server, _ in pairs}:
        routes = taken.view(ALL, Surface("own", server)).routes
        assert {ServerName(server): set(routes)} == {server: {name for own, name in pairs if own == server}}


@given(PAIRS, st.lists(st.integers(min_value=0), max_size=5), st.sampled_from(["canonical", "llm"]))
@steady
def test_a_name_means_the_same_to_all_its_viewers(pairs: list[Pair], chosen: list[int], style: str) -> None:
    # A pattern cannot name a tool called `*`; a pattern with one grants the server.
    patterns = tuple(canonical(pairs[at % len(pairs)]) for at in chosen) if pairs else ()
    patterns = tuple(pattern for pattern in patterns if "*" not in pattern)
    surface = Surface("llm" if style == "llm" else "canonical")
    taken = snapshot(pairs)
    everything = taken.view(ALL, surface).routes
    limited = taken.view(Grants(patterns), surface).routes
    assert {name: route.feature for name, route in limited.items()} == {
        name: route.feature
        for name, route in everything.items()
        if Policy(Grants(patterns)).allows(route.feature.server, route.feature.name)
    }


@given(PAIRS)
@steady
def test_a_canonical_name_is_always_understood(pairs: list[Pair]) -> None:
    assert all(resolve(canonical(pair), pairs) == pair for pair in pairs)


def meant(name: str, pairs: list[Pair]) -> list[Pair]:
    """Whom a person may mean, by the rule as it is written down."""
    exact = [pair for pair in pairs if f"{pair[0]}.{pair[1]}" == name]
    if exact:
        return exact
    if name.startswith("mcp."):
        return [pair for pair in pairs if pair[1] == name[4:] and pair[0] != BUILTIN]
    return [pair for pair in pairs if pair == (BUILTIN, name)] or [pair for pair in pairs if pair[1] == name]


@given(PAIRS, st.data())
@steady
def test_a_short_name_is_unique_or_lists_its_candidates(pairs: list[Pair], data: st.DataObject) -> None:
    known = [pair[1] for pair in pairs] + [f"mcp.{pair[1]}" for pair in pairs]
    name = data.draw(st.one_of(st.sampled_from(known), TOOLS) if known else TOOLS)
    candidates = meant(name, pairs)
    if len(candidates) > 1:
        with pytest.raises(AmbiguousName) as received:
            resolve(name, pairs)
        assert received.value.candidates == sorted(canonical(pair) for pair in candidates)
    else:
        assert resolve(name, pairs) == (candidates[0] if candidates else None)
