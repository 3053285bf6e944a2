"""Who is calling, and what they were granted.

Plain values: a face makes a `Caller` from a credential and hands it on with each call. Whether a grant covers
a tool is not decided here; `core.access.policy` compiles that from `Grants`.
"""

from __future__ import annotations

import msgspec


class Grants(msgspec.Struct, frozen=True):
    """A permission set as configured: patterns of what is allowed and what is not.

    It is hashable on purpose: callers with equal grants share one compiled view.
    """

    allow: tuple[str, ...]
    deny: tuple[str, ...] = ()


class Caller(msgspec.Struct, frozen=True):
    """An identity with its tenant and permissions."""

    name: str
    tenant: str
    grants: Grants
    may_name_targets: bool = False
    """Whether it may have servers called that are not configured, at addresses that it names."""
    is_anyone: bool = False
    """Whether it stands for whoever calls: nobody has shown a key, so that one cannot be told from another."""
