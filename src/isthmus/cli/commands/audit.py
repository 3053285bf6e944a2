"""`audit`: the log of what was called.

What these do is loaded when they run.
"""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.cli.exits import Exit
from isthmus.cli.options import with_config, with_json


@click.group()
def audit() -> None:
    """Look through the audit log of a hub, show its end, or write it out. No hub has to run."""


@audit.command("verify")
@with_config
@with_json
def audit_verify(config: Path | None, *, is_json: bool) -> int:
    """Say whether the log is as the hub wrote it; if not, name the first record that is not, and end with 1."""
    from isthmus.cli.audit import verify_log
    from isthmus.cli.running import run_command

    return run_command(verify_log(config, is_json=is_json))


@audit.command("tail")
@click.option("-n", "count", type=click.IntRange(0, 100_000), default=20, show_default=True, help="How many records.")
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on with each that comes, until Ctrl-C.")
@with_config
@with_json
def audit_tail(count: int, config: Path | None, *, follows: bool, is_json: bool) -> int:
    """Print the last records."""
    from isthmus.cli.audit import show_tail
    from isthmus.cli.running import run_command

    try:
        return run_command(show_tail(config, count, follows=follows, is_json=is_json))
    except KeyboardInterrupt:
        return Exit.WELL


@audit.command("export")
@click.option("--since", metavar="TIME", help="From when on, such as 2026-11-16, 2026-11-16T09:30:00Z or 24h ago.")
@click.option("--until", metavar="TIME", help="Until when, which is not included.")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@with_config
def audit_export(since: str | None, until: str | None, form: str, config: Path | None) -> int:
    """Print records, one a line, with the digests that chain them."""
    from isthmus.cli.audit import export_log
    from isthmus.cli.running import run_command

    return run_command(export_log(config, since, until, form))
