"""What nodes of a cluster have in their database and not in their state folders, and how it gets there."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from isthmus.app.key_files import KEYS, OPEN, KeyDocument, KeyFile
from isthmus.app.relay_keys import FOLDER as RELAY_FOLDER
from isthmus.app.relay_keys import ISSUED_FILE, KEY_FILE, RELAY, REVOKED_FILE
from isthmus.app.shared_state import shared_state
from isthmus.config.settings import Configuration
from isthmus.core.journal import SharedState, StateDocument
from isthmus.credentials.vault import LOGINS, SharedVault, Vault, VaultDamaged
from isthmus.identity.minted_keys import StoreDamaged
from isthmus.storage.definition_store import DEFINITIONS, DefinitionStore, SharedDefinitions
from isthmus.storage.definition_store import FILE as DEFINITIONS_FILE

log = structlog.get_logger(__name__)


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
            log.warning(
                "local state is not used in a cluster; run `isthmus migrate`", items=len(left), run="isthmus migrate"
            )


@dataclass(frozen=True, slots=True)
class MigrationItem:
    """A key list, login, relay list or definitions in the state folder, and what `isthmus migrate` does with it."""

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
    items += _plan_definitions(folder, state)
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


def _plan_definitions(folder: Path, state: SharedState) -> list[MigrationItem]:
    """Raises `OSError`."""
    path = folder / DEFINITIONS_FILE
    if not path.exists():
        return []
    try:
        with closing(DefinitionStore(folder)) as file:
            changes, same, different = SharedDefinitions(state).imported(file)
    except sqlite3.Error as error:
        return [MigrationItem(DEFINITIONS, str(path), "unreadable", str(error))]
    items = []
    if changes:
        items.append(MigrationItem(DEFINITIONS, f"{len(changes)} of {path}", "move", "", changes))
    if same:
        items.append(MigrationItem(DEFINITIONS, f"{same} of {path}", "same"))
    if different:
        reason = "the cluster has other definitions of these tools"
        items.append(MigrationItem(DEFINITIONS, f"{different} of {path}", "differs", reason))
    return items


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
