"""Turns: one holder at a time, for as long as a healthy holder needs."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from pathlib import Path

import pytest

from isthmus.credentials import vault
from isthmus.credentials.vault import turn


async def test_one_waits_until_the_other_is_done(tmp_path: Path) -> None:
    order: list[str] = []

    async def second() -> None:
        async with turn(tmp_path / "x"):
            order.append("second")

    async with turn(tmp_path / "x"):
        waiting = asyncio.ensure_future(second())
        await asyncio.sleep(0)  # in which it asks for its turn
        async with turn(tmp_path / "y"):
            order.append("another's")
        order.append("first")
    await asyncio.wait_for(waiting, 5.0)
    assert order == ["another's", "first", "second"]


async def test_a_stopped_process_is_not_waited_for_and_without_a_file_there_is_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault, "TURN_SECONDS", 0.05)
    async with turn(tmp_path / "x"), turn(tmp_path / "x"):
        pass
    async with turn(tmp_path / "no" / "x"), turn(tmp_path / "no" / "x"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
async def test_where_files_cannot_be_locked_there_is_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As on some network folders: a login must be renewed there all the same."""

    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    async with asyncio.timeout(vault.TURN_SECONDS / 2), turn(tmp_path / "x"), turn(tmp_path / "x"):
        pass
