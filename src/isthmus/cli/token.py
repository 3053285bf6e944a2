"""`isthmus token create|list|rotate|revoke`: the keys of callers, in the state folder of the hub that they are for.

No hub has to run; one that does takes every change within a second. A key is printed once, to whom asked for it;
nothing else that is said here has one in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from isthmus.app.key_file import KeyFile, mend_of, reason_of
from isthmus.cli.durations import seconds_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import aligned, say, write, write_json
from isthmus.cli.sources import configuration_for_keys
from isthmus.config.callers import DEFAULT_TENANT
from isthmus.config.settings import Configuration
from isthmus.core.access.policy import check_pattern
from isthmus.identity.relay import ID_RULE
from isthmus.identity.store import (
    KEYS_MAX,
    Keys,
    MintedKey,
    State,
    StoreDamaged,
    check_name,
    current,
    meant,
    mint,
    renewed,
    revoked,
    rotated_out,
    without_old,
)
from isthmus.model.callers import Grants

OVERLAP = "24h"
"""How long the key that was rotated out is good still, so that nobody has to change all its places at once."""

FOR_EVER = "Leave it out for a key that does not end by itself."


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose key is to be made, and what for."""

    name: str
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    tenant: str | None = None
    targets: bool = False
    operator: bool = False
    expires: str | None = None
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """Who can come in, as it is listed; `id` is that of a key that was made here."""

    name: str
    id: str | None
    tenant: str
    state: State
    made: str | None
    expires: str | None
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    targets: bool
    operator: bool
    source: str
    """`state` for keys that were made here, `file` for those of the configuration."""


# -- the commands ----------------------------------------------------------------------------------------------------


def create_key(file: Path | None, wanted: Wanted) -> Exit:
    """Make a caller with a key, and print the key.

    Raises:
        CommandFailed: there can be no such caller, or there is one, or it cannot be kept.
    """
    configuration, _ = configuration_for_keys(file)
    _check(wanted, configuration)
    now = time.time()
    ends = None if wanted.expires is None else now + seconds_of("--expires", wanted.expires, FOR_EVER)
    tenant = DEFAULT_TENANT if wanted.tenant is None else wanted.tenant
    grants = Grants(wanted.allow, wanted.deny)
    try:
        may = {"targets": wanted.targets, "operator": wanted.operator}
        key, made = mint(wanted.name, grants, tenant, **may, now=now, expires_at=ends)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"the {error}", "Choose another name.") from None

    def decide(keys: Keys) -> Keys:
        if current(keys, wanted.name, now) is not None:
            raise _taken(f"{wanted.name} has a key already", f"isthmus token rotate {wanted.name}, or choose another")
        return _with(keys, made, now)

    _change(configuration, decide, may_begin=True)
    _tell_key(key, made, is_json=wanted.is_json)
    return Exit.WELL


def rotate_key(file: Path | None, name: str, overlap: str, expires: str | None, *, is_json: bool) -> Exit:
    """Make another key for a caller; the one before is good for a while still.

    Raises:
        CommandFailed: nobody has such a key, or it cannot be kept.
    """
    configuration, _ = configuration_for_keys(file)
    _check_is_ours(name, configuration)
    now = time.time()
    still = seconds_of("--overlap", overlap, "Write 0s to have the old key end at once.", least=0)
    asked = None if expires is None else now + seconds_of("--expires", expires, FOR_EVER)
    made: list[tuple[str, MintedKey]] = []

    def decide(keys: Keys) -> Keys:
        before = current(keys, name, now)
        if before is None:
            said = f"{name} has no key that is good"
            raise CommandFailed(Exit.USAGE, said, f"Make one: isthmus token create {name} --allow '*'")
        made[:] = [renewed(before, now, asked or _same_lifetime(before, now))]
        others = tuple(rotated_out(key, now, still) if key.id == before.id else key for key in keys)
        return _with(others, made[0][1], now)

    _change(configuration, decide)
    _tell_key(*made[0], is_json=is_json)
    say(f"The key before it is good for another {overlap}." if still else "The key before it is good no more.")
    return Exit.WELL


def _same_lifetime(key: MintedKey, now: float) -> float | None:
    return None if key.expires_at is None else now + max(key.expires_at - key.made_at, 1.0)


def revoke_key(file: Path | None, word: str) -> Exit:
    """Have a key, or all keys of a caller, be good no more.

    Raises:
        CommandFailed: nobody has such a key, or it cannot be noted.
    """
    configuration, _ = configuration_for_keys(file)
    now = time.time()
    ended: list[str] = []

    def decide(keys: Keys) -> Keys:
        ids = {key.id for key in meant(keys, word)}
        if not ids:
            _check_is_ours(word, configuration)
            # Not quoted: it may be the key itself, or a token.
            advice = "See them: isthmus token list. See the id of a relay's token: isthmus token read."
            said = f"nobody has a key of that name or id; the id of a relay's token is {ID_RULE}"
            raise CommandFailed(Exit.USAGE, said, advice)
        ended[:] = [key.id for key in keys if key.id in ids and key.is_good(now)]
        return without_old((revoked(key, now) if key.id in ids else key for key in keys), now)

    _change(configuration, decide)
    write("\n".join(f"revoked {id}" for id in ended) if ended else f"{word} had no key that was good")
    return Exit.WELL


