"""`token`: the keys of callers, and tokens of the relay.

What these do is loaded when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from isthmus.cli.options import with_config, with_json


@click.group()
def token() -> None:
    """Make, list, rotate and revoke the keys of callers, and tokens of the relay. No hub has to run."""


@token.command("create")
@click.argument("name")
@click.option("--allow", multiple=True, metavar="PATTERN", help="What it may call, such as '*', files or files.read.")
@click.option("--deny", multiple=True, metavar="PATTERN", help="What it may not call, whatever is allowed.")
@click.option("--tenant", metavar="T", help="To whom it belongs.  [default: default]")
@click.option("--targets", is_flag=True, help="It may name servers by their addresses, as [targets] allows.")
@click.option("--operator", is_flag=True, help="It is shown how every server stands, over REST.")
@click.option("--expires", metavar="TIME", help="After how long it ends, such as 12h or 90d.  [default: never]")
@with_config
@with_json
def token_create(config: Path | None, **wanted: Any) -> int:
    """Make a caller NAME, and print its key, once. A hub that runs lets it in within a second.

    Only a digest of the key is kept, in the state folder. With the first key, a hub that was open wants keys.
    """
    from isthmus.cli.keys import Wanted, create_key

    return create_key(config, Wanted(**wanted))


@token.command("list")
@with_config
@with_json
def token_list(config: Path | None, *, is_json: bool) -> int:
    """List the callers that have keys, here and in the configuration, and how it is with each key."""
    from isthmus.cli.keys import list_keys

    return list_keys(config, is_json=is_json)


@token.command("rotate")
@click.argument("name")
@click.option("--overlap", metavar="TIME", default="24h", show_default=True, help="How long the old key is good still.")
@click.option("--expires", metavar="TIME", help="After how long the new one ends.  [default: as long as the old one]")
@with_config
@with_json
def token_rotate(name: str, overlap: str, expires: str | None, config: Path | None, *, is_json: bool) -> int:
    """Make another key for the caller NAME, with the same permissions, and print it, once."""
    from isthmus.cli.keys import rotate_key

    return rotate_key(config, name, overlap, expires, is_json=is_json)


@token.command("relay")
@click.argument("agent")
@click.option("--server-id", metavar="ID", help="What the server is called; else it is known by its own name.")
@click.option("--role", type=click.Choice(["server", "device"]), help="Which end it opens.  [default: both]")
@click.option("--tenant", metavar="T", help="To whom the agent belongs.  [default: default]")
@click.option("--expires", metavar="TIME", help="After how long it ends, such as 12h or 30d.  [default: never]")
@click.option("--compatible", "is_compatible", is_flag=True, help="As the original makes them: both ends, for ever.")
@click.option("--url", metavar="URL", help="How the hub is reached, such as wss://hub.example.")
@click.option("--health", "has_health", is_flag=True, help="Print the manager's health address with the relay's key.")
@with_config
@with_json
def token_relay(config: Path | None, **wanted: Any) -> int:
    """Print the addresses at which AGENT's servers dial in and its devices call."""
    from isthmus.cli.token import Wanted, mint_token

    return mint_token(config, Wanted(**wanted))


@token.command("revoke")
@click.argument("word", metavar="NAME|ID")
@with_config
def token_revoke(word: str, config: Path | None) -> int:
    """Have all keys of the caller NAME, or the key or relay token with this ID, be good no more.

    What it had open is ended within a second.
    """
    from isthmus.cli.keys import revoke_key
    from isthmus.cli.token import revoke_token
    from isthmus.identity.relay import is_id

    return revoke_token(config, word) if is_id(word) else revoke_key(config, word)


@token.command("read")
@with_config
@with_json
def token_read(config: Path | None, *, is_json: bool) -> int:
    """Say what the token on standard input claims, or the one in the address that is there."""
    from isthmus.cli.token import read_token

    return read_token(config, is_json=is_json)
