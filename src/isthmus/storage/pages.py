"""How much of a list of documents is read at once, and what the next page is asked for with.

Documents are as long as what callers say and are told. A page ends where those on it take enough.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.core.ports.journal import Document

PAGE_BYTES = 4 * 1024 * 1024
"""The documents on a page take less than this without the last of them, which may be as large as one can be."""


def fitting(lengths: Iterable[int]) -> int:
    """How many documents of these lengths go on one page; the first always does."""
    count = taken = 0
    for length in lengths:
        if taken >= PAGE_BYTES:
            break
        count += 1
        taken += length
    return count


def write_token(last: Document) -> str:
    """The token of the page after this document."""
    return f"{last.at!r}:{last.id}"


def read_token(token: str) -> tuple[float, str]:
    """The time and id of the document before the page; raises `ValueError` for what no page gave."""
    at, _, id = token.partition(":")
    return float(at), id
