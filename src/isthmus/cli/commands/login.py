"""Commands about the hub's own logins at servers: `login`, `logout` and `credentials`.

What these do is loaded when they run.
"""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.cli.options import quietly, with_config, with_json


@click.command()
@click.argument("server", required=False)
@click.option("--caller", metavar="NAME", help="Log in for this caller alone; TENANT/NAME in another tenant.")
@click.option("--device", "is_device", is_flag=True, help="Enter a code on another device; no browser is needed here.")
@click.option("--scope", metavar="WORDS", default="", help="Ask for this, too, as a server may want it.")
@click.option(
    "--seconds",
    type=click.FloatRange(1.0, 3600.0),
    default=300.0,
    show_default=True,
    metavar="N",
    help="How long to wait for the person.",
)
@click.option("--list", "is_list", is_flag=True, help="List the logins that there are.")
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
    """Log the hub in at SERVER by OAuth; a running hub takes it up within a second.

    The address to visit is printed and never opened from here: it comes from the server.
    """
    from isthmus.cli.login import list_logins, log_in_at

    quietly()
    if is_list:
        return list_logins(config, is_json=is_json)
    if server is None:
        raise click.UsageError("Name the SERVER to log in at, or give --list.")
    return log_in_at(config, server, caller, scope=scope, is_device=is_device, seconds=seconds)


@click.command()
@click.argument("server")
@click.option("--caller", metavar="NAME", help="Forget this caller's own login; TENANT/NAME in another tenant.")
@with_config
def logout(server: str, caller: str | None, config: Path | None) -> int:
    """Forget the login at SERVER; a running hub does within a second."""
    from isthmus.cli.login import log_out_of

    return log_out_of(config, server, caller)


@click.group()
def credentials() -> None:
    """Look after what the hub's logins at servers are kept with."""


@credentials.command("rotate")
@with_config
def credentials_rotate(config: Path | None) -> int:
    """Seal every login anew under a new key, while the hub runs if it does."""
    from isthmus.cli.login import rotate_key

    return rotate_key(config)
