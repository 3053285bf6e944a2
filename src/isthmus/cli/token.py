"""`isthmus token`: the keys of callers, and the tokens of the relay (`cli.relay_tokens`). No hub has to run.

Keys are in the state folder; a running hub sees every change within a second. A key is printed once, when it is made,
and appears in no other output.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from isthmus.app.key_files import KeyStore, fix_of, reason_of
from isthmus.app.shared_state import key_store
from isthmus.app.state_folder import KEYS, earlier_folder, earlier_state, find_running, write_owner
from isthmus.cli.config import configuration_for_keys
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import CommandGroup, parse_duration, with_config, with_json
from isthmus.cli.output import aligned, print_error, print_json, print_output, print_table
from isthmus.cli.relay_tokens import RelayTokenOptions, mint_token, read_token, revoke_token
from isthmus.config.callers import DEFAULT_TENANT, meant_pattern
from isthmus.config.entries_to_settings import RESERVED
from isthmus.config.findings import ConfigError
from isthmus.config.load import access_mode
from isthmus.config.settings import Configuration
from isthmus.core.access.policy import check_pattern
from isthmus.identity.minted_keys import (
    KEYS_MAX,
    Keys,
    MintedKey,
    State,
    StoreDamaged,
    check_name,
    current,
    keys_named,
    mint,
    renewed,
    replaced_key,
    revoked,
    without_old,
)
from isthmus.identity.relay_tokens import ID_RULE, is_id
from isthmus.model.callers import Grants

NEVER_ENDS = "Leave it out for a key that never expires."


@click.group(cls=CommandGroup)
def token() -> None:
    """Manage the keys of callers and the tokens of the relay. No hub has to run."""


@token.command("create")
@click.argument("name")
@click.option("--allow", multiple=True, metavar="PATTERN", help="What it may call, such as '*', files or files.read.")
@click.option("--deny", multiple=True, metavar="PATTERN", help="What it may not call, even if allowed.")
@click.option("--tenant", metavar="T", help="The tenant of the caller.  [default: default]")
@click.option("--targets", is_flag=True, help="It may name servers by address, as [targets] allows.")
@click.option("--set", metavar="SET", help="The only set that it sees; see [sets] in the configuration.")
@click.option("--operator", is_flag=True, help="It sees state and logs of every server, and may restart or disable it.")
@click.option("--expires", metavar="TIME", help="When the key expires, such as 12h or 90d.  [default: never]")
@with_config
@with_json
def token_create(config: Path | None, **given: Any) -> int:
    """Create a caller NAME and print its key, once. A running hub accepts it within a second.

    Only a hash of the key is stored, in the state folder. With its first key, an open hub starts to require keys.
    """
    options = KeyOptions(**given)
    configuration, _ = configuration_for_keys(config)
    was_open = _is_open(configuration)
    key, made = new_key(configuration, options)
    _print_key(key, made, is_json=options.is_json)
    servers = {str(each.name) for each in configuration.servers} | {*configuration.fleets, *RESERVED}
    for pattern in (*options.allow, *options.deny):
        if (meant := meant_pattern(pattern, servers)) is not None:
            print_error(
                f"{pattern!r} names no server of the configuration; did you mean {meant!r}? "
                f"`isthmus token revoke {options.name}` deletes the key."
            )
    if was_open:
        print_error(f"From now on {_hub_of(configuration)} requires a key from everybody.")
        if find_running(Path(configuration.hub.state)) is None:
            print_error(
                "No hub that uses this key runs now. If one was started before its file was there, restart it: "
                "until then it stays open."
            )
    return Exit.SUCCESS


@token.command("list", short_help="List the callers and the state of each key.")
@with_config
@with_json
def token_list(config: Path | None, *, is_json: bool) -> int:
    """List the callers with keys, here and in the configuration, and the state of each key."""
    configuration, trouble = configuration_for_keys(config)
    known = sorted(_all_keys(configuration), key=lambda each: (each.name, each.source, each.made or ""))
    if is_json:
        print_json(msgspec.json.encode({"keys": known}))
    elif known:
        head = ("NAME", "ID", "TENANT", "STATE", "EXPIRES", "MAY CALL")
        rows = [
            (key.name, key.id or "-", key.tenant, key.state, _minute(key.expires), _permissions(key)) for key in known
        ]
        print_table(head, rows, ("cyan", "dim", "", "", "", ""), is_wrapped=True)
    else:
        print_error("There are no keys. Make one: isthmus token create NAME --allow '*'")
        for line in _earlier_keys(configuration):
            print_error(line)
    if trouble:
        print_error(f"Callers of {configuration.file} are not listed, because it cannot be used here:\n  {trouble}")
    return Exit.SUCCESS


@token.command("rotate", short_help="Make another key for a caller, and print it, once.")
@click.argument("name")
@click.option("--overlap", metavar="TIME", default="24h", show_default=True, help="How long the old key stays valid.")
@click.option("--expires", metavar="TIME", help="When the new key expires.  [default: same lifetime as the old one]")
@with_config
@with_json
def token_rotate(name: str, overlap: str, expires: str | None, config: Path | None, *, is_json: bool) -> int:
    """Make another key for the caller NAME, with the same permissions, and print it, once."""
    configuration, _ = configuration_for_keys(config)
    _check_not_configured(name, configuration)
    now = time.time()
    still = parse_duration("--overlap", overlap, "Write 0s to end the old key at once.", least=0)
    ends = None if expires is None else now + parse_duration("--expires", expires, NEVER_ENDS)
    made: list[tuple[str, MintedKey]] = []

    def decide(keys: Keys) -> Keys:
        before = current(keys, name, now)
        if before is None:
            advice = f"Make one: isthmus token create {name} --allow '*'"
            raise CommandFailed(Exit.USAGE, f"{name} has no valid key", advice)
        lifetime = None if before.expires_at is None else max(before.expires_at - before.made_at, 1.0)
        made[:] = [renewed(before, now, ends or (None if lifetime is None else now + lifetime))]
        others = tuple(replaced_key(key, now, still) if key.id == before.id else key for key in keys)
        return _with_new_key(others, made[0][1], now)

    _change(configuration, decide)
    _print_key(*made[0], is_json=is_json)
    print_error(f"The old key stays valid for {overlap}." if still else "The old key is no longer valid.")
    return Exit.SUCCESS


@token.command("relay", short_help="Print the addresses for the servers and devices of an agent.")
@click.argument("agent")
@click.option("--server-id", metavar="ID", help="The server's id; without it, its own name is used.")
@click.option("--role", type=click.Choice(["server", "device"]), help="The end that it opens.  [default: both]")
@click.option("--tenant", metavar="T", help="The tenant of the agent.  [default: default]")
@click.option("--expires", metavar="TIME", help="When the token expires, such as 12h or 30d.  [default: never]")
@click.option("--compatible", "is_compatible", is_flag=True, help="In the original's format: both ends, for ever.")
@click.option("--url", metavar="URL", help="The hub's public address, such as wss://hub.example.")
@click.option("--health", "has_health", is_flag=True, help="Print the manager's health address with the relay's key.")
@with_config
@with_json
def token_relay(config: Path | None, **options: Any) -> int:
    """Print the addresses at which AGENT's servers dial in and its devices call."""
    return mint_token(config, RelayTokenOptions(**options))


