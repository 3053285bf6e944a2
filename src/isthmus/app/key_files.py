"""The list of API keys: a file in the state folder, or a document in a cluster's database (`KeyDocument`).

A running hub reads it (`LiveKeys`) and uses the last list for a short while if it becomes unreadable; `isthmus token`
changes it.

Several processes may use it at once: writers hold a lock, and readers see the old or the new list, never half of one.
If the folder exists, keys were created: a missing list in it is a lost list.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from isthmus.app.state_folder import NoStateFolder, make_folder
from isthmus.config.files import FileVersion, read_regular_file, version_of
from isthmus.config.finding_codes import KEY_STORE
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.core.journal import SharedState, StateDocument
from isthmus.identity.minted_keys import Keys, StoreDamaged, read_keys, write_keys

log = structlog.get_logger(__name__)

FOLDER = "keys"
FILE = "keys.json"
LOCK = "lock"
OPEN = "open"
"""If it exists, no key is required: the operator opened the hub again after the last one was revoked."""

FILE_BYTES = 16 * 1024 * 1024
"""Far more than the maximum number of keys needs; the command line never writes a longer file."""

TRUST_SECONDS = 30.0
"""How long the last list is used when it cannot be read: keys revoked meanwhile would stay valid."""


class KeyFile:
    """The list of keys of one state folder."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.folder = state / FOLDER
        self.path = self.folder / FILE

    def exists(self) -> bool:
        """Whether keys were ever created here.

        Raises:
            OSError: the folder cannot be checked.
        """
        try:
            os.lstat(self.folder)  # a link to an unmounted volume also means that there are keys
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_open(self) -> bool:
        """Whether the hub was opened again after the last key was revoked."""
        return (self.folder / OPEN).exists()

    def revision(self) -> FileVersion:
        """A value that changes whenever the list does.

        Raises:
            OSError: the file cannot be checked; FileNotFoundError: it is gone.
        """
        status = os.stat(self.path)
        return (*version_of(status), status.st_mode, self.is_open())

    def read(self) -> Keys:
        """Read the list.

        Raises:
            OSError: the file cannot be read; FileNotFoundError: it is gone.
            StoreDamaged: the file is not a list of keys, or others can write to it.
        """
        owners = (0, os.geteuid(), os.stat(self._state).st_uid)
        for place in (self.folder, self.path):
            status = os.stat(place)
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise StoreDamaged(f"other users can write to {place}: run chmod go-w on it, and look at its keys")
            if status.st_uid not in owners:
                raise StoreDamaged(f"{place} belongs to another user: run chown on it, and look at its keys")
        try:
            return read_keys(read_regular_file(self.path, FILE_BYTES))
        except StoreDamaged:
            raise
        except ValueError as error:
            raise StoreDamaged("it is longer than any list of keys") from error

    def change(self, decide: Callable[[Keys], Keys], *, to_open: bool | None = None) -> None:
        """Replace the list by the result of `decide`; create it if needed. If `decide` raises, nothing changes.

        `to_open` says whether the hub is open afterwards; None leaves it as it is.

        Raises:
            OSError: the file cannot be read or written.
            StoreDamaged: the existing list is damaged.
        """
        if not self.exists():
            self._begin()
        with self._lock():
            keys = write_keys(decide(self.read()))
            if to_open is False:  # first: an interrupted change leaves the hub closed
                (self.folder / OPEN).unlink(missing_ok=True)
            self._replace(keys)
            if to_open and not self.is_open():
                self._write(self.folder / OPEN, b"")

    def _begin(self) -> None:
        """Create the folder with an empty list atomically, for a hub that starts at the same time."""
        make_folder(self._state)
        draft = self._state / f".{FOLDER}-{secrets.token_hex(8)}"
        draft.mkdir(mode=0o700)
        try:
            self._chown_to_owner(draft)
            self._write(draft / FILE, write_keys(()))
            try:
                os.rename(draft, self.folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise  # otherwise another process was faster, and its list is as good
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
            self._chown_to_owner(lock)
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
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _write(self, path: Path, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        self._chown_to_owner(path)

    def _chown_to_owner(self, path: Path) -> None:
        """Give files that root created to the owner of the state folder, so that its hub can read them."""
        owner = os.stat(self._state)
        if os.geteuid() == 0 and owner.st_uid != 0:
            os.chown(path, owner.st_uid, owner.st_gid)


KEYS: Final = "keys"
"""The kind of the shared documents with keys."""


class KeyDocument:
    """The list of keys of a cluster, in its database. See `KeyFile`."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self.path = self.folder = f"the list of keys in {state.where}"

    def exists(self) -> bool:
        """Whether keys were ever created."""
        return FILE in self._state.all(KEYS)

    def is_open(self) -> bool:
        """Whether the hub was opened again after the last key was revoked."""
        return OPEN in self._state.all(KEYS)

    def revision(self) -> FileVersion:
        """A value that changes whenever the list does. Raises `OSError` if the database was not read for a while."""
        if not self._state.is_current:
            raise OSError(errno.EIO, "the database cannot be read")
        return (self._state.revision(KEYS),)

    def read(self) -> Keys:
        """Read the list."""
        found = self._state.all(KEYS).get(FILE)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "it is gone")
        return read_keys(found.body or b"")

    def replaced(self, keys: Keys) -> dict[str, StateDocument]:
        """The change that makes this the list."""
        found = self._state.all(KEYS).get(FILE)
        return {FILE: StateDocument(0 if found is None else found.version, write_keys(keys))}

    def change(self, decide: Callable[[Keys], Keys], *, to_open: bool | None = None) -> None:
        """Replace the list by the result of `decide`; see `KeyFile`. All nodes have the change within a second."""
        is_written = False
        while not is_written:
            documents = self._state.all(KEYS)  # one version of all: memory may change meanwhile
            found, flag = documents.get(FILE), documents.get(OPEN)
            body = write_keys(decide(() if found is None else read_keys(found.body or b"")))
            changes = {FILE: StateDocument(0 if found is None else found.version, body)}
            if to_open is False and flag is not None:
                changes[OPEN] = StateDocument(flag.version, None)
            elif to_open and flag is None:
                changes[OPEN] = StateDocument(0, b"")
            is_written = self._state.write(KEYS, changes)


KeyStore: TypeAlias = KeyFile | KeyDocument


class LiveKeys:
    """The list of keys as a running hub has read it last."""

    def __init__(self, file: KeyStore, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the list.

        Raises:
            ConfigError: the list exists and cannot be used.
        """
        self._file = file
        self._clock = clock
        self.keys: Keys = ()
        self.are_required = False
        """Whether keys are required: a list exists, and the hub was not opened again."""
        self._version: FileVersion | None = None
        self._last_read_at = clock()
        self._logged_reason = ""
        try:
            self._read()
        except (OSError, StoreDamaged) as error:
            raise ConfigError(finding_of(file, error)) from error

    @property
    def is_unreadable_for_long(self) -> bool:
        """Whether it has been unreadable for too long."""
        return self.are_required and self._clock() - self._last_read_at > TRUST_SECONDS

    def reload(self) -> None:
        """Read the list if it has changed. This blocks on the disk. An unreadable list changes nothing."""
        try:
            self._read()
        except (OSError, StoreDamaged) as error:
            if (reason := reason_of(error)) != self._logged_reason:
                self._logged_reason = reason
                message = "cannot read the list of keys; its last known state is used for a short while"
                log.error(message, file=str(self._file.path), reason=reason, seconds=TRUST_SECONDS)
            return
        if self._logged_reason:
            log.info("the list of keys can be read again", file=str(self._file.path))
            self._logged_reason = ""

    def _read(self) -> None:
        """Raises: OSError, StoreDamaged."""
        if not self.are_required and not self._file.exists():
            self._last_read_at = self._clock()
            return
        is_open = self._file.is_open()
        self.are_required = self.are_required or not is_open
        version = self._file.revision()
        if version != self._version:
            self.keys = self._file.read()
            self._version = version
        self.are_required = not is_open
        self._last_read_at = self._clock()


def keys_in(file: KeyStore) -> Keys | None:
    """The keys of a hub; None if it requires no key, because none was created or the hub was opened again.

    Raises:
        ConfigError: the list cannot be used.
    """
    try:
        return file.read() if file.exists() and not file.is_open() else None
    except (OSError, StoreDamaged) as error:
        raise ConfigError(finding_of(file, error)) from error


def finding_of(file: KeyStore, error: OSError | StoreDamaged) -> Finding:
    """The error for a list that cannot be used."""
    return Place(None, str(file.path)).finding(
        f"cannot be used: {reason_of(error)}", advice=fix_of(file, error), code=KEY_STORE
    )


def fix_of(file: KeyStore, error: OSError | StoreDamaged) -> str:
    """How to fix it."""
    if isinstance(error, NoStateFolder):
        return error.fix
    if isinstance(file, KeyDocument):
        return "restore the database, or create the keys again"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return "run as the user that created it, or set [hub] state to another folder"
    return f"restore or repair it; to drop all its keys, delete {file.folder}"


def reason_of(error: OSError | StoreDamaged) -> str:
    """Why a list cannot be used, without its content."""
    if isinstance(error, FileNotFoundError):
        return "it is gone"
    return str((error.strerror or error) if isinstance(error, OSError) else error)


def offer_secret(file: Path, size_bytes: int) -> None:
    """Create the secret unless another process just did, so that both use the same one.

    Raises:
        OSError: the file cannot be written.
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
