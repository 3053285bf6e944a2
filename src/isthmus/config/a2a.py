"""The `[a2a]` table of a file into the settings of the agent; a bad value refuses the file. Called by `config.load`."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.config import values
from isthmus.config.files import Document
from isthmus.config.findings import Finding
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.frontends.a2a.settings import A2aSettings

ROOT = "a2a"

_READERS: Mapping[str, Reader] = {
    "name": values.text,
    "description": values.text,
    "text_tool": values.text,
    "card": values.text,
    "keep": values.number,
    "keep_bytes": values.integer,
    "grpc_port": values.integer,
    "grpc_url": values.text,
}


def read_a2a(document: Document | None) -> tuple[A2aSettings, tuple[Finding, ...]]:
    """Return the agent's settings and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return A2aSettings(), ()
    read, told = read_table(document, ROOT, _READERS)
    return accepted(document, ROOT, lambda: A2aSettings(**read)), told
