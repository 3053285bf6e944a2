"""Stored logins: one encrypted file each in the state folder, or a document in a cluster's database; encryption keys.

Files are encrypted with ChaCha20-Poly1305 and a 256-bit key. Owner, server and key id are authenticated together with
the content, so a moved, renamed or edited file is refused. The hub and the command line may use the vault at the same
time: files are replaced atomically. No message quotes their content.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isthmus.core.journal import SharedState, StateDocument
from isthmus.model.credentials import Subject

if sys.platform != "win32":
    import fcntl

TURN_SECONDS = 20.0
"""A process that holds the lock longer is assumed to hang, and the others continue without it."""

PAUSE_SECONDS = 0.05


@asynccontextmanager
async def turn(file: Path) -> AsyncIterator[None]:
    """Run the block under a lock file; without a lock if the file system does not support it."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        await _wait_for(descriptor)
        yield
    finally:
        os.close(descriptor)


async def _wait_for(descriptor: int) -> None:
    if sys.platform == "win32":
        return
    until = time.monotonic() + TURN_SECONDS
    while time.monotonic() < until:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(PAUSE_SECONDS)
        except OSError:
            return  # some network folders have no locks; logins must be renewed there, too
        else:
            return


FOLDER = "credentials"
KEY_FILE = "key"
LOCK_SECONDS = 1.0
TURN_ENDING = ".turn"
ENDING = ".sealed"
VERSION = 1
KEY_BYTES = 32
NONCE_BYTES = 12
KEY_LENGTH_MIN = 16
FILE_BYTES_MAX = 256 * 1024

_PURPOSE = b"isthmus credentials at rest"


class VaultDamaged(Exception):
    """A file of the vault is unusable; the message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class VaultSettings:
    """The operator's key, and earlier keys that some files may still use."""

    key: str = field(default="", repr=False)
    old_keys: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name, key in (("key", self.key), *((f"old_keys.{i}", key) for i, key in enumerate(self.old_keys))):
            if key and len(key) < KEY_LENGTH_MIN:
                raise ValueError(f"{name} must have {KEY_LENGTH_MIN} characters or more, not {len(key)}")
        if self.old_keys and not self.key:
            raise ValueError("old_keys must come with key")

    @property
    def key_id(self) -> str:
        """Names the key without revealing it; empty without one."""
        return _id_of(self.key) if self.key else ""


class Slot(NamedTuple):
    """Identifies a login: the server, and the caller's name (empty for the shared login)."""

    server: str
    tenant: str = ""
    caller: str = ""

    @classmethod
    def of(cls, server: str, subject: Subject | None) -> Slot:
        """The slot of a caller, whatever its token, or the shared one."""
        return cls(server) if subject is None else cls(server, subject.tenant, subject.name)

    @property
    def id(self) -> str:
        """The name of its file."""
        return hashlib.sha256("\0".join(self).encode()).hexdigest()[:32]


class _StoredLogin(msgspec.Struct):
    v: int
    id: str
    server: str
    tenant: str
    caller: str
    key: str
    sealed: str

    @property
    def slot(self) -> Slot:
        return Slot(self.server, self.tenant, self.caller)


