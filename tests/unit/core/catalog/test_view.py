"""Finding a named tool or resource: listed, by a template, or unlisted; never at another server."""

from __future__ import annotations

import pytest

from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.view import CANDIDATES_MAX, TEMPLATED_LENGTH_MAX, View
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING, Kind, Surface
from isthmus.model.names import ServerName
from tests.unit.core.doubles import prompt, ready, resource, template, tool

ALL = Grants(("*",))
FILES, WEB = ServerName("files"), ServerName("web")
NOTES = "file:///notes"
TREE = "file:///{path}"


def view(*server_statuses: ServerStatus, grants: Grants = ALL, surface: Surface = EVERYTHING) -> View:
    taken = Snapshot(
        1, {server_status.server: server_status for server_status in server_statuses}, CheckCache(limit_bytes=4096)
    )
    return taken.view(grants, surface)


def found(seen: View, uri: str) -> tuple[str, str] | None:
    """The server where a URI is read, and what it calls it there."""
    at = seen.find_resource(uri)
    return None if at is None else (at.route.feature.server, at.name)


# -- kinds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "own"),
    [
        ("tool", "files.read", "read"),
        ("prompt", "files.ask", "ask"),
        ("prompt_argument", "files.ask", "ask"),
        ("uri_argument", TREE, TREE),
        ("uri_argument", NOTES, NOTES),
        ("resource", NOTES, NOTES),
        ("resource", "file:///else", "file:///else"),
    ],
)
def test_every_kind_of_call_finds_its_own(kind: Kind, name: str, own: str) -> None:
    seen = view(ready(tool(), prompts=[prompt()], resources=[resource(NOTES)], templates=[template(TREE)]))
    at = seen.find(kind, name)
    assert at is not None
    assert (at.route.feature.server, at.name) == (FILES, own)


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("tool", ready(prompts=[prompt("same")], templates=[template("files.same")])),
        ("prompt", ready(tool("same"), templates=[template("files.same")])),
        ("prompt_argument", ready(tool("same"), templates=[template("files.same")])),
        ("uri_argument", ready(tool("same"), prompts=[prompt("same")])),
    ],
)
def test_one_kind_is_not_found_by_the_name_of_another(kind: Kind, others: ServerStatus) -> None:
    assert view(others).find(kind, "files.same") is None


# -- templates and unlisted URIs -----------------------------------------------------------------------------------


def test_a_listed_uri_comes_before_a_template_of_the_same_server() -> None:
    listed = resource(NOTES, description="the list")
    at = view(ready(resources=[listed], templates=[template(TREE)])).find_resource(NOTES)
    assert at is not None
    assert at.route.feature == listed


def test_of_a_servers_own_templates_the_most_literal_one_is_meant() -> None:
    seen = view(ready(templates=[template("{any}"), template("file:///home/{user}"), template(TREE)]))
    at = seen.find_resource("file:///home/me")
    assert at is not None
    assert at.route.feature.name == "file:///home/{user}"


def test_an_unlisted_uri_is_read_at_the_only_server_with_resources() -> None:
    toolsmith = ready(tool("search", WEB), server=WEB, abilities=frozenset({"tools"}))
    assert found(view(ready(), toolsmith), "odd:thing") == (FILES, "odd:thing")
    assert found(view(ready(), ready(server=WEB)), "odd:thing") is None
    assert found(view(toolsmith), "odd:thing") is None


def test_an_unlisted_uri_is_read_at_the_server_that_it_names() -> None:
    seen = view(ready(), ready(server=WEB))
    assert found(seen, "isthmus://hub/web/odd:thing") == (WEB, "odd:thing")
    assert found(seen, "isthmus://hub/nobody/odd:thing") is None


def test_on_a_servers_own_surface_everything_is_read_there() -> None:
    seen = view(ready(), ready(server=WEB), surface=Surface("own", WEB))
    assert found(seen, "odd:thing") == (WEB, "odd:thing")


# -- clashes: no server stands in for another ----------------------------------------------------------------------


def test_a_uri_of_two_servers_is_found_under_the_name_of_each_only() -> None:
    seen = view(ready(resources=[resource(NOTES)]), ready(resources=[resource(NOTES, WEB)], server=WEB))
    assert list(seen.resources) == ["isthmus://hub/files/file:///notes", "isthmus://hub/web/file:///notes"]
    assert [found(seen, uri) for uri in seen.resources] == [(FILES, NOTES), (WEB, NOTES)]
    assert found(seen, NOTES) is None
    assert seen.candidates(NOTES) == tuple(seen.resources)


