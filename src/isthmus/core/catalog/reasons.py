"""Why a permission set reaches what it reaches: for people who write permissions, and not for calls.

What is reached is read from the same table as every list and every call (`snapshot`); only the reasons are worked out
here. Asked by the command line.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from isthmus.core.access.policy import UNLABELLED, Labels, Why
from isthmus.core.catalog.labels import labels_of
from isthmus.core.catalog.snapshot import LISTS, ListName, Snapshot
from isthmus.core.catalog.view import Route, View
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.names import FeatureName

ALL = Grants(("*",))


class AccessReason(msgspec.Struct, frozen=True):
    """One thing that servers offer, whether it is reached, and what decided."""

    listed: ListName
    exposed: str
    """What it is called where all servers meet."""
    route: Route
    is_reached: bool
    why: tuple[Why, ...]
    labels: Labels = UNLABELLED


def explain_access(snapshot: Snapshot, grants: Grants) -> list[AccessReason]:
    """Everything that is offered, in the order of its names, with whether and why these permissions reach it."""
    policy, own = snapshot.policy(grants), snapshot.view(grants, EVERYTHING)
    everything = snapshot.as_patterns_have_it().view(ALL, EVERYTHING)
    found: list[AccessReason] = []
    for listed in LISTS:
        reached = _table(own, listed)
        for exposed, route in sorted(_table(everything, listed).items()):
            feature = route.feature
            labels = labels_of(feature, snapshot.server_statuses[feature.server].rules)
            why = policy.why(feature.server, FeatureName(feature.name), labels)
            found.append(AccessReason(listed, exposed, route, exposed in reached, why, labels))
    return found


def _table(view: View, listed: ListName) -> Mapping[str, Route]:
    tables = {"tools": view.routes, "prompts": view.prompts, "resources": view.resources, "templates": view.templates}
    return tables[listed]
