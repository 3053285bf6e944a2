"""Commands about who is shown what: `access` and `approve`.

What these do is loaded when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from isthmus.cli.options import quietly, with_config, with_json, with_source, with_wait

FACES = ("mcp", "sse", "a2a", "rest")
"""As `model.callers` has them, which is not loaded here."""


@click.command()
@click.argument("caller", required=False)
@click.option("--face", type=click.Choice(FACES), help="As it comes by this face, where it may be held to less.")
@click.option(
    "--diff",
    "new",
    type=click.Path(path_type=Path),
    metavar="NEW_CONFIG",
    help="Print what this configuration would change, for whom; exit 1 if anything.",
)
@with_source
@with_wait
@with_json
def access(
    caller: str | None,
    face: Any,
    new: Path | None,
    hub: str | None,
    config: Path | None,
    wait: float,
    *,
    is_json: bool,
) -> int:
    """Print what CALLER can reach and why, and what denies it the rest.

    Who may do what is read from the configuration and its state folder; with --hub, what there is to reach is what the
    running hub shows to the key in ISTHMUS_KEY.
    """
    from isthmus.cli.access import Asked, show_access
    from isthmus.cli.access_diff import show_difference
    from isthmus.cli.running import run_command
    from isthmus.cli.sources import source_of

    if (caller is None) == (new is None):
        raise click.UsageError("Name a caller, or compare with --diff NEW_CONFIG.")
    quietly()
    if new is not None:
        if hub is not None or face is not None:
            raise click.UsageError("--diff compares two files, for every caller and face: --hub and --face exclude it.")
        return run_command(show_difference(config, new, wait=wait, is_json=is_json))
    source = source_of(hub, config if hub is None else None)
    return run_command(show_access(source, config, Asked(str(caller), face, is_json), wait=wait))


@click.command()
@click.argument("names", nargs=-1, metavar="[SERVER | SERVER.TOOL]...")
@click.option("--yes", "is_sure", is_flag=True, help="Approve without being asked.")
@click.option("--changes", "lists_changes", is_flag=True, help="Show how definitions have changed lately instead.")
@with_config
@with_json
def approve(names: tuple[str, ...], config: Path | None, *, is_sure: bool, lists_changes: bool, is_json: bool) -> int:
    """Show tools that are withheld because their servers describe them anew, and let callers see them.

    Alone it lists them; of those that are named it shows the difference and asks. It works on the state folder of a
    hub on this machine, whether or not that runs.
    """
    from isthmus.cli.approve import approve, show_changes

    if lists_changes:
        return show_changes(config, is_json=is_json)
    return approve(config, names, is_sure=is_sure, is_json=is_json)
