"""Long JSON objects that know their members, so that nobody parses megabytes for the sake of one flag.

`wire.jsonrpc` finds the members when it reads a long message. Everybody who wants them asks here first.
"""

from __future__ import annotations

import weakref

from msgspec import Raw

KNOWN: dict[int, tuple[weakref.ref[memoryview], dict[str, Raw]]] = {}
"""By the id of the object. It is nearly always empty: code on the path of every call looks first whether it is.

`Raw` allows neither attributes nor weak references. The view that it is made of allows the latter, and lives exactly as
long: an id is forgotten before it can be used again."""


def with_members(raw: Raw | memoryview, members: dict[str, Raw]) -> Raw:
    """The same text as an object that knows its members. They must be all of them, and not change."""
    view = memoryview(raw)
    known = Raw(view)
    key = id(known)

    def forget(_: object) -> None:
        del KNOWN[key]

    KNOWN[key] = weakref.ref(view, forget), members
    return known


def known_members(raw: bytes | Raw) -> dict[str, Raw] | None:
    """The members of an object that knows them; do not change them."""
    found = KNOWN.get(id(raw))
    return None if found is None else found[1]
