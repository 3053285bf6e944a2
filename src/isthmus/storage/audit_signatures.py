"""The key of the audit log and its checkpoint: files in the state folder, outside of the database that they vouch for.

Who can write to the database alone cannot cut the log's end off, put an older copy in its place, or take records away
as if they were too old. Who can write to this folder as well can; `isthmus audit export` is for who has to mind them.
Opened by `app.audit`; `isthmus audit` reads.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isthmus.core.audit import START, Point, Seal, SealKind, signed_text

log = structlog.get_logger(__name__)

FOLDER = "audit"
KEY_FILE = "key"
CHECKPOINT_FILE = "checkpoint"
MAIN_LOG = 0
"""The log of the hub that has the state folder to itself; those of others are numbered, see `storage.audit_slots`."""

KEY_BYTES = 32
CHECKPOINT_BYTES = 512
"""Two checkpoints are kept and written in turn: one that is cut short by a crash leaves the other."""

CHECKPOINTS = 2


class AuditKeyDamaged(ValueError):
    """A file that should hold the log's key and does not."""


class AuditKeys:
    """What is made of the one secret: a key that signs, and one that digests."""

    def __init__(self, secret: bytes, seat: int = MAIN_LOG) -> None:
        """Of several logs with one secret, none can be shown in the place of another: what is signed names its seat."""
        self._named = b"" if seat == MAIN_LOG else b"seat %d: " % seat
        self._signing = Ed25519PrivateKey.from_private_bytes(_derived(secret, b"isthmus audit signing"))
        self._verifying = self._signing.public_key()
        self.digesting = _derived(secret, b"isthmus audit arguments")

    @property
    def name(self) -> str:
        """What everybody may know of the key, to tell it from another."""
        return self._verifying.public_bytes_raw().hex()

    def sign(self, text: bytes) -> bytes:
        """Sign."""
        return self._signing.sign(self._named + text)

    def is_signed(self, text: bytes, signature: bytes) -> bool:
        """Whether this key signed it."""
        try:
            self._verifying.verify(signature, self._named + text)
        except InvalidSignature:
            return False
        return True


def _derived(secret: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def checkpoint_path(state: Path, seat: int = MAIN_LOG) -> Path:
    """The file that says how far a log goes."""
    return state / FOLDER / (CHECKPOINT_FILE if seat == MAIN_LOG else f"{CHECKPOINT_FILE}-{seat}")


def read_keys(state: Path, seat: int = MAIN_LOG) -> AuditKeys:
    """The keys of a log that there is.

    Raises:
        OSError: the file cannot be read, or there is none.
        KeyDamaged: there is no key in it.
    """
    file = state / FOLDER / KEY_FILE
    text = file.read_text(encoding="ascii", errors="replace").strip()
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise AuditKeyDamaged(f"{file} does not hold the key of the audit log; put it back, or move the file away")
    return AuditKeys(secret, seat)


def open_keys(state: Path, seat: int = MAIN_LOG) -> AuditKeys:
    """The same, made if there are none."""
    with suppress(FileNotFoundError):
        return read_keys(state, seat)
    folder = state / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f"{KEY_FILE}.{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(KEY_BYTES).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        with suppress(FileExistsError):
            os.link(draft, folder / KEY_FILE)  # whoever came first has made the key of all
    finally:
        draft.unlink()
    return read_keys(state, seat)


class _Slot(msgspec.Struct):
    number: int
    digest: str
    at: float
    signature: str


def read_checkpoint(state: Path, keys: AuditKeys, seat: int = MAIN_LOG) -> Seal | None:
    """The newest checkpoint; one that was not signed by these keys only if there is no other. None if there is none."""
    try:
        data = checkpoint_path(state, seat).read_bytes()
    except FileNotFoundError:
        return None
    found = [seal for seal in map(_seal_in, data[: CHECKPOINTS * CHECKPOINT_BYTES].split(b"\n")) if seal is not None]
    signed = [seal for seal in found if keys.is_signed(signed_text("checkpoint", seal.point, seal.at), seal.signature)]
    return max(signed or found, key=lambda seal: seal.point.number, default=None)


def _seal_in(line: bytes) -> Seal | None:
    try:
        slot = msgspec.json.decode(line, type=_Slot)
        return Seal(Point(slot.number, bytes.fromhex(slot.digest)), slot.at, bytes.fromhex(slot.signature))
    except (msgspec.MsgspecError, ValueError):
        return None


class AuditSigner:
    """Signs, and keeps the checkpoint. Used by one writer at a time."""

    def __init__(self, state: Path, keys: AuditKeys, now: Callable[[], float] = time.time, *, seat: int = MAIN_LOG) -> None:
        """Raises: OSError if there can be no checkpoint."""
        self._keys = keys
        self._now = now
        self._slot = 0
        self._is_failing = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(checkpoint_path(state, seat), flags, 0o600)

    def seal(self, kind: SealKind, point: Point) -> Seal:
        """Sign a point."""
        at = round(self._now(), 3)
        return Seal(point, at, self._keys.sign(signed_text(kind, point, at)))

    def begin(self) -> None:
        """Vouch for a log that has no record yet: a hub that is killed right after its first leaves a checkpoint too.

        Raises: OSError if that cannot be kept.
        """
        self._note(START)
        os.fsync(self._file)

    def checkpoint(self, point: Point) -> None:
        """Note how far the log goes, in place of the checkpoint before the last."""
        self._note(point)

    def _note(self, point: Point) -> None:
        seal = self.seal("checkpoint", point)
        slot = _Slot(point.number, point.digest.hex(), seal.at, seal.signature.hex())
        line = msgspec.json.encode(slot).ljust(CHECKPOINT_BYTES - 1) + b"\n"
        try:
            os.pwrite(self._file, line, self._slot * CHECKPOINT_BYTES)
        except OSError as error:
            if not self._is_failing:
                log.error("the checkpoint of the audit log cannot be written", error=error.strerror)
            self._is_failing = True
            return
        self._is_failing = False
        self._slot = (self._slot + 1) % CHECKPOINTS

    def close(self) -> None:
        """Have the checkpoint survive, and let its file go."""
        with suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)
