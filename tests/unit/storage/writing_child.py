"""Writes to a journal until it is killed, and prints which writes were confirmed."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

from isthmus.core.journal import Document, Journal, WriteResult
from isthmus.storage.postgres import PostgresJournal
from isthmus.storage.settings import StorageSettings
from isthmus.storage.sqlite import SqliteJournal

AT_ONCE = 16


async def main(place: str) -> None:
    """Have always as many writes under way, each a document of its own; the place is a folder or an address."""
    journal: Journal
    if "://" in place:
        journal = await PostgresJournal.open(StorageSettings(place))
    else:
        journal = SqliteJournal(Path(place))
    numbers = iter(range(sys.maxsize))

    def begin() -> None:
        number = next(numbers)
        body = b"x" * (number % 5000)
        journal.write([Document("task", "me", f"t{number}", 1, float(number), body)], partial(told, number))

    def told(number: int, verdict: WriteResult) -> None:
        os.write(1, f"{number} {verdict}\n".encode())
        begin()

    for _ in range(AT_ONCE):
        begin()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
