"""Logs of hubs that share a state folder with others: each writes one of its own, and nobody waits for anybody.

An editor may start a dozen hubs over standard streams beside the one that serves. A seat is a folder with a log that
one hub at a time writes; a hub takes the first that is free, and the system frees it with the process, however that
ends. So there are as many as ever ran at once, and each is one chain. `app.audit` takes them; `isthmus audit` reads.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import structlog

from isthmus.storage.audit_signatures import CHECKPOINT_FILE, FOLDER
from isthmus.storage.journal_base import StateInUse
from isthmus.storage.sqlite import FILE, SqliteJournal

log = structlog.get_logger(__name__)

SLOTS_FOLDER = "seats"
SLOTS_MAX = 1_000

_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_CHECKPOINT = re.compile(rf"{CHECKPOINT_FILE}-([1-9][0-9]{{0,3}})")


def slot_folder(state: Path, seat: int) -> Path:
    """Where a seat is."""
    return state / FOLDER / SLOTS_FOLDER / str(seat)


def slot_file(state: Path, seat: int) -> Path:
    """The file with the log of a seat."""
    return slot_folder(state, seat) / FILE


def acquire_slot(state: Path) -> tuple[int, SqliteJournal]:
    """The first free seat, made if there is none, and its log; to be closed by whoever takes it.

    A log that cannot be opened any more is passed over: that it is damaged is for `isthmus audit verify` to say.

    Raises:
        OSError: none can be had.
    """
    for folder in (state, state / FOLDER, state / FOLDER / SLOTS_FOLDER):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for seat in range(1, SLOTS_MAX + 1):
        is_new = not slot_file(state, seat).exists()
        try:
            return seat, SqliteJournal(slot_folder(state, seat))
        except StateInUse:
            continue
        except sqlite3.Error as error:
            if is_new:
                raise OSError(f"no log can be made in {slot_folder(state, seat)}: {error}") from error
            log.error("an audit log cannot be opened; another is begun", path=str(slot_file(state, seat)))
    raise OSError(f"all {SLOTS_MAX} audit logs in {state / FOLDER / SLOTS_FOLDER} are in use")


def reopen_slot(state: Path, seat: int) -> SqliteJournal | None:
    """The log of one seat, if nobody has it; None if somebody has, or it cannot be opened."""
    if not slot_file(state, seat).exists():
        return None
    try:
        return SqliteJournal(slot_folder(state, seat))
    except (StateInUse, OSError, sqlite3.Error):
        return None


def list_slots(state: Path) -> list[int]:
    """All seats that there ever were, as far as anything of them is left: a log, or what vouches for it."""
    folder = state / FOLDER
    found = {int(each.name) for each in _within(folder / SLOTS_FOLDER) if _NUMBER.fullmatch(each.name)}
    found |= {int(match[1]) for each in _within(folder) if (match := _CHECKPOINT.fullmatch(each.name))}
    return sorted(found)


def _within(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
