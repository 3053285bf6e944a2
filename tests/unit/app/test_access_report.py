"""Reasons that need no hub: policies of extensions, servers without a list, many features; and other rules."""

from __future__ import annotations

import pytest

from isthmus.app import access
from isthmus.app.access import CallerPolicy, changed_callers, differences, table_of, table_passes
from isthmus.core.access.tenants import Tenants, TenantSettings
from isthmus.core.admin_ports import AccessCell, CallerChange, RuleChange, RuleChanges, UnknownName
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.model.callers import Caller, CallerId, Grants
from isthmus.model.names import FeatureName, ServerName
from tests.unit.core.doubles import ready, tool

WEB = ServerName("web")
PLAIN = ServerName("plain")
SOME_DENIED = "a rule denies some of its methods, and so all: their names are not known"


def refuse_search(_: CallerId | None, server: ServerName, name: FeatureName) -> bool:
    return (server, name) != (WEB, "search")


def snapshot(*statuses: ServerStatus, is_narrowed: bool = False) -> Snapshot:
    found = {status.server: status for status in statuses}
    return Snapshot(1, found, CheckCache(limit_bytes=4096), refuse_search if is_narrowed else None)


def cells(caller: Caller, seen: Snapshot) -> dict[str, AccessCell]:
    words = CallerPolicy(caller, seen)
    return {row.exposed: words.cell(row) for row in table_of(seen).rows}


def test_a_refusal_by_an_extension_is_reported_as_one() -> None:
    seen = snapshot(ready(tool("search", WEB), tool("fetch", WEB), server=WEB), is_narrowed=True)
    caller = Tenants(has_policies=True).bound(Caller("cal", "default", Grants(("*",))))
    found = cells(caller, seen)
    assert found["web.search"] == AccessCell(False, "policy", "a policy of extensions.policy refuses it")
    assert found["web.fetch"].allowed


@pytest.mark.parametrize(
    ("allow", "deny", "cell"),
    [
        ("*", (), AccessCell(True, "caller", "* in callers.cal.allow")),
        ("plain", (), AccessCell(True, "caller", "plain.* in callers.cal.allow")),
        ("plain.read", (), AccessCell(False, "caller", "not in callers.cal.allow")),
        ("*", ("plain",), AccessCell(False, "caller", "plain.* in callers.cal.deny")),
        ("*", ("plain.read",), AccessCell(False, "caller", SOME_DENIED)),
    ],
)
def test_a_server_without_a_list_is_granted_as_a_whole(allow: str, deny: tuple[str, ...], cell: AccessCell) -> None:
    seen = snapshot(ServerStatus(PLAIN, "ready", is_settled=True, is_unlisted=True))
    assert cells(Caller("cal", "default", Grants((allow,), deny)), seen) == {"plain.*": cell}


def test_tools_that_no_caller_sees_stand_among_the_others_in_order() -> None:
    status = ServerStatus(
        WEB, "ready", is_settled=True, tools=(tool("b", WEB), tool("d", WEB)), withheld=(FeatureName("a"),),
        left_out={FeatureName("c"): "its schema refers elsewhere"}, rules=ToolRules(only=("b",)),
    )  # fmt: skip
    found = cells(Caller("cal", "default", Grants(("*",))), snapshot(status))
    assert list(found) == ["web.a", "web.b", "web.c", "web.d"]
    assert [found[name].by for name in found] == ["definition", "caller", "server", "server"]
    assert found["web.c"].reason == "left out: its schema refers elsewhere"
    assert found["web.d"].reason == "not in servers.web.include_tools"


def test_a_disabled_server_has_nothing() -> None:
    status = ServerStatus(WEB, "disabled", tools=(tool("b", WEB),), withheld=(FeatureName("a"),))
    assert cells(Caller("cal", "default", Grants(("*",))), snapshot(status)) == {}


def test_long_work_has_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "SLICE", 10)
    seen = snapshot(ready(*(tool(f"t{number}", WEB) for number in range(100)), server=WEB))
    assert len(list(table_passes(seen))) >= 10
    table = table_of(seen)
    was, is_now = Caller("cal", "default", Grants(())), Caller("cal", "default", Grants(("*",)))
    steps = list(differences(([was], table), ([is_now], table)))
    assert len([step for step in steps if step is None]) >= 10
    (change,) = [step for step in steps if step]
    assert len(change.appearing) == 100


def test_other_rules_apply_within_the_tenant() -> None:
    tenants = Tenants({"acme": TenantSettings(Grants(("web",)))})
    caller = tenants.bound(Caller("cal", "acme", Grants(("*",)), frontends=(("rest", Grants(("web.a",))),)))
    other = RuleChanges(
        callers={"cal": CallerChange(deny=("web.b",), frontends={"rest": None, "mcp": RuleChange(deny=("web.c",))})},
        tenants={"acme": RuleChange(allow=("web", "files"))},
    )
    (changed,) = changed_callers([caller], tenants, other)
    assert changed.grants == Grants(("*",), ("web.b",), Grants(("web", "files")))
    assert changed.frontends == (("mcp", Grants(("*",), ("web.c",))),)
    with pytest.raises(UnknownName, match="Unknown tenant: other"):
        changed_callers([caller], tenants, RuleChanges(tenants={"other": RuleChange()}))
    with pytest.raises(ValueError, match=r"callers\.cal\.deny\.0 must be"):
        changed_callers([caller], tenants, RuleChanges(callers={"cal": CallerChange(deny=("*.x",))}))
