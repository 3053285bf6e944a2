"""What a permission set covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.access.policy import Policy, check_pattern
from isthmus.model.callers import Grants
from isthmus.model.names import FeatureName, ServerName

# Few names, so that grants and questions meet often.
SERVERS = st.sampled_from(["files", "search", "web-2"]).map(ServerName)
TOOLS = st.sampled_from(["read", "write", "read.all", "ä b"]).map(FeatureName)
PATTERNS = st.one_of(
    st.just("*"),
    SERVERS.map(str),
    SERVERS.map(lambda server: f"{server}.*"),
    st.builds(lambda server, tool: f"{server}.{tool}", SERVERS, TOOLS),
)
LISTS = st.lists(PATTERNS, max_size=4).map(tuple)


def covers(pattern: str, server: str, tool: str) -> bool:
    """Say the same as the policy, by writing out every pattern that would do."""
    return pattern in ("*", server, f"{server}.*", f"{server}.{tool}")


@given(LISTS, LISTS, SERVERS, TOOLS)
def test_a_tool_is_allowed_if_a_pattern_allows_it_and_none_denies_it(
    allow: tuple[str, ...], deny: tuple[str, ...], server: ServerName, tool: FeatureName
) -> None:
    is_allowed = any(covers(pattern, server, tool) for pattern in allow)
    is_denied = any(covers(pattern, server, tool) for pattern in deny)
    assert Policy(Grants(allow, deny)).allows(server, tool) == (is_allowed and not is_denied)


@given(LISTS, LISTS, SERVERS, TOOLS)
def test_deny_wins_whatever_is_allowed(
    allow: tuple[str, ...], deny: tuple[str, ...], server: ServerName, tool: FeatureName
) -> None:
    for denial in (f"{server}.{tool}", f"{server}.*", server, "*"):
        assert not Policy(Grants(allow, (*deny, denial))).allows(server, tool)


@given(LISTS, LISTS, SERVERS, TOOLS)
def test_a_server_with_an_allowed_tool_can_be_seen(
    allow: tuple[str, ...], deny: tuple[str, ...], server: ServerName, tool: FeatureName
) -> None:
    policy = Policy(Grants(allow, deny))
    if policy.allows(server, tool):
        assert policy.may_see_server(server)


@pytest.mark.parametrize(
    ("allow", "deny", "is_seen"),
    [
        (["*"], [], True),
        (["files"], [], True),
        (["files.read"], [], True),
        (["files.read", "files.write"], ["files.read"], True),
        (["files.*"], ["files.read"], True),  # it may have other tools
        (["files.read"], ["files.read"], False),
        (["*"], ["files"], False),
        (["*"], ["*"], False),
        (["search.*"], [], False),
        ([], [], False),
    ],
)
def test_a_server_is_seen_exactly_if_a_tool_of_it_could_be_allowed(
    allow: list[str], deny: list[str], *, is_seen: bool
) -> None:
    assert Policy(Grants(tuple(allow), tuple(deny))).may_see_server(ServerName("files")) == is_seen


def test_names_are_compared_letter_by_letter() -> None:
    policy = Policy(Grants(("files.read",)))
    assert not policy.allows(ServerName("Files"), FeatureName("read"))
    assert not policy.allows(ServerName("files"), FeatureName("read "))
    assert not policy.allows(ServerName("files"), FeatureName("readme"))


def test_a_tool_called_star_is_no_wildcard() -> None:
    assert not Policy(Grants(("files.read",))).allows(ServerName("files"), FeatureName("*"))


@given(PATTERNS)
def test_a_pattern_of_the_right_form_passes(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "it names no server"),
        (".read", "it names no server"),
        ("files.", "it names no tool"),
        ("fi*", "a star cannot stand for a part of a name"),
        ("*.read", "a star cannot stand for a part of a name"),
        ("files.read_*", "a star cannot stand for a part of a name"),
        ("**", "a star cannot stand for a part of a name"),
        ("my files.read", "no server can have that name"),
        ("agent:", "it names no agent"),
    ],
)
def test_a_malformed_pattern_is_refused_with_advice(pattern: str, why: str) -> None:
    expected = f"a grant must be *, server.*, server.tool or agent:KEY, not {pattern!r}: {why}"
    with pytest.raises(ValueError, match="a grant must be") as refused:
        check_pattern(pattern)
    assert str(refused.value) == expected
    with pytest.raises(ValueError, match="a grant must be"):
        Policy(Grants(("*",), (pattern,)))


# -- agents -----------------------------------------------------------------------------------------------------------

PHONE, LAMP = ServerName("home_phone"), ServerName("home_lamp")
AGENTS = {PHONE: "home", LAMP: "acme/home"}


def policy(*allow: str, deny: tuple[str, ...] = ()) -> Policy:
    """Permissions where one server dialled in under each of two agents of the same name."""
    return Policy(Grants(allow, deny), AGENTS.get)


def test_a_pattern_for_an_agent_covers_everything_that_dialled_in_under_it_and_nothing_else() -> None:
    own = policy("agent:home")
    assert own.allows(PHONE, FeatureName("ring"))
    assert own.may_see_server(PHONE)
    for stranger in (LAMP, ServerName("home"), ServerName("files")):
        assert not own.allows(stranger, FeatureName("ring"))
        assert not own.may_see_server(stranger)
    assert policy("agent:acme/home").allows(LAMP, FeatureName("ring"))


def test_an_agent_can_be_denied_and_so_can_a_tool_of_its() -> None:
    assert not policy("*", deny=("agent:home",)).may_see_server(PHONE)
    assert policy("*", deny=("agent:home",)).may_see_server(LAMP)
    silent = policy("agent:home", deny=("home_phone.ring",))
    assert not silent.allows(PHONE, FeatureName("ring"))
    assert silent.allows(PHONE, FeatureName("mute"))


def test_nobody_is_asked_whose_a_server_is_where_no_pattern_means_an_agent() -> None:
    def asked(server: ServerName) -> str:
        raise AssertionError(f"asked for {server}")

    plain = Policy(Grants(("files.read", "web"), ("web.post",)), asked)
    assert not plain.allows(PHONE, FeatureName("ring"))
    assert plain.allows(ServerName("web"), FeatureName("get"))


@pytest.mark.parametrize(
    ("allow", "deny", "is_whole"),
    [
        (("home_phone",), (), True),
        (("agent:home",), (), True),
        (("*",), ("home_lamp",), True),
        (("agent:home",), ("home_phone.ring",), False),
        (("*",), ("agent:home",), False),
        (("home_phone.ring",), (), False),
        ((), (), False),
    ],
)
def test_all_of_a_server_is_allowed_exactly_if_nothing_of_it_is_denied(
    allow: tuple[str, ...], deny: tuple[str, ...], *, is_whole: bool
) -> None:
    assert policy(*allow, deny=deny).may_use_all_of(PHONE) == is_whole


@pytest.mark.parametrize("key", ["home", "acme/home", "0123abcdef", "家", "a.b:c*"])
def test_an_agent_may_be_called_anything_that_can_be_printed(key: str) -> None:
    check_pattern(f"agent:{key}")


@pytest.mark.parametrize("key", ["my home", "home\n", "\u200b"])
def test_a_key_that_nobody_can_read_is_refused_in_a_configuration_and_taken_from_a_token(key: str) -> None:
    with pytest.raises(ValueError, match=r"agent:KEY, not .*: the key of an agent has no spaces"):
        check_pattern(f"agent:{key}")
    assert Policy(Grants((f"agent:{key}",)), lambda _: key).may_see_server(PHONE)
