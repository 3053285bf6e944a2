"""Views of callers over all servers at one moment, with the reasons."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.catalog import snapshot as snapshots
from isthmus.core.catalog.access_reasons import explain_access
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import FeatureLists, ServerStatus, Snapshot
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.catalog.view import ServerState, View
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING, NO_CAPABILITIES, ClientCapabilities, Surface
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from tests.unit.core.doubles import prompt, raw, ready, resource, template, tool

ALL = Grants(("*",))
WEB = ServerName("web")
FILES = ServerName("files")


def snapshot(*server_statuses: ServerStatus) -> Snapshot:
    return Snapshot(
        1, {server_status.server: server_status for server_status in server_statuses}, CheckCache(limit_bytes=4096)
    )


TWO = (ready(tool("search", WEB), server=WEB), ready(tool("read"), tool("write")))


def names(view: View) -> list[str]:
    return list(view.routes)


def test_all_servers_are_seen_in_the_order_of_their_names() -> None:
    assert names(snapshot(*TWO).view(ALL, EVERYTHING)) == ["files.read", "files.write", "web.search"]
    assert names(snapshot(*reversed(TWO)).view(ALL, EVERYTHING)) == ["files.read", "files.write", "web.search"]


def test_one_server_is_seen_under_its_own_names() -> None:
    assert names(snapshot(*TWO).view(ALL, Surface("own", FILES))) == ["read", "write"]


def test_language_models_see_their_own_form() -> None:
    assert names(snapshot(*TWO).view(ALL, Surface("llm"))) == ["mcp_files_read", "mcp_files_write", "mcp_web_search"]


@pytest.mark.parametrize(
    ("grants", "seen"),
    [
        (Grants(()), []),
        (Grants(("files.*",), ("files.write",)), ["files.read"]),
        (Grants(("*",), ("files",)), ["web.search"]),
        (Grants(("web.search", "files.gone")), ["web.search"]),
    ],
)
def test_a_view_has_only_granted_tools(grants: Grants, seen: list[str]) -> None:
    assert names(snapshot(*TWO).view(grants, EVERYTHING)) == seen


@pytest.mark.parametrize(
    ("grants", "surface", "name", "is_denied"),
    [
        (Grants(("files.*",), ("files.write",)), EVERYTHING, "files.write", True),
        (Grants(("files.*",), ("files.write",)), EVERYTHING, "files.read", False),
        (Grants(("files.*",)), EVERYTHING, "web.search", True),
        (Grants(("files.*",)), EVERYTHING, "web.none", False),
        (Grants(("files.*",)), EVERYTHING, "none.none", False),
        (Grants(("files.*",)), EVERYTHING, "", False),
        (Grants(("files.read",)), Surface("own", FILES), "write", True),
        (Grants(("files.read",)), Surface("own", FILES), "none", False),
        (Grants(("files.read",)), Surface("canonical", WEB), "files.write", False),
        (Grants(("files.read",)), Surface("llm"), "mcp_files_write", True),
        (Grants(("files.read",)), Surface("llm"), "mcp_files_none", False),
    ],
)
def test_an_existing_tool_without_a_grant_counts_as_denied(
    grants: Grants, surface: Surface, name: str, *, is_denied: bool
) -> None:
    assert snapshot(*TWO).is_denied(grants, surface, "tools", name) is is_denied


def test_hidden_and_disabled_tools_do_not_count_as_denied() -> None:
    hidden = msgspec.structs.replace(TWO[1], rules=ToolRules(hidden=("write",)))
    disabled = ServerStatus(WEB, "disabled", "disabled", tools=(tool("search", WEB),))
    taken = snapshot(hidden, disabled)
    assert not taken.is_denied(Grants(()), EVERYTHING, "tools", "files.write")
    assert not taken.is_denied(Grants(()), EVERYTHING, "tools", "web.search")
    assert taken.is_denied(Grants(()), EVERYTHING, "tools", "files.read")


def test_a_prompt_is_denied_as_a_tool_is() -> None:
    taken = snapshot(ServerStatus(FILES, "ready", prompts=(prompt("ask"),), is_settled=True))
    assert taken.is_denied(Grants(()), EVERYTHING, "prompts", "files.ask")
    assert not taken.is_denied(Grants(()), EVERYTHING, "tools", "files.ask")


def test_a_route_leads_to_the_tool_of_its_name() -> None:
    route = snapshot(*TWO).view(ALL, EVERYTHING).routes["web.search"]
    assert (route.exposed, route.feature) == ("web.search", tool("search", WEB))


@pytest.mark.parametrize("state", ["retrying", "away"])
def test_a_server_that_is_away_keeps_its_tools_and_is_named_with_the_reason(state: ServerState) -> None:
    away = ServerStatus(FILES, state, "it crashed", tools=(tool("read"),), is_settled=True)
    view = snapshot(away, ServerStatus(WEB)).view(ALL, EVERYTHING)
    assert names(view) == ["files.read"]
    assert (view.missing[FILES].state, view.missing[FILES].reason, view.missing[FILES].is_listed) == (
        state,
        "it crashed",
        True,
    )
    assert not view.missing[WEB].is_listed


def test_a_server_that_the_caller_may_not_see_is_not_named_as_missing_either() -> None:
    view = snapshot(ServerStatus(WEB), ServerStatus(FILES)).view(Grants(("files.read",)), EVERYTHING)
    assert list(view.missing) == [FILES]


def test_a_disabled_server_is_not_there_at_all() -> None:
    disabled = ServerStatus(WEB, "disabled", "disabled", tools=(tool("search", WEB),))
    taken = snapshot(disabled, ready(tool("read")))
    view = taken.view(ALL, EVERYTHING)
    assert names(view) == ["files.read"]
    assert view.missing == {}
    assert set(view.servers) == {FILES}
    assert taken.pairs() == [(FILES, tool("read").name)]


def test_a_view_knows_its_servers_in_every_state() -> None:
    taken = snapshot(ServerStatus(WEB), *TWO[1:])
    assert taken.view(ALL, EVERYTHING).servers.keys() == {WEB, FILES}
    assert taken.view(Grants(("files.read",)), EVERYTHING).servers.keys() == {FILES}
    assert taken.view(Grants(("files.read",)), Surface("own", WEB)).servers == {}


def test_a_hub_behind_two_servers_is_as_far_away_as_by_the_longest_way() -> None:
    for near, far in ((FILES, WEB), (WEB, FILES)):
        view = snapshot(ServerStatus(near, hubs={"a": 0}), ServerStatus(far, hubs={"b": 0, "a": 4})).view(
            ALL, EVERYTHING
        )
        assert view.hubs == {"a": 5, "b": 1}


def test_equal_grants_share_one_view() -> None:
    taken = snapshot(*TWO)
    assert taken.view(Grants(("web.*",)), EVERYTHING) is taken.view(Grants(("web.*",)), EVERYTHING)
    assert taken.view(ALL, Surface("llm")) is not taken.view(ALL, EVERYTHING)


def test_the_number_of_views_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "VIEWS_MAX", 2)
    taken = snapshot(*TWO)
    first = taken.view(ALL, EVERYTHING)
    taken.view(Grants(("web",)), EVERYTHING)
    later = taken.view(Grants(("files",)), EVERYTHING)
    again = taken.view(ALL, EVERYTHING)
    assert again is not first
    assert taken.view(Grants(("files",)), EVERYTHING) is later
    assert names(again) == names(first)


def test_the_digest_changes_exactly_when_the_list_does() -> None:
    digest = snapshot(*TWO).view(ALL, EVERYTHING).digest
    assert snapshot(*reversed(TWO)).view(ALL, EVERYTHING).digest == digest
    assert snapshot(TWO[1]).view(ALL, EVERYTHING).digest != digest
    described = ready(tool("search", WEB, description="new words"), server=WEB)
    assert snapshot(described, TWO[1]).view(ALL, EVERYTHING).digest != digest
    away = ServerStatus(WEB, "retrying", "gone", tools=TWO[0].tools, is_settled=True)
    assert snapshot(away, TWO[1]).view(ALL, EVERYTHING).digest == digest
    assert snapshot(*TWO).view(ALL, Surface("llm")).digest != digest


# -- the operator's rules ------------------------------------------------------------------------------------------


NEEDY = tool("read", inputSchema={"type": "object", "required": ["root", "name"]})


def test_a_tool_that_is_not_shown_is_neither_listed_nor_called() -> None:
    ruled = ready(tool("read"), tool("write"), rules=ToolRules(hidden=("write",)))
    view = snapshot(ruled).view(ALL, EVERYTHING)
    assert names(view) == ["files.read"]
    assert view.find("tool", "files.write") is None


def test_rules_grant_nothing() -> None:
    ruled = ready(tool("read"), tool("write"), rules=ToolRules(only=("read", "write")))
    assert names(snapshot(ruled).view(Grants(("files.read",)), EVERYTHING)) == ["files.read"]


def test_arguments_with_defaults_are_optional_and_still_validated() -> None:
    ruled = ready(NEEDY, rules=ToolRules(defaults={"read": {"root": "/srv"}}))
    route = snapshot(ruled).view(ALL, EVERYTHING).routes["files.read"]
    assert bytes(route.feature.definition["inputSchema"]) == b'{"type":"object","required":["name"]}'
    assert route.changes is not None
    assert bytes(route.changes.defaults["root"]) == b'"/srv"'
    assert route.check(raw({"name": "x"})) == '"root" is a required property'
    assert route.check(raw({"name": "x", "root": "/"})) is None


def test_only_tools_whose_results_may_be_kept_say_for_how_long() -> None:
    ruled = ready(tool("read"), tool("write"), rules=ToolRules(cached=("read",), cache_seconds=5.0))
    routes = snapshot(ruled).view(ALL, EVERYTHING).routes
    assert [route.keep_seconds for route in routes.values()] == [5.0, 0.0]


def test_a_change_of_rules_changes_the_digest_only_where_it_is_seen() -> None:
    plain = snapshot(ready(NEEDY)).view(ALL, EVERYTHING).digest
    kept = snapshot(ready(NEEDY, rules=ToolRules(cached=("*",)))).view(ALL, EVERYTHING).digest
    eased = snapshot(ready(NEEDY, rules=ToolRules(defaults={"read": {"root": "/"}}))).view(ALL, EVERYTHING).digest
    assert kept == plain != eased


# -- the other lists -----------------------------------------------------------------------------------------------


def offering(server: str) -> ServerStatus:
    return ready(
        tool("t", server),
        server=server,
        prompts=[prompt("p", server)],
        resources=[resource("same:r", server), resource(f"{server}:r", server)],
        templates=[template("same:{x}", server)],
    )


def test_prompts_are_named_as_tools_are_and_uris_as_their_servers_spell_them() -> None:
    taken = snapshot(offering("a"), offering("b"))
    view = taken.view(ALL, EVERYTHING)
    assert list(view.prompts) == ["a.p", "b.p"]
    assert list(view.resources) == ["isthmus://hub/a/same:r", "a:r", "isthmus://hub/b/same:r", "b:r"]
    assert list(view.templates) == ["isthmus://hub/a/same:{x}", "isthmus://hub/b/same:{x}"]
    assert list(taken.view(ALL, Surface("llm")).prompts) == ["mcp_a_p", "mcp_b_p"]


def test_on_one_servers_surface_everything_has_its_own_name() -> None:
    view = snapshot(offering("a"), offering("b")).view(ALL, Surface("own", ServerName("b")))
    lists = [list(table) for table in (view.routes, view.prompts, view.resources, view.templates)]
    assert lists == [["t"], ["p"], ["same:r", "b:r"], ["same:{x}"]]


def test_a_name_means_the_same_to_everybody() -> None:
    taken = snapshot(offering("a"), offering("b"))
    assert list(taken.view(Grants(("a",)), EVERYTHING).resources) == ["isthmus://hub/a/same:r", "a:r"]


def test_a_disabled_server_conflicts_with_no_other() -> None:
    disabled = ServerStatus(ServerName("b"), "disabled", resources=offering("b").resources)
    assert list(snapshot(offering("a"), disabled).view(ALL, EVERYTHING).resources) == ["same:r", "a:r"]


@pytest.mark.parametrize("list_of", ["tools", "prompts", "resources", "templates"])
def test_an_away_server_with_a_known_list_counts_as_listed(list_of: str) -> None:
    offered = {list_of: getattr(offering("a"), list_of)}
    away = ServerStatus(ServerName("a"), "retrying", "gone", is_settled=True, **offered)
    assert snapshot(away).view(ALL, EVERYTHING).missing[ServerName("a")].is_listed


# -- profiles ------------------------------------------------------------------------------------------------------

ABLE: ClientCapabilities = frozenset({"elicitation"})
OTHER: ClientCapabilities = frozenset({"sampling"})
MORE = FeatureLists(
    (tool("read"), tool("ask")), resources=(resource("file:///x"),), abilities=frozenset({"tools", "resources"})
)


def varied(*tools: Tool) -> ServerStatus:
    return msgspec.structs.replace(ready(*tools), variants={ABLE: MORE})


def test_callers_see_the_lists_for_their_client_capabilities() -> None:
    taken = snapshot(varied(tool("read"), tool("write")), TWO[0])
    assert names(taken.view(ALL, EVERYTHING, ABLE)) == ["files.read", "files.ask", "web.search"]
    assert list(taken.view(ALL, EVERYTHING, ABLE).resources) == ["file:///x"]
    assert taken.view(ALL, EVERYTHING, ABLE).servers[FILES] == {"tools", "resources"}
    assert names(taken.view(ALL, EVERYTHING)) == ["files.read", "files.write", "web.search"]
    assert names(taken.view(Grants(("files.ask",)), EVERYTHING, ABLE)) == ["files.ask"]


def test_callers_without_another_list_share_the_common_view() -> None:
    taken = snapshot(varied(tool("read")))
    assert taken.view(ALL, EVERYTHING, OTHER) is taken.view(ALL, EVERYTHING)
    assert taken.view(ALL, EVERYTHING, ABLE) is taken.view(ALL, EVERYTHING, ABLE)
    assert taken.view(ALL, EVERYTHING, ABLE) is not taken.view(ALL, EVERYTHING)


def test_the_operators_rules_hold_for_every_profile() -> None:
    ruled = msgspec.structs.replace(varied(tool("read")), rules=ToolRules(hidden=("ask",)))
    assert names(snapshot(ruled).view(ALL, EVERYTHING, ABLE)) == ["files.read"]


def test_a_name_means_the_same_in_every_profile() -> None:
    clash = ready(tool("x_ask", "a"), server="a"), ready(tool("y", "a_x"), server="a_x")
    hidden = msgspec.structs.replace(clash[1], variants={ABLE: FeatureLists((tool("ask", "a_x"),))})
    plain = names(snapshot(*clash).view(ALL, Surface("llm")))
    assert plain[0] == "mcp_a_x_ask"
    taken = snapshot(clash[0], hidden)
    assert names(taken.view(ALL, Surface("llm")))[0] == names(taken.view(ALL, Surface("llm"), ABLE))[0] != plain[0]


def test_views_of_profiles_are_no_more_than_all_views_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "VIEWS_MAX", 2)
    taken = snapshot(varied(tool("read")))
    for grants in (ALL, Grants(("files",)), Grants(("files.read",))):
        taken.view(grants, EVERYTHING)
        taken.view(grants, EVERYTHING, ABLE)
    assert len(taken._views) <= 2


# -- one server's URIs under another's template --------------------------------------------------------------------


def test_a_uri_that_matches_another_servers_template_has_no_single_owner() -> None:
    forger = ready(server="forger", resources=[resource("db://t/1", "forger"), resource("mine://x", "forger")])
    owner = ready(
        server="owner", resources=[resource("db://t/2", "owner")], templates=[template("db://t/{id}", "owner")]
    )
    view = snapshot(forger, owner).view(ALL, EVERYTHING)
    assert list(view.resources) == ["isthmus://hub/forger/db://t/1", "mine://x", "db://t/2"]
    assert view.find_resource("db://t/1") is None
    assert set(view.candidates("db://t/1")) == {f"isthmus://hub/{server}/db://t/1" for server in ("forger", "owner")}
    for server in ("forger", "owner"):
        at = view.find_resource(f"isthmus://hub/{server}/db://t/1")
        assert at is not None
        assert (at.route.feature.server, at.name) == (server, "db://t/1")


# -- many servers ------------------------------------------------------------------------------------------------------


class Watched(dict[ServerName, ServerStatus]):
    """Standings that count how many of them were looked at."""

    looked = 0

    def __getitem__(self, name: ServerName) -> ServerStatus:
        self.looked += 1
        return super().__getitem__(name)

    def get(self, name: ServerName, default: object = None) -> Any:
        self.looked += 1
        return super().get(name, default)

    def __iter__(self) -> Iterator[ServerName]:
        for name in super().__iter__():
            self.looked += 1
            yield name

    def items(self) -> Any:
        self.looked += len(self)
        return super().items()

    def values(self) -> Any:
        self.looked += len(self)
        return super().values()


@pytest.mark.parametrize(
    ("grants", "surface"),
    [
        (Grants(("agent:a7",)), Surface("own", ServerName("s7"))),
        (ALL, Surface("own", ServerName("s7"))),
        (Grants(("s7.*",)), EVERYTHING),
    ],
)
def test_one_server_among_thousands_is_found_without_looking_at_the_others(grants: Grants, surface: Surface) -> None:
    every = {
        ServerName(f"s{number}"): msgspec.structs.replace(
            ready(tool("read", f"s{number}"), server=f"s{number}"), agent=f"a{number}"
        )
        for number in range(1000)
    }
    server_statuses = Watched(every)
    taken = Snapshot(1, server_statuses, CheckCache(limit_bytes=4096))
    for client_caps in (NO_CAPABILITIES, frozenset({"sampling"})):
        assert len(taken.view(grants, surface, client_caps).routes) == 1
        if surface is EVERYTHING:
            break  # whether it is varied for a profile is found out once for all servers
    assert server_statuses.looked < 20


def test_an_agents_servers_are_visible_to_callers_that_may_use_them() -> None:
    phone = msgspec.structs.replace(ready(tool("ring", "home_phone"), server="home_phone"), agent="home")
    taken = snapshot(phone, *TWO)
    assert names(taken.view(Grants(("agent:home",)), EVERYTHING)) == ["home_phone.ring"]
    assert names(taken.view(Grants(("agent:home", "web")), EVERYTHING)) == ["home_phone.ring", "web.search"]
    assert names(taken.view(Grants(("*",), ("agent:home",)), EVERYTHING)) == ["files.read", "files.write", "web.search"]
    assert names(taken.view(Grants(("agent:other",)), EVERYTHING)) == []


def test_an_old_snapshot_is_freed_though_a_view_of_it_is_kept() -> None:
    taken = snapshot(*TWO)
    view = taken.view(Grants(("agent:home", "web")), EVERYTHING)
    gone = weakref.ref(taken)
    del taken
    assert gone() is None
    assert names(view) == ["web.search"]


ELICITING_SERVER: ClientCapabilities = frozenset({"sampling"})


@pytest.mark.parametrize("client_caps", [NO_CAPABILITIES, ELICITING_SERVER])
@pytest.mark.parametrize("many", [0, 1000])
@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("surface", [EVERYTHING, Surface("llm"), Surface("own", FILES), Surface("canonical", FILES)])
def test_a_call_finds_exactly_the_listed_tools_even_before_listing(
    monkeypatch: pytest.MonkeyPatch, surface: Surface, client_caps: ClientCapabilities, many: int, *, is_compiled: bool
) -> None:
    monkeypatch.setattr(snapshots, "SERVERS_FOR_SINGLE_VIEW", many)
    files = msgspec.structs.replace(
        ready(tool("read"), tool("secret"), rules=ToolRules(hidden=("secret",))),
        variants={ELICITING_SERVER: FeatureLists((tool("read"), tool("extra")))},
    )
    taken = snapshot(TWO[0], files)
    grants = Grants(("files",))
    listed = snapshot(TWO[0], files).view(grants, surface, client_caps).routes
    if is_compiled:
        taken.view(grants, surface, client_caps)
    for name in {*listed, "files.read", "files.secret", "web.search", "read", "nobody.read", "files.extra", ""}:
        route = taken.find_tool(grants, surface, client_caps, name)
        assert (None if route is None else (route.exposed, route.feature)) == (
            (name, listed[name].feature) if name in listed else None
        )


def test_a_call_among_many_servers_does_not_have_all_of_them_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SERVERS_FOR_SINGLE_VIEW", 1)
    taken = snapshot(*TWO)
    assert taken.find_tool(ALL, EVERYTHING, NO_CAPABILITIES, "web.search") is not None
    for number in range(2 * snapshots.VIEWS_MAX):
        assert taken.find_tool(ALL, EVERYTHING, NO_CAPABILITIES, f"made-up{number}.search") is None
    assert (len(taken._views), len(taken._single)) == (0, 1)
    whole = taken.view(ALL, EVERYTHING)
    for number in range(2 * snapshots.VIEWS_MAX):
        taken.view(Grants((f"agent:{number}",)), Surface("own", WEB))
    assert taken.view(ALL, EVERYTHING) is whole
    assert len(taken._single) == snapshots.VIEWS_MAX


# -- labels --------------------------------------------------------------------------------------------------------

SAFE = {"fastmcp": {"tags": ["safe"]}}
LABELLED = ready(
    tool("read", _meta=SAFE, annotations={"readOnlyHint": True}),
    tool("write"),
    resources=[resource("note:one", _meta=SAFE), resource("note:two")],
    prompts=[prompt("ask")],
    templates=[template("secret:{name}")],
)


def labelled(**rules: Any) -> Snapshot:
    return snapshot(msgspec.structs.replace(LABELLED, rules=ToolRules(**rules)), ready(tool("search", WEB), server=WEB))


def test_a_label_grants_labelled_tools_and_shows_no_other_server() -> None:
    view = labelled(is_trusted=True).view(Grants(("tag:safe",)), EVERYTHING)
    assert (names(view), list(view.resources), list(view.prompts)) == (["files.read"], ["note:one"], [])
    assert list(view.servers) == [FILES]
    assert names(labelled(is_trusted=True).view(Grants(("hint:read-only",)), EVERYTHING)) == ["files.read"]


def test_labels_of_an_untrusted_server_grant_nothing() -> None:
    view = labelled().view(Grants(("tag:safe", "hint:read-only")), EVERYTHING)
    assert (names(view), list(view.servers)) == ([], [])


def test_tags_of_the_operator_let_in_one_tool_or_a_whole_server() -> None:
    assert names(labelled(tags={"write": ("ok",)}).view(Grants(("tag:ok",)), EVERYTHING)) == ["files.write"]
    view = labelled(tags={"*": ("ok",)}).view(Grants(("tag:ok",)), Surface("own", FILES))
    assert (names(view), view.whole) == (["read", "write"], FILES)


def test_a_denied_label_is_denied_for_every_server_and_leaves_no_server_whole() -> None:
    view = labelled(is_trusted=True).view(Grants(("files",), ("hint:read-only",)), Surface("own", FILES))
    assert (names(view), view.whole) == (["write"], None)
    assert names(labelled().view(Grants(("files",), ("hint:destructive",)), EVERYTHING)) == []


def test_a_resource_that_is_denied_by_a_label_is_not_had_by_a_template_or_unlisted() -> None:
    open_to_all = msgspec.structs.replace(LABELLED, templates=(template("note:{name}"),))
    view = snapshot(open_to_all).view(Grants(("files",), ("tag:safe",)), EVERYTHING)
    assert list(view.resources) == ["note:two"]
    assert view.find("resource", "note:one") is None
    assert view.find("resource", "note:three") is not None


@pytest.mark.parametrize("name", ["x", "x" * 10_000])
def test_uris_of_a_denied_template_are_not_read_as_unlisted(name: str) -> None:
    denied = snapshot(LABELLED).view(Grants(("files",), ("files.secret:{name}",)), EVERYTHING)
    assert denied.find("resource", f"secret:{name}") is None
    assert snapshot(LABELLED).view(Grants(("files",)), EVERYTHING).find("resource", f"secret:{name}") is not None


def test_a_server_with_a_withheld_tool_is_not_whole() -> None:
    """Its other methods might expose the withheld tool."""
    server_status = msgspec.structs.replace(TWO[1], withheld=(FeatureName("pay"),))
    assert snapshot(TWO[1]).view(ALL, Surface("own", FILES)).whole == FILES
    assert snapshot(server_status).view(ALL, Surface("own", FILES)).whole is None


def test_rules_that_only_label_leave_a_server_whole() -> None:
    view = labelled(is_trusted=True, tags={"read": ("a",)}).view(ALL, Surface("own", FILES))
    assert view.whole == FILES


@pytest.mark.parametrize("has_template", [True, False])
@pytest.mark.parametrize("tagged", ["secret:x", "secret:{name}"])
def test_a_tag_denies_tagged_resources_that_are_not_listed(tagged: str, *, has_template: bool) -> None:
    templates = [template("{+any}")] if has_template else []
    server_status = ready(
        templates=templates, resources=[resource("open:x")], rules=ToolRules(tags={tagged: ("ours",)})
    )
    for grants in (Grants(("*",), ("tag:ours",)), Grants(("*",), within=Grants(("*",), ("tag:ours",)))):
        view = snapshot(server_status).view(grants, EVERYTHING)
        assert view.find("resource", "secret:x") is None
        assert (view.find("resource", "other:x") is not None) is has_template


def test_a_resource_that_is_denied_where_others_are_listed_it_is_not_had_by_a_template() -> None:
    secret = resource("secret:x", _meta={"fastmcp": {"tags": ["ours"]}})
    others: ClientCapabilities = frozenset({"roots"})
    offer = FeatureLists(templates=(template("secret:{name}"),), abilities=frozenset({"resources"}))
    server_status = msgspec.structs.replace(ready(resources=[secret]), variants={others: offer})
    assert snapshot(server_status).view(ALL, EVERYTHING, others).find("resource", "secret:x") is not None
    assert (
        snapshot(server_status).view(Grants(("*",), ("tag:ours",)), EVERYTHING, others).find("resource", "secret:x")
        is None
    )


SPELLINGS = (
    "docs://%73ecret",
    "docs://%2573ecret",
    "DOCS://secret",
    "docs://Secret",
    "docs://secret/",
    "docs://./secret",
    "docs://open/../secret",
    "docs://open%2f..%2fsecret",
    "docs://open\\..\\secret",
    "docs:///secret",
    "docs://secret?as=it",
    "docs://secret#part",
    "docs://secret%20",
)


@pytest.mark.parametrize("uri", SPELLINGS)
def test_a_denied_uri_is_not_had_by_a_template_in_another_spelling(uri: str) -> None:
    server_status = ready(templates=[template("{+any}")], resources=[resource("docs://open")])
    assert snapshot(server_status).view(ALL, EVERYTHING).find("resource", uri) is not None
    for denied in ("files.docs://secret", "files.docs://s{name}"):
        view = snapshot(server_status).view(Grants(("*",), (denied,)), EVERYTHING)
        assert view.find("resource", uri) is None, denied
        assert view.find("resource", "docs://other") is not None


# -- servers without a list ------------------------------------------------------------------------------------------

PLAIN = ready(is_unlisted=True, rules=ToolRules(hidden=("format",), defaults={"read": {"lines": 10}}, cached=("read",)))


@pytest.mark.parametrize(
    "grants",
    [Grants(("*",)), Grants(("files.*",)), Grants(("files",)), Grants(("files.*",), within=Grants(("*",), ("web.*",)))],
)
def test_a_caller_of_a_whole_unlisted_server_finds_any_method_and_lists_none(grants: Grants) -> None:
    made = snapshot(PLAIN, TWO[0])
    route = made.find_tool(grants, EVERYTHING, NO_CAPABILITIES, "files.fs.read")
    assert route is not None
    assert (route.feature.server, route.feature.name, route.exposed) == (FILES, "fs.read", "files.fs.read")
    assert made.find_tool(grants, Surface("own", FILES), NO_CAPABILITIES, "fs.read") is not None
    assert not [name for name in names(made.view(grants, EVERYTHING)) if name.startswith("files")]


@pytest.mark.parametrize(
    "grants",
    [
        Grants(()),
        Grants(("web.*",)),
        Grants(("files.fs.read",)),
        Grants(("*",), ("files.fs.write",)),
        Grants(("*",), ("files",)),
        Grants(("*",), ("hint:destructive",)),
        Grants(("*",), within=Grants(("files.fs.read",))),
    ],
)
def test_a_caller_of_a_part_of_it_finds_nothing_there(grants: Grants) -> None:
    made = snapshot(PLAIN, TWO[0])
    for surface, name in ((EVERYTHING, "files.fs.read"), (Surface("own", FILES), "fs.read")):
        assert made.find_tool(grants, surface, NO_CAPABILITIES, name) is None


@pytest.mark.parametrize(
    "name",
    ["files", "files.", "files.format", "files.a\nb", "files.\ud800", f"files.{'a' * 257}", "web.read", "x.read", ""],
)
def test_hidden_and_invalid_names_are_not_found_at_an_unlisted_server(name: str) -> None:
    assert snapshot(PLAIN, TWO[0]).find_tool(ALL, EVERYTHING, NO_CAPABILITIES, name) is None


def test_method_settings_apply_at_an_unlisted_server() -> None:
    route = snapshot(PLAIN).find_tool(ALL, EVERYTHING, NO_CAPABILITIES, "files.read")
    assert route is not None
    assert route.changes is not None
    assert (list(route.changes.defaults), route.keep_seconds > 0) == (["lines"], True)


def test_a_policy_is_asked_about_each_method_of_an_unlisted_server() -> None:
    def narrowing(_: object, __: ServerName, name: FeatureName) -> bool:
        return name == "read"

    made = Snapshot(1, {FILES: PLAIN}, CheckCache(limit_bytes=4096), narrowing)
    assert made.find_tool(ALL, EVERYTHING, NO_CAPABILITIES, "files.read") is not None
    assert made.find_tool(ALL, EVERYTHING, NO_CAPABILITIES, "files.write") is None


def test_tools_call_does_not_bypass_hidden_methods_of_an_unlisted_server() -> None:
    """Some servers take both a method's own name and `tools/call` with that name in its arguments."""

    def narrowing(_: object, __: ServerName, name: FeatureName) -> bool:
        return name != "format"

    plain = ready(is_unlisted=True)
    assert snapshot(plain).find_tool(ALL, EVERYTHING, NO_CAPABILITIES, "files.tools/call") is not None
    assert snapshot(PLAIN).find_tool(ALL, EVERYTHING, NO_CAPABILITIES, "files.tools/call") is None
    narrowed = Snapshot(1, {FILES: plain}, CheckCache(limit_bytes=4096), narrowing)
    assert narrowed.find_tool(ALL, EVERYTHING, NO_CAPABILITIES, "files.tools/call") is None


