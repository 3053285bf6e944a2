"""The relay's token key, its revoked tokens, and agents with original tokens: files, or documents of a cluster.

They are in the state folder, or in the database that the nodes of a cluster share.

The hub and the command line may use them at the same time, so tokens can be created and revoked while a hub runs. No
message quotes their content.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from isthmus.app.key_files import offer_secret
from isthmus.config.files import read_regular_file, version_of
from isthmus.config.findings import ConfigError, Place
from isthmus.core.journal import SharedState, StateDocument
from isthmus.identity.relay_tokens import is_id
from isthmus.model.relay import Claim

log = structlog.get_logger(__name__)

FOLDER = "relay"
KEY_FILE = "key"
REVOKED_FILE = "revoked"
ISSUED_FILE = "agents"
"""Agents with an original token from the command line, one JSON string per line."""

NO_KEY = "中继密钥暂不可用"
"""The close reason while there is no key. It does not mention the token, so `isthmus dial` retries later."""

KEY_BYTES = 16

KEY_LENGTH_MIN = 16
"""A shorter key was not created here, or its file is truncated."""

KEY_FILE_BYTES = 4096
REVOKED_BYTES = 16 * 1024 * 1024
"""Room for some million ids; the command line never writes a longer file."""

CHECK_SECONDS = 0.25
"""How long a check may use cached data: thousands of sockets are checked at once."""


TRUST_SECONDS = 30.0
"""How long the last known revocations are used if the file is unreadable or gone."""


RELAY = "relay"
"""The kind of the shared documents of the relay."""

RelayStore: TypeAlias = Path | SharedState
"""The state folder, or the shared documents of a cluster."""


class KeyDamaged(ValueError):
    """The key file does not contain a key."""


def relay_key(configured: str | None, state: RelayStore) -> str:
    """The configured key, else the stored one, which is created if needed.

    Raises:
        OSError: the key can neither be read nor created.
        KeyDamaged: the file does not contain a key.
    """
    if configured is not None:
        return configured
    if not isinstance(state, Path):
        if KEY_FILE not in state.all(RELAY):  # of two nodes that create it, the first succeeds
            state.write(RELAY, {KEY_FILE: StateDocument(0, secrets.token_hex(KEY_BYTES).encode())})
        return (state.all(RELAY)[KEY_FILE].body or b"").decode()
    file = key_file(state)
    with suppress(FileNotFoundError):
        return _read_key(file)
    _make_folder(state)
    offer_secret(file, KEY_BYTES)
    return _read_key(file)


class Keys:
    """The current key of a running hub."""

    def __init__(self, state: RelayStore) -> None:
        self._state = state
        self._last_key: str | None = None
        """The last key read from the file: a failed read must not disconnect everybody."""
        self._has_logged = False

    def key(self, configured: str | None) -> str | None:
        """The key to use; None if none could ever be stored, as a hub also runs without a relay.

        Raises:
            ConfigError: the file does not contain a key.
        """
        if configured is not None:
            return configured
        try:
            self._last_key = relay_key(None, self._state)
            self._has_logged = False
        except OSError as error:
            if not self._has_logged:
                self._has_logged = True
                refused = "the relay refuses everybody: its key cannot be stored"
                message = (
                    refused
                    if self._last_key is None
                    else "the relay keeps its current key: the key file cannot be read"
                )
                log.warning(message, reason=str(error))
        except KeyDamaged as damaged:
            raise ConfigError(Place(None, "hub.state").finding(f"cannot be used: {damaged}")) from damaged
        return self._last_key


class NoTokens:
    """Replaces `RelayTokens` without a key: every token is refused, but none is called invalid."""

    def read(self, _: str) -> str:
        """The reason for every refusal."""
        return NO_KEY

    def is_key(self, _: str) -> bool:
        """False: there is no key."""
        return False

    def is_valid(self, _: Claim) -> bool:
        """False: without a key nothing can be proven."""
        return False


def _read_key(file: Path) -> str:
    try:
        key = read_regular_file(file, KEY_FILE_BYTES).decode("ascii").strip()
    except ValueError as error:
        raise KeyDamaged(f"{file} must contain a key: delete it to create a new one") from error
    if len(key) < KEY_LENGTH_MIN:
        raise KeyDamaged(f"{file} must have {KEY_LENGTH_MIN} characters or more: delete it to create a new one")
    return key


def _make_folder(state: Path) -> None:
    for folder in (state, state / FOLDER):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def key_file(state: Path) -> Path:
    """The path of the generated key."""
    return state / FOLDER / KEY_FILE


def revoked_file(state: Path) -> Path:
    """The path of the list of revoked token ids, one per line."""
    return state / FOLDER / REVOKED_FILE


def revoke(id: str, state: RelayStore) -> None:
    """Revoke a token; running hubs read it.

    Raises:
        OSError: the file cannot be written.
        ValueError: the id is malformed.
    """
    if not is_id(id):
        raise ValueError("an id must be as `isthmus token relay` printed it")
    _append(state, REVOKED_FILE, id)


def issued_file(state: Path) -> Path:
    """The path of the list of agents with original tokens."""
    return state / FOLDER / ISSUED_FILE


def note_issued(agent: str, state: RelayStore) -> None:
    """Let hubs of this state folder, also running ones, accept the agent's original token.

    Raises:
        OSError: the file cannot be written.
    """
    _append(state, ISSUED_FILE, msgspec.json.encode(agent).decode())


def _append(state: RelayStore, name: str, line: str) -> None:
    if not isinstance(state, Path):
        is_written = False
        while not is_written:
            found = state.all(RELAY).get(name, StateDocument(0, b""))
            lines = (found.body or b"").decode().split("\n")
            if line in lines:
                return
            is_written = state.write(RELAY, {name: StateDocument(found.version, "\n".join([*lines, line]).encode())})
        return
    _make_folder(state)
    descriptor = os.open(state / FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # Newlines on both sides: an earlier truncated line must not spoil this one.
        os.write(descriptor, f"\n{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class KnownAgents:
    """Agents whose original tokens are accepted: configured ones and those in the state folder."""

    def __init__(
        self, state: RelayStore, configured: Iterable[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._list = _RelayList(state, ISSUED_FILE)
        self._configured = frozenset(configured)
        self._clock = clock
        self._known = self._configured
        self._version: tuple[int, ...] | None = None
        self._next_check = float("-inf")
        """When to read the file again after an error."""

    def __call__(self) -> frozenset[str]:
        """The current agents. While the file is unreadable, the last known ones stay."""
        now = self._clock()
        if now >= self._next_check:
            # Checked each time: a device may connect right after its token was issued, and this takes microseconds.
            try:
                version = self._list.revision()
                if version != self._version:
                    self._known = self._configured | (frozenset() if version is None else _agents_in(self._list.read()))
                    self._version = version
            except (OSError, ValueError) as error:
                log.error("the list of issued relay agents cannot be read", file=self._list.name, reason=str(error))
                self._next_check = now + TRUST_SECONDS
        return self._known


def _agents_in(content: bytes) -> frozenset[str]:
    found: set[str] = set()
    for line in content.splitlines():
        with suppress(ValueError):  # truncated while it was written
            found.add(msgspec.json.decode(line, type=str))
    return frozenset(found)


class Revocations:
    """The revoked tokens: configured ones and those in the state folder."""

    def __init__(
        self, state: RelayStore, configured: Iterable[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._list = _RelayList(state, REVOKED_FILE)
        self._configured = frozenset(configured)
        self._clock = clock
        self._stored: frozenset[str] | None = None
        """None until the file was read or found missing; until then every token is refused."""
        self._version: tuple[int, ...] | None = None
        self._next_check = float("-inf")
        self._last_read_at = clock()
        self._has_logged = False

    def change(self, configured: Iterable[str]) -> None:
        """Apply the configured ids; those of the file stay."""
        self._configured = frozenset(configured)

    def has(self, id: str) -> bool:
        """Whether the token with this id is revoked."""
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            self._reload(now)
        return id in self._configured or self._stored is None or id in self._stored

    def _reload(self, now: float) -> None:
        try:
            version = self._list.revision()
            if version is None and self._version is not None:
                raise FileNotFoundError(errno.ENOENT, "it is gone")  # revoked tokens must not become valid again
            if self._stored is None or version != self._version:
                text = b"" if version is None else self._list.read()
                self._stored = frozenset(text.decode(errors="replace").split())
                self._version = version
            self._last_read_at, self._has_logged = now, False
        except (OSError, ValueError) as error:
            if not self._has_logged:
                self._has_logged = True
                log.error("the list of revoked tokens cannot be read", file=self._list.name, reason=str(error))
            if now - self._last_read_at > TRUST_SECONDS:
                self._stored = None  # until then the last known ids are used


class _RelayList:
    """One of the relay's lists. Both methods raise `OSError`."""

    def __init__(self, state: RelayStore, id: str) -> None:
        self._state = state
        self._id = id
        self.name = str(state / FOLDER / id) if isinstance(state, Path) else f"{id} in {state.where}"

    def revision(self) -> tuple[int, ...] | None:
        """Identifies a version of the list without reading it; None if it is missing."""
        if not isinstance(self._state, Path):
            if not self._state.is_current:
                raise OSError(errno.EIO, "the database cannot be read")
            found = self._state.all(RELAY).get(self._id)
            return None if found is None else (found.version,)
        try:
            return version_of(os.stat(self.name))
        except FileNotFoundError:
            return None

    def read(self) -> bytes:
        """The content."""
        if isinstance(self._state, Path):
            return read_regular_file(Path(self.name), REVOKED_BYTES)
        return self._state.all(RELAY)[self._id].body or b""
