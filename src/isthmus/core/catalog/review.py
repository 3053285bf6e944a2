"""What of a server's standing callers are shown: without what is withheld or left out, and with marks on what is odd.

Withheld is what was not approved (`catalog.pins`), left out what cannot be used as it is (`catalog.references`). The
hub has every standing reviewed before it is published. The same list comes again and again, with each change of a
server's state, so that what was found last is kept with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from isthmus.core.catalog.definition_lint import flags_of, outside_reference, with_flags
from isthmus.core.catalog.pins import Pins
from isthmus.core.catalog.snapshot import FeatureLists, ServerStatus
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.features import Feature, Tool
from isthmus.model.names import FeatureName, ServerName

FOUND_KEPT: Final = 20_000
NOTES_MAX: Final = 20
SLICE_SECONDS: Final = 0.005
"""How long the loop is kept at a time."""

F = TypeVar("F", bound=Feature)

LeftOut = Mapping[FeatureName, str]
"""Tools that nobody is shown, and why."""


class _Seen(NamedTuple):
    raw: ServerStatus
    shown: ServerStatus


class _Found(NamedTuple):
    """What there is to say of one definition."""

    flags: tuple[str, ...]
    outside_reference: str | None


class _Passing(NamedTuple):
    """Of what a server lists to some, the part that they see."""

    offer: FeatureLists
    withheld: list[FeatureName]
    left_out: LeftOut


class Review:
    """Looks at what servers list. Without `pins` nothing is withheld.

    `on_left_out` hears once of each tool that is left out, for the reason that is told then.
    """

    def __init__(self, pins: Pins | None = None) -> None:
        self.pins = pins
        self.on_left_out: Callable[[ServerName, LeftOut], None] = _nobody
        self._found: dict[bytes, _Found] = {}
        self._seen: dict[ServerName, _Seen] = {}
        self._told: dict[ServerName, LeftOut] = {}

    def reviewed(self, server_status: ServerStatus) -> ServerStatus:
        """The standing as callers are to see it."""
        if not server_status.has_lists and not server_status.variants:
            return server_status
        seen = self._seen.get(server_status.server)
        if seen is None or _listed(seen.raw) != _listed(server_status):
            seen = self._seen[server_status.server] = _Seen(server_status, self._look(server_status))
        return server_status if seen.shown is seen.raw else _with_lists_of(server_status, seen.shown)

    async def prepare(self, features: Iterable[Feature]) -> None:
        """Look at what is about to be published, a little at a time: a thousand tools would hold up every call."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_SECONDS
        for feature in features:
            self._find(feature)
            if self.pins is not None and isinstance(feature, Tool):
                self.pins.prepare(feature)
            if loop.time() > until:
                await asyncio.sleep(0)
                until = loop.time() + SLICE_SECONDS

    def withholds(self, server: ServerName) -> bool:
        """Whether a tool of this server that looks otherwise than it did is kept from callers."""
        return self.pins is not None and self.pins.withholds(server)

    def passes_apart(self, tool: Tool, client_caps: ClientCapabilities) -> bool:
        """Whether a tool may be called on a link of single callers, on which it is listed like this."""
        return self._find(tool).outside_reference is None and (
            self.pins is None or self.pins.passes_apart(tool, client_caps)
        )

    def last_published(self, server: ServerName) -> ServerStatus | None:
        """What a server published last, to be published anew since other tools may be seen now."""
        seen = self._seen.pop(server, None)
        return None if seen is None else seen.raw

    def forget(self, server: ServerName) -> None:
        """The server is gone."""
        self._seen.pop(server, None)
        self._told.pop(server, None)

    def _look(self, server_status: ServerStatus) -> ServerStatus:
        base, withheld, left_out = self._offer(_lists(server_status), NO_CAPABILITIES)
        variants = dict(server_status.variants)
        for client_caps, offer in server_status.variants.items():
            variants[client_caps], missing, outside = self._offer(offer, client_caps)
            withheld += [name for name in missing if name not in withheld]
            left_out = {**outside, **left_out}
        self._tell(server_status.server, left_out)
        if base == _lists(server_status) and variants == server_status.variants:
            return server_status
        return msgspec.structs.replace(
            server_status,
            tools=base.tools,
            prompts=base.prompts,
            resources=base.resources,
            templates=base.templates,
            variants=variants,
            withheld=tuple(withheld),
            left_out={**server_status.left_out, **left_out},
            notes=(*server_status.notes, *_notes(server_status.server, withheld), *_notes_on(left_out)),
        )

    def _tell(self, server: ServerName, left_out: LeftOut) -> None:
        told = self._told.get(server, {})
        if left_out == told:
            return
        self._told[server] = left_out
        news = {name: why for name, why in left_out.items() if told.get(name) != why}
        if news:
            self.on_left_out(server, news)

    def _offer(self, offer: FeatureLists, client_caps: ClientCapabilities) -> _Passing:
        left_out = {tool.name: why for tool in offer.tools if (why := self._find(tool).outside_reference) is not None}
        usable = tuple(tool for tool in offer.tools if tool.name not in left_out) if left_out else offer.tools
        tools, withheld = self._passing(usable, client_caps)
        changed = FeatureLists(
            self._marked(tools),
            self._marked(offer.prompts),
            self._marked(offer.resources),
            self._marked(offer.templates),
            offer.abilities,
        )
        return _Passing(offer if changed == offer else changed, withheld, left_out)

    def _passing(
        self, tools: tuple[Tool, ...], client_caps: ClientCapabilities
    ) -> tuple[tuple[Tool, ...], list[FeatureName]]:
        if self.pins is None:
            return tools, []
        passing = {tool.name: self.pins.passes(tool, client_caps) for tool in tools}
        if all(passing.values()):
            return tools, []
        return tuple(tool for tool in tools if passing[tool.name]), [name for name in passing if not passing[name]]

    def _marked(self, features: tuple[F, ...]) -> tuple[F, ...]:
        if not any(self._find(feature).flags for feature in features):
            return features
        return tuple(with_flags(each, flags) if (flags := self._find(each).flags) else each for each in features)

    def _find(self, feature: Feature) -> _Found:
        key = feature.digest + feature.name.encode("utf-8", "surrogatepass")
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= FOUND_KEPT:
                self._found.clear()
            outside = outside_reference(feature) if isinstance(feature, Tool) else None
            found = self._found[key] = _Found(flags_of(feature), outside)
        return found


