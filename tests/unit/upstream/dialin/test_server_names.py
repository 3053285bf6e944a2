"""Names of servers that dial in: legal, short, unique, and stable."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from isthmus.model.names import ServerName, parse_server_name
from isthmus.model.relay import AgentRules
from isthmus.upstream.dialin.server_names import NameRules, own_id, twin_id

NOBODY = NameRules({})


def best(names: NameRules, agent: str, server_id: str) -> ServerName:
    return next(names.bid(agent, server_id).names())


@pytest.mark.parametrize(
    ("agent", "server_id", "name"),
    [
        ("kitchen", "clock", "kitchen_clock"),
        ("kitchen", "my clock.v2", "kitchen_my_clock_v2"),
        ("acme/kitchen", "clock", "acme_kitchen_clock"),
        ("厨房", "钟", "____"),
    ],
)
def test_a_name_is_the_agents_and_the_servers(agent: str, server_id: str, name: str) -> None:
    assert parse_server_name(best(NOBODY, agent, server_id)) == name


def test_a_name_that_is_cut_ends_in_digits_of_the_pair() -> None:
    first, second = (best(NOBODY, "a" * 32, "server" * 4 + end) for end in ("1", "2"))
    for name in (first, second):
        assert len(parse_server_name(name)) == 50
        assert re.fullmatch(r".{43}_[0-9a-f]{6}", name)
    assert first != second
    assert first == best(NOBODY, "a" * 32, "server" * 4 + "1")


def test_a_server_that_cannot_have_the_plain_name_has_names_with_digits_of_the_pair() -> None:
    plain, *others = islice(NOBODY.bid("kitchen", "clock").names(), 100)
    assert plain == "kitchen_clock"
    assert len({*others}) == len(others)
    assert all(re.fullmatch(r"kitchen_clock_[0-9a-f]{6}", name) for name in others)


def test_a_server_with_a_previous_name_gets_no_better_one() -> None:
    bid = NOBODY.bid("kitchen", "clock")
    plain, second, third = islice(bid.names(), 3)
    assert next(bid.names_from(plain)) == plain
    assert [*islice(bid.names_from(second), 2)] == [second, third]
    assert next(bid.names_from(ServerName("other"))) == plain


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    [
        (("my_kitchen", "knives"), ("my", "kitchen_knives")),
        (("my", "kitchen_knives"), ("my.kitchen", "knives")),
        (("my_kitchen", "knives"), ("my/kitchen", "knives")),
        (("my_kitchen", "big_knives"), ("my_kitchen", "big knives")),
        (("known.one", "a"), ("known_one", "a")),
        (("known.one", "a"), ("known", "one_a")),
        (("known", "a_b"), ("known_a", "b")),
        (("known", "a_b"), ("known", "a b")),
        (("other", "b_c"), ("other", "b.c")),
    ],
)
def test_of_two_candidates_for_a_name_it_is_always_the_same_that_gets_it(
    stronger: tuple[str, str], weaker: tuple[str, str]
) -> None:
    names = NameRules({"known": AgentRules(), "known.one": AgentRules(), "other": AgentRules(name="o")})
    assert names.bid(*stronger).plain == names.bid(*weaker).plain
    assert names.bid(*stronger).strength > names.bid(*weaker).strength


def test_two_servers_that_are_alike_in_all_that_counts_are_still_distinguished() -> None:
    assert NOBODY.bid("a", "钟").strength != NOBODY.bid("a", "锅").strength


def test_names_that_begin_as_those_of_a_configured_agent_are_its_own_before_it_comes() -> None:
    names = NameRules({"my_kitchen": AgentRules(), "my": AgentRules(), "cellar": AgentRules(name="home_cellar")})
    assert best(names, "my_kitchen", "knives") == "my_kitchen_knives"
    assert best(names, "cellar", "rack") == "home_cellar_rack"
    assert best(names, "my", "garden") == "my_garden"
    assert best(names, "home", "cellars") == "home_cellars"
    for agent, server_id in (("my", "kitchen_knives"), ("my.kitchen", "x"), ("home", "cellar_rack"), ("my_hall", "x")):
        assert re.fullmatch(r"\w+_[0-9a-f]{6}", best(names, agent, server_id)), agent


def test_other_settings_of_agents_change_no_names() -> None:
    assert NameRules({"a": AgentRules(grace=1)}) == NameRules({"a": AgentRules(name="a", deny=("*",))})
    assert NameRules({"a": AgentRules()}) != NOBODY


@pytest.mark.parametrize(
    ("said", "kept"),
    [(None, "default"), ("", "default"), (" \n\0", "default"), (" a\tclock ", "aclock"), ("x" * 100, "x" * 64)],
)
def test_a_servers_own_name_is_made_printable_and_short(said: str | None, kept: str) -> None:
    assert own_id(said) == kept


def test_the_second_of_a_name_is_numbered() -> None:
    assert [twin_id("clock", number) for number in (1, 2, 3)] == ["clock", "clock_2", "clock_3"]
