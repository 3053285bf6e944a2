"""Commands about the configuration: `config`, `import` and `doctor`.

What these do is loaded when they run.
"""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.cli.options import chosen, quietly, with_config, with_json, with_source, with_wait


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@with_config
@with_json
def check(file: Path | None, config: Path | None, *, is_json: bool) -> int:
    """Check a configuration without starting anything."""
    from isthmus.cli.check import check_configuration

    if file is not None and config is not None:
        raise click.UsageError("FILE and --config are the same thing: give one of them.")
    return check_configuration(file or config, is_json=is_json)


@config.command()
@with_config
@click.option("--origin", "with_origin", is_flag=True, help="Say where each value was written.")
@with_json
def show(config: Path | None, *, with_origin: bool, is_json: bool) -> int:
    """Print the configuration as the hub sees it, secrets hidden."""
    from isthmus.cli.show import show_configuration

    return show_configuration(config, with_origin=with_origin, is_json=is_json)


@click.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="FILE|CLIENT|all...")
@click.option("--dialect", metavar="D", help="Whose file it is, where its path does not tell.")
@click.option("--into", type=click.Path(path_type=Path), metavar="FILE", help="The isthmus.toml to write.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be written.")
@click.option("--replace", "may_replace", is_flag=True, help="Take servers that the file has otherwise.")
@with_json
def import_(
    sources: tuple[str, ...],
    dialect: str | None,
    into: Path | None,
    *,
    is_dry: bool,
    may_replace: bool,
    is_json: bool,
) -> int:
    """Bring the servers of other clients into isthmus.toml.

    CLIENT is one of claude-desktop, claude-code, cursor, vscode, windsurf, cline, roo, gemini, codex, goose, zed,
    kiro, copilot, opencode, mcpproxy, fastmcp.
    """
    from isthmus.cli.imports import Wanted, import_servers

    wanted = Wanted(sources, dialect, into, is_dry=is_dry, may_replace=may_replace, is_json=is_json)
    return import_servers(wanted)


@click.command()
@with_source
@with_wait
@with_json
@click.option("--codes", "lists_codes", is_flag=True, help="List every kind of finding, and what mends it.")
def doctor(hub: str | None, config: Path | None, wait: float, *, is_json: bool, lists_codes: bool) -> int:
    """Say what is wrong with the configuration and with each server, and what mends it."""
    from isthmus.cli.doctor import examine, show_codes
    from isthmus.cli.running import run_command

    if lists_codes:
        return show_codes(is_json=is_json)
    quietly()
    return run_command(examine(chosen(hub, config), wait=wait, is_json=is_json))
