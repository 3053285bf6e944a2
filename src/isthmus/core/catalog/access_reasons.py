"""Whether and why a permission set reaches each feature of a snapshot. `app.access` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from isthmus.core.access.policy import UNLABELLED, Labels, Why
from isthmus.core.catalog.snapshot import ALL, Snapshot
from isthmus.core.catalog.tool_rules import (
    labels_of,
)
from isthmus.core.catalog.view import Route
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.features import LISTS, ListName
from isthmus.model.names import FeatureName, ServerName


class ListedEntry(msgspec.Struct, frozen=True, eq=False):
    """One feature of a server, as callers with every permission see it."""

    listed: ListName
    exposed: str
    """Its name on the common surface."""
    route: Route
    labels: Labels = UNLABELLED


class AccessReason(msgspec.Struct, frozen=True):
    """One feature, whether it is reached, and what decided."""

    listed: ListName
    exposed: str
    """Its name for these permissions: in their set, if they are bound to one and have it; else on the common surface.
    """
    route: Route
    is_reached: bool
    why: tuple[Why, ...]
    labels: Labels = UNLABELLED
    set_note: str = ""
    """For permissions that are bound to a set: whether the set has the feature, and why not."""


def listed_entries(snapshot: Snapshot) -> Iterator[ListedEntry]:
    """Every feature by name."""
    everything = snapshot.without_custom_policy().view(ALL, EVERYTHING)
    for listed in LISTS:
        for exposed, route in sorted(everything.table(listed).items()):
            rules = snapshot.server_statuses[route.feature.server].rules
            yield ListedEntry(listed, exposed, route, labels_of(route.feature, rules))


class AccessExplainer:
    """Whether and why one permission set reaches a feature."""

    def __init__(self, snapshot: Snapshot, grants: Grants) -> None:
        self.policy = snapshot.policy(grants)
        self.set = grants.set
        self._left_out: Mapping[tuple[ListName, str], str] = {}
        self._in_set: dict[tuple[ListName, ServerName, str], Route] = {}
        """What the set has that the permissions are bound to."""
        if grants.set is not None:
            own = snapshot.view(grants, EVERYTHING)
            self._left_out = own.left_out
            for listed in LISTS:
                for route in own.table(listed).values():
                    self._in_set[listed, route.feature.server, route.feature.name] = route

    def allows(self, entry: ListedEntry) -> bool:
        """Whether a feature is reached."""
        feature = entry.route.feature
        if self.set is not None:
            return (entry.listed, feature.server, feature.name) in self._in_set
        return self.policy.allows(feature.server, FeatureName(feature.name), entry.labels)

    def explain(self, entry: ListedEntry) -> AccessReason:
        """Whether a feature is reached, and what decided."""
        feature = entry.route.feature
        why = self.policy.why(feature.server, FeatureName(feature.name), entry.labels)
        is_allowed = all(listed == "allow" and pattern is not None for listed, _, pattern in why)
        if self.set is None:
            return AccessReason(entry.listed, entry.exposed, entry.route, is_allowed, why, entry.labels)
        mine, note = self._in_set.get((entry.listed, feature.server, feature.name)), ""
        if mine is not None:
            note = f"{entry.exposed} in the set {self.set}"
        elif is_allowed:
            left_out = self._left_out.get((entry.listed, entry.exposed))
            note = f"left out of the set {self.set}: {left_out}" if left_out else f"not in the set {self.set}"
        shown = mine or entry.route
        exposed = entry.exposed if mine is None else mine.exposed
        return AccessReason(entry.listed, exposed, shown, mine is not None, why, entry.labels, note)


def explain_access(snapshot: Snapshot, grants: Grants) -> list[AccessReason]:
    """Every feature by name, with whether and why these permissions reach it."""
    explainer = AccessExplainer(snapshot, grants)
    return [explainer.explain(entry) for entry in listed_entries(snapshot)]
