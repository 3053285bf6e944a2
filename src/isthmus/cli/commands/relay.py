"""`relay`: who dialled in at a running hub.

What these do is loaded when they run.
"""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.cli.exits import Exit
from isthmus.cli.options import chosen, quietly, with_json, with_source


@click.group()
def relay() -> None:
    """Look at the relay of a running hub, and have it forget who is away."""


@relay.command()
@with_source
@click.option("--watch", "is_watched", is_flag=True, help="Show it anew every second, until Ctrl-C.")
@click.option("--tools", "has_tools", is_flag=True, help="Name the servers' tools, too.")
@with_json
def status(hub: str | None, config: Path | None, *, is_watched: bool, has_tools: bool, is_json: bool) -> int:
    """List the agents, the servers that dialled in under them, and the devices that are connected."""
    from isthmus.cli.relay import hub_of, show_status, watch_status
    from isthmus.cli.running import run_command

    if is_watched and is_json:
        raise click.UsageError("--watch and --json exclude each other.")
    quietly()
    source = hub_of(chosen(hub, config))
    if not is_watched:
        return run_command(show_status(source, is_json=is_json, has_tools=has_tools))
    try:
        return run_command(watch_status(source, has_tools=has_tools))
    except KeyboardInterrupt:
        return Exit.WELL


@relay.command()
@click.argument("agent")
@click.argument("server_id", required=False)
@with_source
def forget(agent: str, server_id: str | None, hub: str | None, config: Path | None) -> int:
    """Forget what AGENT's servers that are away had to offer, or one of them; who dials in again is there again."""
    from isthmus.cli.relay import forget_servers, hub_of
    from isthmus.cli.running import run_command

    quietly()
    return run_command(forget_servers(hub_of(chosen(hub, config)), agent, server_id))
