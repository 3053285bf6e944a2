"""A tool as its server describes it."""

from __future__ import annotations

import hashlib

import msgspec

from isthmus.model.names import ServerName, ToolName


class Tool(msgspec.Struct, frozen=True):
    """One capability of one server; the pair (server, name) is its only identity.

    `definition` is the server's own description, one level deep and otherwise untouched, so that fields this
    hub has never heard of reach the caller. `digest` changes exactly when the description does.
    """

    server: ServerName
    name: ToolName
    definition: dict[str, msgspec.Raw]
    digest: bytes

    @classmethod
    def of(cls, server: ServerName, name: ToolName, definition: dict[str, msgspec.Raw]) -> Tool:
        """Make a tool and compute its digest."""
        return cls(server, name, definition, digest_of(definition))


def digest_of(definition: dict[str, msgspec.Raw]) -> bytes:
    """A short fingerprint of a definition, the same for the same members in the same order."""
    return hashlib.blake2b(msgspec.json.encode(definition), digest_size=12).digest()
