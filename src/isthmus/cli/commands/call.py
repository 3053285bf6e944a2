"""Commands that look at what there is to use, and use it: tools, resources and prompts, and the servers of these.

What these do is loaded when they run.
"""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.cli.options import chosen, quietly, with_json, with_source, with_wait


@click.command()
@with_source
@with_wait
@with_json
def tools(hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """List the tools, and the servers that are missing."""
    from isthmus.cli.lists import list_features
    from isthmus.cli.running import run_command
    from isthmus.wire.mcp.lists import TOOLS

    quietly()
    return run_command(list_features(chosen(hub, config), TOOLS, wait=wait, is_json=is_json))


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | KEY=@FILE]...")
@click.option("--args", "whole", metavar="JSON", help="All arguments as one JSON object, or @FILE, or @- for stdin.")
@with_source
@with_wait
@with_json
def call(
    name: str,
    arguments: tuple[str, ...],
    whole: str | None,
    hub: str | None,
    config: Path | None,
    wait: float,
    *,
    is_json: bool,
) -> int:
    """Call a tool by its full name (files.read), or a short one that is unique (read).

    Values are text, or JSON where the tool's schema wants a number, a boolean, a list or an object.
    """
    from isthmus.cli.call import Wanted, call_tool
    from isthmus.cli.running import run_command

    quietly()
    return run_command(call_tool(chosen(hub, config), Wanted(name, arguments, whole, is_json), wait=wait))


@click.command()
@with_source
@with_wait
@with_json
@click.option("--templates", is_flag=True, help="List families of resources instead.")
def resources(hub: str | None, config: Path | None, wait: float, *, is_json: bool, templates: bool) -> int:
    """List what can be read, and the servers that are missing."""
    from isthmus.cli.lists import list_features
    from isthmus.cli.running import run_command
    from isthmus.wire.mcp.lists import RESOURCES, TEMPLATES

    quietly()
    shape = TEMPLATES if templates else RESOURCES
    return run_command(list_features(chosen(hub, config), shape, wait=wait, is_json=is_json))


@click.command()
@click.argument("uri")
@with_source
@with_wait
@with_json
def read(uri: str, hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """Read a resource and print it."""
    from isthmus.cli.call import read_resource
    from isthmus.cli.running import run_command

    quietly()
    return run_command(read_resource(chosen(hub, config), uri, wait=wait, is_json=is_json))


@click.command()
@with_source
@with_wait
@with_json
def prompts(hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """List the prompts, and the servers that are missing."""
    from isthmus.cli.lists import list_features
    from isthmus.cli.running import run_command
    from isthmus.wire.mcp.lists import PROMPTS

    quietly()
    return run_command(list_features(chosen(hub, config), PROMPTS, wait=wait, is_json=is_json))


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY=@FILE]...")
@with_source
@with_wait
@with_json
def prompt(
    name: str, arguments: tuple[str, ...], hub: str | None, config: Path | None, wait: float, *, is_json: bool
) -> int:
    """Write a prompt out, by its full name or a short one that is unique."""
    from isthmus.cli.call import Wanted, write_prompt
    from isthmus.cli.running import run_command

    quietly()
    return run_command(write_prompt(chosen(hub, config), Wanted(name, arguments, None, is_json), wait=wait))


@click.command()
@with_source
@with_wait
@with_json
def servers(hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """List the servers and how each stands."""
    from isthmus.cli.running import run_command
    from isthmus.cli.servers import list_servers

    quietly()
    return run_command(list_servers(chosen(hub, config), wait=wait, is_json=is_json))
