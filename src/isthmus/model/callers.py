"""A caller and its permissions.

Plain values: a frontend creates a `Caller` from a credential and passes it on with each call. Whether a grant covers a
tool is decided by `core.access.policy`, compiled from `Grants`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

KEY_VARIABLE = "ISTHMUS_KEY"
"""The variable with the key of a caller. Keys come from the environment only: every user of a machine can read a
command's arguments."""

Exposure: TypeAlias = Literal["all", "search", "code"]
"""Which tools a caller's lists have: its own ones, or tools of the hub that find and call them."""

EXPOSURES: tuple[Exposure, ...] = get_args(Exposure)

VIRTUAL_TOOLS: Mapping[str, Exposure] = MappingProxyType(
    {"search_tools": "search", "call_tool": "search", "run_code": "code", "tool_signatures": "code"}
)
"""The tools of the hub itself that only some callers have, and an exposure that gives them."""

FrontendName: TypeAlias = Literal["mcp", "sse", "a2a", "rest"]
"""A frontend that may have narrower grants; gRPC is `a2a`, and the published hub is `mcp`."""

_WITHIN: dict[FrontendName, tuple[FrontendName, ...]] = {
    "mcp": ("mcp",),
    "sse": ("mcp", "sse"),
    "a2a": ("a2a",),
    "rest": ("rest",),
}
"""Whose rules apply on a frontend. SSE is MCP over an older transport: a denial on `mcp` applies there too."""

FRONTENDS: tuple[FrontendName, ...] = tuple(_WITHIN)

FORMS_MAX = 4096
"""How many callers are cached per frontend."""


class CallerId(msgspec.Struct, frozen=True):
    """The caller that a custom policy decides about."""

    tenant: str
    name: str


class Grants(msgspec.Struct, frozen=True, cache_hash=True):
    """A permission set as configured: patterns of what is allowed and what is denied.

    It is hashable on purpose: callers with equal grants share one compiled view.
    """

    allow: tuple[str, ...]
    deny: tuple[str, ...] = ()
    within: Grants | None = None
    """What must allow it too: a tenant's bounds, or a caller's own grants where a frontend narrows them."""
    caller_id: CallerId | None = None
    """The caller that custom policies are asked about, if there are any."""
    set: str | None = None
    """The set that the caller is bound to: on every surface it sees that set, and nothing else."""
    expose: Exposure | None = None
    """Which tools its lists have; None for what its set or the hub says. It changes no permission."""

    def bounded_by(self, bounds: Grants | None) -> Grants:
        """These grants, limited to what the bounds allow."""
        if bounds is None:
            return self
        within = bounds if self.within is None else self.within.bounded_by(bounds)
        # The outermost grants name the set and the exposure, wherever in the chain they were configured.
        return replace(
            self,
            within=within,
            set=bounds.set if self.set is None else self.set,
            expose=bounds.expose if self.expose is None else self.expose,
        )


class Caller(msgspec.Struct, frozen=True, cache_hash=True):
    """An identity with its tenant and permissions."""

    name: str
    tenant: str
    grants: Grants
    may_name_targets: bool = False
    """Whether it may have servers called that are not configured, at addresses that it names."""
    is_anyone: bool = False
    """Whether it stands for all callers without a key, which cannot be distinguished."""
    key: str = ""
    """The id of the key that it used, which reveals nothing of the key: what a key opened, such as a session or a
    stream, ends with it, even if its caller has other keys."""
    frontends: tuple[tuple[FrontendName, Grants], ...] = msgspec.field(default=(), name="faces")
    """Narrower grants on single frontends. Stored as `faces`: task records hold calls with their callers."""
    frontend: FrontendName | None = msgspec.field(default=None, name="face")
    """The frontend that it came by, if that makes a difference. Stored as `face`."""
    is_operator: bool = False
    """Whether it may see what is not for callers (state, log and figures of every server), restart and forget servers.
    Permissions to call tools do not include that: they are not meant to reveal what is logged about others."""
    rights: str = ""
    """A digest of what its token may do elsewhere, where tokens are exchanged: a token with fewer rights must not be
    served with what another token of the same caller was exchanged for."""

    max_result_bytes: int | None = None
    """Larger results are cut; 0 for no limit, None for what its set, the server or the hub says."""

    def on(self, frontend: FrontendName) -> Caller:
        """The caller as it comes by a frontend: with the same identity, and with what that frontend allows."""
        return _on(self, frontend) if self.frontends else self

    @property
    def can_name_targets(self) -> bool:
        """Whether it may name servers that are not configured, here.

        Its tenant and its frontend may narrow its grants to servers that are configured. If they deny by label, it may
        not either: the server could have that label.
        """
        if not self.may_name_targets or self.grants.set is not None:
            return False
        own, depth = len(narrowed_on(self)), 0
        each: Grants | None = self.grants
        while each is not None:
            # At this depth are its own grants; all others are bounds of frontends and tenants.
            # Only `*` and labels (see `core.access.policy`) can match more than configured servers.
            denies_more = any(pattern == "*" or pattern.startswith(("tag:", "hint:")) for pattern in each.deny)
            if depth != own and (denies_more or "*" not in each.allow):
                return False
            each, depth = each.within, depth + 1
        return True

    @property
    def at_large(self) -> Caller:
        """The caller without the rules of the frontend that it came by."""
        if self.frontend is None:
            return self
        grants = self.grants
        for _ in narrowed_on(self):
            assert grants.within is not None, "a frontend only narrows"
            grants = grants.within
        return replace(self, grants=grants, frontend=None)


@lru_cache(maxsize=FORMS_MAX)
def _on(caller: Caller, frontend: FrontendName) -> Caller:
    """Cached, because frontends need it for each request."""
    narrowed = caller.grants
    for name, grants in caller.frontends:
        if name in _WITHIN[frontend]:
            narrowed = grants.bounded_by(narrowed)
    return replace(caller, grants=narrowed, frontend=frontend)


def narrowed_on(caller: Caller) -> tuple[FrontendName, ...]:
    """The frontends whose rules narrow a caller, the outermost first; empty for a caller at large."""
    return (
        ()
        if caller.frontend is None
        else tuple(name for name, _ in caller.frontends if name in _WITHIN[caller.frontend])
    )


def everywhere(callers: Iterable[Caller]) -> frozenset[Caller]:
    """These callers, and each as the frontends have it."""
    return frozenset(form for caller in callers for form in (caller, *map(caller.on, FRONTENDS)))


class Unprovable(msgspec.Struct, frozen=True):
    """The caller cannot be identified now, because the proof cannot be read. It is rejected."""

    reason: str
    """The reason for the caller, without secrets."""
