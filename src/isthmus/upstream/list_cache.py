"""What servers listed in the last run, so that a starting hub has complete lists at once.

Stored under the server's name and how it is reached: an edited entry starts empty. Used by reconnectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple, Protocol, get_args

import msgspec
import structlog

from isthmus.model.calls import ClientCapabilities
from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.upstream.listing import Listing, read_lists, written_lists
from isthmus.upstream.settings import PythonSettings, ServerSettings

log = structlog.get_logger(__name__)

LISTS_BYTES_MAX = 1024 * 1024
"""Larger lists are not stored. Reading this much takes a few milliseconds at the start."""


class ListStore(Protocol):
    """Where lists are stored: `storage.server_lists`."""

    async def read(self, key: str) -> bytes | None:
        """What was written under this key; None if there is nothing readable."""

    def write(self, key: str, body: bytes) -> None:
        """Write this under the key, soon."""


class CachedLists(NamedTuple):
    """A server's lists and abilities."""

    listing: Listing
    abilities: frozenset[Ability]


class _CacheHead(msgspec.Struct):
    """The members of a document beside its lists."""

    server: str
    abilities: list[str]


class ListCache:
    """The lists of all servers of one hub, for clients with these capabilities."""

    def __init__(self, store: ListStore, client_caps: ClientCapabilities | None = None) -> None:
        self._store = store
        self._profile = client_caps
        self._kept: dict[ServerName, tuple[str, CachedLists]] = {}
        """What the store contains, as far as this hub knows."""

    async def recall(self, settings: ServerSettings) -> CachedLists | None:
        """What the server listed last, if it was reached in the same way; None if unknown."""
        if isinstance(settings.reach, PythonSettings):  # its code may have changed, and it starts in a moment
            return None
        key = self._key(settings)
        body = await self._store.read(key)
        if not body:
            return None
        try:
            head = msgspec.json.decode(body, type=_CacheHead)
            if head.server != settings.name:
                raise ValueError(f"it is about {head.server!r}")
            known = CachedLists(
                read_lists(settings.name, body),
                frozenset(ability for ability in get_args(Ability) if ability in head.abilities),
            )
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            log.warning("what a server listed last is damaged", server=settings.name, file=key, reason=str(error))
            return None
        self._kept[settings.name] = (key, known)
        return known

    def keep(self, settings: ServerSettings, listing: Listing, abilities: frozenset[Ability]) -> None:
        """Store what a server lists now, unless it is unchanged."""
        if isinstance(settings.reach, PythonSettings):
            return
        lists = Listing(listing.tools, listing.prompts, listing.resources, listing.templates)
        kept = self._key(settings), CachedLists(lists, abilities)
        if self._kept.get(settings.name) == kept:
            return
        self._kept[settings.name] = kept
        size_bytes = sum(len(memoryview(raw)) for each in lists.everything() for raw in each.definition.values())
        if size_bytes > LISTS_BYTES_MAX:
            self._store.write(kept[0], b"")  # what is stored is outdated
            return
        head = msgspec.json.encode(_CacheHead(settings.name, sorted(abilities)))
        self._store.write(kept[0], head[:-1] + b"," + written_lists(lists) + b"}")

    def _key(self, settings: ServerSettings) -> str:
        """A digest of everything that a server is reached by; it reveals no secret."""
        reach = settings.reach
        facts = (settings.name, type(reach).__name__, asdict(reach), settings.ca, sorted(self._profile or ()))
        text = msgspec.json.encode(facts, order="deterministic", enc_hook=_plain)
        return hashlib.blake2b(text, digest_size=16, person=b"isthmus.lists").hexdigest()


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else repr(value)
