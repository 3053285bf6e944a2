"""The keys that were made by the command line, in the state folder: read by the hub, changed by `isthmus token`.

Several processes may work on it at once: who changes it holds a lock, and who reads finds one list or the next, never
half of one. That the folder exists says that there are such keys: a list that is gone from it is a list that was lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from isthmus.config.codes import KEY_STORE
from isthmus.config.files import read_regular_file
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.identity.minted_keys import Keys, StoreDamaged, read_keys, write_keys

FOLDER = "keys"
FILE = "keys.json"
LOCK = "lock"

FILE_BYTES = 16 * 1024 * 1024
"""Far more than the keys that may be made; a longer file is not one that this command line wrote."""

Look: TypeAlias = tuple[int, ...]
"""What tells a file from its later self without reading it."""


class KeyFile:
    """The list of keys of one state folder."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.folder = state / FOLDER
        self.path = self.folder / FILE

    def exists(self) -> bool:
        """Whether keys were ever made here.

        Raises:
            OSError: nobody can tell.
        """
        try:
            os.lstat(self.folder)  # a link to a volume that is not there says that there are keys, too
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def look(self) -> Look:
        """What the list looks like from outside; where it changed, this has.

        Raises:
            OSError: it cannot be looked at; FileNotFoundError: it is gone.
        """
        seen = os.stat(self.path)
        return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_mode

    def read(self) -> Keys:
        """Read the list.

        Raises:
            OSError: it cannot be read; FileNotFoundError: it is gone.
            StoreDamaged: it is not one, or others can write to it.
        """
        owners = (0, os.geteuid(), os.stat(self._state).st_uid)
        for place in (self.folder, self.path):
            seen = os.stat(place)
            if seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise StoreDamaged(f"other users can write to {place}: run chmod go-w on it, and look at its keys")
            if seen.st_uid not in owners:
                raise StoreDamaged(f"{place} belongs to another user: run chown on it, and look at its keys")
        try:
            return read_keys(read_regular_file(self.path, FILE_BYTES))
        except StoreDamaged:
            raise
        except ValueError as error:
            raise StoreDamaged("it is longer than any list of keys") from error

    def change(self, decide: Callable[[Keys], Keys]) -> None:
        """Put what is decided in the list's place; there is one from now on. What `decide` raises changes nothing.

        Raises:
            OSError: it cannot be read or written.
            StoreDamaged: the one that is there is none.
        """
        if not self.exists():
            self._begin()
        with self._lock():
            self._replace(write_keys(decide(self.read())))

    def _begin(self) -> None:
        """Make an empty list, folder and all in one step: a hub that starts meanwhile sees none or all of it."""
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._state / f".{FOLDER}-{secrets.token_hex(8)}"
        draft.mkdir(mode=0o700)
        try:
            self._give(draft)
            self._write(draft / FILE, write_keys(()))
            try:
                os.rename(draft, self.folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise  # otherwise somebody was faster, whose list is as good
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft / FILE)
            with suppress(FileNotFoundError):
                os.rmdir(draft)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = self.folder / LOCK
        descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._give(lock)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _replace(self, content: bytes) -> None:
        draft = self.path.with_name(f"{FILE}.{secrets.token_hex(8)}")
        try:
            self._write(draft, content)
            os.replace(draft, self.path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
        _sync_folder(self.folder)

    def _write(self, path: Path, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        self._give(path)

    def _give(self, path: Path) -> None:
        """Let what root made belong to whom the state folder belongs, or their hub could not read it."""
        owner = os.stat(self._state)
        if os.geteuid() == 0 and owner.st_uid != 0:
            os.chown(path, owner.st_uid, owner.st_gid)


def minted_keys(state: Path) -> Keys | None:
    """The keys that were made for the hub of a state folder; None if none ever were.

    Raises:
        ConfigError: there were, and the list cannot be used.
    """
    file = KeyFile(state)
    try:
        return file.read() if file.exists() else None
    except (OSError, StoreDamaged) as error:
        raise ConfigError(finding_of(file, error)) from error


def finding_of(file: KeyFile, error: OSError | StoreDamaged) -> Finding:
    """Tell of a list that cannot be used."""
    return Place(None, str(file.path)).finding(
        f"cannot be used: {reason_of(error)}", advice=fix_of(file, error), code=KEY_STORE
    )


def fix_of(file: KeyFile, error: OSError | StoreDamaged) -> str:
    """What to do about that."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return "work as the user that made it, or name another folder as [hub] state"
    return f"put it back or mend it; if nobody is to have its keys any more, delete {file.folder}"


def reason_of(error: OSError | StoreDamaged) -> str:
    """Why a list cannot be used, without what is in it."""
    if isinstance(error, FileNotFoundError):
        return "it is gone"
    return str(error.strerror if isinstance(error, OSError) else error)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def offer_secret(file: Path, size_bytes: int) -> None:
    """Put a new one there, unless somebody else just did: two that start at once have the same.

    Raises:
        OSError: it cannot be kept there.
    """
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(size_bytes) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        os.unlink(draft)
