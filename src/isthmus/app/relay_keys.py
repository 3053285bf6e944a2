"""What the relay's tokens rest on, in the state folder: their key, those that were revoked, agents with original ones.

The hub and the command line both work here, at the same time if need be, so that a token can be made or revoked
whether or not the hub runs. No message quotes what is in these files.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from isthmus.app.key_files import offer_secret
from isthmus.config.files import read_regular_file
from isthmus.config.findings import ConfigError, Place
from isthmus.identity.relay_tokens import is_id
from isthmus.model.relay import Claim

log = structlog.get_logger(__name__)

FOLDER = "relay"
KEY_FILE = "key"
REVOKED_FILE = "revoked"
ISSUED_FILE = "agents"
"""Agents that the command line made a token of the original kind for, one JSON string a line."""

NO_KEY = "中继密钥暂不可用"
"""Closes a socket while there is no key. It says nothing of the token, so that `isthmus dial` asks again later."""

KEY_BYTES = 16

KEY_LENGTH_MIN = 16
"""A shorter key was not made here, or its file was cut short."""

KEY_FILE_BYTES = 4096
REVOKED_BYTES = 16 * 1024 * 1024
"""Some million ids; a longer file is not one that this command line wrote."""

LOOK_SECONDS = 0.25
"""How long an answer may be behind the file: thousands of sockets are asked about at once."""


TRUST_SECONDS = 30.0
"""How long what was known of revoked tokens is gone by when the file cannot be read any more, or is gone."""


class KeyDamaged(ValueError):
    """A file that should hold a key and does not."""


def relay_key(configured: str | None, state: Path) -> str:
    """The key that is configured, else the one in the state folder, which is made if there is none.

    Raises:
        OSError: it can neither be read nor made.
        KeyDamaged: the file has none in it.
    """
    if configured is not None:
        return configured
    file = key_file(state)
    with suppress(FileNotFoundError):
        return _read_key(file)
    _make_folder(state)
    offer_secret(file, KEY_BYTES)
    return _read_key(file)


class Keys:
    """The key of a hub that runs, whichever configuration it is given."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._kept: str | None = None
        """As it was in the file last: one read that fails must not cut everybody who is connected."""
        self._has_complained = False

    def key(self, configured: str | None) -> str | None:
        """The key to go by; None where none could ever be kept, since a hub needs no relay to run.

        Raises:
            ConfigError: the file has none in it.
        """
        if configured is not None:
            return configured
        try:
            self._kept = relay_key(None, self._state)
            self._has_complained = False
        except OSError as error:
            self._complain(error)
        except KeyDamaged as damaged:
            raise ConfigError(Place(None, "hub.state").finding(f"cannot be used: {damaged}")) from damaged
        return self._kept

    def _complain(self, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            nobody = "the relay lets nobody in: its key cannot be kept"
            told = nobody if self._kept is None else "the relay goes on with the key it had: its file cannot be read"
            log.warning(told, reason=str(error))


class NoTokens:
    """Stands in for `RelayTokens` where there is no key: nobody's token is good, and nobody's is said to be bad."""

    def read(self, _: str) -> str:
        """Why nobody is let in."""
        return NO_KEY

    def is_key(self, _: str) -> bool:
        """There is none."""
        return False

    def is_valid(self, _: Claim) -> bool:
        """Whatever proved it was given up."""
        return False


def _read_key(file: Path) -> str:
    try:
        key = read_regular_file(file, KEY_FILE_BYTES).decode("ascii").strip()
    except ValueError as error:
        raise KeyDamaged(f"{file} must hold a key, not another text: delete it to have one made") from error
    if len(key) < KEY_LENGTH_MIN:
        raise KeyDamaged(f"{file} must hold a key of {KEY_LENGTH_MIN} characters or more: delete it to have one made")
    return key


def _make_folder(state: Path) -> None:
    for folder in (state, state / FOLDER):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def key_file(state: Path) -> Path:
    """Where the key is that was made because none is configured."""
    return state / FOLDER / KEY_FILE


def revoked_file(state: Path) -> Path:
    """Where ids of revoked tokens are, one in a line."""
    return state / FOLDER / REVOKED_FILE


def revoke(id: str, state: Path) -> None:
    """Note that a token is good no more; a hub that runs finds it in the file.

    Raises:
        OSError: it cannot be written.
        ValueError: no token has such an id.
    """
    if not is_id(id):
        raise ValueError("an id must be as `isthmus token relay` printed it, not another text")
    _append(state, revoked_file(state), id)


def issued_file(state: Path) -> Path:
    """Where agents are that have tokens of the original kind from the command line."""
    return state / FOLDER / ISSUED_FILE


def note_issued(agent: str, state: Path) -> None:
    """Have a hub of this state folder accept the agent's token of the original kind, a running one too.

    Raises:
        OSError: it cannot be written.
    """
    _append(state, issued_file(state), msgspec.json.encode(agent).decode())


def _append(state: Path, file: Path, line: str) -> None:
    _make_folder(state)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # With line ends on both sides: a line that was cut short before must not take this one with it.
        os.write(descriptor, f"\n{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class KnownAgents:
    """Agents whose tokens of the original kind are accepted: configured ones, and those in the state folder's file."""

    def __init__(self, state: Path, configured: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._file = issued_file(state)
        self._configured = frozenset(configured)
        self._clock = clock
        self._known = self._configured
        self._seen: tuple[int, ...] | None = None
        self._next_look = float("-inf")
        """After an error the file is left alone for a while."""

    def __call__(self) -> frozenset[str]:
        """All of them, as the file is now. While it cannot be read, those that were known stay."""
        now = self._clock()
        if now >= self._next_look:
            # Looked at each time: a device may dial right after its token was issued, and this takes microseconds.
            try:
                seen = _look_of(self._file)
                if seen != self._seen:
                    self._known = self._configured | (frozenset() if seen is None else _agents_in(self._file))
                    self._seen = seen
            except (OSError, ValueError) as error:
                log.error("the list of issued relay agents cannot be read", file=str(self._file), reason=str(error))
                self._next_look = now + TRUST_SECONDS
        return self._known


def _agents_in(file: Path) -> frozenset[str]:
    found: set[str] = set()
    for line in read_regular_file(file, REVOKED_BYTES).splitlines():
        with suppress(ValueError):  # cut short while it was written
            found.add(msgspec.json.decode(line, type=str))
    return frozenset(found)


class Revocations:
    """Which tokens are good no more: those that are configured, and those in the state folder's file, as it is now."""

    def __init__(self, state: Path, configured: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._file = revoked_file(state)
        self._configured = frozenset(configured)
        self._clock = clock
        self._noted: frozenset[str] | None = None
        """None until the file was read, or was seen not to be there: till then no token is vouched for."""
        self._seen: tuple[int, ...] | None = None
        self._next_look = float("-inf")
        self._good_at = clock()
        self._has_complained = False

    def change(self, configured: Iterable[str]) -> None:
        """Take what is configured now; what was read in the file stays."""
        self._configured = frozenset(configured)

    def has(self, id: str) -> bool:
        """Whether the token of this id was revoked."""
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._look(now)
        return id in self._configured or self._noted is None or id in self._noted

    def _look(self, now: float) -> None:
        try:
            seen = _look_of(self._file)
            if seen is None and self._seen is not None:
                raise FileNotFoundError(errno.ENOENT, "it is gone")  # and what was revoked must not come back with it
            if self._noted is None or seen != self._seen:
                self._noted = frozenset() if seen is None else _ids_in(self._file)
                self._seen = seen
            self._good_at, self._has_complained = now, False
        except (OSError, ValueError) as error:
            self._complain(error)
            if now - self._good_at > TRUST_SECONDS:
                self._noted = None  # until then what was known stays

    def _complain(self, error: OSError | ValueError) -> None:
        if not self._has_complained:
            self._has_complained = True
            log.error("the list of revoked tokens cannot be read", file=str(self._file), reason=str(error))


def _look_of(file: Path) -> tuple[int, ...] | None:
    """What tells a file from its later self without reading it; None if it is not there."""
    try:
        seen = os.stat(file)
    except FileNotFoundError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _ids_in(file: Path) -> frozenset[str]:
    return frozenset(read_regular_file(file, REVOKED_BYTES).decode(errors="replace").split())
