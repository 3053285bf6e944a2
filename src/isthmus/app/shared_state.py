"""Where the keys, logins and relay lists of a hub are: in its state folder, or in the database of its cluster.

Nodes that share a database (`[cluster]` with `[storage] url`) have one truth there. The hub and the command line open
it once per process.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from isthmus.app.key_files import KEYS, OPEN, KeyDocument, KeyFile, KeyStore
from isthmus.app.relay_keys import FOLDER as RELAY_FOLDER
from isthmus.app.relay_keys import ISSUED_FILE, KEY_FILE, RELAY, REVOKED_FILE, RelayStore
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.config.tables import STORAGE
from isthmus.core.ports import SharedState, StateDocument
from isthmus.credentials.vault import LOGINS, SharedVault, Vault, VaultDamaged
from isthmus.identity.minted_keys import StoreDamaged
from isthmus.storage.journal_base import StateUnusable

if TYPE_CHECKING:  # only who wants it has the library
    from isthmus.storage.postgres_state import PostgresState

log = structlog.get_logger(__name__)

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
                _opened[url] = PostgresState(configuration.storage)
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


def report_shared_state(configuration: Configuration) -> None:
    """Log what an operator must do before this node can use all that the nodes share."""
    state = shared_state(configuration)
    if state is None:
        return
    vault = SharedVault(state, configuration.credentials)
    try:
        if servers := vault.unreadable():
            log.error(
                "this node has another key than the one that encrypts the logins of the cluster",
                servers=servers,
                advice="set the same [credentials] key on all nodes",
            )
    except VaultDamaged as error:
        log.error("the logins of the cluster cannot be read", reason=str(error))
    with suppress(OSError):
        if left := [each for each in plan_migration(configuration, state) if each.action == "move"]:
            log.warning("the state folder has what nodes do not read there", items=len(left), run="isthmus migrate")


@dataclass(frozen=True, slots=True)
class MigrationItem:
    """A key list, login or relay list in the state folder, and what `isthmus migrate` does with it."""

    kind: str
    name: str
    action: Literal["move", "same", "differs", "unreadable"]
    """`same`: the database has it already. `differs`: the database has another one, which stays."""
    reason: str = ""
    changes: Mapping[str, StateDocument] = field(default_factory=dict, repr=False)


def plan_migration(configuration: Configuration, state: SharedState) -> list[MigrationItem]:
    """What is in the state folder, and what has to be written to the database for it. Raises `OSError`."""
    folder = Path(configuration.hub.state)
    items: list[MigrationItem] = []
    file, document = KeyFile(folder), KeyDocument(state)
    if file.exists():
        items.append(_plan_keys(file, document))
    for name in (KEY_FILE, REVOKED_FILE, ISSUED_FILE):
        with suppress(FileNotFoundError):
            items.append(_plan_relay(name, (folder / RELAY_FOLDER / name).read_bytes(), state))
    vault, shared = Vault(folder, configuration.credentials), SharedVault(state, configuration.credentials)
    for slot in vault.slots():
        shown = f"{slot.server}, {slot.tenant}/{slot.caller}" if slot.caller else slot.server
        try:
            content, there = vault.get(slot), shared.get(slot)
            if there is not None:
                # A login that was renewed since differs from the file, and is the better one.
                items.append(MigrationItem(LOGINS, shown, "same"))
            elif content is not None:
                items.append(MigrationItem(LOGINS, shown, "move", "", {slot.id: shared.sealed(slot, content)}))
        except VaultDamaged as error:
            items.append(MigrationItem(LOGINS, shown, "unreadable", str(error)))
    return items


def _plan_keys(file: KeyFile, document: KeyDocument) -> MigrationItem:
    try:
        keys = file.read()
        has = document.read() if document.exists() else ()
    except StoreDamaged as error:
        return MigrationItem(KEYS, str(file.path), "unreadable", str(error))
    ids, names = {key.id for key in has}, {key.name for key in has}
    new = [key for key in keys if key.id not in ids]
    if clash := sorted({key.name for key in new} & names):
        reason = f"the database has other keys of {', '.join(clash)}"
        return MigrationItem(KEYS, f"{counted(len(keys))} in {file.path}", "differs", reason)
    shown = f"{counted(len(new))} of {file.path}"
    if document.exists() and not new:
        return MigrationItem(KEYS, f"{counted(len(keys))} of {file.path}", "same")
    changes = document.replaced((*has, *new))
    if not document.exists() and file.is_open():
        changes[OPEN] = StateDocument(0, b"")
    return MigrationItem(KEYS, shown, "move", "", changes)


def counted(keys: int) -> str:
    """A number of keys, for people."""
    return f"{keys} key" if keys == 1 else f"{keys} keys"


def _plan_relay(name: str, content: bytes, state: SharedState) -> MigrationItem:
    shown = {KEY_FILE: "key of the relay", REVOKED_FILE: "revoked tokens", ISSUED_FILE: "agents with tokens"}[name]
    found = state.all(RELAY).get(name)
    if name == KEY_FILE:
        if found is None:
            return MigrationItem(RELAY, shown, "move", "", {name: StateDocument(0, content.strip())})
        is_same = found.body == content.strip()
        reason = "" if is_same else "the tokens of this folder are not valid in the cluster"
        return MigrationItem(RELAY, shown, "same" if is_same else "differs", reason)
    has = [] if found is None else (found.body or b"").split(b"\n")
    new = sorted({line for line in content.split(b"\n") if line} - set(has))
    if not new:
        return MigrationItem(RELAY, shown, "same")
    change = StateDocument(0 if found is None else found.version, b"\n".join([*has, *new]))
    return MigrationItem(RELAY, f"{len(new)} {shown}", "move", "", {name: change})


def vault_of(configuration: Configuration) -> Vault:
    """The stored logins. Raises `ConfigError`."""
    state = shared_state(configuration)
    if state is None:
        return Vault(Path(configuration.hub.state), configuration.credentials)
    return SharedVault(state, configuration.credentials)


def relay_store(configuration: Configuration) -> RelayStore:
    """Where the relay's key and lists are. Raises `ConfigError`."""
    return shared_state(configuration) or Path(configuration.hub.state)
