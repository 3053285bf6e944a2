"""What callers see of a server's lists: without withheld and unusable tools, and with flags on suspicious definitions.

Withheld tools are not approved (`catalog.pins`); unusable ones are left out (`catalog.definition_lint`). The hub
reviews every server status before it publishes it. The same lists come again with each change of a server's state, so
that the last result is cached.
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

FINDINGS_MAX: Final = 20_000
NOTES_MAX: Final = 20
SLICE_SECONDS: Final = 0.005
"""How long the loop is blocked at a time."""

F = TypeVar("F", bound=Feature)

LeftOut = Mapping[FeatureName, str]
"""Tools that are left out, and why."""


class _ReviewedStatus(NamedTuple):
    raw: ServerStatus
    shown: ServerStatus


class _Findings(NamedTuple):
    """The findings of one definition."""

    flags: tuple[str, ...]
    outside_reference: str | None


class _VisibleLists(NamedTuple):
    """The visible part of one variant of a server's lists."""

    offer: FeatureLists
    withheld: list[FeatureName]
    left_out: LeftOut


class Review:
    """Reviews server statuses. Without `pins` nothing is withheld.

    `on_left_out` receives each tool that is left out, once per reason.
    """

    def __init__(self, pins: Pins | None = None) -> None:
        self.pins = pins
        self.on_left_out: Callable[[ServerName, LeftOut], None] = lambda _server, _left_out: None
        self._found: dict[bytes, _Findings] = {}
        self._seen: dict[ServerName, _ReviewedStatus] = {}
        self._reported: dict[ServerName, LeftOut] = {}

    def reviewed(self, server_status: ServerStatus) -> ServerStatus:
        """The status as callers see it."""
        if not server_status.has_lists and not server_status.variants:
            return server_status
        seen = self._seen.get(server_status.server)
        if seen is None or _listed(seen.raw) != _listed(server_status):
            seen = self._seen[server_status.server] = _ReviewedStatus(server_status, self._review(server_status))
        shown = seen.shown
        if shown is seen.raw:
            return server_status
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

    async def prepare(self, features: Iterable[Feature]) -> None:
        """Lint definitions that are about to be published, in slices: a thousand tools would delay every call."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_SECONDS
        for feature in features:
            self._lint(feature)
            if self.pins is not None and isinstance(feature, Tool):
                self.pins.prepare(feature)
            if loop.time() > until:
                await asyncio.sleep(0)
                until = loop.time() + SLICE_SECONDS

    def withholds(self, server: ServerName) -> bool:
        """Whether changed tools of this server are hidden."""
        return self.pins is not None and self.pins.withholds(server)

    def passes_apart(self, tool: Tool, client_caps: ClientCapabilities) -> bool:
        """Whether a tool may be called that is listed like this on a link of single callers."""
        return self._lint(tool).outside_reference is None and (
            self.pins is None or self.pins.passes_apart(tool, client_caps)
        )

    def last_published(self, server: ServerName) -> ServerStatus | None:
        """The last unreviewed status of a server, to be reviewed again because other tools may be visible now."""
        seen = self._seen.pop(server, None)
        return None if seen is None else seen.raw

    def forget(self, server: ServerName) -> None:
        """Drop the results of a removed server."""
        self._seen.pop(server, None)
        self._reported.pop(server, None)

    def _review(self, server_status: ServerStatus) -> ServerStatus:
        base, withheld, left_out = self._offer(_lists(server_status), NO_CAPABILITIES)
        variants = dict(server_status.variants)
        for client_caps, offer in server_status.variants.items():
            variants[client_caps], missing, outside = self._offer(offer, client_caps)
            withheld += [name for name in missing if name not in withheld]
            left_out = {**outside, **left_out}
        reported = self._reported.get(server_status.server, {})
        if left_out != reported:
            self._reported[server_status.server] = left_out
            if news := {name: why for name, why in left_out.items() if reported.get(name) != why}:
                self.on_left_out(server_status.server, news)
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
            notes=(
                *server_status.notes,
                *_shortened(
                    [f"{name!r} is withheld: run isthmus approve {server_status.server}.{name}" for name in withheld],
                    "withheld",
                ),
                *_shortened([f"{name!r} left out: {why}" for name, why in left_out.items()], "left out"),
            ),
        )

    def _offer(self, offer: FeatureLists, client_caps: ClientCapabilities) -> _VisibleLists:
        left_out = {tool.name: why for tool in offer.tools if (why := self._lint(tool).outside_reference) is not None}
        tools = tuple(tool for tool in offer.tools if tool.name not in left_out) if left_out else offer.tools
        withheld: list[FeatureName] = []
        if self.pins is not None:
            passing = {tool.name: self.pins.passes(tool, client_caps) for tool in tools}
            if withheld := [name for name, may_pass in passing.items() if not may_pass]:
                tools = tuple(tool for tool in tools if passing[tool.name])
        changed = FeatureLists(
            self._marked(tools),
            self._marked(offer.prompts),
            self._marked(offer.resources),
            self._marked(offer.templates),
            offer.abilities,
        )
        return _VisibleLists(offer if changed == offer else changed, withheld, left_out)

    def _marked(self, features: tuple[F, ...]) -> tuple[F, ...]:
        if not any(self._lint(feature).flags for feature in features):
            return features
        return tuple(with_flags(each, flags) if (flags := self._lint(each).flags) else each for each in features)

    def _lint(self, feature: Feature) -> _Findings:
        key = feature.digest + feature.name.encode("utf-8", "surrogatepass")
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= FINDINGS_MAX:
                self._found.clear()
            outside = outside_reference(feature) if isinstance(feature, Tool) else None
            found = self._found[key] = _Findings(flags_of(feature), outside)
        return found


def _listed(server_status: ServerStatus) -> tuple[object, ...]:
    """What a review depends on; equal until the server lists something else."""
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


def _shortened(notes: list[str], what: str) -> list[str]:
    more = len(notes) - NOTES_MAX
    return notes if more <= 0 else [*notes[:NOTES_MAX], f"{more} more are {what}"]
