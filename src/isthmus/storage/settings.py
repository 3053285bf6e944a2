"""The `[storage]` settings: the database, and how its hubs share it.

Messages never quote the address of the database, since it may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

SCHEMES = ("postgresql", "postgres")
SCHEMA = "isthmus"
"""The default schema: separate, since the database may have other users."""

_WITH_LOCATION = re.compile(r"([^:/?#]*://)([^/?#]*)(.*)")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SHOWN = ("host", "port", "user", "dbname", "database", "schema", "sslmode")
"""Parameters that may be displayed; all others are hidden."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The database of the journal; without one the journal is a file in the `[hub] state` folder."""

    url: str | None = field(default=None, repr=False)
    is_foreign: bool = False
    """Whether the address is for an extension, which alone understands it."""

    def __post_init__(self) -> None:
        if self.url is None or self.is_foreign:
            return
        if self._parts.scheme not in SCHEMES:
            found = repr(self._parts.scheme[:20]) if "://" in self.url else "another word"
            raise ValueError(f"url must start with postgresql://, not {found}")
        if "@" in self._parts.path + self._parts.query or self._parts.fragment:
            # Else the part of a password after a slash would be displayed as the database name.
            raise ValueError("url must have @, /, ? and # of a password as %40, %2F, %3F and %23")
        if _NAME.fullmatch(self.schema) is None:
            raise ValueError(f"url must have a schema of small letters, digits and _, not {self.schema!r}")

    @property
    def _parts(self) -> SplitResult:
        # urlsplit drops tabs and newlines, so the checked address would differ from the used one.
        if self.url is None or any(character.isspace() or ord(character) < 32 for character in self.url):
            raise ValueError("url must be an address without spaces")
        found = _WITH_LOCATION.fullmatch(self.url)
        before, location, rest = found.groups() if found is not None else ("", "", self.url)
        user, at, hosts = location.rpartition("@")
        try:
            # One by one: `urlsplit` refuses several servers if one has an IPv6 address.
            for host in hosts.split(","):
                urlsplit(f"//{user}{at}{host}")
            return urlsplit(before + rest)._replace(netloc=location)
        except ValueError:
            raise ValueError("url must be a valid address") from None

    @property
    def scheme(self) -> str:
        """The scheme of the address."""
        return (self.url or "").partition(":")[0]

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return dict(parse_qsl(self._parts.query)).get("schema", SCHEMA)

    @property
    def server_urls(self) -> tuple[str, ...]:
        """The address of each server, without our own parameters."""
        params = [(key, value) for key, value in parse_qsl(self._parts.query) if key != "schema"]
        user, at, hosts = self._parts.netloc.rpartition("@")
        if hosts:
            return tuple(_format_url(self._parts, user + at + host, params) for host in hosts.split(","))
        return tuple(_format_url(self._parts, user + at, each) for each in _per_host(params))

    @property
    def shown(self) -> str | None:
        """The address without secrets, for display."""
        if self.url is None:
            return None
        if self.is_foreign:
            return f"{self.scheme}:***"
        user, at, host = self._parts.netloc.rpartition("@")
        name, colon, _ = user.partition(":")
        user_info = f"{name}{colon and ':***'}{at}"
        params = parse_qsl(self._parts.query)
        return _format_url(self._parts, user_info + host, [(key, value) for key, value in params if key in _SHOWN])


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How a hub shares its database with others."""

    node: str
    """The name of the node, for people."""
    seconds: float = 10.0
    """A node that does not renew its lease for so long counts as dead."""


def _per_host(params: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The parameters, once per host; unchanged if the number of ports does not match."""
    hosts = dict(params).get("host", "").split(",")
    ports = dict(params).get("port", "").split(",")
    if len(ports) not in (1, len(hosts)):
        return [list(params)]
    pairs = zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=True)
    return [[(key, {"host": host, "port": port}.get(key, value)) for key, value in params] for host, port in pairs]


def _format_url(parts: SplitResult, location: str, query: Sequence[tuple[str, str]]) -> str:
    # Not `geturl`: it drops the slashes of an address without a host.
    params = f"?{urlencode(query, safe='/')}" if query else ""
    return f"{parts.scheme}://{location}{parts.path}{params}"
