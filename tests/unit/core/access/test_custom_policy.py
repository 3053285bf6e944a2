"""Tools that an operator's policy code refuses are not listed, called or read; the code cannot allow more."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from isthmus.core.access.policy import BY_CUSTOM_POLICY, CustomPolicy, Policy
from isthmus.core.access.tenants import Tenants, TenantSettings
from isthmus.core.catalog.access_reasons import explain_access
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.model.callers import Caller, CallerId, Grants
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.names import FeatureName, ServerName
from tests.unit.core.doubles import prompt, ready, resource, template, tool

ALL = Grants(("*",))
FILES, WEB = ServerName("files"), ServerName("web")
PLANNER = Caller("planner", "acme", ALL)


class Refusing:
    """Refuses some names to some callers, and remembers whom it was asked about."""

    def __init__(self, *refused: str, to: Iterable[str] = ("planner",)) -> None:
        self._refused = refused
        self._to = to
        self.asked: set[CallerId | None] = set()

    def __call__(self, whose: CallerId | None, server: ServerName, name: FeatureName) -> bool:
        self.asked.add(whose)
        return f"{server}.{name}" not in self._refused or whose is None or whose.name not in self._to


def snapshot(narrowing: CustomPolicy | None, *server_statuses: ServerStatus) -> Snapshot:
    return Snapshot(1, {each.server: each for each in server_statuses}, CheckCache(limit_bytes=4096), narrowing)


def grants_of(caller: Caller, tenants: Tenants | None = None) -> Grants:
    return (tenants or Tenants(has_policies=True)).bound(caller).grants


TWO = (ready(tool("read"), tool("write")), ready(tool("search", WEB), server=WEB))


def test_tools_refused_by_a_policy_are_not_listed_or_called() -> None:
    now = snapshot(Refusing("files.write"), *TWO)
    view = now.view(grants_of(PLANNER), EVERYTHING)
    assert list(view.routes) == ["files.read", "web.search"]
    assert view.find("tool", "files.write") is None


def test_callers_with_the_same_grants_are_distinguished() -> None:
    now = snapshot(Refusing("files.write"), *TWO)
    other = Caller("writer", "acme", ALL)
    assert "files.write" not in now.view(grants_of(PLANNER), EVERYTHING).routes
    assert "files.write" in now.view(grants_of(other), EVERYTHING).routes


def test_nothing_is_allowed_that_grants_do_not_allow() -> None:
    now = snapshot(lambda *_: True, *TWO)
    held = Caller("planner", "acme", Grants(("files.read",)))
    assert list(now.view(grants_of(held), EVERYTHING).routes) == ["files.read"]


def test_it_is_consulted_for_callers_without_credentials_too() -> None:
    narrowing = Refusing()
    snapshot(narrowing, *TWO).view(ALL, EVERYTHING)
    assert narrowing.asked == {None}


def test_a_server_with_only_refused_tools_is_hidden() -> None:
    view = snapshot(Refusing("web.search"), *TWO).view(grants_of(PLANNER), EVERYTHING)
    assert list(view.servers) == ["files"]


def test_prompts_and_resources_are_refused_alike() -> None:
    server_status = ready(prompts=(prompt("ask"),), resources=(resource("file:///a"), resource("file:///b")))
    now = snapshot(Refusing("files.ask", "files.file:///a"), server_status)
    view = now.view(grants_of(PLANNER), Surface("own", FILES))
    assert (list(view.prompts), list(view.resources)) == ([], ["file:///b"])
    assert view.find_resource("file:///a") is None


def test_a_refused_resource_is_not_had_by_a_template() -> None:
    server_status = ready(templates=(template("file:///{name}"),), resources=(resource("file:///secret"),))
    view = snapshot(Refusing("files.file:///secret"), server_status).view(grants_of(PLANNER), Surface("own", FILES))
    assert view.find_resource("file:///secret") is None
    assert view.find_resource("file:///other") is not None


def test_where_a_custom_policy_decides_no_caller_may_use_all_of_a_server() -> None:
    """A method that the hub does not know could be another way to what is refused."""
    now = snapshot(Refusing(), *TWO)
    assert now.view(grants_of(PLANNER), Surface("own", FILES)).whole is None
    assert snapshot(None, *TWO).view(grants_of(PLANNER), Surface("own", FILES)).whole == "files"


def test_the_reason_of_a_refusal_is_reported() -> None:
    found = {each.exposed: each for each in explain_access(snapshot(Refusing("files.write"), *TWO), grants_of(PLANNER))}
    assert found["files.write"].why == (("deny", BY_CUSTOM_POLICY, "a policy"),)
    assert found["files.read"].why == (("allow", 0, "*"),)


@pytest.mark.parametrize(
    "tenants", [Tenants(has_policies=True), Tenants({"acme": TenantSettings(Grants(("files",)))}, has_policies=True)]
)
def test_a_bound_caller_can_be_unbound(tenants: Tenants) -> None:
    bound = tenants.bound(PLANNER)
    assert bound.grants != PLANNER.grants
    assert tenants.unbound(bound) == PLANNER
    assert tenants.unbound(tenants.bound(bound)) == bound
    assert not tenants.are_unrestricted


def test_the_caller_id_makes_no_permission_set_of_its_own() -> None:
    """Else reasons would be looked for in places where nothing is written."""
    policy = Policy(grants_of(PLANNER), custom_policy=lambda *_: True)
    assert policy.why(FILES, FeatureName("read")) == (("allow", 0, "*"),)
    assert policy.is_narrowed
