"""Servers that are not configured, at addresses that callers name, as faces see them. `upstream` implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.model.callers import Caller
from isthmus.model.faults import Fault
from isthmus.model.names import ServerName


class Named(msgspec.Struct, frozen=True):
    """What a caller says of the server that it means."""

    url: str
    path: str | None = None
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"Named({self.url!r})"  # headers are secrets


class Opened(msgspec.Struct, frozen=True):
    """A server that can be called now, by its caller alone: a hub of its kind, and its name there."""

    hub: Hub
    server: ServerName
    is_plain: bool = False
    """It speaks JSON-RPC and no MCP: every method goes to it as the caller names it."""
    initialize_result: msgspec.Raw | None = None
    """What an MCP server said when the hub greeted it, as the result of `initialize`."""


class Aim(Protocol):
    """An address that its caller may name; nothing has been dialled yet."""

    def open(self, then: Callable[[Opened | Fault], None]) -> Callable[[], None]:
        """Reach the server, or use the link there is; `then` hears of it once, unless what is returned is called."""


class Targets(Protocol):
    """Finds out what callers mean by addresses."""

    def find(self, caller: Caller, named: Named) -> ServerName | Aim | Fault:
        """The configured server that is at this address, a server to be reached, or why it may not be."""
