"""One table for listing and calling: what a permission set sees on each surface."""

from __future__ import annotations

import pytest

from isthmus.core.catalog import snapshot as snapshots
from isthmus.core.catalog.checks import CheckCache
from isthmus.core.catalog.snapshot import Snapshot, Standing
from isthmus.core.catalog.view import View
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.names import ServerName
from tests.unit.core.doubles import raw, ready, tool

ALL = Grants(("*",))
WEB = ServerName("web")
FILES = ServerName("files")


def snapshot(*standings: Standing) -> Snapshot:
    return Snapshot(1, {standing.server: standing for standing in standings}, CheckCache(limit_bytes=4096))


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
def test_only_what_is_granted_is_there(grants: Grants, seen: list[str]) -> None:
    assert names(snapshot(*TWO).view(grants, EVERYTHING)) == seen


def test_a_route_leads_to_the_tool_of_its_name() -> None:
    route = snapshot(*TWO).view(ALL, EVERYTHING).routes["web.search"]
    assert (route.exposed, route.feature) == ("web.search", tool("search", WEB))


def test_a_server_that_is_away_keeps_its_tools_and_is_named_with_the_reason() -> None:
    away = Standing(FILES, "retrying", "it crashed", tools=(tool("read"),), is_settled=True)
    view = snapshot(away, Standing(WEB)).view(ALL, EVERYTHING)
    assert names(view) == ["files.read"]
    assert (view.missing[FILES].state, view.missing[FILES].reason, view.missing[FILES].is_listed) == (
        "retrying",
        "it crashed",
        True,
    )
    assert not view.missing[WEB].is_listed


def test_a_server_that_the_caller_may_not_see_is_not_named_as_missing_either() -> None:
    view = snapshot(Standing(WEB), Standing(FILES)).view(Grants(("files.read",)), EVERYTHING)
    assert list(view.missing) == [FILES]


def test_a_disabled_server_is_not_there_at_all() -> None:
    disabled = Standing(WEB, "disabled", "disabled", tools=(tool("search", WEB),))
    taken = snapshot(disabled, ready(tool("read")))
    view = taken.view(ALL, EVERYTHING)
    assert names(view) == ["files.read"]
    assert view.missing == {}
    assert set(view.servers) == {FILES}
    assert taken.pairs() == [(FILES, tool("read").name)]


def test_a_view_knows_which_servers_it_shows_whatever_their_state() -> None:
    taken = snapshot(Standing(WEB), *TWO[1:])
    assert taken.view(ALL, EVERYTHING).servers == {WEB, FILES}
    assert taken.view(Grants(("files.read",)), EVERYTHING).servers == {FILES}
    assert taken.view(Grants(("files.read",)), Surface("own", WEB)).servers == frozenset()


def test_equal_grants_share_one_view() -> None:
    taken = snapshot(*TWO)
    assert taken.view(Grants(("web.*",)), EVERYTHING) is taken.view(Grants(("web.*",)), EVERYTHING)
    assert taken.view(ALL, Surface("llm")) is not taken.view(ALL, EVERYTHING)


def test_the_number_of_views_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "VIEWS_MAX", 2)
    taken = snapshot(*TWO)
    first = taken.view(ALL, EVERYTHING)
    taken.view(Grants(("web",)), EVERYTHING)
    taken.view(Grants(("files",)), EVERYTHING)
    again = taken.view(ALL, EVERYTHING)
    assert again is not first
    assert names(again) == names(first)


def test_the_digest_changes_exactly_when_the_list_does() -> None:
    digest = snapshot(*TWO).view(ALL, EVERYTHING).digest
    assert snapshot(*reversed(TWO)).view(ALL, EVERYTHING).digest == digest
    assert snapshot(TWO[1]).view(ALL, EVERYTHING).digest != digest
    described = ready(tool("search", WEB, description="new words"), server=WEB)
    assert snapshot(described, TWO[1]).view(ALL, EVERYTHING).digest != digest
    away = Standing(WEB, "retrying", "gone", tools=TWO[0].tools, is_settled=True)
    assert snapshot(away, TWO[1]).view(ALL, EVERYTHING).digest == digest
    assert snapshot(*TWO).view(ALL, Surface("llm")).digest != digest


# -- checks --------------------------------------------------------------------------------------------------------


TEXT = {"type": "object", "required": ["text"]}


def test_a_tool_without_a_usable_schema_is_not_checked_here() -> None:
    cache = CheckCache(limit_bytes=4096)
    assert cache.of(tool())(raw({})) is None
    assert cache.of(tool(inputSchema={"type": "nonsense"}))(raw({})) is None


def test_a_check_is_compiled_on_the_first_call_and_kept() -> None:
    cache = CheckCache(limit_bytes=4096)
    check = cache.of(tool(inputSchema=TEXT))
    assert len(cache._checks) == 0
    assert check(raw({})) == '"text" is a required property'
    assert cache.of(tool(inputSchema=TEXT))(raw({"text": 1})) is None
    assert len(cache._checks) == 1


def test_a_changed_schema_is_a_new_check() -> None:
    cache = CheckCache(limit_bytes=4096)
    assert cache.of(tool(inputSchema=TEXT))(raw({})) is not None
    assert cache.of(tool(inputSchema={"type": "object"}))(raw({})) is None


def test_the_number_of_checks_kept_is_bounded() -> None:
    cache = CheckCache(limit_bytes=4096, capacity=2)
    for name in ("a", "b", "c"):
        assert cache.of(tool(name, inputSchema=TEXT))(raw({})) is not None
    assert len(cache._checks) == 1
