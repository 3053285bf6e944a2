"""Permissions that name a server which is not there and is nearly called like one that is.

A mistyped `deny` denies nothing, and nobody would notice. It is only told: a server that dials in may have any name.
Called by `config.load` once all servers are known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from isthmus.config import codes
from isthmus.config.callers import ROOT as CALLERS
from isthmus.config.files import Document
from isthmus.config.findings import Finding, Place, nearest
from isthmus.config.issuers import ROOT as ISSUERS
from isthmus.config.tenants import ROOT as TENANTS
from isthmus.core.access.policy import is_of_agent, is_of_label

_LISTS = ("allow", "deny")


def misspelt_grants(document: Document | None, servers: Collection[str]) -> list[Finding]:
    """Tell of patterns whose server is probably another one of these."""
    if document is None or not document.dialect.has_hub:
        return []
    return [
        place.finding(
            "must name a server that is configured",
            value=repr(pattern),
            advice=f"did you mean {meant}?",
            code=codes.UNKNOWN_SERVER,
        )
        for place, pattern in _patterns(document)
        if (meant := _meant(pattern, servers)) is not None
    ]


def _meant(pattern: str, servers: Collection[str]) -> str | None:
    server, dot, name = pattern.partition(".")
    if not server or "*" in server or is_of_label(pattern) or is_of_agent(pattern) or server in servers:
        return None
    found = nearest(server, servers)
    return None if found is None else f"{found}{dot}{name}"


def _patterns(document: Document) -> Iterator[tuple[Place, str]]:
    """Every text where a pattern stands, whatever else may be wrong with its entry."""
    for root in (CALLERS, TENANTS, ISSUERS):
        for name, fields in document.section(root).items():
            place = Place(document.file, root).at(name)
            yield from _below(place, fields, _LISTS)
            if isinstance(fields, dict):
                yield from _below(place.at("scopes"), fields.get("scopes"), None)
                for face, narrowed in _items(fields.get("faces")):
                    yield from _below(place.at("faces", face), narrowed, _LISTS)


def _below(place: Place, fields: object, keys: Collection[str] | None) -> Iterator[tuple[Place, str]]:
    """The texts in the lists of a table: in those of these keys, or in all of them."""
    for key, values in _items(fields):
        if (keys is None or key in keys) and isinstance(values, list):
            yield from ((place.at(key, at), each) for at, each in enumerate(values) if isinstance(each, str))


def _items(fields: object) -> Iterator[tuple[str, object]]:
    return iter(fields.items()) if isinstance(fields, dict) else iter(())
