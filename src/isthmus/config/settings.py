"""The settings of the hub as a whole, and the `Configuration` that `load` returns.

Settings of one package are in that package (`upstream.server_settings`, `core.settings`). This module has the others:
where the hub listens, its public address, its log. Read by `app` and the command line.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from isthmus.cluster.settings import ClusterSettings
from isthmus.code.settings import CodeSettings
from isthmus.config.extensions import Extensions
from isthmus.config.files import home_folder, usual_state
from isthmus.config.findings import Finding
from isthmus.core.access.approval_rules import ApprovalRule
from isthmus.core.access.budget_rules import Budget
from isthmus.core.access.tenants import NO_TENANTS, Tenants
from isthmus.core.calls.result_cuts import check_result_limit
from isthmus.core.catalog.fleets import FleetSettings
from isthmus.core.catalog.pins import PINNINGS, Pinning
from isthmus.core.catalog.sets import SetSettings
from isthmus.core.settings import Limits
from isthmus.credentials.vault import VaultSettings
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.mcp.settings import TaskSettings
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.identity.relay_tokens import TokenSettings
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import EXPOSURES, Caller, Exposure
from isthmus.model.names import ServerName
from isthmus.storage.settings import StorageSettings
from isthmus.telemetry.audit_writer import AuditMode, AuditSettings
from isthmus.telemetry.call_metrics import TelemetrySettings
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.upstream.server_settings import ServerSettings
from isthmus.upstream.targets.settings import TargetSettings

NameStyle = Literal["canonical", "llm"]
OpenPrograms = Literal["warn", "refuse"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]

EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")  # noqa: S104 - only recognized, never chosen

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
    """The hub's public address; never taken from a request's Host header."""
    names: NameStyle = "canonical"
    expose: Exposure = "all"
    """Which tools lists have: those of servers, or tools of the hub that find and call them."""
    max_result_bytes: int = 0
    """Larger results are cut; 0 for no limit."""
    pin: Pinning = "warn"
    """What happens to a tool whose definition changes."""
    open_programs: OpenPrograms = "warn"
    """What happens to a server whose program or folder every user of the machine can write to."""
    state: str = "~/.local/state/isthmus"
    """The folder for data that survives the process; `load` makes it absolute."""
    audit: AuditMode = "batched"
    """When calls are written to the audit log: never, soon after their end, or before their end is reported."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    log_file: str | None = None
    """Where logs are written; None for standard error. `load` makes it absolute."""
    hosts: tuple[str, ...] = ()
    """Host headers to accept beside the hub's own addresses."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call; a request without an origin is not from a page."""
    tools: tuple[str, ...] = ()
    """Python modules whose `@tool` functions become built-in tools."""
    console: bool = True
    """Whether the hub serves its console at `/console/`."""
    cassette: str | None = None
    """The file that calls are recorded into; None records none. `load` makes it absolute."""
    cassette_timing: bool = True
    """Whether a cassette has the times of events."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if _HOST.fullmatch(self.host) is None:
            raise ValueError(f"host must be an address or a host name, not {self.host!r}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}")
        if self.public_url is not None and not _is_public_url(self.public_url):
            raise ValueError(f"public_url must be an http or https address without a query, not {self.public_url!r}")
        for key, known in (
            ("names", get_args(NameStyle)),
            ("expose", EXPOSURES),
            ("pin", PINNINGS),
            ("open_programs", get_args(OpenPrograms)),
            ("audit", get_args(AuditMode)),
            ("log_level", get_args(LogLevel)),
            ("log_format", get_args(LogFormat)),
        ):
            if (value := getattr(self, key)) not in known:
                raise ValueError(f"{key} must be one of {', '.join(known)}, not {value!r}")
        check_result_limit(self.max_result_bytes)
        if self.log_file is not None and (not self.log_file.strip() or "\0" in self.log_file):
            raise ValueError(f"log_file must be the path of a file, not {self.log_file!r}")
        if self.cassette is not None and (not self.cassette.strip() or "\0" in self.cassette):
            raise ValueError(f"cassette must be the path of a file, not {self.cassette!r}")
        _check_each("tools", self.tools, _MODULE, "package.module")
        _check_each("hosts", self.hosts, _HOST, "a host name, with its port if it has one")
        _check_each("origins", self.origins, _ORIGIN, "an origin like https://app.example")

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach its address."""
        return _is_loopback(self.host)

    @property
    def is_published(self) -> bool:
        """Whether others can reach it through a proxy, at a public address."""
        return self.public_url is not None and not _is_loopback(urlsplit(self.public_url).hostname or "")