def test_an_unlisted_method_has_the_same_name_where_tools_are_named_for_language_models() -> None:
    route = snapshot(PLAIN).find_tool(ALL, Surface("llm"), NO_CAPABILITIES, "files.fs.read")
    assert route is not None
    assert (route.feature.server, route.feature.name) == (FILES, "fs.read")


def test_language_models_get_no_name_of_an_unlisted_method() -> None:
    assert snapshot(PLAIN).find_tool(ALL, Surface("llm"), NO_CAPABILITIES, "mcp_files_read") is None


WEB, FILES = ServerName("web"), ServerName("files")
STANDINGS = {
    FILES: ready(
        tool("read", annotations={"readOnlyHint": True}),
        tool("write"),
        prompts=[prompt("ask")],
        resources=[resource("note:one")],
        templates=[template("note:{n}")],
        rules=ToolRules(is_trusted=True, tags={"write": ("loud",)}),
    ),
    WEB: ready(tool("read", WEB, annotations={"readOnlyHint": True}), server=WEB),
}
SNAPSHOT = Snapshot(1, STANDINGS, CheckCache(limit_bytes=4096))
PATTERNS = st.sampled_from(["*", "files", "files.read", "web.*", "tag:loud", "hint:read-only", "hint:destructive"])
LISTS = st.lists(PATTERNS, max_size=3).map(tuple)


@given(LISTS, LISTS, st.one_of(st.none(), LISTS))
def test_everything_is_reported_with_the_reason_why_the_table_has_it_or_not(
    allow: tuple[str, ...], deny: tuple[str, ...], bounds: tuple[str, ...] | None
) -> None:
    grants = Grants(allow, deny, None if bounds is None else Grants(bounds))
    found = explain_access(SNAPSHOT, grants)
    assert [(reason.listed, reason.exposed) for reason in found] == [
        ("tools", "files.read"), ("tools", "files.write"), ("tools", "web.read"), ("prompts", "files.ask"),
        ("resources", "note:one"), ("templates", "note:{n}"),
    ]  # fmt: skip
    view = SNAPSHOT.view(grants, EVERYTHING)
    reached = [*view.routes, *view.prompts, *view.resources, *view.templates]
    for reason in found:
        assert reason.is_reached == (reason.exposed in reached)
        assert reason.is_reached == all(why[0] == "allow" and why[2] is not None for why in reason.why)
