"""Who is calling, and what they were granted.

Plain values: a face makes a `Caller` from a credential and hands it on with each call. Whether a grant covers
a tool is not decided here; `core.access.policy` compiles that from `Grants`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

Face: TypeAlias = Literal["mcp", "sse", "a2a", "rest"]
"""A way in that a caller may be held to less on; gRPC is `a2a`, and what is published of the hub is `mcp`."""

_WITHIN: dict[Face, tuple[Face, ...]] = {"mcp": ("mcp",), "sse": ("mcp", "sse"), "a2a": ("a2a",), "rest": ("rest",)}
"""Whose rules hold on a face. SSE is MCP by an older carrier: what is refused on `mcp` must not be had there."""

FACES: tuple[Face, ...] = tuple(_WITHIN)

FORMS_MAX = 4096
"""How many callers are remembered as a face has them; of more, some are made again."""


class CallerId(msgspec.Struct, frozen=True):
    """Who is held to something that is not said by patterns."""

    tenant: str
    name: str


class Grants(msgspec.Struct, frozen=True, cache_hash=True):
    """A permission set as configured: patterns of what is allowed and what is not.

    It is hashable on purpose: callers with equal grants share one compiled view.
    """

    allow: tuple[str, ...]
    deny: tuple[str, ...] = ()
    within: Grants | None = None
    """What must allow it too: the bounds of a tenant, or a caller's own grants where a face narrows them."""
    whose: CallerId | None = None
    """Whom policies beside these patterns are asked about, where there are any."""

    def bounded_by(self, bounds: Grants | None) -> Grants:
        """These grants, of which only what the bounds allow is left."""
        if bounds is None:
            return self
        return replace(self, within=bounds if self.within is None else self.within.bounded_by(bounds))


class Caller(msgspec.Struct, frozen=True, cache_hash=True):
    """An identity with its tenant and permissions."""

    name: str
    tenant: str
    grants: Grants
    may_name_targets: bool = False
    """Whether it may have servers called that are not configured, at addresses that it names."""
    is_anyone: bool = False
    """Whether it stands for whoever calls: nobody has shown a key, so that one cannot be told from another."""
    key: str = ""
    """Which of its keys it has shown, by an id that tells nothing of the key: what one key has opened, such as a
    session or a stream, ends with it, whatever others its caller has."""
    faces: tuple[tuple[Face, Grants], ...] = ()
    """What it is held to on single faces, within its grants."""
    face: Face | None = None
    """By which of these it came, if that makes a difference to it."""
    is_operator: bool = False
    """Whether it is shown what is not for callers (how every server stands, what it logs) and may tidy up. What it may
    call says nothing of that: whoever may call everything is not meant to read what is logged of others."""
    rights: str = ""
    """A digest of what its token may do elsewhere, where tokens are exchanged: the token of one caller that may do less
    must not be served by what another one of its was exchanged for."""

    def on(self, face: Face) -> Caller:
        """The same caller as it comes by a face: it owns the same things, and may do what is left to it there."""
        return _on(self, face) if self.faces else self

    @property
    def can_name_targets(self) -> bool:
        """Whether it may name servers that are not configured, here.

        Its tenant and its face may hold it to less than everything, and what nobody configured is not among that; nor
        is it if they deny what is not named, since it could be that.
        """
        return self.may_name_targets and all(
            "*" in each.allow and not any(map(_may_mean_anything, each.deny)) for each in self._bounds()
        )

    def _bounds(self) -> Iterator[Grants]:
        """What its own grants are held to, by faces and by whatever bounds them."""
        own = len(narrowed_on(self))
        each: Grants | None = self.grants
        for depth in count():
            if each is None:
                return
            if depth != own:
                yield each
            each = each.within

    @property
    def at_large(self) -> Caller:
        """The same caller, whichever face it came by: as whoever knows it has it."""
        if self.face is None:
            return self
        grants = self.grants
        for _ in narrowed_on(self):
            assert grants.within is not None, "a face narrows what is allowed anyway"
            grants = grants.within
        return replace(self, grants=grants, face=None)


@lru_cache(maxsize=FORMS_MAX)
def _on(caller: Caller, face: Face) -> Caller:
    """Kept, because a face asks for each of its requests."""
    narrowed = caller.grants
    for name, grants in caller.faces:
        if name in _WITHIN[face]:
            narrowed = grants.bounded_by(narrowed)
    return replace(caller, grants=narrowed, face=face)


def _may_mean_anything(pattern: str) -> bool:
    """Whether a pattern (see `core.access.policy`) is about more than what a configured server has."""
    return pattern == "*" or pattern.startswith(("tag:", "hint:"))


def narrowed_on(caller: Caller) -> tuple[Face, ...]:
    """Whose rules narrow a caller where it came, the outermost first; none for one at large."""
    return () if caller.face is None else tuple(name for name, _ in caller.faces if name in _WITHIN[caller.face])


def everywhere(callers: Iterable[Caller]) -> frozenset[Caller]:
    """These callers, and each as the faces have it: everybody who may be somewhere because these are known."""
    return frozenset(form for caller in callers for form in (caller, *map(caller.on, FACES)))


class Unprovable(msgspec.Struct, frozen=True):
    """Who calls cannot be known just now, because what would prove it cannot be read. Nobody comes in by this."""

    reason: str
    """For whoever asks, without a secret."""
