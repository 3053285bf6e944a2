"""Reads the documents of a hub's REST API, which `--json` prints unchanged."""

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
class ListedFeature:
    """A tool, prompt or resource: its name, its server (if the name has it), its definition."""

    name: str
    server: str
    definition: Mapping[str, msgspec.Raw]


class MissingServerInfo(msgspec.Struct, frozen=True):
    """Why a server is missing from a list; `is_listed` if its features are listed all the same."""

    state: str
    reason: str | None = None
    is_listed: bool = msgspec.field(name="listed", default=False)


@dataclass(frozen=True, slots=True)
class FeatureList:
    """A list, and the servers that are missing from it."""

    features: list[ListedFeature]
    missing: dict[str, MissingServerInfo]


class ServerInfo(msgspec.Struct, frozen=True):
    """A server and its state. Only operators see `detail` and `notes`."""

    name: str
    state: str
    reason: str | None = None
    transport: str | None = None
    era: str | None = None
    unlisted: bool = False
    """It has no list; its methods are called by name."""
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    resource_templates: int = msgspec.field(name="resourceTemplates", default=0)
    detail: str | None = None
    """Its last lines on standard error."""
    notes: tuple[str, ...] = ()

    @property
    def trouble(self) -> str:
        """Why it is not ready, with the error from its standard error; empty if it is."""
        from isthmus.model.stderr_summary import telling_line  # most commands meet no server in trouble

        line = telling_line(self.detail or "")
        return f"{self.reason}; its last output: {line}" if self.reason and line else self.reason or ""

    @property
    def cuts(self) -> tuple[str, ...]:
        """The notes on lists whose end is missing."""
        return tuple(note for note in self.notes if " and was cut" in note)


class DialledServerInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A server that dialled in. Only operators see `client`."""

    agent: str
    server_id: str
    name: str
    state: str
    since: float
    tools: tuple[str, ...] = ()
    reason: str | None = None
    title: str | None = None
    client: str | None = None


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device that is connected to the relay."""

    id: str
    agent: str
    since: float
    client: str | None = None
    title: str | None = None
    calls: int = 0
    answered: int = 0


class FindingInfo(msgspec.Struct, frozen=True):
    """A problem of the configuration that a hub runs with."""

    code: str
    path: str
    problem: str
    fix: str


class _FindingList(msgspec.Struct):
    findings: list[FindingInfo]


class _Dialled(msgspec.Struct):
    servers: list[DialledServerInfo]


class _Devices(msgspec.Struct):
    devices: list[DeviceInfo]


class _Servers(msgspec.Struct):
    servers: list[ServerInfo]


class _Missing(msgspec.Struct):
    missing: dict[str, MissingServerInfo]


def read_listing(document: bytes, shape: ListShape) -> FeatureList:
    """Read a list.

    Raises:
        CommandFailed: the document is something else.
    """
    members = _decoded(document, dict[str, msgspec.Raw])
    entries = _decoded(members.get(shape.member, b""), list[dict[str, msgspec.Raw]])
    offers = []
    for entry in entries:
        name = read_string(entry.get(shape.key)) or ""
        server, dot, _ = name.partition(".")
        offers.append(ListedFeature(name, server if dot and shape.key == "name" else "", entry))
    return FeatureList(offers, _decoded(document, _Missing).missing)


def read_findings(document: bytes) -> list[FindingInfo]:
    """Read the problems of a configuration.

    Raises:
        CommandFailed: the document is something else.
    """
    return _decoded(document, _FindingList).findings


def read_servers(document: bytes) -> list[ServerInfo]:
    """Read the servers and their states.

    Raises:
        CommandFailed: the document is something else.
    """
    return _decoded(document, _Servers).servers


def read_dialled(document: bytes) -> list[DialledServerInfo]:
    """Read the servers that dialled in.

    Raises:
        CommandFailed: the document is something else.
    """
    return _decoded(document, _Dialled).servers


def read_devices(document: bytes) -> list[DeviceInfo]:
    """Read the connected devices.

    Raises:
        CommandFailed: the document is something else.
    """
    return _decoded(document, _Devices).devices


def _decoded(text: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        why = "the server at this address is not an Isthmus hub, or has another version"
        raise CommandFailed(Exit.UNREACHABLE, why, "Name the hub's address with --hub or ISTHMUS_HUB.") from None
