"""What a hub's lists say, read: who offers what, who is missing, how servers stand.

A hub of this process and a running one give the same documents, those of the REST face. They are read here once;
`--json` prints them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.wire.mcp.lists import ListShape
from isthmus.wire.mcp.messages import read_string

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that can be asked for: its name here, the server whose it is (if its name tells), what it says."""

    name: str
    server: str
    definition: Mapping[str, msgspec.Raw]


class Absence(msgspec.Struct, frozen=True):
    """Why what a server offers cannot be had now; `is_listed` if it is named all the same."""

    state: str
    reason: str | None = None
    is_listed: bool = msgspec.field(name="listed", default=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """A list, and the servers that are missing from it."""

    offers: list[Offer]
    absences: dict[str, Absence]


class ServerTold(msgspec.Struct, frozen=True):
    """How a server stands. `detail` and `notes` are told to the operator only."""

    name: str
    state: str
    reason: str | None = None
    transport: str | None = None
    era: str | None = None
    unlisted: bool = False
    """It lists nothing, and its methods are called by name."""
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    resource_templates: int = msgspec.field(name="resourceTemplates", default=0)
    detail: str | None = None
    notes: tuple[str, ...] = ()


class DialledTold(msgspec.Struct, frozen=True, rename="camel"):
    """A server that dialled in. Where it comes from is told to the operator only."""

    agent: str
    server_id: str
    name: str
    state: str
    since: float
    tools: tuple[str, ...] = ()
    reason: str | None = None
    title: str | None = None
    client: str | None = None


class DeviceTold(msgspec.Struct, frozen=True):
    """A device that is connected to the relay."""

    id: str
    agent: str
    since: float
    client: str | None = None
    title: str | None = None
    calls: int = 0
    answered: int = 0


class _Dialled(msgspec.Struct):
    servers: list[DialledTold]


class _Devices(msgspec.Struct):
    devices: list[DeviceTold]


class _Servers(msgspec.Struct):
    servers: list[ServerTold]


class _Missing(msgspec.Struct):
    missing: dict[str, Absence]


def read_listing(document: bytes, shape: ListShape) -> Listing:
    """Read a list.

    Raises:
        CommandFailed: it is none.
    """
    members = _decoded(document, dict[str, msgspec.Raw])
    entries = _decoded(members.get(shape.member, b""), list[dict[str, msgspec.Raw]])
    return Listing([_offer(entry, shape) for entry in entries], _decoded(document, _Missing).missing)


def _offer(entry: dict[str, msgspec.Raw], shape: ListShape) -> Offer:
    name = read_string(entry.get(shape.key)) or ""
    server, dot, _ = name.partition(".")
    return Offer(name, server if dot and shape.key == "name" else "", entry)


def read_servers(document: bytes) -> list[ServerTold]:
    """Read how servers stand.

    Raises:
        CommandFailed: the document is another.
    """
    return _decoded(document, _Servers).servers


def read_dialled(document: bytes) -> list[DialledTold]:
    """Read who dialled in.

    Raises:
        CommandFailed: the document is another.
    """
    return _decoded(document, _Dialled).servers


def read_devices(document: bytes) -> list[DeviceTold]:
    """Read which devices are there.

    Raises:
        CommandFailed: the document is another.
    """
    return _decoded(document, _Devices).devices


def _decoded(text: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        why = "what answers there is no hub, or one of another version"
        raise CommandFailed(Exit.UNREACHABLE, why, "Name the hub's address with --hub or ISTHMUS_HUB.") from None
