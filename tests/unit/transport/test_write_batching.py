"""Writes of one turn of the loop are made together, in order, and at its end."""

from __future__ import annotations

import asyncio

from isthmus.transport.write_batching import WriteBatch


class Noted:
    """A writer that notes when it was flushed."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def flush(self) -> None:
        self.notes.append(self.name)


async def test_what_is_held_is_written_at_the_end_of_the_turn_in_order() -> None:
    notes: list[str] = []
    cork = WriteBatch()
    for name in ("first", "second"):
        cork.add(Noted(name, notes))
    assert notes == []
    await asyncio.sleep(0)
    assert notes == ["first", "second"]


async def test_every_turn_has_its_own_end() -> None:
    notes: list[str] = []
    cork = WriteBatch()
    cork.add(Noted("first", notes))
    await asyncio.sleep(0)
    cork.add(Noted("second", notes))
    await asyncio.sleep(0)
    assert notes == ["first", "second"]
