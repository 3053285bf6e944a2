"""Resources of many servers side by side: each is read from the server that lists it."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.access.policy import Policy
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.names import TemplateShape, qualified
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.view import View
from isthmus.model.callers import Grants
from isthmus.model.calls import Surface
from isthmus.model.features import Ability, Resource, Template
from isthmus.model.names import FeatureName, ServerName
from tests.choices import IS_FULL

ALL = Grants(("*",))
EVERYTHING = Surface()
ABLE: frozenset[Ability] = frozenset({"resources"})

steady = settings(deadline=None, derandomize=True, max_examples=150 if IS_FULL else 50)
"""The same examples every time, however busy the machine is."""

# URIs that meet: few letters, the hub's own form, and templates that take everything.
SERVERS = st.sampled_from(["a", "b", "a-b"]).map(ServerName)
TEXTS = st.sampled_from(
    ["x:", "x:1", "x:2", "x:1/2", "y:", "isthmus://hub/a/x:1", "isthmus://hub/b/x:1", "isthmus://hub/"]
)
CLAIMS = st.sampled_from(["{u}", "x:{n}", "x:{m}", "x:1{rest}", "isthmus://hub/{s}/{u}", "isthmus://hub/a/{u}", "y:"])
OFFERS = st.tuples(st.lists(TEXTS, max_size=4, unique=True), st.lists(CLAIMS, max_size=3, unique=True))
HUBS = st.dictionaries(SERVERS, OFFERS, max_size=3)
PATTERNS = st.sampled_from(["*", "a", "b", "a-b", "a.x:1", "a.x:{n}", "b.x:1", "a.isthmus://hub/b/x:1"])
GRANTS = st.builds(
    lambda allow, deny: Grants(tuple(allow), tuple(deny)),
    st.lists(PATTERNS, max_size=3),
    st.lists(PATTERNS, max_size=2),
)
ASKED = st.one_of(TEXTS, st.tuples(SERVERS, TEXTS).map(lambda pair: qualified(*pair)))


def server_status(server: ServerName, uris: Iterable[str], claims: Iterable[str]) -> ServerStatus:
    resources = tuple(Resource.of(server, FeatureName(uri), {}) for uri in uris)
    templates = tuple(Template.of(server, FeatureName(claim), {}) for claim in claims)
    return ServerStatus(server, "ready", resources=resources, templates=templates, abilities=ABLE, is_settled=True)


def view(
    hub: dict[ServerName, tuple[list[str], list[str]]], grants: Grants = ALL, surface: Surface = EVERYTHING
) -> View:
    server_statuses = {server: server_status(server, *offer) for server, offer in hub.items()}
    return Snapshot(1, server_statuses, CheckCache(limit_bytes=1024)).view(grants, surface)


def found(seen: View, uri: str) -> tuple[str, str] | None:
    at = seen.find_resource(uri)
    return None if at is None else (at.route.feature.server, at.name)


@given(HUBS, GRANTS)
@steady
def test_listed_resources_are_read_from_their_server(
    hub: dict[ServerName, tuple[list[str], list[str]]], grants: Grants
) -> None:
    surfaces = [EVERYTHING, Surface("llm"), *(Surface("own", server) for server in hub)]
    for seen in (view(hub, grants, surface) for surface in surfaces):
        for table, kind in ((seen.resources, "resource"), (seen.templates, "uri_argument")):
            for exposed, route in table.items():
                at = seen.find(kind, exposed)  # type: ignore[arg-type]
                assert at is not None
                assert at.name == at.route.feature.name
                assert kind == "uri_argument" or at.route is route


@given(HUBS, GRANTS)
@steady
def test_everything_that_is_granted_is_listed_once(
    hub: dict[ServerName, tuple[list[str], list[str]]], grants: Grants
) -> None:
    seen, policy = view(hub, grants), Policy(grants)
    granted = {
        (server, uri) for server, (uris, _) in hub.items() for uri in uris if policy.allows(server, FeatureName(uri))
    }
    assert {(route.feature.server, route.feature.name) for route in seen.resources.values()} == granted
    assert len(seen.resources) == len(granted)


@given(HUBS, GRANTS, ASKED)
@steady
def test_nothing_is_read_that_is_denied(
    hub: dict[ServerName, tuple[list[str], list[str]]], grants: Grants, uri: str
) -> None:
    at, policy = found(view(hub, grants), uri), Policy(grants)
    if at is not None:
        server, own = ServerName(at[0]), FeatureName(at[1])
        assert not policy.denies(server, own)
        claims = [claim for claim in hub[server][1] if policy.allows(server, FeatureName(claim))]
        assert policy.allows(server, own) or any(TemplateShape(claim).fits(own) for claim in claims)


@given(HUBS, SERVERS, TEXTS)
@steady
def test_a_uri_that_names_a_server_is_read_there_or_nowhere(
    hub: dict[ServerName, tuple[list[str], list[str]]], server: ServerName, uri: str
) -> None:
    at = found(view(hub), qualified(server, uri))
    if server in hub:
        assert at == (server, uri)
    elif len(hub) > 1:
        assert at is None


@given(HUBS, st.lists(CLAIMS, min_size=1, max_size=3, unique=True), ASKED)
@steady
def test_a_newcomer_takes_nothing_by_its_templates_that_another_lists_or_claims(
    hub: dict[ServerName, tuple[list[str], list[str]]], claims: list[str], uri: str
) -> None:
    newcomer = ServerName("0-first-by-name")
    before = found(view(hub), uri)
    offered = {
        (server, own)
        for server, (uris, own_claims) in hub.items()
        for own in (uri, uri.removeprefix(qualified(server, "")))
        if own in uris or any(TemplateShape(claim).fits(own) for claim in own_claims)
    }
    if before is not None and before in offered:
        assert found(view({**hub, newcomer: ([], claims)}), uri) in (before, None)
