"""Tasks that count as none while something of them may still be kept: that is taken away, however long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from isthmus.core.ports.journal import Document, Journal, Verdict
from isthmus.core.tasks.rested import Key

RETRY_SECONDS = 1.0
"""After what the journal refused, how long until it is asked again."""


class Undoing:
    """What is being taken away, by whose it is. `on_done` is called whenever one of them is."""

    def __init__(self, journal: Journal, on_done: Callable[[], None]) -> None:
        self._journal = journal
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[Key, asyncio.Future[None]] = {}

    def __contains__(self, key: Key) -> bool:
        """Whether this task counts as none."""
        return key in self._under_way

    def __len__(self) -> int:
        """How many there are."""
        return len(self._under_way)

    def add(self, key: Key, documents: Sequence[Document]) -> None:
        """Take these away, which are kept all or none."""
        if key not in self._under_way:
            self._under_way[key] = self._loop.create_future()
            self._write(key, nothing_of(documents))

    def _write(self, key: Key, nothing: Sequence[Document]) -> None:
        self._journal.write(nothing, partial(self._written, key, nothing))

    def _written(self, key: Key, nothing: Sequence[Document], verdict: Verdict) -> None:
        if verdict in ("refused", "unknown"):
            self._loop.call_later(RETRY_SECONDS, self._write, key, nothing)
            return
        # After a conflict too: there was nothing to take away, or an earlier try did, of which nobody knew.
        self._under_way.pop(key).set_result(None)
        self._on_done()

    async def until_done(self, key: Key, within: float) -> bool:
        """Wait until nothing of a task is kept; False if that is so already. Raises `TimeoutError`."""
        done = self._under_way.get(key)
        if done is None:
            return False
        async with asyncio.timeout(within):
            await asyncio.shield(done)
        return True


def nothing_of(documents: Sequence[Document]) -> list[Document]:
    """What takes the place of documents that are to be there no more."""
    return [msgspec.structs.replace(each, version=each.version + 1, body=None) for each in documents]