class Vault:
    """The logins in one state folder."""

    def __init__(self, state: Path, settings: VaultSettings | None = None) -> None:
        """Nothing is created before the first login is stored."""
        self._folder = state / FOLDER
        self._settings = settings or VaultSettings()
        self._keys: dict[str, ChaCha20Poly1305] = {}
        self._current = ""

    def change(self, settings: VaultSettings) -> None:
        """Use other configured keys from now on."""
        if settings != self._settings:
            self._settings, self._keys, self._current = settings, {}, ""

    def stamp(self) -> tuple[int, ...]:
        """A value that changes whenever the vault does; no file is read."""
        with suppress(OSError):
            seen = os.stat(self._folder)
            return seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns
        return ()

    def get(self, slot: Slot) -> bytes | None:
        """Return the login in a slot; None if it is empty.

        Raises:
            VaultDamaged: the file cannot be decrypted.
            OSError: the file cannot be read.
        """
        row = self._row(self._file(slot))
        if row is None:
            return None
        self._check_place(self._file(slot), row)
        try:
            return self._opened(row)
        except VaultDamaged:
            if self._row(self._file(slot)) == row:
                raise
        return self.get(slot)  # it was encrypted again meanwhile, and its old key is gone

    def put(self, slot: Slot, content: bytes) -> None:
        """Store a login in a slot and replace the previous one. Raises `OSError` or `VaultDamaged`."""
        with self._locked():
            self._load_keys(may_make=True)
            self._write(slot, content)

    def replace(self, slot: Slot, before: bytes, content: bytes) -> bool:
        """Replace the login `before` by another; False if the slot contains something else now.

        Raises `OSError` or `VaultDamaged`.
        """
        with self._locked():
            if self.get(slot) != before:
                return False
            self._load_keys(may_make=True)
            self._write(slot, content)
            return True

    async def replace_in_thread(self, slot: Slot, before: bytes, content: bytes) -> bool:
        """The same as `replace`, without holding the event loop where that takes longer than a file."""
        return self.replace(slot, before, content)

    def remove(self, slot: Slot) -> bool:
        """Delete a login; False if there was none."""
        if not self._file(slot).exists():
            return False
        with self._locked(), suppress(FileNotFoundError):
            os.unlink(self._file(slot))
        return True

    def turn(self, slot: Slot) -> AbstractAsyncContextManager[None]:
        """Hold the lock for renewing a login."""
        with suppress(OSError):
            self._make_folder()
        return turn(self._folder / f"{slot.id}{TURN_ENDING}")

    def slots(self) -> Iterator[Slot]:
        """All slots with a readable login."""
        for file in sorted(self._files()):
            with suppress(VaultDamaged, OSError):
                if (row := self._row(file)) is not None:
                    self._check_place(file, row)
                    yield row.slot

    def rotate(self) -> int:
        """Encrypt all logins with a new key or the configured one; return their number.

        The old key stays readable until no file needs it.
        Raises `OSError` or `VaultDamaged`.
        """
        with self._locked():
            self._load_keys(may_make=True)
            if not self._settings.key:
                self._replace_keys([_new_key(), *(self._read_keys() or [])])
            count = 0
            for file in self._files():
                row = self._row(file)
                if row is not None:
                    self._check_place(file, row)
                    self._write(row.slot, self._opened(row))
                    count += 1
            # Old keys are deleted, so that old copies of files cannot be decrypted.
            if self._settings.key:
                with suppress(FileNotFoundError):
                    os.unlink(self._folder / KEY_FILE)
                _sync_folder(self._folder)
            else:
                self._replace_keys([(id, key) for id, key in self._read_keys() or [] if id == self._current])
            return count

    # -- files -------------------------------------------------------------------------------------------------------

    def _file(self, slot: Slot) -> Path:
        return self._folder / f"{slot.id}{ENDING}"

    def _files(self) -> Sequence[Path]:
        return list(self._folder.glob(f"*{ENDING}")) if self._folder.is_dir() else []

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the write lock: otherwise one process could replace what another has just read."""
        self._make_folder()
        if sys.platform == "win32":
            yield
            return
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _lock(descriptor)
            for draft in self._folder.glob(".*"):  # temporary files of killed processes, which may contain keys
                with suppress(OSError):
                    os.unlink(draft)
            yield
        finally:
            os.close(descriptor)

    def _make_folder(self) -> None:
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self._folder, 0o700)

    def _row(self, file: Path) -> _StoredLogin | None:
        try:
            content = _contents(file)
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(content, type=_StoredLogin)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise VaultDamaged(f"{file} is damaged; delete it and log in again") from None

    def _check_place(self, file: Path, row: _StoredLogin) -> None:
        """Raise `VaultDamaged` for a renamed file: an old copy must not replace the current login."""
        if file != self._file(row.slot):
            raise VaultDamaged(f"{file} belongs to another login; delete it and log in again")

    def _write(self, slot: Slot, content: bytes) -> None:
        _put_in_place(self._file(slot), self._sealed(slot, content))

    def _sealed(self, slot: Slot, content: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._keys[self._current].encrypt(nonce, content, _bound(slot, self._current))
        return msgspec.json.encode(
            _StoredLogin(VERSION, slot.id, *slot, self._current, base64.b64encode(sealed).decode())
        )

    def _opened(self, row: _StoredLogin) -> bytes:
        if row.key not in self._keys:
            self._load_keys(may_make=False)  # another process may have changed them
        if row.key not in self._keys:
            raise VaultDamaged(self._missing_key(row))
        cipher = self._keys[row.key]
        try:
            raw = base64.b64decode(row.sealed, validate=True)
            if base64.b64encode(raw).decode() != row.sealed:
                raise ValueError  # another base64 spelling of the same bytes: any change is refused
            return cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _bound(row.slot, row.key))
        except (binascii.Error, InvalidTag, ValueError):
            raise VaultDamaged(f"{self._file(row.slot)} was changed; delete it and log in again") from None

    def _missing_key(self, _: _StoredLogin) -> str:
        return f"a login in {self._folder} is encrypted with a missing key; log in again"

    # -- keys --------------------------------------------------------------------------------------------------------

    def _load_keys(self, *, may_make: bool) -> None:
        if self._settings.key:
            configured = (self._settings.key, *self._settings.old_keys)
            self._keys = {_id_of(key): ChaCha20Poly1305(_derived(key)) for key in configured}
            self._keys |= {id: ChaCha20Poly1305(key) for id, key in (self._read_keys() or [])}
            self._current = _id_of(self._settings.key)
            return
        stored = self._read_keys()
        if stored is None and may_make:
            # Unless another process has just done it: both must use the same keys.
            _put_in_place(self._folder / KEY_FILE, _written([_new_key()]), may_replace=False)
            stored = self._read_keys()
        self._keys = {id: ChaCha20Poly1305(key) for id, key in stored or []}
        self._current = stored[0][0] if stored else ""

    def _read_keys(self) -> list[tuple[str, bytes]] | None:
        """The keys in the file, the current one first; None if there is no file."""
        file = self._folder / KEY_FILE
        try:
            rows = msgspec.json.decode(_contents(file), type=list[tuple[str, str]])
            keys = [(id, base64.b64decode(text, validate=True)) for id, text in rows]
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            keys = []
        if not keys or any(len(key) != KEY_BYTES for _, key in keys):
            raise VaultDamaged(f"{file} contains no keys; delete the folder {self._folder} and log in again")
        return keys

    def _replace_keys(self, keys: Sequence[tuple[str, bytes]]) -> None:
        _put_in_place(self._folder / KEY_FILE, _written(keys))
        self._load_keys(may_make=False)


LOGINS = "logins"
"""The kind of shared documents that are logins."""


class SharedVault(Vault):
    """The logins of a cluster, in its database. All nodes are configured with the same key."""

    def __init__(self, state: SharedState, settings: VaultSettings) -> None:
        super().__init__(Path(state.where), settings)
        self._state = state

    def stamp(self) -> tuple[int, ...]:
        """A value that changes whenever the vault does; no file is read."""
        return (self._state.revision(LOGINS),)

    def unreadable(self) -> Sequence[str]:
        """The servers with logins that are encrypted with a key that this node does not have."""
        self._load_keys(may_make=False)
        rows = [self._decoded(each.body or b"") for each in self._state.all(LOGINS).values()]
        return sorted({row.server for row in rows if row.key not in self._keys})

    def get(self, slot: Slot) -> bytes | None:
        """Return the login in a slot; None if it is empty."""
        stored = self._state.all(LOGINS).get(slot.id)
        return None if stored is None else self._content(slot, stored)

    def put(self, slot: Slot, content: bytes) -> None:
        """Store a login in a slot and replace the previous one. Raises `OSError` or `VaultDamaged`."""
        self._load_keys(may_make=True)
        while not self._state.write(LOGINS, {slot.id: self._change(slot, content)}):
            pass  # another node was faster; this login is the newer one

    def replace(self, slot: Slot, before: bytes, content: bytes) -> bool:
        """Replace the login `before` by another; False if the slot contains something else now."""
        self._load_keys(may_make=True)
        stored = self._state.all(LOGINS).get(slot.id)
        if stored is None or self._content(slot, stored) != before:
            return False
        return self._state.write(LOGINS, {slot.id: StateDocument(stored.version, self._sealed(slot, content))})

    async def replace_in_thread(self, slot: Slot, before: bytes, content: bytes) -> bool:
        """The same as `replace`, without holding the event loop where that takes longer than a file."""
        return await asyncio.to_thread(self.replace, slot, before, content)

    def remove(self, slot: Slot) -> bool:
        """Delete a login; False if there was none."""
        while (stored := self._state.all(LOGINS).get(slot.id)) is not None:
            if self._state.write(LOGINS, {slot.id: StateDocument(stored.version, None)}):
                return True
        return False

    @asynccontextmanager
    async def turn(self, slot: Slot) -> AsyncIterator[None]:
        """Hold the lock for renewing a login. Other nodes wait, too: many refresh tokens can be used only once."""
        async with self._state.lock(f"login {slot.id}"):
            with suppress(OSError):
                await asyncio.to_thread(self._state.read_now)  # what the node before has stored
            yield

    def slots(self) -> Iterator[Slot]:
        """All slots with a readable login."""
        for id, stored in sorted(self._state.all(LOGINS).items()):
            with suppress(VaultDamaged):
                row = self._decoded(stored.body or b"")
                if row.slot.id == id:
                    yield row.slot

    def rotate(self) -> int:
        """Encrypt all logins with the configured key; return their number. Raises `OSError` or `VaultDamaged`."""
        self._load_keys(may_make=True)
        slots = list(self.slots())
        for slot in slots:
            while (content := self.get(slot)) is not None and not self.replace(slot, content, content):
                pass
        return len(slots)

    def sealed(self, slot: Slot, content: bytes) -> StateDocument:
        """The document of a new login. Raises `VaultDamaged`."""
        self._load_keys(may_make=True)
        return StateDocument(0, self._sealed(slot, content))

    def _change(self, slot: Slot, content: bytes) -> StateDocument:
        stored = self._state.all(LOGINS).get(slot.id)
        return StateDocument(0 if stored is None else stored.version, self._sealed(slot, content))

    def _content(self, slot: Slot, stored: StateDocument) -> bytes:
        row = self._decoded(stored.body or b"")
        if row.slot != slot:
            raise VaultDamaged(f"a login at {slot.server} in {self._state.where} is damaged; log in again")
        return self._opened(row)

    def _decoded(self, body: bytes) -> _StoredLogin:
        try:
            return msgspec.json.decode(body, type=_StoredLogin)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise VaultDamaged(f"a login in {self._state.where} is damaged; log in again") from None

    def _missing_key(self, row: _StoredLogin) -> str:
        advice = "set the same [credentials] key on all nodes, or log in again"
        return f"the login at {row.server} is encrypted with a key that this node does not have: {advice}"

    def _load_keys(self, *, may_make: bool) -> None:
        """The configured keys; a key in the database would protect nothing there."""
        if not self._settings.key and may_make:
            raise VaultDamaged("logins in the database need [credentials] key, the same on all nodes")
        configured = (self._settings.key, *self._settings.old_keys) if self._settings.key else ()
        self._keys = {_id_of(key): ChaCha20Poly1305(_derived(key)) for key in configured}
        self._current = self._settings.key_id


def _lock(descriptor: int) -> None:
    """Take a lock that the system releases when the process ends.

    Raises:
        OSError: another process holds it for too long.
    """
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.001)
        else:
            return


def _id_of(key: str) -> str:
    """The id of a configured key. It reveals nothing: it is computed from the derived key."""
    return hashlib.sha256(b"id of " + _derived(key)).hexdigest()[:16]


def _derived(key: str) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, None, _PURPOSE).derive(key.encode())


def _new_key() -> tuple[str, bytes]:
    return secrets.token_hex(8), os.urandom(KEY_BYTES)


def _written(keys: Sequence[tuple[str, bytes]]) -> bytes:
    return json.dumps([(id, base64.b64encode(key).decode()) for id, key in keys]).encode()


def _bound(slot: Slot, key: str) -> bytes:
    return json.dumps([VERSION, slot.id, *slot, key]).encode()


def _contents(file: Path) -> bytes:
    with file.open("rb") as stream:
        content = stream.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise VaultDamaged(f"{file} is too large for a login; delete it and log in again")
    return content


def _put_in_place(file: Path, content: bytes, *, may_replace: bool = True) -> None:
    """Write a file atomically and durably, readable only by its owner."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if may_replace:
            os.replace(draft, file)
        else:
            with suppress(FileExistsError):
                os.link(draft, file)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """Sync a folder: otherwise a login could survive a power cut without its key."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some file systems cannot; the files' content is already synced
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
