"""The tools that a permission set covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.access.policy import Labels, Policy, check_pattern
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


@given(LISTS, LISTS, LISTS, LISTS, SERVERS, TOOLS)
def test_the_names_of_a_server_say_the_same_for_all_its_tools(
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    outer_allow: tuple[str, ...],
    outer_deny: tuple[str, ...],
    server: ServerName,
    tool: FeatureName,
) -> None:
    policy = Policy(Grants(allow, deny).bounded_by(Grants(outer_allow, outer_deny)))
    names = policy.names_of(server)
    assert names is not None
    allowed, denied = names
    assert ((allowed is None or tool in allowed) and tool not in denied) == policy.allows(server, tool)


def test_names_alone_do_not_decide_where_labels_do() -> None:
    assert Policy(Grants(("tag:chosen",))).names_of(ServerName("files")) is None
    assert Policy(Grants(("*",)), custom_policy=lambda *_: True).names_of(ServerName("files")) is None


@given(LISTS, LISTS, SERVERS, TOOLS)
def test_deny_wins_over_every_allow(
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
        ("", "the server is missing"),
        (".read", "the server is missing"),
        ("files.", "the tool is missing"),
        ("fi*", "* cannot be part of a name"),
        ("*.read", "* cannot be part of a name"),
        ("files.read_*", "* cannot be part of a name"),
        ("**", "* cannot be part of a name"),
        ("my files.read", "this is not a valid server name"),
        ("agent:", "the agent's key is missing"),
    ],
)
def test_a_malformed_pattern_is_refused_with_advice(pattern: str, why: str) -> None:
    expected = f"a grant must be *, server.*, server.tool, agent:KEY, tag:NAME or hint:NAME, not {pattern!r}: {why}"
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


def test_owners_of_servers_are_not_looked_up_where_no_pattern_names_an_agent() -> None:
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
def test_an_unreadable_key_is_refused_in_a_configuration_and_accepted_from_a_token(key: str) -> None:
    with pytest.raises(ValueError, match=r"hint:NAME, not .*: an agent's key must be printable"):
        check_pattern(f"agent:{key}")
    assert Policy(Grants((f"agent:{key}",)), lambda _: key).may_see_server(PHONE)


# -- bounds -----------------------------------------------------------------------------------------------------------

FILES, READ, WRITE = ServerName("files"), FeatureName("read"), FeatureName("write")


@given(LISTS, LISTS, LISTS, LISTS, SERVERS, TOOLS)
def test_bounded_grants_allow_tools_that_both_allow_and_neither_denies(
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    bound_allow: tuple[str, ...],
    bound_deny: tuple[str, ...],
    server: ServerName,
    tool: FeatureName,
) -> None:
    own, bounds = Grants(allow, deny), Grants(bound_allow, bound_deny)
    both = Policy(own.bounded_by(bounds))
    assert both.allows(server, tool) == (Policy(own).allows(server, tool) and Policy(bounds).allows(server, tool))
    assert both.denies(server, tool) == (Policy(own).denies(server, tool) or Policy(bounds).denies(server, tool))
    if both.allows(server, tool):
        assert both.may_see_server(server)
        assert (names := both.named_servers()) is None or server in names
    if both.may_use_all_of(server):
        assert both.allows(server, tool)
        assert Policy(own).may_use_all_of(server)
        assert Policy(bounds).may_use_all_of(server)


def test_a_server_is_hidden_if_two_sets_allow_none_of_its_tools_together() -> None:
    grants = Grants(("files.read",), within=Grants(("files.write", "web")))
    assert not Policy(grants).may_see_server(FILES)
    assert Policy(Grants(("files.read",), within=Grants(("*",)))).may_see_server(FILES)
    assert Policy(grants).named_servers() == {FILES}


# -- labels -----------------------------------------------------------------------------------------------------------

SAFE = Labels(frozenset({"tag:safe"}), frozenset({"tag:safe"}))
CLAIMED = Labels(frozenset(), frozenset({"tag:safe", "hint:read-only"}))


def test_a_label_allows_tools_with_a_trusted_label() -> None:
    policy = Policy(Grants(("tag:safe", "hint:read-only")))
    assert policy.reads_labels
    assert policy.allows(FILES, READ, SAFE)
    assert not policy.allows(FILES, READ, CLAIMED)
    assert not policy.allows(FILES, READ)
    assert policy.named_servers() is None
    assert not policy.may_see_server(FILES), "not by its name"


def test_a_label_denies_tools_that_may_have_it() -> None:
    policy = Policy(Grants(("*",), ("tag:safe",)))
    assert not policy.allows(FILES, READ, SAFE)
    assert not policy.allows(FILES, READ, CLAIMED)
    assert policy.denies(FILES, READ, CLAIMED)
    assert policy.allows(FILES, READ)
    assert not policy.may_use_all_of(FILES), "what it has is not known, and may be labelled"


def test_server_wide_tags_apply_before_the_tools_are_known() -> None:
    def tags(server: ServerName) -> tuple[str, ...]:
        return ("safe",) if server == FILES else ()

    policy = Policy(Grants(("tag:safe",)), tags_of=tags)
    assert policy.may_see_server(FILES)
    assert policy.may_use_all_of(FILES)
    assert policy.allows(FILES, READ)
    assert not policy.may_see_server(ServerName("web"))
    assert not Policy(Grants(("*",), ("tag:safe",)), tags_of=tags).may_see_server(FILES)


def test_without_a_pattern_about_labels_labels_are_not_looked_up() -> None:
    assert not Policy(Grants(("*",), ("files",), within=Grants(("web",)))).reads_labels
    assert Policy(Grants(("*",), within=Grants(("*",), ("hint:destructive",)))).reads_labels


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("tag:", "the tag is missing"),
        ("tag: safe", "the tag is missing"),
        ("tag:a\n", "the tag is missing"),
        ("hint:", "a hint is one of read-only, destructive, idempotent, open-world"),
        ("hint:readOnlyHint", "a hint is one of read-only, destructive, idempotent, open-world"),
    ],
)
def test_a_label_that_nothing_can_have_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_pattern(pattern)
    with pytest.raises(ValueError, match=why):
        Policy(Grants((), (pattern,)))


# -- reasons ----------------------------------------------------------------------------------------------------------


@given(LISTS, LISTS, LISTS, SERVERS, TOOLS)
def test_the_reason_agrees_with_the_decision(
    allow: tuple[str, ...], deny: tuple[str, ...], bounds: tuple[str, ...], server: ServerName, tool: FeatureName
) -> None:
    policy = Policy(Grants(allow, deny, within=Grants(bounds)))
    why = policy.why(server, tool)
    is_allowed = all(listed == "allow" and pattern is not None for listed, _, pattern in why)
    assert is_allowed == policy.allows(server, tool)
    assert len(why) == (2 if is_allowed else 1)


def test_the_plainest_pattern_is_the_reason() -> None:
    policy = Policy(
        Grants(("*", "files.*", "files.read", "tag:safe"), within=Grants(("tag:safe", "agent:home"))), AGENTS.get
    )
    assert policy.why(FILES, READ, SAFE) == (("allow", 0, "files.read"), ("allow", 1, "tag:safe"))
    assert policy.why(FILES, WRITE, SAFE) == (("allow", 0, "files.*"), ("allow", 1, "tag:safe"))
    assert policy.why(PHONE, READ) == (("allow", 0, "*"), ("allow", 1, "agent:home"))
    assert policy.why(FILES, READ) == (("allow", 1, None),)
    denied = Policy(Grants(("*",), within=Grants(("*",), ("files.write",))))
    assert denied.why(FILES, WRITE) == (("deny", 1, "files.write"),)
