"""The `[targets]` table: which addresses callers may name. A bad value refuses the file. Called by `config.load`."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.config import values
from isthmus.config.files import Document
from isthmus.config.findings import Finding
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.upstream.targets.settings import TargetSettings

ROOT = "targets"

_READERS: Mapping[str, Reader] = {
    "allow": values.texts,
    "open": values.flag,
    "headers": values.texts,
    "idle": values.number,
    "max": values.integer,
}


def read_targets(document: Document | None) -> tuple[TargetSettings, tuple[Finding, ...]]:
    """Return the settings and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return TargetSettings(), ()
    read, told = read_table(document, ROOT, _READERS)
    return accepted(document, ROOT, lambda: TargetSettings(**read)), told