def test_a_server_that_lists_anothers_qualified_uri_is_not_read_for_it() -> None:
    forged = "isthmus://hub/files/file:///notes"
    thief = ready(server="zzz", resources=[resource(NOTES, "zzz"), resource(forged, "zzz")])
    seen = view(ready(resources=[resource(NOTES)]), thief)
    assert found(seen, forged) == (FILES, NOTES)


@pytest.mark.parametrize("claim", ["{anything}", "isthmus://hub/files/{path}", "isthmus://hub/{server}/{path}"])
def test_no_template_takes_a_uri_that_names_another_server(claim: str) -> None:
    thief = ready(server="aaa", templates=[template(claim, "aaa")])
    seen = view(ready(resources=[resource(NOTES)]), thief)
    assert found(seen, "isthmus://hub/files/file:///unlisted") == (FILES, "file:///unlisted")
    hidden = view(ready(), ready(server=WEB), thief, grants=Grants(("aaa", "web")))
    assert found(hidden, "isthmus://hub/files/file:///unlisted") is None


@pytest.mark.parametrize("claim", [TREE, "file:///{p}", "file:///home/{path}", "{any}"])
def test_a_uri_that_matches_templates_of_two_servers_must_be_qualified(claim: str) -> None:
    seen = view(ready(templates=[template(TREE)]), ready(server="aaa", templates=[template(claim, "aaa")]))
    assert found(seen, "file:///home/me") is None
    assert found(seen, "isthmus://hub/files/file:///home/me") == (FILES, "file:///home/me")
    assert found(seen, "isthmus://hub/aaa/file:///home/me") == ("aaa", "file:///home/me")


def test_a_template_does_not_take_a_uri_that_another_server_lists() -> None:
    both = ready(resources=[resource(NOTES)], templates=[template(TREE)])
    seen = view(both, ready(server=WEB, resources=[resource(NOTES, WEB)]))
    assert found(seen, NOTES) is None
    alone = view(both, ready(server=WEB, resources=[resource(NOTES, WEB)]), grants=Grants(("files",)))
    assert found(alone, NOTES) == (FILES, NOTES)


def test_the_possible_owners_of_a_uri_are_reported() -> None:
    seen = view(ready(templates=[template(TREE)]), ready(server="aaa", templates=[template("{any}", "aaa")]))
    assert seen.candidates("file:///x") == ("isthmus://hub/files/file:///x", "isthmus://hub/aaa/file:///x")
    assert seen.candidates("other:x") == ("isthmus://hub/aaa/other:x",)
    same = view(ready(templates=[template(TREE)]), ready(server="aaa", templates=[template(TREE, "aaa")]))
    assert same.candidates(TREE) == (f"isthmus://hub/aaa/{TREE}", f"isthmus://hub/files/{TREE}")


def test_a_caller_gets_a_bounded_number_of_candidates() -> None:
    many = [ready(server=f"s{n}", resources=[resource(NOTES, f"s{n}")]) for n in range(CANDIDATES_MAX + 5)]
    assert len(view(*many).candidates(NOTES)) == CANDIDATES_MAX


def test_a_uri_of_endless_length_is_held_against_no_template() -> None:
    seen = view(ready(templates=[template(TREE)]), ready(server=WEB))
    longest = "file:///" + "x" * (TEMPLATED_LENGTH_MAX - 8)
    assert found(seen, longest) == (FILES, longest)
    assert found(seen, longest + "x") is None


# -- permissions ---------------------------------------------------------------------------------------------------


def test_prompts_resources_and_templates_are_seen_as_they_are_granted() -> None:
    offered = ready(
        prompts=[prompt("ask"), prompt("tell")],
        resources=[resource(NOTES), resource("file:///keys")],
        templates=[template(TREE), template("db://{table}")],
    )
    grants = Grants(("files",), ("files.tell", "files.file:///keys", "files.db://{table}"))
    seen = view(offered, grants=grants)
    assert (list(seen.prompts), list(seen.resources), list(seen.templates)) == (["files.ask"], [NOTES], [TREE])
    named = view(offered, grants=Grants(("files.ask", f"files.{NOTES}")))
    assert (list(named.prompts), list(named.resources), list(named.templates)) == (["files.ask"], [NOTES], [])


