"""Where keys, logins, secrets, relay lists and tool definitions of a hub are: a state folder or a cluster's database.

Nodes that share a database (`[cluster]` with `[storage] url`) have one truth there. The hub and the command line open
it once per process.
"""

from __future__ import annotations

import atexit
import errno
import secrets
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from isthmus.app.key_files import KEYS, KeyDocument, KeyFile, KeyStore
from isthmus.app.relay_keys import RELAY, RelayStore
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.config.tables import STORAGE
from isthmus.core.journal import SharedState, StateDocument
from isthmus.core.ports import Sealer
from isthmus.credentials.sealing import KEY_BYTES, ProcessSealer, StoredSealer, derived_key, stored_key
from isthmus.credentials.sealing import KEY_FILE as JOURNAL_KEY_FILE
from isthmus.credentials.signed_jwts import PushKeyFile, PushKeyStore
from isthmus.credentials.vault import LOGINS, SharedVault, Vault
from isthmus.storage.journal_base import StateUnusable

if TYPE_CHECKING:  # only who wants it has the library
    from isthmus.storage.postgres_state import PostgresState

log = structlog.get_logger(__name__)

SECRETS: Final = "secrets"
"""The kind of the shared documents with secrets of the nodes themselves."""

ROOT: Final = "root"
"""The secret from which nodes derive their common keys."""

PUSH_KEY: Final = "push key"

_opened: dict[str, PostgresState] = {}
_opening = threading.Lock()


def is_shared(configuration: Configuration) -> bool:
    """Whether this hub is a node of a cluster with a database."""
    storage = configuration.storage
    cluster = configuration.cluster
    is_cluster = cluster.is_enabled and not cluster.is_one_machine
    return is_cluster and storage.url is not None and not storage.is_foreign


def shared_state(configuration: Configuration) -> SharedState | None:
    """The documents that the nodes of the cluster share; None without a cluster or a database.

    Raises:
        ConfigError: the database cannot be used.
    """
    url = configuration.storage.url
    if url is None or not is_shared(configuration):
        return None
    place = Place(configuration.file, STORAGE).at("url")
    if find_spec("asyncpg") is None:
        advice = "get it with: pip install 'isthmus[postgres]'"
        raise ConfigError(place.finding("needs a library that is not installed", advice=advice))
    from isthmus.storage.postgres_state import PostgresState  # noqa: PLC0415 - only who wants it has the library

    with _opening:
        if url not in _opened:
            atexit.register(close_shared_state, configuration)
            try:
                _opened[url] = PostgresState(configuration.storage, KEYS, LOGINS, RELAY, SECRETS)
            except StateUnusable as error:
                raise ConfigError(place.finding(f"cannot be used: {error}")) from error
        return _opened[url]


def close_shared_state(configuration: Configuration) -> None:
    """Disconnect, if there is a connection."""
    with _opening:
        state = _opened.pop(configuration.storage.url or "", None)
    if state is not None:
        state.close()


def key_store(configuration: Configuration) -> KeyStore:
    """The list of keys.

    Raises:
        ConfigError: the database cannot be used, or the keys are still in the state folder.
    """
    folder = Path(configuration.hub.state)
    state = shared_state(configuration)
    if state is None:
        return KeyFile(folder)
    store, file = KeyDocument(state), KeyFile(folder)
    if not store.exists() and file.exists():
        # Else a hub that required keys would be open, or refuse all of its callers.
        said = f"has no keys yet, and {file.folder} has: nodes read keys from the database only"
        advice = "run isthmus migrate; or delete that folder, if its keys are not needed"
        raise ConfigError(Place(configuration.file, STORAGE).at("url").finding(said, advice=advice))
    return store


def vault_of(configuration: Configuration) -> Vault:
    """The stored logins. Raises `ConfigError`."""
    state = shared_state(configuration)
    if state is None:
        return Vault(Path(configuration.hub.state), configuration.credentials)
    return SharedVault(state, configuration.credentials)