def list_keys(file: Path | None, *, is_json: bool) -> Exit:
    """Print who can come in by a key, and how it is with each.

    Raises:
        CommandFailed: the list cannot be read.
    """
    configuration, trouble = configuration_for_keys(file)
    known = sorted(_known(configuration), key=lambda each: (each.name, each.source, each.made or ""))
    if is_json:
        write_json(msgspec.json.encode({"keys": known}))
    elif known:
        head = ("NAME", "ID", "TENANT", "STATE", "EXPIRES", "MAY CALL")
        write("\n".join(aligned([head, *map(_row, known)])))
    else:
        say("There are no keys. Make one: isthmus token create NAME --allow '*'")
    if trouble:
        say(f"Callers of {configuration.file} are not listed, because it cannot be used here:\n  {trouble}")
    return Exit.WELL


# -- what may be done ------------------------------------------------------------------------------------------------


def _check(wanted: Wanted, configuration: Configuration) -> None:
    """Raises: CommandFailed if nobody should have such a key."""
    _check_is_ours(wanted.name, configuration)
    if "/" in wanted.name:
        said = f"the name must be one that no caller of an issuer can have, without a slash, not {wanted.name!r}"
        raise CommandFailed(Exit.USAGE, said, "Choose another name.")
    if not (wanted.allow or wanted.targets or wanted.operator):
        advice = "Write --allow '*' for everything, or --allow files.read, --allow 'files.*' for a part."
        raise CommandFailed(Exit.USAGE, "--allow must say what it may call, not be left out", advice)
    for option, patterns in (("--allow", wanted.allow), ("--deny", wanted.deny)):
        for pattern in patterns:
            try:
                check_pattern(pattern)
            except ValueError as error:
                said = f"{option} must {str(error).partition(' must ')[2]}"
                raise CommandFailed(Exit.USAGE, said, "Write it as in [callers] of the configuration.") from None
    _check_tenant(wanted.tenant, configuration)


def _check_tenant(tenant: str | None, configuration: Configuration) -> None:
    known = configuration.tenants.known
    if tenant is None:
        return
    try:
        check_name("tenant", tenant)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"--{error}", "Choose another.") from None
    if known and tenant not in known:
        said = f"--tenant must be one of {', '.join(known)}, not {tenant!r}"
        raise CommandFailed(Exit.USAGE, said, "Tenants are under [tenants] of the configuration.")


def _check_is_ours(name: str, configuration: Configuration) -> None:
    if name in configuration.named:
        advice = 'Change its keys there: key = ["env:OLD", "env:NEW"] has two at once.'
        raise _taken(f"{name} is a caller of {configuration.file}", advice)


def _taken(said: str, advice: str) -> CommandFailed:
    return CommandFailed(Exit.USAGE, said, advice)


def _with(keys: Keys, made: MintedKey, now: float) -> Keys:
    kept = without_old(keys, now)
    if len(kept) >= KEYS_MAX:
        said = f"there are {KEYS_MAX} keys already, those that have ended within a month included"
        raise CommandFailed(Exit.CONFIGURATION, said, "More callers than that belong to an issuer: see [issuers].")
    return (*kept, made)


def _change(configuration: Configuration, decide: Callable[[Keys], Keys], *, may_begin: bool = False) -> None:
    """Change the list; where there is none, one is begun only for a key to be in it: it closes a hub that was open."""
    file = KeyFile(Path(configuration.hub.state))
    try:
        if may_begin or file.exists():
            file.change(decide)
        else:
            decide(())
    except (OSError, StoreDamaged) as error:
        raise _unusable(file, error) from error


def _unusable(file: KeyFile, error: OSError | StoreDamaged) -> CommandFailed:
    said, mend = f"the list of keys {file.path} cannot be used: {reason_of(error)}", mend_of(file, error)
    return CommandFailed(Exit.CONFIGURATION, said, f"{mend[0].upper()}{mend[1:]}.")


# -- showing ---------------------------------------------------------------------------------------------------------


def _tell_key(key: str, made: MintedKey, *, is_json: bool) -> None:
    known = _of_state(made, made.made_at)
    if is_json:
        write_json(msgspec.json.encode({**msgspec.to_builtins(known), "key": key}))
    else:
        rows = [("key", key), ("name", made.name), ("id", made.id), ("tenant", made.tenant)]
        rows += [("may call", _may(known)), ("expires", known.expires or "never")]
        write("\n".join(aligned(rows)))
    say("Keep the key: it is not shown again, and nothing here can tell it.")


def _known(configuration: Configuration) -> Iterator[Known]:
    now = time.time()
    for digest, caller in configuration.callers:
        ends_at = configuration.expiries.get(digest)
        state: State = "expired" if ends_at is not None and now >= ends_at else "good"
        grants = caller.grants
        yield Known(
            caller.name,
            None,
            caller.tenant,
            state,
            None,
            _shown(ends_at),
            grants.allow,
            grants.deny,
            caller.may_name_targets,
            caller.is_operator,
            "file",
        )
    file = KeyFile(Path(configuration.hub.state))
    try:
        keys = file.read() if file.exists() else ()
    except (OSError, StoreDamaged) as error:
        raise _unusable(file, error) from error
    yield from (_of_state(key, now) for key in keys)


def _of_state(key: MintedKey, now: float) -> Known:
    return Known(
        key.name,
        key.id,
        key.tenant,
        key.state(now),
        _shown(key.made_at),
        _shown(key.expires_at),
        key.allow,
        key.deny,
        key.targets,
        key.operator,
        "state",
    )


def _row(known: Known) -> tuple[str, ...]:
    return (known.name, known.id or "-", known.tenant, known.state, known.expires or "never", _may(known))


def _may(known: Known) -> str:
    denied = f" but not {' '.join(known.deny)}" if known.deny else ""
    targets = " (and name targets)" if known.targets else ""
    operator = " (an operator)" if known.operator else ""
    return (" ".join(known.allow) or "nothing") + denied + targets + operator


def _shown(moment: float | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
