"""What of a server's standing callers are shown: without the tools that are withheld, and with marks on what is odd.

The hub has every standing reviewed before it is published. The same list comes again and again, with each change of a
server's state, so that what was found last is kept with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

import msgspec

from isthmus.core.catalog.hygiene import flagged, flags_of
from isthmus.core.catalog.pins import Pins
from isthmus.core.catalog.snapshot import Offer, Standing
from isthmus.model.features import Feature, Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.questions import NOTHING, Profile

FLAGS_KEPT: Final = 20_000
NOTES_MAX: Final = 20
SLICE_SECONDS: Final = 0.005
"""How long the loop is kept at a time."""

F = TypeVar("F", bound=Feature)


class _Seen(NamedTuple):
    raw: Standing
    shown: Standing


class Review:
    """Looks at what servers list. Without `pins` nothing is withheld."""

    def __init__(self, pins: Pins | None = None) -> None:
        self.pins = pins
        self._flags: dict[bytes, tuple[str, ...]] = {}
        self._seen: dict[ServerName, _Seen] = {}

    def of(self, standing: Standing) -> Standing:
        """The standing as callers are to see it."""
        if not standing.has_lists and not standing.variants:
            return standing
        seen = self._seen.get(standing.server)
        if seen is None or _listed(seen.raw) != _listed(standing):
            seen = self._seen[standing.server] = _Seen(standing, self._look(standing))
        return standing if seen.shown is seen.raw else _with_lists_of(standing, seen.shown)

    async def prepare(self, features: Iterable[Feature]) -> None:
        """Look at what is about to be published, a little at a time: a thousand tools would hold up every call."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_SECONDS
        for feature in features:
            self._flags_of(feature)
            if self.pins is not None and isinstance(feature, Tool):
                self.pins.prepare(feature)
            if loop.time() > until:
                await asyncio.sleep(0)
                until = loop.time() + SLICE_SECONDS

    def again(self, server: ServerName) -> Standing | None:
        """What a server published last, to be published anew since other tools may be seen now."""
        seen = self._seen.pop(server, None)
        return None if seen is None else seen.raw

    def forget(self, server: ServerName) -> None:
        """The server is gone."""
        self._seen.pop(server, None)

    def _look(self, standing: Standing) -> Standing:
        base, withheld = self._offer(_lists(standing), NOTHING)
        variants = dict(standing.variants)
        for profile, offer in standing.variants.items():
            variants[profile], missing = self._offer(offer, profile)
            withheld += [name for name in missing if name not in withheld]
        if base == _lists(standing) and variants == standing.variants and not withheld:
            return standing
        return msgspec.structs.replace(
            standing,
            tools=base.tools,
            prompts=base.prompts,
            resources=base.resources,
            templates=base.templates,
            variants=variants,
            withheld=tuple(withheld),
            notes=(*standing.notes, *_notes(standing.server, withheld)),
        )

    def _offer(self, offer: Offer, profile: Profile) -> tuple[Offer, list[FeatureName]]:
        tools, withheld = self._passing(offer.tools, profile)
        changed = Offer(
            self._marked(tools),
            self._marked(offer.prompts),
            self._marked(offer.resources),
            self._marked(offer.templates),
            offer.abilities,
        )
        return (offer if changed == offer else changed), withheld

    def _passing(self, tools: tuple[Tool, ...], profile: Profile) -> tuple[tuple[Tool, ...], list[FeatureName]]:
        if self.pins is None:
            return tools, []
        passing = {tool.name: self.pins.passes(tool, profile) for tool in tools}
        if all(passing.values()):
            return tools, []
        return tuple(tool for tool in tools if passing[tool.name]), [name for name in passing if not passing[name]]

    def _marked(self, features: tuple[F, ...]) -> tuple[F, ...]:
        if not any(self._flags_of(feature) for feature in features):
            return features
        return tuple(flagged(each, flags) if (flags := self._flags_of(each)) else each for each in features)

    def _flags_of(self, feature: Feature) -> tuple[str, ...]:
        key = feature.digest + feature.name.encode("utf-8", "surrogatepass")
        flags = self._flags.get(key)
        if flags is None:
            if len(self._flags) >= FLAGS_KEPT:
                self._flags.clear()
            flags = self._flags[key] = flags_of(feature)
        return flags


def _listed(standing: Standing) -> tuple[object, ...]:
    """What a review is of; the same until the server lists something else."""
    lists = (standing.tools, standing.prompts, standing.resources, standing.templates)
    return (*lists, standing.variants, standing.notes)


def _lists(standing: Standing) -> Offer:
    return Offer(standing.tools, standing.prompts, standing.resources, standing.templates, standing.abilities)


def _with_lists_of(standing: Standing, shown: Standing) -> Standing:
    return msgspec.structs.replace(
        standing,
        tools=shown.tools,
        prompts=shown.prompts,
        resources=shown.resources,
        templates=shown.templates,
        variants=shown.variants,
        withheld=shown.withheld,
        notes=shown.notes,
    )


def _notes(server: ServerName, withheld: Iterable[FeatureName]) -> list[str]:
    names = list(withheld)
    told = [f"{name!r} is withheld: run isthmus approve {server}.{name}" for name in names[:NOTES_MAX]]
    return told if len(names) <= NOTES_MAX else [*told, f"{len(names) - NOTES_MAX} more are withheld"]
