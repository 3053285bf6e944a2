"""`isthmus login`, `isthmus logout` and `isthmus credentials`: logins of the hub at its servers. No hub has to run.

Addresses that a person is to visit come from servers: they are printed, made harmless, and never opened from here.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from isthmus.app.login import LoginFailed, LoginOptions, LoginPrompt, log_in
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import aligned, harmless, print_error, print_json, print_output
from isthmus.cli.running import run_command
from isthmus.config.settings import Configuration
from isthmus.credentials.tokens import StoredLogin
from isthmus.credentials.vault import Slot, Vault, VaultDamaged
from isthmus.model.credentials import Subject, subject_of
from isthmus.upstream.settings import ServerSettings

log = structlog.get_logger(__name__)

_ADVICE = "`isthmus login --list` shows the logins that there are."


def log_in_at(
    file: Path | None, server: str, caller: str | None, *, scope: str, is_device: bool, seconds: float
) -> Exit:
    """Log in at a server, in everybody's name or in one caller's.

    Raises:
        CommandFailed: there is no such server, or nothing came of it.
    """
    configuration = configuration_of(file)
    wanted = LoginOptions(_server(configuration, server), _subject(caller), scope, is_device, seconds)
    try:
        kept = run_command(log_in(wanted, _vault(configuration), _show))
    except LoginFailed as failed:
        advice = f"See [servers.{server}.oauth] in the documentation for what can be configured."
        raise CommandFailed(Exit.CALL_FAILED, f"no login at {server}: {failed}", advice) from failed
    until = "" if kept.token.expires_at is None else f" until {_time(kept.token.expires_at)}"
    renewed = ", renewed by itself" if kept.token.refresh else ""
    print_error(f"Logged in at {server}{until}{renewed}.")
    return Exit.SUCCESS


def _show(shown: LoginPrompt) -> None:
    """Print where to go. Not opened: whoever runs the server has chosen the address, and a person has to look at it."""
    address = harmless(shown.address, keep="")
    if shown.code:
        print_error(f"Visit this address on any device, and enter the code {harmless(shown.code, keep='')}:")
    else:
        print_error("Visit this address in a browser on this machine:")
    print_output(address)


def log_out_of(file: Path | None, server: str, caller: str | None) -> Exit:
    """Forget a login; a running hub does within a second.

    Raises:
        CommandFailed: there is none.
    """
    try:
        is_gone = _vault(configuration_of(file)).remove(Slot.of(server, _subject(caller)))
    except OSError as error:
        raise CommandFailed(Exit.CONFIGURATION, f"the login cannot be removed: {error.strerror}") from error
    if not is_gone:
        raise CommandFailed(Exit.USAGE, f"nobody has logged in at {server}", _ADVICE)
    print_error(f"Logged out of {server}. The token itself holds until it expires, wherever it was seen.")
    return Exit.SUCCESS


def list_logins(file: Path | None, *, is_json: bool) -> Exit:
    """Print which logins there are, and none of what is secret in them."""
    vault = _vault(configuration_of(file))
    rows = [_row(slot, vault) for slot in vault.slots()]
    if is_json:
        print_json(msgspec.json.encode({"logins": rows}))
        return Exit.SUCCESS
    if not rows:
        print_error("Nobody has logged in anywhere.")
        return Exit.SUCCESS
    head = ("SERVER", "CALLER", "ISSUER", "EXPIRES", "RENEWED", "SCOPE")
    lines = [[harmless(str(row[key.lower()] or "-"), keep="") for key in head] for row in rows]
    print_output("\n".join(aligned([list(head), *lines])))
    return Exit.SUCCESS


def _row(slot: Slot, vault: Vault) -> dict[str, str | bool | None]:
    caller = f"{slot.tenant}/{slot.caller}" if slot.caller else None
    named: dict[str, str | bool | None] = {"server": slot.server, "caller": caller}
    try:
        kept = msgspec.json.decode(vault.get(slot) or b"", type=StoredLogin)
    except (OSError, VaultDamaged, msgspec.MsgspecError):
        return {**named, "issuer": "cannot be read", "expires": None, "renewed": False, "scope": None}
    expires = None if kept.token.expires_at is None else _time(kept.token.expires_at)
    is_over = not kept.token.is_good(time.time()) and not kept.token.refresh
    return {
        **named,
        "issuer": kept.issuer or None,
        "expires": "expired" if is_over else expires,
        "renewed": bool(kept.token.refresh),
        "scope": kept.token.scope or None,
    }


def rotate_key(file: Path | None) -> Exit:
    """Seal every login anew, under a new key.

    Raises:
        CommandFailed: one of them cannot be opened or written.
    """
    configuration = configuration_of(file)
    try:
        count = _vault(configuration).rotate()
    except VaultDamaged as error:
        raise CommandFailed(Exit.CONFIGURATION, str(error), _ADVICE) from error
    except OSError as error:
        raise CommandFailed(Exit.CONFIGURATION, f"the logins cannot be written: {error.strerror}") from error
    under = "the configured key" if configuration.credentials.key else "a new key"
    print_error(f"Sealed {count} login{'' if count == 1 else 's'} under {under}.")
    return Exit.SUCCESS


def _server(configuration: Configuration, name: str) -> ServerSettings:
    for server in configuration.servers:
        if server.name == name:
            return server
    known = ", ".join(server.name for server in configuration.servers) or "none"
    raise CommandFailed(Exit.USAGE, f"there is no server {name!r} in the configuration", f"There are: {known}.")


def _vault(configuration: Configuration) -> Vault:
    return Vault(Path(configuration.hub.state), configuration.credentials)


def _subject(caller: str | None) -> Subject | None:
    return None if caller is None else subject_of(caller)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
