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
    ],
)
def test_a_malformed_pattern_is_refused_with_advice(pattern: str, why: str) -> None:
    expected = f"a grant must be *, server.* or server.tool, not {pattern!r}: {why}"
    with pytest.raises(ValueError, match="a grant must be") as refused:
        check_pattern(pattern)
    assert str(refused.value) == expected
    with pytest.raises(ValueError, match="a grant must be"):
        Policy(Grants(("*",), (pattern,)))