def relay_store(configuration: Configuration) -> RelayStore:
    """Where the relay's key and lists are. Raises `ConfigError`."""
    return shared_state(configuration) or Path(configuration.hub.state)


# -- secrets of the nodes themselves -----------------------------------------------------------------------------------


def cluster_keys(configuration: Configuration, purpose: bytes) -> tuple[bytes, ...]:
    """Keys for a purpose, which all nodes derive alike, the current one first; empty without a shared database.

    They depend on a secret in the database and on `[credentials] key`, if there is one: then reading the database is
    not enough to know them.

    Raises:
        ConfigError: the database cannot be used.
    """
    state = shared_state(configuration)
    if state is None:
        return ()
    try:
        if ROOT not in state.all(SECRETS):  # of two nodes that create it, the first succeeds
            state.write(SECRETS, {ROOT: StateDocument(0, secrets.token_bytes(KEY_BYTES))})
    except OSError as error:
        raise ConfigError(Place(configuration.file, STORAGE).at("url").finding(f"cannot be used: {error}")) from error
    root = state.all(SECRETS)[ROOT].body or b""
    settings = configuration.credentials
    # The last one is for what was encrypted before there was a configured key.
    configured = dict.fromkeys((settings.key, *settings.old_keys, ""))
    return tuple(derived_key(root + key.encode(), purpose) for key in configured)


def shared_secret(configuration: Configuration) -> bytes:
    """A key that all nodes have, for ids that callers may bring to any of them.

    Without a database it is the state folder's, so all workers of one machine have it, or this process's own.

    Raises:
        ConfigError: the database cannot be used.
    """
    purpose = b"isthmus: ids"
    if keys := cluster_keys(configuration, purpose):
        return keys[0]
    try:
        return derived_key(stored_key(Path(configuration.hub.state)), purpose)
    except (OSError, ValueError) as error:
        log.warning("ids of remote tasks are valid on this node only: their key cannot be stored", reason=str(error))
        return secrets.token_bytes(KEY_BYTES)


def sealer_of(configuration: Configuration, lost: str) -> Sealer:
    """Encrypts what is in the journal; without a stored key it lasts as long as the hub, which is logged as `lost`."""
    state = Path(configuration.hub.state)
    keys = cluster_keys(configuration, b"isthmus: journal")
    try:
        if not keys:
            return StoredSealer(stored_key(state))
        # What this hub wrote before it was a node.
        return StoredSealer(*keys, *((stored_key(state),) if (state / JOURNAL_KEY_FILE).exists() else ()))
    except (OSError, ValueError) as error:
        log.warning(lost, reason=str(error))
        return StoredSealer(*keys) if keys else ProcessSealer()


class PushKeyDocument:
    """The key that signs push notifications, sealed in the database. See `PushKeyStore`."""

    def __init__(self, state: SharedState, sealer: Sealer) -> None:
        self._state = state
        self._sealer = sealer
        self._replaced = 0
        """The version of the document that a new key replaces. Another node may write one while the key is made."""

    def read(self) -> bytes:
        """See `PushKeyStore`. A key that was sealed with a key that nobody has any more is replaced."""
        found = self._state.all(SECRETS).get(PUSH_KEY)
        self._replaced = 0 if found is None else found.version
        opened = None if found is None else self._sealer.open((found.body or b"").decode(), PUSH_KEY.encode())
        if opened is None:
            raise FileNotFoundError(errno.ENOENT, "there is no key")
        return opened

    def create(self, pem: bytes) -> None:
        """See `PushKeyStore`."""
        sealed = self._sealer.seal(pem, PUSH_KEY.encode()).encode()
        self._state.write(SECRETS, {PUSH_KEY: StateDocument(self._replaced, sealed)})

    def __str__(self) -> str:
        return f"the push key in {self._state.where}"


def push_key_store(configuration: Configuration, sealer: Sealer) -> PushKeyStore:
    """Where the key that signs push notifications is. Raises `ConfigError`."""
    state = shared_state(configuration)
    return PushKeyFile(Path(configuration.hub.state)) if state is None else PushKeyDocument(state, sealer)
