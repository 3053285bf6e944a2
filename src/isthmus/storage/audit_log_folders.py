"""Audit logs of hubs that share a state folder: each hub writes a log of its own, so none waits for another.

An editor may start a dozen stdio hubs beside the one that serves. A slot is a folder with a log that one hub at a time
writes. A hub acquires the first free slot; the operating system frees it when the process ends. So there are as many
slots as hubs ever ran at once, and each log is one chain. `app.audit` acquires slots; `isthmus audit` reads them.
"""

from __future__ import annotations

import fcntl
import os
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
"""Larger numbers are those of nodes of a cluster, whose logs are in the database."""

_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_CHECKPOINT = re.compile(rf"{CHECKPOINT_FILE}-([1-9][0-9]{{0,3}})")


def slot_folder(state: Path, slot: int) -> Path:
    """The folder of a slot."""
    return state / FOLDER / SLOTS_FOLDER / str(slot)


def slot_file(state: Path, slot: int) -> Path:
    """The file with the log of a slot."""
    return slot_folder(state, slot) / FILE


def acquire_slot(state: Path) -> tuple[int, SqliteJournal]:
    """Acquire the first free slot, or make one. Returns its number and its log, which the caller closes.

    A log that cannot be opened is skipped; `isthmus audit verify` reports the damage.

    Raises:
        OSError: no slot is available.
    """
    for folder in (state, state / FOLDER, state / FOLDER / SLOTS_FOLDER):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for slot in range(1, SLOTS_MAX + 1):
        is_new = not slot_file(state, slot).exists()
        try:
            return slot, SqliteJournal(slot_folder(state, slot))
        except StateInUse:
            continue
        except sqlite3.Error as error:
            if is_new:
                raise OSError(f"cannot make an audit log in {slot_folder(state, slot)}: {error}") from error
            log.error("an audit log cannot be opened; using another", path=str(slot_file(state, slot)))
    raise OSError(f"all {SLOTS_MAX} audit logs in {state / FOLDER / SLOTS_FOLDER} are in use")


def reopen_slot(state: Path, slot: int) -> SqliteJournal | None:
    """The log of one slot; None if another hub uses it, or it cannot be opened."""
    if not slot_file(state, slot).exists():
        return None
    try:
        return SqliteJournal(slot_folder(state, slot))
    except (StateInUse, OSError, sqlite3.Error):
        return None


def list_slots(state: Path) -> list[int]:
    """All slots that there ever were, as far as anything of them is left: a log, or what vouches for it."""
    folder = state / FOLDER
    found = {int(each.name) for each in _entries(folder / SLOTS_FOLDER) if _NUMBER.fullmatch(each.name)}
    found |= {int(match[1]) for each in _entries(folder) if (match := _CHECKPOINT.fullmatch(each.name))}
    return sorted(slot for slot in found if slot <= SLOTS_MAX)


def chain_slot(chain: int) -> int:
    """The number of the log of a node, among those of all logs."""
    return SLOTS_MAX + chain


def acquire_place(state: Path) -> tuple[int, int]:
    """Acquire the first free place for a node below a state folder. Nodes on one machine may share the folder.

    Returns its number, and a descriptor to close: the operating system frees the place when the process ends. Raises
    `OSError`.
    """
    folder = state / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in range(1, SLOTS_MAX + 1):
        descriptor = os.open(folder / f"node-{place}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return place, descriptor
    raise OSError(f"all {SLOTS_MAX} places of nodes in {folder} are in use")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
