"""What an operator can say of where things are kept; `config` fills it from `[storage]`.

A message about the address never quotes it: it may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

SCHEMES = ("postgresql", "postgres")
SCHEMA = "isthmus"
"""Where the tables are unless the address says otherwise: an own place, since they share the database with others'."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SHOWN = ("host", "port", "user", "dbname", "database", "schema", "sslmode")
"""The parameters that are no secrets; whatever else an address has is not shown."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The database that the journal is in; without one it is a file in the folder that `[hub] state` names."""

    url: str | None = field(default=None, repr=False)
    is_foreign: bool = False
    """Whether an extension knows what the address means, and nobody else does."""

    def __post_init__(self) -> None:
        if self.url is None or self.is_foreign:
            return
        if self._parts.scheme not in SCHEMES:
            found = repr(self._parts.scheme[:20]) if "://" in self.url else "another word"
            raise ValueError(f"url must start with postgresql://, not {found}")
        if "@" in self._parts.path + self._parts.query or self._parts.fragment:
            # Else what follows a slash in a password would be shown as the name of the database.
            raise ValueError("url must have @, /, ? and # of a password as %40, %2F, %3F and %23, not as they are")
        if _NAME.fullmatch(self.schema) is None:
            raise ValueError(f"url must have a schema of small letters, digits and _, not {self.schema!r}")

    @property
    def _parts(self) -> SplitResult:
        # urlsplit would quietly drop tabs and newlines, so that what is checked were not what is dialled.
        if self.url is None or any(character.isspace() or ord(character) < 32 for character in self.url):
            raise ValueError("url must be an address without spaces, not one with them")
        try:
            return urlsplit(self.url)
        except ValueError:
            raise ValueError("url must be an address, not a text that cannot be split") from None

    @property
    def scheme(self) -> str:
        """What the address begins with."""
        return (self.url or "").partition(":")[0]

    @property
    def schema(self) -> str:
        """The schema that the tables are in."""
        return dict(parse_qsl(self._parts.query)).get("schema", SCHEMA)

    @property
    def dialled(self) -> tuple[str, ...]:
        """The address of each of its servers, without what is only said to us."""
        asked = [(key, value) for key, value in parse_qsl(self._parts.query) if key != "schema"]
        user, at, hosts = self._parts.netloc.rpartition("@")
        if hosts:
            return tuple(_written(self._parts, user + at + host, asked) for host in hosts.split(","))
        return tuple(_written(self._parts, user + at, each) for each in _for_each_host(asked))

    @property
    def shown(self) -> str | None:
        """The address as anybody may see it."""
        if self.url is None:
            return None
        if self.is_foreign:
            return f"{self.scheme}:***"
        user, at, host = self._parts.netloc.rpartition("@")
        name, colon, _ = user.partition(":")
        who = f"{name}{colon and ':***'}{at}"
        asked = parse_qsl(self._parts.query)
        return _written(self._parts, who + host, [(key, value) for key, value in asked if key in _SHOWN])


def _for_each_host(asked: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The parameters, once for each host of theirs; if they have not as many ports, as they are."""
    hosts = dict(asked).get("host", "").split(",")
    ports = dict(asked).get("port", "").split(",")
    if len(ports) not in (1, len(hosts)):
        return [list(asked)]
    pairs = zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=True)
    return [[(key, {"host": host, "port": port}.get(key, value)) for key, value in asked] for host, port in pairs]


def _written(parts: SplitResult, place: str, query: Sequence[tuple[str, str]]) -> str:
    # By hand: `geturl` leaves the slashes of an address without a host away.
    asked = f"?{urlencode(query, safe='/')}" if query else ""
    return f"{parts.scheme}://{place}{parts.path}{asked}"
