"""The `[storage]` table of a file: where tasks are kept. A bad value refuses the file. Called by `config.load`.

The address may be literal, `env:NAME`, `file:PATH` or hold `${VAR}`; no message quotes what it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from isthmus.config import values
from isthmus.config.codes import UNRESOLVED_VARIABLE
from isthmus.config.files import Document
from isthmus.config.findings import Finding, Mistake
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.config.variables import Borrowed, Variables
from isthmus.storage.settings import StorageSettings

ROOT = "storage"

_READERS: Mapping[str, Reader] = {"url": values.text}


def read_storage(
    document: Document | None, variables: Variables, schemes: Collection[str] = ()
) -> tuple[StorageSettings, tuple[Finding, ...]]:
    """Return the settings and what is odd in them; `schemes` are of addresses that extensions take.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return StorageSettings(), ()
    read, told = read_table(document, ROOT, _READERS)
    return accepted(document, ROOT, lambda: _settings(_lent(read.get("url"), variables), schemes)), told


def _settings(url: str | None, schemes: Collection[str]) -> StorageSettings:
    is_foreign = url is not None and url.partition(":")[0] in schemes
    return StorageSettings(url, is_foreign=is_foreign)


def _lent(url: str | None, variables: Variables) -> str | None:
    if url is None:
        return None
    borrowed = Borrowed()
    lent = variables.secret("url", url, borrowed)
    if borrowed.unresolved:
        raise Mistake(UNRESOLVED_VARIABLE, f"url must have only variables that are set, not {borrowed.unresolved[0]}")
    return lent