def _listed(server_status: ServerStatus) -> tuple[object, ...]:
    """What a review is of; the same until the server lists something else."""
    lists = (server_status.tools, server_status.prompts, server_status.resources, server_status.templates)
    return (*lists, server_status.variants, server_status.notes)


def _lists(server_status: ServerStatus) -> FeatureLists:
    return FeatureLists(
        server_status.tools,
        server_status.prompts,
        server_status.resources,
        server_status.templates,
        server_status.abilities,
    )


def _with_lists_of(server_status: ServerStatus, shown: ServerStatus) -> ServerStatus:
    return msgspec.structs.replace(
        server_status,
        tools=shown.tools,
        prompts=shown.prompts,
        resources=shown.resources,
        templates=shown.templates,
        variants=shown.variants,
        withheld=shown.withheld,
        left_out=shown.left_out,
        notes=shown.notes,
    )


def _nobody(_server: ServerName, _left_out: LeftOut) -> None:
    """Where nobody is to be told."""


def _notes(server: ServerName, withheld: Iterable[FeatureName]) -> list[str]:
    names = list(withheld)
    told = [f"{name!r} is withheld: run isthmus approve {server}.{name}" for name in names[:NOTES_MAX]]
    return told if len(names) <= NOTES_MAX else [*told, f"{len(names) - NOTES_MAX} more are withheld"]


def _notes_on(left_out: LeftOut) -> list[str]:
    told = [f"{name!r} left out: {why}" for name, why in list(left_out.items())[:NOTES_MAX]]
    return told if len(left_out) <= NOTES_MAX else [*told, f"{len(left_out) - NOTES_MAX} more are left out"]
