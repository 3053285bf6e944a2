"""The `[audit]` table of a file; a bad value refuses the file. Called by `config.load`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from isthmus.config import values
from isthmus.config.files import Document
from isthmus.config.findings import Finding
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.telemetry.settings import AuditSettings

ROOT = "audit"

_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([0-9]{1,6})([hdw])")


def _duration(key: str, value: object) -> float:
    """Seconds, as a number or as a text like `90d`."""
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip().lower())
        if found is None:
            raise ValueError(f"{key} must be a time like 36h, 90d or 52w, not {values.shown(value)}")
        return int(found[1]) * _UNITS[found[2]]
    return values.number(key, value)


_READERS: Mapping[str, Reader] = {"keep": _duration}


def read_audit(document: Document | None) -> tuple[AuditSettings, tuple[Finding, ...]]:
    """Return the log's settings and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    # Elsewhere an `audit` may be anything, and of anybody.
    if document is None or not document.dialect.is_own:
        return AuditSettings(), ()
    read, told = read_table(document, ROOT, _READERS)
    return accepted(document, ROOT, lambda: AuditSettings(**read)), told
