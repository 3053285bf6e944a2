"""Addresses that callers may name: how they are read, and what the operator allows; `config` fills `[targets]` in.

Plain values: nothing is resolved or dialled. Addresses that two parsers could read differently are refused.
`targets.named_servers` uses them.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote

from isthmus.transport.egress import HTTP_SCHEMES, SOCKET_SCHEMES, HttpOrigin, parse_url
from isthmus.upstream.server_settings import OWN_HEADERS

LENGTH_MAX = 2048
"""Characters of an address with its path."""

_SPLIT = re.compile(r"(https?://)(\*\.|\*(?=[:/]|$))?([^/?#*]*)(/[^?#*]*)?", re.ASCII)
"""A pattern: scheme, star, the rest of the host with its port, path."""

_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_AMBIGUOUS = re.compile(r"%(?:2[ef5]|5c|[01][0-9a-f]|7f|(?![0-9a-f]{2}))|[;\\]", re.IGNORECASE)
"""Only some servers read these as a slash, a dot, a percent sign, the end of a segment or the end of a text."""

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

ANY_HOST = "anybody.invalid"
"""Replaces the host of a pattern that is only a star, so that its port can be read."""


@dataclass(frozen=True, slots=True)
class TargetAddress:
    """An address that a caller names: the origin to dial, the path and the query."""

    origin: HttpOrigin
    path: str = ""
    """Empty if the hub has to find the path."""
    query: str = ""

    @property
    def url(self) -> str:
        return f"{self.origin}{self.path}{self.query}"

    @property
    def place(self) -> tuple[HttpOrigin, tuple[str, ...]]:
        """Equal for addresses of the same server, whatever their queries are."""
        return self.origin, self.steps

    @property
    def steps(self) -> tuple[str, ...]:
        """The path in the form in which it is compared: `/a%62/` and `/ab` are equal."""
        return tuple(unquote(step) for step in self.path.split("/") if step)


def read_address(url: str, path: str | None = None) -> TargetAddress:
    """Read a URL, joined with a path below it if there is one.

    Raises:
        ValueError: it is invalid or ambiguous; the message quotes no query and no password.
    """
    whole = url
    if path:
        if "?" in url:
            raise ValueError("it has a query, which no path can follow")
        whole = f"{url.rstrip('/')}/{path.removeprefix('/')}"
    if len(whole) > LENGTH_MAX:
        raise ValueError(f"it is longer than {LENGTH_MAX} characters")
    if not whole.isascii():
        raise ValueError("it has characters beyond ASCII; write the host in its ASCII form (xn--...)")
    if "#" in whole:
        raise ValueError("it has a fragment")
    origin, target = parse_url(whole, SOCKET_SCHEMES if whole[:2].lower() == "ws" else HTTP_SCHEMES)
    if origin.host.endswith("."):
        raise ValueError("its host ends with a dot")
    if _NUMBER.fullmatch(origin.host.rpartition(".")[2]) and not _is_ip(origin.host):
        raise ValueError("its host is a number but not an IP address")
    found, mark, query = target.partition("?")
    if _AMBIGUOUS.search(found):
        raise ValueError("its path has a character that programs read differently")
    steps = found.split("/")[1:]
    if not {".", ".."}.isdisjoint(steps) or "" in steps[:-1]:
        raise ValueError("its path has `.`, `..` or nothing between two slashes")
    return TargetAddress(origin, "" if found == "/" and not path else found, mark + query)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class TargetPattern:
    """Addresses that may be named: one host or all hosts of a domain, below a path."""

    address: TargetAddress
    is_wild: bool = False
    """Matches every host below the pattern's host; if that is `ANY_HOST`, every host."""

    def covers(self, address: TargetAddress) -> bool:
        """Whether this address may be named."""
        own, other = self.address.origin, address.origin
        if (own.scheme, own.port) != (other.scheme, other.port):
            return False
        if not self.is_wild:
            is_host = other.host == own.host
        else:
            is_host = own.host == ANY_HOST or (other.host.endswith(f".{own.host}") and not _is_ip(other.host))
        return is_host and address.steps[: len(self.address.steps)] == self.address.steps


@functools.lru_cache(maxsize=256)
def read_pattern(text: str) -> TargetPattern:
    """Read a pattern: `https://host:port/path`, where the host may begin with `*.` or be `*`.

    Raises:
        ValueError: it is not a pattern.
    """
    split = _SPLIT.fullmatch(text)
    if split is None:
        raise ValueError(_USE)
    scheme, star, host, path = split.groups("")
    try:
        address = read_address(f"{scheme}{ANY_HOST if star == '*' else ''}{host}{path}")
    except ValueError as error:
        raise ValueError(f"{_USE}: {error}") from error
    if star == "*." and _is_ip(address.origin.host):
        raise ValueError(f"{_USE}: a numeric address has no names below it")
    return TargetPattern(address, bool(star))


_USE = "must be like https://host, https://*.domain or http://127.0.0.1:9000/path"


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """The addresses that callers may name, and the headers that they may send there."""

    allow: tuple[str, ...] = ()
    """Patterns of addresses; see `read_pattern`. By default no address may be named."""
    headers: tuple[str, ...] = ()
    """Names of headers that a caller may have sent to the address that it names."""
    idle: float = 300.0
    """How many seconds an unused server is kept."""
    max: int = 64
    """Such servers at once."""
    open: bool = False
    """Callers of a hub without keys may name addresses: those in `allow`, or every public one if that is empty."""

    def __post_init__(self) -> None:
        for position, pattern in enumerate(self.allow):
            try:
                read_pattern(pattern)
            except ValueError as error:
                wanted, _, why = str(error).partition(": ")
                shown = "one with a user in it" if "@" in pattern else repr(pattern)  # and perhaps a password
                raise ValueError(f"allow.{position} {wanted}, not {shown}" + (f": {why}" if why else "")) from error
        for position, name in enumerate(self.headers):
            if _HEADER.fullmatch(name) is None:
                raise ValueError(f"headers.{position} must be a name that HTTP allows, not {name!r}")
            if name.lower() in OWN_HEADERS:
                raise ValueError(f"headers.{position} must not be one that the hub writes itself, not {name!r}")
        if not 0 < self.idle < float("inf"):
            raise ValueError(f"idle must be a number of seconds above 0, not {self.idle:g}")
        if self.max < 1:
            raise ValueError(f"max must be at least 1, not {self.max}")

    def allows(self, address: TargetAddress) -> bool:
        """Whether an address may be named."""
        return (self.open and not self.allow) or any(read_pattern(pattern).covers(address) for pattern in self.allow)

    def trusts(self, address: TargetAddress) -> bool:
        """Whether it may be in a private network: its host is listed literally, like a configured one."""
        patterns = map(read_pattern, self.allow)
        return any(not pattern.is_wild and pattern.covers(address) for pattern in patterns)

    def trusts_url(self, url: str) -> bool:
        """The same for a URL; an invalid one is not trusted."""
        try:
            return self.trusts(read_address(url))
        except ValueError:
            return False

    def passes(self, header: str) -> bool:
        """Whether a caller may have this header sent."""
        return any(header.lower() == name.lower() for name in self.headers)
