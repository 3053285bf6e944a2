"""The key and the checkpoints of the audit log: files in the state folder, outside the database that they protect.

An attacker who can write only to the database cannot cut off the end of the log, restore an older copy, or delete
records as if they had expired. An attacker who can also write to this folder can; against that, use `isthmus audit
export`. Opened by `app.audit`; read by `isthmus audit`.
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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isthmus.core.audit import START, Point, Seal, SealKind, signed_text

log = structlog.get_logger(__name__)

FOLDER = "audit"
KEY_FILE = "key"
CHECKPOINT_FILE = "checkpoint"
MAIN_LOG = 0
"""The log of the serving hub; the logs of other hubs are numbered, see `storage.audit_log_folders`."""

KEY_BYTES = 32
CHECKPOINT_BYTES = 512
"""The file has two checkpoints, written in turn: after a crash during a write the other one is intact."""

CHECKPOINTS = 2


class AuditKeyDamaged(ValueError):
    """The key file does not hold a key."""


class AuditKeys:
    """The signing key and the digest key, both derived from one secret."""

    def __init__(self, secret: bytes, slot: int = MAIN_LOG) -> None:
        self._prefix = _prefix(slot)
        self._signing = Ed25519PrivateKey.from_private_bytes(_derived(secret, b"isthmus audit signing"))
        self._verifying = self._signing.public_key()
        self.digesting = _derived(secret, b"isthmus audit arguments")

    @property
    def name(self) -> str:
        """The public key, which identifies the log's key."""
        return self._verifying.public_bytes_raw().hex()

    def sign(self, text: bytes) -> bytes:
        """Sign a text."""
        return self._signing.sign(self._prefix + text)

    def is_signed(self, text: bytes, signature: bytes) -> bool:
        """Whether the signature is valid."""
        return _is_signed(self._verifying, self._prefix + text, signature)


class AuditPublicKey:
    """Verifies signatures of a node whose secret is on another machine."""

    def __init__(self, name: str, slot: int) -> None:
        """Raises `ValueError` if the name is not a public key."""
        self.name = name
        self._prefix = _prefix(slot)
        self._verifying = Ed25519PublicKey.from_public_bytes(bytes.fromhex(name))

    def is_signed(self, text: bytes, signature: bytes) -> bool:
        """Whether the signature is valid."""
        return _is_signed(self._verifying, self._prefix + text, signature)


def _prefix(slot: int) -> bytes:
    """What is signed with the text, so that a log cannot be replaced by that of another slot with the same secret."""
    return b"" if slot == MAIN_LOG else b"seat %d: " % slot


def _is_signed(key: Ed25519PublicKey, text: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, text)
    except InvalidSignature:
        return False
    return True


def _derived(secret: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def checkpoint_path(state: Path, slot: int = MAIN_LOG) -> Path:
    """The checkpoint file of a log."""
    return state / FOLDER / (CHECKPOINT_FILE if slot == MAIN_LOG else f"{CHECKPOINT_FILE}-{slot}")


def read_keys(state: Path, slot: int = MAIN_LOG) -> AuditKeys:
    """Read the keys of an existing log.

    Raises:
        OSError: the file is missing or unreadable.
        AuditKeyDamaged: the file does not hold a key.
    """
    file = state / FOLDER / KEY_FILE
    text = file.read_text(encoding="ascii", errors="replace").strip()
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise AuditKeyDamaged(f"{file} does not hold the key of the audit log: restore it, or move the file away")
    return AuditKeys(secret, slot)


def open_keys(state: Path, slot: int = MAIN_LOG) -> AuditKeys:
    """Read the keys; make them if the file is missing."""
    with suppress(FileNotFoundError):
        return read_keys(state, slot)
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
            os.link(draft, folder / KEY_FILE)  # another hub was first: its key is used
    finally:
        draft.unlink()
    return read_keys(state, slot)


class _Checkpoint(msgspec.Struct):
    number: int
    digest: str
    at: float
    signature: str


def read_checkpoint(state: Path, keys: AuditKeys, slot: int = MAIN_LOG) -> Seal | None:
    """The newest signed checkpoint; an unsigned one only if none is signed; None for a log without any."""
    try:
        data = checkpoint_path(state, slot).read_bytes()
    except FileNotFoundError:
        return None
    found: list[Seal] = []
    for line in data[: CHECKPOINTS * CHECKPOINT_BYTES].split(b"\n"):
        with suppress(msgspec.MsgspecError, ValueError):
            checkpoint = msgspec.json.decode(line, type=_Checkpoint)
            point = Point(checkpoint.number, bytes.fromhex(checkpoint.digest))
            found.append(Seal(point, checkpoint.at, bytes.fromhex(checkpoint.signature)))
    signed = [seal for seal in found if keys.is_signed(signed_text("checkpoint", seal.point, seal.at), seal.signature)]
    return max(signed or found, key=lambda seal: seal.point.number, default=None)


class FileAuditSigner:
    """Signs points of the log and writes checkpoints. Used by one writer at a time."""

    def __init__(
        self, state: Path, keys: AuditKeys, now: Callable[[], float] = time.time, *, slot: int = MAIN_LOG
    ) -> None:
        """Raises `OSError` if the checkpoint file cannot be opened."""
        self._keys = keys
        self._now = now
        self._position = 0
        self._is_failing = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(checkpoint_path(state, slot), flags, 0o600)

    def seal(self, kind: SealKind, point: Point) -> Seal:
        """Sign a point of the log."""
        at = round(self._now(), 3)
        return Seal(point, at, self._keys.sign(signed_text(kind, point, at)))

    def begin(self) -> None:
        """Write a checkpoint for an empty log, so that a hub killed after its first record leaves one too.

        Raises `OSError` if it cannot be written.
        """
        self._write(START)
        os.fsync(self._file)

    def checkpoint(self, point: Point) -> None:
        """Write a checkpoint over the older of the two."""
        self._write(point)

    def _write(self, point: Point) -> None:
        seal = self.seal("checkpoint", point)
        checkpoint = _Checkpoint(point.number, point.digest.hex(), seal.at, seal.signature.hex())
        line = msgspec.json.encode(checkpoint).ljust(CHECKPOINT_BYTES - 1) + b"\n"
        try:
            os.pwrite(self._file, line, self._position * CHECKPOINT_BYTES)
        except OSError as error:
            if not self._is_failing:
                log.error("cannot write the checkpoint of the audit log", error=error.strerror)
            self._is_failing = True
            return
        self._is_failing = False
        self._position = (self._position + 1) % CHECKPOINTS

    def close(self) -> None:
        """Sync and close the checkpoint file."""
        with suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)