@pytest.mark.parametrize("uri", ["file:///keys", "isthmus://hub/files/file:///keys"])
def test_a_denied_uri_stays_denied_behind_an_allowed_template(uri: str) -> None:
    offered = ready(resources=[resource("file:///keys")], templates=[template(TREE), template("{any}")])
    seen = view(offered, grants=Grants(("files",), ("files.file:///keys",)))
    assert found(seen, uri) is None
    assert found(seen, "file:///other") == (FILES, "file:///other")


def test_a_grant_of_a_template_allows_exactly_the_matching_uris() -> None:
    offered = ready(resources=[resource("db://secrets")], templates=[template(TREE)])
    seen = view(offered, grants=Grants((f"files.{TREE}",)))
    assert found(seen, "file:///x") == (FILES, "file:///x")
    assert found(seen, "db://secrets") is None
    assert found(seen, "odd:thing") is None


def test_a_grant_of_one_tool_allows_no_read() -> None:
    offered = ready(tool(), resources=[resource(NOTES)], templates=[template(TREE)])
    seen = view(offered, grants=Grants(("files.read",)))
    assert [found(seen, uri) for uri in (NOTES, "file:///x", "isthmus://hub/files/file:///notes")] == [None] * 3


def test_a_server_that_the_caller_may_not_see_makes_nothing_ambiguous() -> None:
    hidden = ready(server="aaa", templates=[template("{any}", "aaa")])
    seen = view(ready(templates=[template(TREE)]), hidden, grants=Grants(("files",)))
    assert found(seen, "file:///x") == (FILES, "file:///x")
    assert seen.candidates("other:x") == ()


# -- digests and abilities -----------------------------------------------------------------------------------------


def test_each_lists_digest_changes_with_that_list_alone() -> None:
    before = view(ready(tool(), prompts=[prompt()], resources=[resource(NOTES)]))
    after = view(ready(tool(), prompts=[prompt()], resources=[resource(NOTES)], templates=[template(TREE)]))
    assert before.digest_of("tools") == after.digest_of("tools") == after.digest
    assert before.digest_of("prompts") == after.digest_of("prompts")
    assert before.digest_of("resources") != after.digest_of("resources")


def test_a_resource_and_a_template_of_the_same_text_are_two_lists() -> None:
    listed, behind = view(ready(resources=[resource("x")])), view(ready(templates=[template("x")]))
    assert listed.digest_of("resources") != behind.digest_of("resources")


def test_a_views_abilities_are_those_of_its_servers_together() -> None:
    plain = ready(server=WEB, abilities=frozenset({"tools", "logging"}))
    other = ready(abilities=frozenset({"prompts"}))
    assert view(plain, other).abilities == {"tools", "logging", "prompts"}
    assert view(plain, other, grants=Grants(("files",))).abilities == {"prompts"}
    assert view(plain, grants=Grants(())).abilities == frozenset()


# -- tasks ---------------------------------------------------------------------------------------------------------


def test_a_task_is_looked_for_where_there_is_one_server_that_has_tasks() -> None:
    older = ServerStatus(FILES, "ready", abilities=frozenset({"tools", "tasks"}))
    plain = ServerStatus(WEB, "ready", abilities=frozenset({"tools"}))
    at = view(older, plain, surface=Surface("own", FILES)).find("task", "t")
    assert at is not None
    assert (at.route.feature.server, at.name) == (FILES, "t")
    assert view(older, plain).find("task", "t") is None
    assert view(older, plain, surface=Surface("own", WEB)).find("task_result", "t") is None


# -- what is claimed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server_statuses", "claimed"),
    [
        ([ready(prompts=[prompt()], abilities=frozenset({"prompts"}))], {"prompts"}),
        ([ready(abilities=frozenset())], set()),
        ([ready(abilities=frozenset({"prompts"})), ServerStatus(WEB)], {"prompts", "tools"}),
        ([ServerStatus(WEB, "retrying", "unreachable", is_settled=True)], {"tools"}),
        ([ServerStatus(WEB, "retrying", "gone", abilities=frozenset({"prompts"}), is_settled=True)], {"prompts"}),
        ([ServerStatus(WEB, "disabled", is_settled=True), ready(abilities=frozenset({"prompts"}))], {"prompts"}),
        ([], {"tools"}),
    ],
)
def test_tools_are_claimed_as_long_as_a_server_was_never_seen(
    server_statuses: list[ServerStatus], claimed: set[str]
) -> None:
    assert view(*server_statuses).claimed == claimed
