"""How the parameters of requests are written in a server's era. Links hold one; it has no state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from isthmus.model.calls import NO_CAPABILITIES, Call, ClientCapabilities
from isthmus.wire.jsonrpc import Payload, render
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.forwarded_methods import call_params, request_params
from isthmus.wire.mcp.messages import PROGRESS_TOKEN, Implementation

ENVELOPES_MAX = 64

_NO_MEMBERS: Mapping[str, Payload] = {}


class McpDialect(Protocol):
    """Writes the parameters of requests."""

    era: Literal["legacy", "modern"]
    version: str
    probe: str
    """The cheapest method that every server of the era answers."""

    def params(
        self,
        members: Mapping[str, Payload] = _NO_MEMBERS,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        meta: Mapping[str, Payload] = _NO_MEMBERS,
    ) -> bytes:
        """Parameters of any request, for clients with these capabilities; `meta` is for `_meta` besides."""

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """Parameters of a call of the feature that the server calls `name`; `token` requests progress."""


class LegacyDialect:
    """A negotiated version; nothing is repeated per request."""

    era: Literal["legacy", "modern"] = "legacy"
    probe = "ping"

    def __init__(self, version: str = legacy.LATEST) -> None:
        self.version = version

    def params(
        self,
        members: Mapping[str, Payload] = _NO_MEMBERS,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        meta: Mapping[str, Payload] = _NO_MEMBERS,
    ) -> bytes:
        """The members only; the capabilities were sent in `initialize`."""
        return render({**members, "_meta": render(meta)} if meta else members)

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """`_meta` only if it has members."""
        if call.kind == "tool" and not (call.meta or call.wants_progress):
            return call_params(name, call.arguments, None, call.extra)  # nearly every call
        meta = _passed_on(call, token)
        return _call_params(call, name, render(meta) if meta else None)


class ModernDialect:
    """Every request carries the hub's own envelope."""

    era: Literal["legacy", "modern"] = "modern"
    version = modern.VERSION
    probe = modern.DISCOVER

    def __init__(self, me: Implementation) -> None:
        self._me = me
        self._own = modern.envelope(me)
        self._bare = modern.request_meta(self._own, {})
        self._envelopes: dict[ClientCapabilities, bytes] = {}

    def params(
        self,
        members: Mapping[str, Payload] = _NO_MEMBERS,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        meta: Mapping[str, Payload] = _NO_MEMBERS,
    ) -> bytes:
        """The members and the envelope."""
        is_bare = not client_caps and not meta
        written = self._bare if is_bare else modern.request_meta(self._envelope(client_caps), meta)
        return render({**members, "_meta": written})

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """Always with `_meta`: the envelope, and the caller's own members."""
        if call.kind == "tool" and not (call.meta or call.client_caps or call.wants_progress or call.log_level):
            return call_params(name, call.arguments, self._bare, call.extra)  # nearly every call
        meta = _passed_on(call, token)
        if call.log_level is not None:
            meta[modern.LOG_KEY] = msgspec.json.encode(call.log_level)
        if call.client_caps:
            return _call_params(call, name, modern.request_meta(self._envelope(call.client_caps), meta))
        written = modern.request_meta(self._own, meta) if meta else self._bare
        return _call_params(call, name, written)

    def _envelope(self, client_caps: ClientCapabilities) -> bytes:
        """The envelope for these capabilities; there are few different ones."""
        if client_caps not in self._envelopes:
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            self._envelopes[client_caps] = modern.envelope(self._me, client_caps)
        return self._envelopes[client_caps]


def _call_params(call: Call, name: str, meta: Payload | None) -> bytes:
    if call.kind == "tool":
        return call_params(name, call.arguments, meta, call.extra)
    return request_params(call.kind, name, call.arguments, meta, call.extra)


def _passed_on(call: Call, token: int) -> dict[str, Payload]:
    meta: dict[str, Payload] = dict(call.meta)
    if call.wants_progress:
        meta[PROGRESS_TOKEN] = msgspec.json.encode(token)
    return meta
