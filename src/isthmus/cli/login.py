"""`isthmus login`, `logout` and `credentials`: the hub's logins at its servers. No hub has to run.

Servers choose the addresses that a person must visit, so these are printed, escaped, and never opened.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from isthmus.app.login import LoginFailed, LoginOptions, LoginPrompt, log_in
from isthmus.app.shared_state import vault_of
from isthmus.app.state_folder import write_owner
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import CommandGroup, WaitSeconds, with_config, with_json
from isthmus.cli.output import counted, harmless, print_error, print_json, print_output, print_table
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration
from isthmus.credentials.token_endpoint import StoredLogin
from isthmus.credentials.vault import Slot, Vault, VaultDamaged
from isthmus.model.credentials import subject_of
from isthmus.model.names import legal_server_name

_ADVICE = "`isthmus login --list` shows the existing logins."


@click.command()
@click.argument("server", required=False)
@click.option("--caller", metavar="NAME", help="Log in for this caller only; TENANT/NAME in another tenant.")
@click.option("--device", "is_device", is_flag=True, help="Enter a code on another device; no browser is needed here.")
@click.option("--scope", metavar="WORDS", default="", help="Additional scopes to request.")
@click.option(
    "--seconds",
    type=WaitSeconds(1.0, 3600.0),
    default=300.0,
    show_default=True,
    metavar="N",
    help="How long to wait for the person.",
)
@click.option("--list", "is_list", is_flag=True, help="List the existing logins.")
@with_config
@with_json
def login(
    server: str | None,
    caller: str | None,
    scope: str,
    seconds: float,
    config: Path | None,
    *,
    is_device: bool,
    is_list: bool,
    is_json: bool,
) -> int:
    """Log the hub in at SERVER by OAuth; a running hub uses the login within a second.

    The address to visit is printed, not opened: the server chose it.
    """
    quiet_logs()
    if is_list:
        return list_logins(config, is_json=is_json)
    if server is None:
        raise click.UsageError("Name the SERVER to log in at, or give --list.")
    configuration = configuration_of(config)
    # As the hub has it, or as a client's file does, such as `my server`.
    settings = next((each for each in configuration.servers if each.name in (server, legal_server_name(server))), None)
    if settings is None:
        names = ", ".join(server.name for server in configuration.servers)
        advice = f"Configured servers: {names}." if names else "No servers are configured."
        raise CommandFailed(Exit.USAGE, f"there is no server {server!r} in the configuration", advice)
    server, subject = settings.name, None if caller is None else subject_of(caller)
    options = LoginOptions(settings, subject, scope, is_device, seconds)
    try:
        write_owner(configuration)
        stored = run_command(log_in(options, _vault(configuration), _print_prompt))
    except LoginFailed as failed:
        advice = f"See [servers.{server}.oauth] in the documentation for what can be configured."
        raise CommandFailed(Exit.CALL_FAILED, f"no login at {server}: {failed}", advice) from failed
    until = "" if stored.token.expires_at is None else f" until {_time(stored.token.expires_at)}"
    renewed = ", renewed automatically" if stored.token.refresh else ""
    print_error(f"Logged in at {server}{until}{renewed}.")
    return Exit.SUCCESS


@click.command()
@click.argument("server")
@click.option("--caller", metavar="NAME", help="Delete this caller's own login; TENANT/NAME in another tenant.")
@with_config
def logout(server: str, caller: str | None, config: Path | None) -> int:
    """Delete the login at SERVER; a running hub stops using it within a second."""
    subject = None if caller is None else subject_of(caller)
    try:
        vault = _vault(configuration_of(config))
        is_deleted = any(vault.remove(Slot.of(name, subject)) for name in (server, legal_server_name(server)))
    except VaultDamaged as error:
        raise CommandFailed(Exit.CONFIGURATION, str(error), _ADVICE) from error
    except OSError as error:
        raise CommandFailed(Exit.CONFIGURATION, f"the login cannot be removed: {error.strerror or error}") from error
    if not is_deleted:
        raise CommandFailed(Exit.USAGE, f"there is no login at {server}", _ADVICE)
    print_error(f"Logged out of {server}. The token itself stays valid until it expires.")
    return Exit.SUCCESS


@click.group(cls=CommandGroup)
def credentials() -> None:
    """Manage the key that encrypts logins."""


@credentials.command("rotate")
@with_config
def credentials_rotate(config: Path | None) -> int:
    """Encrypt every login under a new key; the hub may be running."""
    configuration = configuration_of(config)
    try:
        count = _vault(configuration).rotate()
    except VaultDamaged as error:
        raise CommandFailed(Exit.CONFIGURATION, str(error), _ADVICE) from error
    except OSError as error:
        raise CommandFailed(Exit.CONFIGURATION, f"the logins cannot be written: {error.strerror or error}") from error
    under = "the configured key" if configuration.credentials.key else "a new key"
    print_error(f"Encrypted {counted(count, 'login')} under {under}.")
    return Exit.SUCCESS


def _print_prompt(prompt: LoginPrompt) -> None:
    # Not opened in a browser: the server chose the address, so a person has to look at it first.
    if prompt.code:
        print_error(f"Visit this address on any device, and enter the code {harmless(prompt.code, keep='')}:")
    else:
        print_error("Visit this address in a browser on this machine:")
    print_output(harmless(prompt.address, keep=""))


def list_logins(file: Path | None, *, is_json: bool) -> Exit:
    """Print the existing logins, without their secrets."""
    vault = _vault(configuration_of(file))
    rows = [_row(slot, vault) for slot in vault.slots()]
    if is_json:
        print_json(msgspec.json.encode({"logins": rows}))
    elif not rows:
        print_error("There are no logins.")
    else:
        head = ("SERVER", "CALLER", "ISSUER", "EXPIRES", "RENEWED", "SCOPE")
        lines = [[harmless(str(row[key.lower()] or "-"), keep="") for key in head] for row in rows]
        print_table(head, lines, ("cyan", "", "", "", "", ""), is_wrapped=True)
    return Exit.SUCCESS


def _row(slot: Slot, vault: Vault) -> dict[str, str | bool | None]:
    caller = f"{slot.tenant}/{slot.caller}" if slot.caller else None
    named: dict[str, str | bool | None] = {"server": slot.server, "caller": caller}
    try:
        kept = msgspec.json.decode(vault.get(slot) or b"", type=StoredLogin)
    except (OSError, VaultDamaged, msgspec.MsgspecError):
        return {**named, "issuer": "cannot be read", "expires": None, "renewed": False, "scope": None}
    expires = None if kept.token.expires_at is None else _time(kept.token.expires_at)
    is_expired = not kept.token.is_good(time.time()) and not kept.token.refresh
    return {
        **named,
        "issuer": kept.issuer or None,
        "expires": "expired" if is_expired else expires,
        "renewed": bool(kept.token.refresh),
        "scope": kept.token.scope or None,
    }


def _vault(configuration: Configuration) -> Vault:
    try:
        return vault_of(configuration)
    except ConfigError as error:
        raise refused(error) from error


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
