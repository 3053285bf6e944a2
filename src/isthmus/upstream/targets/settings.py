"""What an operator can say of addresses that callers name; `config` fills it from `[targets]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from isthmus.upstream.settings import OWN_HEADERS
from isthmus.upstream.targets.addresses import TargetAddress, read_address, read_pattern

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """Which addresses may be named, and what may be sent there."""

    allow: tuple[str, ...] = ()
    """Patterns of addresses; see `addresses.read_pattern`. None may be named by default."""
    headers: tuple[str, ...] = ()
    """Names of headers that a caller may have sent to the address that it names."""
    idle: float = 300.0
    """How many seconds a server that nobody uses is kept."""
    max: int = 64
    """Such servers at once."""
    open: bool = False
    """Callers of a hub without keys may name addresses: what `allow` lists, or every public one if that is empty."""

    def __post_init__(self) -> None:
        for position, pattern in enumerate(self.allow):
            try:
                read_pattern(pattern)
            except ValueError as error:
                raise ValueError(f"allow.{position} {_about(pattern, error)}") from error
        for position, name in enumerate(self.headers):
            _check_header(position, name)
        if not 0 < self.idle < float("inf"):
            raise ValueError(f"idle must be a number of seconds above 0, not {self.idle:g}")
        if self.max < 1:
            raise ValueError(f"max must be at least 1, not {self.max}")

    def allows(self, address: TargetAddress) -> bool:
        """Whether an address may be named."""
        return (self.open and not self.allow) or any(read_pattern(pattern).covers(address) for pattern in self.allow)

    def trusts(self, address: TargetAddress) -> bool:
        """Whether it may lead into a private network: its host is listed literally, as if it were configured."""
        patterns = map(read_pattern, self.allow)
        return any(not pattern.is_wild and pattern.covers(address) for pattern in patterns)

    def trusts_url(self, url: str) -> bool:
        """The same of a URL; one that is none is not trusted."""
        try:
            return self.trusts(read_address(url))
        except ValueError:
            return False

    def passes(self, header: str) -> bool:
        """Whether a caller may have this header sent."""
        return any(header.lower() == name.lower() for name in self.headers)


def _about(pattern: str, error: ValueError) -> str:
    wanted, _, why = str(error).partition(": ")
    shown = "one with a user in it" if "@" in pattern else repr(pattern)  # and perhaps a password
    return f"{wanted}, not {shown}" + (f": {why}" if why else "")


def _check_header(position: int, name: str) -> None:
    if _HEADER.fullmatch(name) is None:
        raise ValueError(f"headers.{position} must be a name that HTTP allows, not {name!r}")
    if name.lower() in OWN_HEADERS:
        raise ValueError(f"headers.{position} must be none that the hub writes itself, not {name!r}")
