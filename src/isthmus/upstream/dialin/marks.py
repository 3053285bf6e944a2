"""How calls are written on a channel behind which is our own client: each says whose it is, by marks.

Without them the client could not tell callers apart, and would have to guess whom its server asks something.
"""

from __future__ import annotations

import hashlib
import secrets

import msgspec

from isthmus.model.calls import Call
from isthmus.model.questions import ClientCapabilities
from isthmus.upstream.dialect import ModernDialect
from isthmus.wire.mcp.marks import MARK_KEY, Mark
from isthmus.wire.mcp.messages import Implementation

_KEY = secrets.token_bytes(32)
"""Whoever reads a mark learns nothing from it, and two agents cannot compare theirs."""

MARK_BYTES = 16


class MarkingDialect(ModernDialect):
    """The modern dialect, with a mark on each call."""

    def __init__(self, me: Implementation, agent: str) -> None:
        super().__init__(me)
        self._agent = agent

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """See `Dialect`."""
        meta = {**call.meta, MARK_KEY: msgspec.Raw(msgspec.json.encode(mark_of(self._agent, call)))}
        return super().call_params(msgspec.structs.replace(call, meta=meta), name, token)

    def _envelope(self, client_caps: ClientCapabilities) -> bytes:
        # A caller's folders are on its own machine, where the server is not.
        return super()._envelope(frozenset(each for each in client_caps if each.partition(".")[0] != "roots"))


def mark_of(agent: str, call: Call) -> Mark:
    """The marks of a call's caller and conversation."""
    tenant, name = call.caller.tenant, call.caller.name
    session = _hashed(agent, tenant, name, call.session) if call.session else ""
    return Mark(_hashed(agent, tenant, name), session, call.shares_link)


def _hashed(*parts: str) -> str:
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=MARK_BYTES, key=_KEY).hexdigest()
