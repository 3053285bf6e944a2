"""What servers offer, for `isthmus access`: from a running hub, or from servers that are started for the command.

Of two configurations a server that is started in the same way in both is started once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from isthmus.app.extensions import narrowing_of
from isthmus.cli.documents import Offer, read_listing
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.opening import opened
from isthmus.cli.reached import start_own
from isthmus.cli.sources import Own, Running
from isthmus.config.settings import Configuration
from isthmus.core.catalog.checks import CheckCache
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.pins import WITHHOLDING, Key, Pinning, Pins, known_of
from isthmus.core.catalog.review import Review
from isthmus.core.catalog.rules import NO_RULES
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.model.features import Prompt, Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.definitions import FILE, Definitions
from isthmus.upstream.hub_functions import OPERATORS
from isthmus.upstream.supervisor import starts_the_same
from isthmus.wire.mcp.lists import PROMPTS, TOOLS


async def snapshot_of(source: Running | Own, configuration: Configuration, *, wait: float) -> Snapshot:
    """What servers offer now, as this configuration labels it.

    A running hub tells the tools and prompts that the key in ISTHMUS_KEY sees.

    Raises:
        CommandFailed: there is no hub to ask.
    """
    if isinstance(source, Own):
        return _snapshot(_pinned(await _started(configuration, None, wait), configuration), configuration)
    async with opened(source, wait=wait) as hub:
        tools = read_listing(await hub.list(TOOLS), TOOLS).offers
        prompts = read_listing(await hub.list(PROMPTS), PROMPTS).offers
    return _snapshot(_told(tools, prompts, configuration), configuration)


async def snapshots_of(old: Configuration, new: Configuration, *, wait: float) -> tuple[Snapshot, Snapshot]:
    """What servers offer under one configuration and under the other."""
    before = {server.name: server for server in old.servers}
    same = {
        server.name for server in new.servers if server.name in before and starts_the_same(before[server.name], server)
    }
    others = {server.name for server in new.servers} - same
    server_statuses = await _started(old, None, wait)
    started = await _started(new, others, wait) if others else {}
    kept = {
        name: server_status for name, server_status in server_statuses.items() if name in same or name not in before
    }
    changed = _ruled({**kept, **started}, new)
    return _snapshot(_pinned(server_statuses, old), old), _snapshot(_pinned(changed, new), new)


async def _started(
    configuration: Configuration, only: Iterable[ServerName] | None, wait: float
) -> dict[ServerName, ServerStatus]:
    own = await start_own(_unpinned(configuration), os.environ, within=wait, only=only)
    try:
        return dict(own.running.hub.snapshot.server_statuses)
    finally:
        await own.aclose()


def _unpinned(configuration: Configuration) -> Configuration:
    """The same without pins: who asks what would be must not have it noted as seen."""
    servers = tuple(replace(server, pin=None) for server in configuration.servers)
    return replace(configuration, servers=servers, hub=replace(configuration.hub, pin="off"))


def _ruled(
    server_statuses: Mapping[ServerName, ServerStatus], configuration: Configuration
) -> dict[ServerName, ServerStatus]:
    """The same standings with what a configuration says of the servers' tools."""
    rules = {server.name: server.rules for server in configuration.servers}
    return {
        name: msgspec.structs.replace(server_status, rules=rules[name]) if name in rules else server_status
        for name, server_status in server_statuses.items()
    }


def _pinned(
    server_statuses: Mapping[ServerName, ServerStatus], configuration: Configuration
) -> dict[ServerName, ServerStatus]:
    """The same without the tools that a hub would withhold; nothing is noted of what is seen here.

    Raises:
        CommandFailed: what tools looked like cannot be read.
    """
    modes: dict[ServerName, Pinning] = {
        server.name: server.pin or configuration.hub.pin for server in configuration.servers
    }
    if not WITHHOLDING & set(modes.values()):
        return dict(server_statuses)
    pins = Pins(_known(Path(configuration.hub.state)), lambda server: modes.get(server, "off"), lambda _: None)
    review = Review(pins)
    return {name: review.of(server_status) for name, server_status in server_statuses.items()}


def _known(folder: Path) -> dict[Key, bytes]:
    if not (folder / FILE).exists():
        return {}
    try:
        with closing(Definitions(folder)) as file:
            return known_of(file.known())
    except (OSError, sqlite3.Error) as error:
        said = f"what tools looked like cannot be read from {folder / FILE}: {error}"
        raise CommandFailed(Exit.CONFIGURATION, said, "Run this as whoever runs the hub.") from error


def _told(
    tools: Iterable[Offer], prompts: Iterable[Offer], configuration: Configuration
) -> dict[ServerName, ServerStatus]:
    """Standings made of what a running hub lists; what it hides it does not list, and so only labels are added."""
    labels = {
        server.name: replace(NO_RULES, is_trusted=server.rules.is_trusted, tags=server.rules.tags)
        for server in configuration.servers
    }
    labels[BUILTIN] = OPERATORS
    offered: dict[ServerName, tuple[list[Tool], list[Prompt]]] = {}
    for offer in tools:
        of = offered.setdefault(ServerName(offer.server), ([], []))
        of[0].append(Tool.of(ServerName(offer.server), _own_name(offer), dict(offer.definition)))
    for offer in prompts:
        of = offered.setdefault(ServerName(offer.server), ([], []))
        of[1].append(Prompt.of(ServerName(offer.server), _own_name(offer), dict(offer.definition)))
    return {
        name: ServerStatus(name, "ready", tools=tuple(of[0]), prompts=tuple(of[1]), rules=labels.get(name, NO_RULES))
        for name, of in offered.items()
    }


def _own_name(offer: Offer) -> FeatureName:
    return FeatureName(offer.name.removeprefix(f"{offer.server}."))


def _snapshot(server_statuses: Mapping[ServerName, ServerStatus], configuration: Configuration) -> Snapshot:
    return Snapshot(0, server_statuses, CheckCache(limit_bytes=0), narrowing_of(configuration))
