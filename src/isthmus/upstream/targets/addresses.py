"""Addresses that callers name, and the patterns that allow them.

Plain values: nothing is resolved or dialled. Addresses that two parsers could read differently are refused.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote

from isthmus.transport.egress import HTTP_SCHEMES, SOCKET_SCHEMES, HttpOrigin, parse_url

LENGTH_MAX = 2048
"""Of an address with its path."""

_SPLIT = re.compile(r"(https?://)(\*\.|\*(?=[:/]|$))?([^/?#*]*)(/[^?#*]*)?", re.ASCII)
"""A pattern: scheme, star, the rest of the host with its port, path."""

_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_TRICKS = re.compile(r"%(?:2[ef5]|5c|[01][0-9a-f]|7f|(?![0-9a-f]{2}))|[;\\]", re.IGNORECASE)
"""What some servers take for a slash, a dot, a percent sign, the end of a segment or of a text, and others do not."""

ANYBODY = "anybody.invalid"
"""Stands for the host of a pattern that is only a star, to have its port read."""


@dataclass(frozen=True, slots=True)
class TargetAddress:
    """Where a caller wants to go: whom to dial, and the path and the query there."""

    origin: HttpOrigin
    path: str = ""
    """Without one it is to be found out."""
    query: str = ""

    @property
    def url(self) -> str:
        """The whole of it."""
        return f"{self.origin}{self.path}{self.query}"

    @property
    def place(self) -> tuple[HttpOrigin, tuple[str, ...]]:
        """What addresses have in common that lead to the same server, whatever their queries are."""
        return self.origin, self.steps

    @property
    def steps(self) -> tuple[str, ...]:
        """The path as it is compared: `/a%62/` and `/ab` are one."""
        return tuple(unquote(step) for step in self.path.split("/") if step)


def read_address(url: str, path: str | None = None) -> TargetAddress:
    """The address that a URL names, joined with a path below it if there is one.

    Raises:
        ValueError: it is none, or one that could be read in two ways; the message quotes no query and no password.
    """
    whole = url if not path else _joined(url, path)
    if len(whole) > LENGTH_MAX:
        raise ValueError(f"it is longer than {LENGTH_MAX} characters")
    if not whole.isascii():
        raise ValueError("it has characters beyond ASCII; write the host as a name server knows it")
    if "#" in whole:
        raise ValueError("it has a fragment")
    origin, target = parse_url(whole, SOCKET_SCHEMES if whole[:2].lower() == "ws" else HTTP_SCHEMES)
    _check_host(origin.host)
    found, mark, query = target.partition("?")
    _check_path(found)
    return TargetAddress(origin, "" if found == "/" and not path else found, mark + query)


def _joined(url: str, path: str) -> str:
    if "?" in url:
        raise ValueError("it has a query, behind which no path can be")
    return f"{url.rstrip('/')}/{path.removeprefix('/')}"


def _check_host(host: str) -> None:
    if host.endswith("."):
        raise ValueError("its host ends with a dot")
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and not _is_ip(host):
        raise ValueError("its host is a number that is no address")


def _check_path(path: str) -> None:
    if _TRICKS.search(path):
        raise ValueError("its path has a character that not everybody reads alike")
    steps = path.split("/")[1:]
    if not {".", ".."}.isdisjoint(steps) or "" in steps[:-1]:
        raise ValueError("its path has a dot or nothing between two slashes")


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class TargetPattern:
    """Addresses that may be named: those of one host, or of all below a domain, from a path on."""

    address: TargetAddress
    is_wild: bool = False
    """Any labels may stand left of the host; if that is `ANYBODY`, any host may stand in its place."""

    def covers(self, address: TargetAddress) -> bool:
        """Whether this address may be named."""
        own, other = self.address.origin, address.origin
        is_there = (own.scheme, own.port) == (other.scheme, other.port) and self._covers_host(other.host)
        return is_there and address.steps[: len(self.address.steps)] == self.address.steps

    def _covers_host(self, host: str) -> bool:
        own = self.address.origin.host
        if not self.is_wild:
            return host == own
        return own == ANYBODY or (host.endswith(f".{own}") and not _is_ip(host))


@functools.lru_cache(maxsize=256)
def read_pattern(text: str) -> TargetPattern:
    """The pattern that a text is: `https://host:port/path`, where the host may begin with `*.` or be `*`.

    Raises:
        ValueError: it is none.
    """
    split = _SPLIT.fullmatch(text)
    if split is None:
        raise ValueError(_USE)
    scheme, star, host, path = split.groups("")
    try:
        address = read_address(f"{scheme}{ANYBODY if star == '*' else ''}{host}{path}")
    except ValueError as error:
        raise ValueError(f"{_USE}: {error}") from error
    if star == "*." and _is_ip(address.origin.host):
        raise ValueError(f"{_USE}: no name stands left of a numeric address")
    return TargetPattern(address, bool(star))


_USE = "must be like https://host, https://*.domain or http://127.0.0.1:9000/path"
