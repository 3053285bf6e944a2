"""Callers with every kind of permission, and their access: a second implementation of the documented rules."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.model.callers import FrontendName
from tests.hubs import CHECKOUT
from tests.security import labelled_server

SERVERS = ("alpha", "gamma")
"""Of the same length, as all names here are, so that answers can be held against each other."""

TRUSTED = "alpha"
OPERATORS_TAGS = {("gamma", "drop"): {"ours"}, ("gamma", "scold"): {"ours"}}
GUEST = {"allow": ["tag:safe", "gamma.drop", "alpha.tell"], "deny": ["alpha.tell"]}
"""What the devices of an agent may use beside what dials in under it."""
TENANT = {"allow": ["alpha", "tag:ours"], "deny": ["alpha.tell"]}

CALLERS: dict[str, dict[str, Any]] = {
    "all": {"allow": ["*"]},
    "none": {"allow": []},
    "one": {"allow": ["alpha.drop", "gamma.greet", "gamma.gamma:shut"]},
    "server": {"allow": ["gamma"]},
    "minus": {"allow": ["*"], "deny": ["alpha.drop", "alpha.alpha:shut", "gamma.*"]},
    "safe": {"allow": ["tag:safe"]},
    "ours": {"allow": ["tag:ours", "hint:read-only"]},
    "careful": {"allow": ["*"], "deny": ["hint:destructive"]},
    "homely": {"allow": ["*"], "deny": ["hint:open-world", "tag:safe"]},
    "bounded": {"allow": ["*"], "tenant": "acme"},
    "faced": {
        "allow": ["alpha", "gamma.look"],
        "frontends": {
            "rest": {"allow": ["alpha.look", "alpha.greet"]},
            "a2a": {"deny": ["alpha.drop"]},
            "mcp": {"deny": ["alpha.tell"]},
            "sse": {"allow": ["alpha.tell", "gamma"]},
        },
    },
}


def key_of(caller: str) -> str:
    return f"the-key-of-{caller}".ljust(24, "-")


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a server offers, and what it says of it."""

    server: str
    name: str
    tags: frozenset[str] = frozenset()
    hints: Mapping[str, bool] = field(default_factory=dict)
    """Of a tool: those that are told."""
    is_tool: bool = False


def features(kind: str, listed: list[dict[str, Any]], server: str) -> list[Feature]:
    return [
        Feature(
            server,
            each[kind],
            frozenset(each.get("_meta", {}).get("fastmcp", {}).get("tags", [])),
            each.get("annotations", {}),
            is_tool="inputSchema" in each,
        )
        for each in listed
    ]


TOOLS = [each for server in SERVERS for each in features("name", labelled_server.TOOLS, server)]
PROMPTS = [each for server in SERVERS for each in features("name", labelled_server.PROMPTS, server)]
RESOURCES = [each for server in SERVERS for each in features("uri", labelled_server.resources(server), server)]
TEMPLATES = [each for server in SERVERS for each in features("uriTemplate", labelled_server.templates(server), server)]


def is_hinted(hint: str, feature: Feature, *, is_denial: bool) -> bool:
    """Whether a hint applies: an untrusted server's hint grants nothing, and exempts from no denial."""
    received = feature.hints
    is_so = {
        "read-only": received.get("readOnlyHint", False),
        "destructive": received.get("destructiveHint", True) and not received.get("readOnlyHint", False),
        "open-world": received.get("openWorldHint", True),
    }[hint]
    if not feature.is_tool:
        return False
    if feature.server == TRUSTED:
        return is_so
    return is_denial and (is_so or hint in ("destructive", "open-world"))


def is_covered(patterns: list[str], feature: Feature, *, is_denial: bool) -> bool:
    own = OPERATORS_TAGS.get((feature.server, feature.name), set())
    tags = own | (feature.tags if is_denial or feature.server == TRUSTED else set())
    for pattern in patterns:
        kind, colon, word = pattern.partition(":")
        if kind == "tag" and colon:
            is_meant = word in tags
        elif kind == "hint" and colon:
            is_meant = is_hinted(word, feature, is_denial=is_denial)
        else:
            is_meant = pattern in ("*", feature.server, f"{feature.server}.*", f"{feature.server}.{feature.name}")
        if is_meant:
            return True
    return False


def may(caller: str, frontend: FrontendName, feature: Feature) -> bool:
    """Whether a caller is to reach something by a frontend."""
    entry = CALLERS[caller]
    frontends = {"sse": ("mcp", "sse")}.get(frontend, (frontend,))
    sets = [entry, *([TENANT] if "tenant" in entry else [])]
    sets += [entry["frontends"][name] for name in frontends if name in entry.get("frontends", {})]
    return all(
        is_covered(each.get("allow", ["*"]), feature, is_denial=False)
        and not is_covered(each.get("deny", []), feature, is_denial=True)
        for each in sets
    )


def server(name: str) -> dict[str, Any]:
    """The entry of a server."""
    words = [sys.executable, str(CHECKOUT / "tests" / "security" / "labelled_server.py"), name]
    tags = {feature: sorted(of) for (owner, feature), of in OPERATORS_TAGS.items() if owner == name}
    return {"command": words[0], "args": words[1:], "trusted": name == TRUSTED, "tags": tags}