@token.command("revoke", short_help="Revoke the keys of a caller, one key, or a relay token.")
@click.argument("word", metavar="NAME|ID")
@click.option("--open", "to_open", is_flag=True, help="With the last key: let every program on this machine in again.")
@with_config
def token_revoke(word: str, config: Path | None, *, to_open: bool) -> int:
    """Revoke all keys of the caller NAME, or the key or relay token with this ID.

    Its open connections end within a second. Without any valid key the hub stays closed, unless --open is given.
    """
    if not is_id(word):
        return revoke_key(config, word, to_open=to_open)
    if to_open:
        raise CommandFailed(Exit.USAGE, "--open is for keys: a relay token does not open or close the hub")
    return revoke_token(config, word)


@token.command("read", short_help="Print the claims of a relay token on standard input.")
@with_config
@with_json
def token_read(config: Path | None, *, is_json: bool) -> int:
    """Print the claims of a relay token on standard input, or of the token in an address there."""
    return read_token(config, is_json=is_json)


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """The key to create."""

    name: str
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    tenant: str | None = None
    targets: bool = False
    operator: bool = False
    set: str | None = None
    expires: str | None = None
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key as it is listed."""

    name: str
    id: str | None
    """None for a key of the configuration."""
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
    set: str | None = None
    """The set that its caller is bound to."""


def new_key(configuration: Configuration, options: KeyOptions) -> tuple[str, MintedKey]:
    """Create a caller with a key; return the key, which is not stored, and its record.

    Raises:
        CommandFailed: an option is invalid, the caller exists, or the key cannot be stored.
    """
    _check(options, configuration)
    now = time.time()
    ends = None if options.expires is None else now + parse_duration("--expires", options.expires, NEVER_ENDS)
    tenant = DEFAULT_TENANT if options.tenant is None else options.tenant
    grants = Grants(options.allow, options.deny, set=options.set)
    try:
        rights = {"targets": options.targets, "operator": options.operator}
        key, made = mint(options.name, grants, tenant, **rights, now=now, expires_at=ends)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"the {error}", "Choose another name.") from None

    def decide(keys: Keys) -> Keys:
        if current(keys, options.name, now) is not None:
            advice = f"`isthmus token rotate {options.name}` makes another, or choose another name."
            raise CommandFailed(Exit.USAGE, f"{options.name} already has a key", advice)
        return _with_new_key(keys, made, now)

    write_owner(configuration)
    _change(configuration, decide, may_begin=True, to_open=False)
    return key, made


def revoke_key(file: Path | None, word: str, *, to_open: bool = False) -> Exit:
    """Revoke a key, or all keys of a caller; with `to_open`, let everybody in again who could before the first key.

    Raises:
        CommandFailed: there is no such key, the hub cannot be opened, or the change cannot be stored.
    """
    configuration, _ = configuration_for_keys(file)
    if to_open and _has_other_callers(configuration):
        text = f"--open cannot open {_hub_of(configuration)}: the file has callers or issuers of its own"
        raise CommandFailed(Exit.USAGE, text, "Remove those from the file first. Nothing was changed.")
    if to_open:
        try:
            access_mode(configuration.hub, ())
        except ConfigError as error:
            raise refused(error) from error
    now = time.time()
    ended: list[str] = []
    others: list[str] = []

    def decide(keys: Keys) -> Keys:
        ids = {key.id for key in keys_named(keys, word)}
        if not ids:
            _check_not_configured(word, configuration)
            # Not quoted: it may be the key itself, or a token.
            advice = "`isthmus token list` lists the keys; `isthmus token read` shows the id of a relay token."
            text = f"no key has that name or id; the id of a relay token is {ID_RULE}"
            raise CommandFailed(Exit.USAGE, text, advice, *_earlier_keys(configuration))
        ended[:] = [key.id for key in keys if key.id in ids and key.is_good(now)]
        others[:] = [key.name for key in keys if key.id not in ids and key.is_good(now)]
        if to_open and others:
            text = f"--open is for the last key, and others are valid: {', '.join(sorted(set(others)))}"
            raise CommandFailed(Exit.USAGE, text, "Revoke those first, or leave --open out. Nothing was changed.")
        return without_old((revoked(key, now) if key.id in ids else key for key in keys), now)

    _change(configuration, decide, to_open=True if to_open else None)
    print_output("\n".join(f"revoked {id}" for id in ended) if ended else f"{word} had no valid key")
    if to_open:
        print_error(f"Now {_hub_of(configuration)} is open: every program on this machine may call everything.")
    elif not others and not _has_other_callers(configuration) and not _is_open(configuration):
        config = "" if file is None else f" --config {shlex.quote(str(file))}"
        print_error(
            f"No valid key is left, and {_hub_of(configuration)} stays closed. Make another key:\n"
            f"  isthmus token create NAME --allow '*'{config}\n"
            "or let every program on this machine in again:\n"
            f"  isthmus token revoke {shlex.quote(word)} --open{config}"
        )
    return Exit.SUCCESS


# -- checks ----------------------------------------------------------------------------------------------------------


def _check(options: KeyOptions, configuration: Configuration) -> None:
    """Raises: CommandFailed if an option is invalid."""
    _check_not_configured(options.name, configuration)
    if "/" in options.name:
        text = f"the name must not contain a slash, which marks callers of issuers, got {options.name!r}"
        raise CommandFailed(Exit.USAGE, text, "Choose another name.")
    if not (options.allow or options.targets or options.operator):
        advice = "Write --allow '*' for everything, or --allow files.read, --allow 'files.*' for a part."
        raise CommandFailed(Exit.USAGE, "--allow is missing: it says what the key may call", advice)
    for option, patterns in (("--allow", options.allow), ("--deny", options.deny)):
        for pattern in patterns:
            try:
                check_pattern(pattern)
            except ValueError as error:
                text = f"{option} must {str(error).partition(' must ')[2]}"
                raise CommandFailed(Exit.USAGE, text, "Write it as in [callers] of the configuration.") from None
    if options.set is not None and options.set not in configuration.sets:
        text = (
            f"--set must be one of {', '.join(configuration.sets) or 'the sets (there are none)'}, got {options.set!r}"
        )
        raise CommandFailed(Exit.USAGE, text, "Sets are under [sets] of the configuration.")
    if options.set is not None and options.targets:
        raise CommandFailed(Exit.USAGE, "--set excludes --targets: a set has only configured servers")
    known = configuration.tenants.known
    if options.tenant is None:
        return
    try:
        check_name("tenant", options.tenant)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"--{error}", "Choose another.") from None
    if known and options.tenant not in known:
        text = f"--tenant must be one of {', '.join(known)}, got {options.tenant!r}"
        raise CommandFailed(Exit.USAGE, text, "Tenants are under [tenants] of the configuration.")


def _check_not_configured(name: str, configuration: Configuration) -> None:
    if name in configuration.named:
        advice = 'Change its keys there: key = ["env:OLD", "env:NEW"] has two at once.'
        raise CommandFailed(Exit.USAGE, f"{name} is a caller of {configuration.file}", advice)


# -- open and closed hubs --------------------------------------------------------------------------------------------


def _hub_of(configuration: Configuration) -> str:
    return "the default hub" if configuration.file is None else f"the hub of {configuration.file}"


def _has_other_callers(configuration: Configuration) -> bool:
    """Whether callers other than those with keys of the state folder are known."""
    return bool(configuration.named or configuration.issuers or configuration.extensions.in_group("identity"))


def _is_open(configuration: Configuration) -> bool:
    file = _keys_of(configuration)
    return not _has_other_callers(configuration) and (not file.exists() or file.is_open())


def _earlier_keys(configuration: Configuration) -> list[str]:
    """A hint for people who look for a key: an earlier version kept its keys elsewhere."""
    if KEYS not in earlier_state(configuration):
        return []
    return [f"An earlier version kept the keys of all hubs in {earlier_folder()}; `isthmus serve` says how to keep it."]


# -- the key file ----------------------------------------------------------------------------------------------------


def _with_new_key(keys: Keys, made: MintedKey, now: float) -> Keys:
    kept = without_old(keys, now)
    if len(kept) >= KEYS_MAX:
        text = f"the limit of {KEYS_MAX} keys is reached, including those that ended in the last month"
        raise CommandFailed(Exit.CONFIGURATION, text, "For more callers, use an identity provider: see [issuers].")
    return (*kept, made)


def _change(
    configuration: Configuration,
    decide: Callable[[Keys], Keys],
    *,
    may_begin: bool = False,
    to_open: bool | None = None,
) -> None:
    """Change the key file. It is only created for a first key, because an open hub then starts to require keys."""
    file = _keys_of(configuration)
    try:
        if may_begin or file.exists():
            file.change(decide, to_open=to_open)
        else:
            decide(())
    except (OSError, StoreDamaged) as error:
        raise _unusable(file, error) from error


def _keys_of(configuration: Configuration) -> KeyStore:
    try:
        return key_store(configuration)
    except ConfigError as error:
        raise refused(error) from error


def _unusable(file: KeyStore, error: OSError | StoreDamaged) -> CommandFailed:
    text, fix = f"the key file {file.path} cannot be used: {reason_of(error)}", fix_of(file, error)
    return CommandFailed(Exit.CONFIGURATION, text, f"{fix[0].upper()}{fix[1:]}.")


def _all_keys(configuration: Configuration) -> Iterator[KeyInfo]:
    now = time.time()
    for digest, caller in configuration.callers:
        ends_at = configuration.expiries.get(digest)
        yield KeyInfo(
            caller.name,
            None,
            caller.tenant,
            "expired" if ends_at is not None and now >= ends_at else "good",
            None,
            _iso_time(ends_at),
            caller.grants.allow,
            caller.grants.deny,
            caller.may_name_targets,
            caller.is_operator,
            "file",
            caller.grants.set,
        )
    file = _keys_of(configuration)
    try:
        keys = file.read() if file.exists() else ()
    except (OSError, StoreDamaged) as error:
        raise _unusable(file, error) from error
    yield from (_minted_info(key, now) for key in keys)


def _minted_info(key: MintedKey, now: float) -> KeyInfo:
    return KeyInfo(
        key.name,
        key.id,
        key.tenant,
        key.state(now),
        _iso_time(key.made_at),
        _iso_time(key.expires_at),
        key.allow,
        key.deny,
        key.targets,
        key.operator,
        "state",
        key.set,
    )


# -- printing --------------------------------------------------------------------------------------------------------


def _print_key(key: str, made: MintedKey, *, is_json: bool) -> None:
    info = _minted_info(made, made.made_at)
    if is_json:
        print_json(msgspec.json.encode({**msgspec.to_builtins(info), "key": key}))
    else:
        rows = [("key", key), ("name", made.name), ("id", made.id), ("tenant", made.tenant)]
        rows += [("may call", _permissions(info)), ("expires", info.expires or "never")]
        print_output("\n".join(aligned(rows)))
    print_error("Keep the key: it is not stored and cannot be shown again.")


def _minute(expires: str | None) -> str:
    return "never" if expires is None else datetime.fromisoformat(expires).astimezone(UTC).strftime("%FT%H:%MZ")


def _permissions(key: KeyInfo) -> str:
    denied = f" but not {' '.join(key.deny)}" if key.deny else ""
    targets = " (and name targets)" if key.targets else ""
    operator = " (an operator)" if key.operator else ""
    bound = f" (only the set {key.set})" if key.set is not None else ""
    return (" ".join(key.allow) or "nothing") + denied + targets + operator + bound


def _iso_time(moment: float | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
