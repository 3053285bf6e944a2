"""The settings of the hub as a whole, and the value that `load` returns.

Settings of one room live in that room (`upstream.settings`, `core.settings`); here is what belongs to none:
where the hub listens, what it calls itself, how it logs. Read by `app` and the command line.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from isthmus.config.extensions import Extensions
from isthmus.config.files import home_folder, resolve_path
from isthmus.config.findings import Finding
from isthmus.core.access.tenants import NO_TENANTS, Tenants
from isthmus.core.catalog.pins import PINNINGS, Pinning
from isthmus.core.settings import Limits
from isthmus.credentials.vault import VaultSettings
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.mcp.settings import TaskSettings
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.identity.relay_tokens import TokenSettings
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import Caller
from isthmus.model.names import ServerName
from isthmus.storage.settings import StorageSettings
from isthmus.telemetry.audit import AuditMode, AuditSettings
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.upstream.settings import ServerSettings
from isthmus.upstream.targets.settings import TargetSettings

NameStyle = Literal["canonical", "llm"]
OpenPrograms = Literal["warn", "refuse"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]

_HOST = re.compile(r"[A-Za-z0-9._:%\[\]-]+")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9._:\[\]-]+")


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Where the hub listens and how it presents itself."""

    host: str = "127.0.0.1"
    port: int = 8765
    """0 lets the system choose."""
    public_url: str | None = None
    """What the hub calls itself towards others; never taken from a request's Host header."""
    names: NameStyle = "canonical"
    pin: Pinning = "warn"
    """What becomes of a tool whose definition changes after it was first seen."""
    open_programs: OpenPrograms = "warn"
    """What becomes of a server whose program, or folder, everybody on the machine can write to."""
    state: str = "~/.local/state/isthmus"
    """The folder for what must outlast the process; `load` returns it absolute."""
    audit: AuditMode = "batched"
    """Whether calls are written into the audit log: not, soon after their end, or before anybody hears of it."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    log_file: str | None = None
    """Where logs are written; None for standard error. `load` returns it absolute."""
    hosts: tuple[str, ...] = ()
    """Host headers accepted besides the hub's own addresses."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call; a request without one is not from a page and passes."""
    tools: tuple[str, ...] = ()
    """Python modules that are imported for their functions, which `@tool` makes built-in tools."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if _HOST.fullmatch(self.host) is None:
            raise ValueError(f"host must be an address or a host name, not {self.host!r}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}")
        if self.public_url is not None:
            _check_public_url(self.public_url)
        _check_one_of("names", self.names, get_args(NameStyle))
        _check_one_of("pin", self.pin, PINNINGS)
        _check_one_of("open_programs", self.open_programs, get_args(OpenPrograms))
        _check_one_of("audit", self.audit, get_args(AuditMode))
        _check_one_of("log_level", self.log_level, get_args(LogLevel))
        _check_one_of("log_format", self.log_format, get_args(LogFormat))
        if self.log_file is not None and (not self.log_file.strip() or "\0" in self.log_file):
            raise ValueError(f"log_file must be the path of a file, not {self.log_file!r}")
        _check_each("tools", self.tools, _MODULE, "package.module")
        _check_each("hosts", self.hosts, _HOST, "a host name, with its port if it has one")
        _check_each("origins", self.origins, _ORIGIN, "an origin like https://app.example")

    @property
    def is_loopback(self) -> bool:
        """Whether it listens where only programs on this machine reach it."""
        return _is_loopback(self.host)

    @property
    def is_published(self) -> bool:
        """Whether others reach it all the same: by a proxy, at an address that is not this machine's."""
        return self.public_url is not None and not _is_loopback(urlsplit(self.public_url).hostname or "")


@dataclass(frozen=True, slots=True)
class RelayParts:
    """What `[relay]` says, to each of its parts; what it says of agents, two of them are told."""

    tokens: TokenSettings = field(default_factory=TokenSettings)
    dialin: DialInSettings = field(default_factory=DialInSettings)
    face: RelaySettings = field(default_factory=RelaySettings)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written."""

    file: Path | None
    """None for the environment and the command line."""
    path: str
    """Where in the file, or the variable's or the option's name."""
    borrowed: tuple[str, ...] = ()
    """The variables and files that parts of the value come from."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that was configured, checked, with what had to be left out."""

    file: Path | None
    hub: HubSettings
    servers: tuple[ServerSettings, ...] = ()
    callers: tuple[tuple[bytes, Caller], ...] = ()
    """Digest of the key and who it belongs to, ready for `identity.keys.KeyRing`; a caller may have several."""
    named: frozenset[str] = frozenset()
    """The names of all callers that the file has, those that had to be left out included: they are the file's."""
    expiries: Mapping[bytes, float] = field(default_factory=dict)
    """By the digest: when a key of a caller ceases to be good, in seconds since 1970."""
    tenants: Tenants = NO_TENANTS
    """What everybody of a tenant is held to; those in `callers` are already."""
    issuers: tuple[IssuerSettings, ...] = ()
    """Whose signed tokens let somebody in."""
    warnings: tuple[Finding, ...] = ()
    files: tuple[Path, ...] = ()
    """Every file that was read or that would have been, had it existed: a change of one may change all this."""
    broken: tuple[ServerName, ...] = ()
    """Servers whose entries cannot be used as they are; a running hub keeps what it had under these names."""
    unread: tuple[Path, ...] = ()
    """Imported files that are broken just now; the servers that they had before are not gone for it."""
    unresolved: Mapping[ServerName, tuple[str, ...]] = field(default_factory=dict)
    """What servers borrow from variables that are not set, such as `${TOKEN}`."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """By path, such as `servers.files.command`: where a value comes from that is not a default."""
    a2a: A2aSettings = field(default_factory=A2aSettings)
    tasks: TaskSettings = field(default_factory=TaskSettings)
    targets: TargetSettings = field(default_factory=TargetSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    credentials: VaultSettings = field(default_factory=VaultSettings)
    """What logins at servers are sealed with."""
    audit: AuditSettings = field(default_factory=AuditSettings)
    extensions: Extensions = field(default_factory=Extensions)
    """What other packages add, as the file names it."""
    relay: RelayParts = field(default_factory=RelayParts)


def unfiled_settings() -> HubSettings:
    """Those of a hub that no file configures; its state is in the usual folder of whoever runs it.

    As it is written, `~` would be a folder below wherever the program was started, which is anybody's to fill.
    """
    usual = HubSettings()
    return replace(usual, state=str(resolve_path(usual.state, Path(), home_folder())))


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False  # a name may resolve to anything
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _check_one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{key} must be one of {', '.join(known)}, not {value!r}")


def _check_each(key: str, values: tuple[str, ...], form: re.Pattern[str], what: str) -> None:
    for position, value in enumerate(values):
        if form.fullmatch(value) is None:
            raise ValueError(f"{key}.{position} must be {what}, not {value!r}")


def _check_public_url(url: str) -> None:
    if not _is_address(url):
        raise ValueError(f"public_url must be an http or https address without a query, not {url!r}")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # only looked at is it checked
    except ValueError:
        return False
    is_plain = not (parts.query or parts.fragment or any(character.isspace() for character in url))
    return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)
