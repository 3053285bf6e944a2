"""What is said of a feature beside its name, as far as permissions can be about it: its tags and its hints.

Tags are the operator's (`ToolRules.tags`) or its server's (`_meta`, as FastMCP writes them); hints are its server's alone
(`annotations` of a tool). A server may lie. So what it says counts for a permission only if the operator trusts it; and
where something is denied, a server that is not trusted cannot talk its way out of it. Asked by `snapshot`, and by
whoever explains a permission.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.core.access.policy import HINT, TAG, Hint, Labels
from isthmus.core.catalog.rules import ToolRules
from isthmus.model.features import Feature, Tool

HINT_MEMBERS: dict[Hint, tuple[str, bool]] = {
    "read-only": ("readOnlyHint", False),
    "destructive": ("destructiveHint", True),
    "idempotent": ("idempotentHint", False),
    "open-world": ("openWorldHint", True),
}
"""What servers call the hints, and what is so where they say nothing (MCP, `ToolAnnotations`)."""

_META = ("fastmcp", "_fastmcp")
"""Under which of its members FastMCP puts tags, today and before its version 3."""


def labels_of(feature: Feature, rules: ToolRules) -> Labels:
    """What is said of one feature, and whether it is believed."""
    own = frozenset(f"{TAG}{tag}" for tag in (*rules.tags_of_all, *rules.tags.get(feature.name, ())))
    claimed = _claimed(_text_of(feature, "_meta"))
    hints = _hints(_text_of(feature, "annotations")) if isinstance(feature, Tool) else {}
    said = claimed | {f"{HINT}{hint}" for hint, is_so in hints.items() if is_so}
    if rules.is_trusted:
        return Labels(own | said, own | said)
    feared = {f"{HINT}{hint}" for hint in hints if HINT_MEMBERS[hint][1]}
    return Labels(own, own | said | feared)


def _text_of(feature: Feature, member: str) -> bytes:
    return bytes(feature.definition.get(member, b""))


def _claimed(meta: bytes) -> frozenset[str]:
    """The tags that a server gives."""
    said = _object(meta)
    tables = [said.get(name) for name in _META]
    lists = [table.get("tags") for table in tables if isinstance(table, dict)]
    return frozenset(f"{TAG}{tag}" for tags in lists if isinstance(tags, list) for tag in tags if isinstance(tag, str))


def _hints(annotations: bytes) -> dict[Hint, bool]:
    """What is so of a tool by its annotations; a value that is no boolean says nothing."""
    said = _object(annotations)
    hints: dict[Hint, bool] = {}
    for hint, (member, default) in HINT_MEMBERS.items():
        value = said.get(member)
        hints[hint] = value if isinstance(value, bool) else default
    if hints["read-only"]:
        hints["destructive"] = False  # it means something only of a tool that changes things
    return hints


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text) if text else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # such as a number that is longer than any here: nothing is said
    return found if isinstance(found, dict) else {}
