"""`isthmus migrate`: copies keys, logins, relay lists and definitions of a state folder into a cluster's database."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from isthmus.app.shared_state import shared_state
from isthmus.app.state_import import MigrationItem, plan_migration
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import with_config, with_json
from isthmus.cli.output import harmless, print_error, print_json, print_table
from isthmus.cli.run_command import quiet_logs
from isthmus.config.findings import ConfigError

WORDS = {
    "move": "to be copied",
    "same": "already there",
    "differs": "stays as it is in the database",
    "unreadable": "cannot be read",
}


@click.command()
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be copied.")
@with_config
@with_json
def migrate(config: Path | None, *, is_dry: bool, is_json: bool) -> int:
    """Copy keys, logins, lists of the relay and tool definitions from the state folder into the cluster's database.

    Run it once for each node. What the database has already stays, so it can be repeated and interrupted. The files
    stay, as a backup. The exit status is 1 if something could not be copied.
    """
    quiet_logs()
    configuration = configuration_of(config)
    try:
        state = shared_state(configuration)
    except ConfigError as error:
        raise refused(error) from error
    if state is None:
        text = "this configuration has no database of a cluster: everything stays in the state folder"
        raise CommandFailed(Exit.CONFIGURATION, text, "It needs [cluster], and [storage] url = postgresql://…")
    try:
        items = plan_migration(configuration, state)
        if not is_dry:
            for item in items:
                if item.changes and not state.write(item.kind, item.changes):
                    text = f"{item.name} has changed in the database meanwhile"
                    raise CommandFailed(Exit.CALL_FAILED, text, "Run isthmus migrate again.")
    except OSError as error:
        text = f"not everything was copied: {error.strerror or error}"
        raise CommandFailed(Exit.CONFIGURATION, text, "Run isthmus migrate again.") from error
    _print(items, is_dry=is_dry, is_json=is_json)
    if not is_dry and not is_json and items:
        print_error(f"The files in {configuration.hub.state} stay, as a backup. No node reads them any more.")
    return Exit.CALL_FAILED if any(item.action in ("differs", "unreadable") for item in items) else Exit.SUCCESS


def _print(items: list[MigrationItem], *, is_dry: bool, is_json: bool) -> None:
    rows = []
    for item in items:
        result = "copied" if item.action == "move" and not is_dry else WORDS[item.action]
        rows.append({"kind": item.kind, "name": item.name, "result": result, "reason": item.reason or None})
    if is_json:
        print_json(msgspec.json.encode({"items": rows, "dryRun": is_dry}))
    elif not rows:
        print_error("There is nothing to copy.")
    else:
        lines = []
        for row in rows:
            why = f": {row['reason']}" if row["reason"] else ""
            lines.append((str(row["kind"]), harmless(str(row["name"]), keep=""), harmless(f"{row['result']}{why}")))
        print_table(("WHAT", "NAME", "RESULT"), lines, ("cyan", "", ""), is_wrapped=True)
