"""The `[tenants]` of a file: what everybody of each is held to.

A mistake never widens access: of an entry with anything wrong or unknown in it, nobody of the tenant may call anything
until it is mended. Called by `config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.config import codes, values
from isthmus.config.callers import patterns
from isthmus.config.files import Document
from isthmus.config.findings import Finding, Place
from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.model.callers import Grants

ROOT = "tenants"

_KEYS = ("allow", "deny", "max_calls")
_NOTHING = TenantSettings(Grants(()))


def read_tenants(document: Document | None) -> tuple[Tenants, tuple[Finding, ...]]:
    """Return the tenants and what was wrong with some of them."""
    if document is None or not document.dialect.has_hub:
        return NO_TENANTS, ()
    place = Place(document.file, ROOT)
    known: dict[str, TenantSettings] = {}
    findings: list[Finding] = []
    for name, fields in document.section(ROOT).items():
        try:
            known[name] = _read(fields)
        except ValueError as error:
            known[name] = _NOTHING
            advice = "until it is mended, nobody of this tenant may call anything"
            findings.append(place.at(name).mistake(error, advice=advice, code=codes.BAD_TENANT))
    return Tenants(known), tuple(findings)


def _read(fields: object) -> TenantSettings:
    if not isinstance(fields, dict):
        raise ValueError("must be a table, not another value")
    for key in fields:
        if key not in _KEYS:
            # It may be a mistyped `deny`.
            raise ValueError(f"must have only {', '.join(_KEYS)}, not {values.shown(key)}")
    most = fields.get("max_calls")
    return TenantSettings(_bounds(fields), None if most is None else values.integer("max_calls", most))


def _bounds(fields: Mapping[str, object]) -> Grants | None:
    """What is not said of `allow` is not held against anybody; an empty list is."""
    if "allow" not in fields and "deny" not in fields:
        return None
    allow = patterns("allow", fields) if "allow" in fields else ("*",)
    return Grants(allow, patterns("deny", fields))