@dataclass(frozen=True, slots=True)
class RelayParts:
    """`[relay]` split into the settings of its parts; two of them get the agents."""

    tokens: TokenSettings = field(default_factory=TokenSettings)
    dialin: DialInSettings = field(default_factory=DialInSettings)
    frontend: RelaySettings = field(default_factory=RelaySettings)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written."""

    file: Path | None
    """None for the environment and the command line."""
    path: str
    """The path in the file, or the name of the variable or option."""
    borrowed: tuple[str, ...] = ()
    """The variables and files that the value uses."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The whole configuration, checked, with its findings."""

    file: Path | None
    hub: HubSettings
    servers: tuple[ServerSettings, ...] = ()
    sets: Mapping[str, SetSettings] = field(default_factory=dict)
    """Sets of tools, prompts and resources, by name."""
    fleets: Mapping[ServerName, FleetSettings] = field(default_factory=dict)
    """Servers that callers see as one, by name."""
    approvals: tuple[ApprovalRule, ...] = ()
    """Which calls a person must allow first; the first rule that matches decides."""
    budgets: tuple[Budget, ...] = ()
    """How much callers may use in a period."""
    callers: tuple[tuple[bytes, Caller], ...] = ()
    """The digest of each key and its caller, ready for `identity.keys.KeyRing`; a caller may have several."""
    named: frozenset[str] = frozenset()
    """The names of all callers in the file, broken ones included."""
    expiries: Mapping[bytes, float] = field(default_factory=dict)
    """By digest: when a key expires, in seconds since 1970."""
    tenants: Tenants = NO_TENANTS
    """The restrictions of each tenant; `callers` already have theirs."""
    issuers: tuple[IssuerSettings, ...] = ()
    """The issuers whose signed tokens are accepted."""
    warnings: tuple[Finding, ...] = ()
    files: tuple[Path, ...] = ()
    """Every file that was read or searched for: a change of one may change the configuration."""
    broken: tuple[ServerName, ...] = ()
    """Servers with broken entries; a running hub keeps the earlier settings of these names."""
    unread: tuple[Path, ...] = ()
    """Imported files that cannot be read now; a running hub keeps their servers."""
    unresolved: Mapping[ServerName, tuple[str, ...]] = field(default_factory=dict)
    """By server: placeholders of variables that are not set, such as `${TOKEN}`."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """By path, such as `servers.files.command`: where each value that is not a default was written."""
    a2a: A2aSettings = field(default_factory=A2aSettings)
    tasks: TaskSettings = field(default_factory=TaskSettings)
    code: CodeSettings = field(default_factory=CodeSettings)
    targets: TargetSettings = field(default_factory=TargetSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    credentials: VaultSettings = field(default_factory=VaultSettings)
    """The keys that encrypt stored logins."""
    audit: AuditSettings = field(default_factory=AuditSettings)
    extensions: Extensions = field(default_factory=Extensions)
    """The extensions that the file names."""
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    relay: RelayParts = field(default_factory=RelayParts)
    version: int | None = None
    """The version in the database of the cluster, if it is from there."""


def unfiled_settings(environment: Mapping[str, str]) -> HubSettings:
    """Return the settings of a hub without a file; its state is in the usual folder.

    An unresolved `~` would be a folder below the working folder, which others might control.
    """
    return replace(HubSettings(), state=str(usual_state(environment, home_folder())))


def local_origin(host: str, port: int) -> str:
    """Return the address of a hub for clients on its machine."""
    if host in EVERY_ADDRESS:
        host = "127.0.0.1"
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{port}"


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False  # a name may resolve to anything
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _check_each(key: str, values: tuple[str, ...], form: re.Pattern[str], what: str) -> None:
    for position, value in enumerate(values):
        if form.fullmatch(value) is None:
            raise ValueError(f"{key}.{position} must be {what}, not {value!r}")


def _is_public_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # reading it checks it
    except ValueError:
        return False
    is_plain = not (parts.query or parts.fragment or any(character.isspace() for character in url))
    return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)
