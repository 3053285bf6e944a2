"""The `[tasks]` table into settings of the MCP face; a bad value refuses the file. Called by `config.load`."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.config import values
from isthmus.config.files import Document
from isthmus.config.findings import Finding
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.frontends.mcp.settings import TaskSettings

ROOT = "tasks"

_READERS: Mapping[str, Reader] = {"provide": values.flag, "after": values.number}


def read_tasks(document: Document | None) -> tuple[TaskSettings, tuple[Finding, ...]]:
    """Return the settings of tasks and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return TaskSettings(), ()
    read, told = read_table(document, ROOT, _READERS)
    return accepted(document, ROOT, lambda: TaskSettings(**read)), told
