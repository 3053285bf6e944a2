"""The `isthmus` command: its words and options.

Only click is loaded here. Each command loads what it needs when it runs, so that `--help` and a mistyped
option answer at once. What commands do is in the module of the same name.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from isthmus import __version__
from isthmus.cli import lean
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import say

if TYPE_CHECKING:
    from isthmus.cli.sources import Own, Running

F = TypeVar("F", bound=Callable[..., Any])

FACES = ("mcp", "sse", "a2a", "rest")
"""As `model.callers` has them, which is not loaded here."""

WAIT_SECONDS = 20.0
"""How long a command waits for servers that are only starting; a package runner may have to fetch one."""


def program() -> int:
    """Run `main` as the whole of this process."""
    lean.install()
    code = main()
    if code == Exit.WELL:
        # It has ended in good order; who asks for that once more must not make it look otherwise, and the interpreter's
        # own end would give the signal its deadly meaning back. Not in `main`: whoever calls that lives on, and the
        # processes that it starts would inherit the deafness.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the only place that prints errors."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no reason to fail
    try:
        return int(cli.main(arguments, "isthmus", standalone_mode=False) or Exit.WELL)
    except CommandFailed as failed:
        say(f"isthmus: {failed.message}")
        for line in failed.advice:
            say(line)
        return failed.exit
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        say("\ninterrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.CALL_FAILED


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="isthmus %(version)s")
def cli() -> None:
    """One address for all your MCP servers.

    `serve` runs the hub. The other commands work against a running hub (--hub or ISTHMUS_HUB, with the key in
    ISTHMUS_KEY), or start one for themselves from a configuration: --config, ISTHMUS_CONFIG, ./isthmus.toml,
    ./mcp.json, ~/.config/isthmus/isthmus.toml or ~/.isthmus/mcp.json.

    Exit codes: 0 well, 1 the call failed, 2 usage, 3 configuration, 4 cannot reach the hub, 5 not allowed.
    """


def _with_config(command: F) -> F:
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The configuration: isthmus.toml or mcp.json.",
    )(command)


def _with_source(command: F) -> F:
    hub = click.option("--hub", metavar="URL", help="A running hub, such as http://127.0.0.1:8765.")
    return _with_config(hub(command))


def _with_wait(command: F) -> F:
    return click.option(
        "--wait",
        type=click.FloatRange(0.0, 600.0),
        default=WAIT_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for servers that are starting.",
    )(command)


def _with_json(command: F) -> F:
    return click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")(command)


def _source(hub: str | None, config: Path | None) -> Running | Own:
    from isthmus.cli.sources import source_of

    return source_of(hub, config)


def _quietly() -> None:
    """Keep what the hub logs out of a command's way: it tells the outcome itself."""
    from isthmus.telemetry.logs import configure

    configure("error", "auto")


@cli.command()
@_with_config
@click.option("--host", metavar="H", help="The address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="The port; 0 takes a free one.  [default: 8765]",
)
@click.option("--insecure", "is_insecure", is_flag=True, help="With no callers, let in everybody who can reach it.")
def serve(config: Path | None, host: str | None, port: int | None, *, is_insecure: bool) -> int:
    """Run the hub: MCP at /mcp (all servers) and /mcp/SERVER (one), REST at /v1."""
    from isthmus.cli.serve import serve_hub

    return serve_hub(config, host, port, is_insecure=is_insecure)


@cli.command()
@_with_source
@_with_wait
@_with_json
def tools(hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """List the tools, and the servers that are missing."""
    from isthmus.cli.lists import list_features
    from isthmus.cli.running import run_command
    from isthmus.wire.mcp.lists import TOOLS

    _quietly()
    return run_command(list_features(_source(hub, config), TOOLS, wait=wait, is_json=is_json))


@cli.command()
@_with_source
@_with_wait
@_with_json
def servers(hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """List the servers and how each stands."""
    from isthmus.cli.running import run_command
    from isthmus.cli.servers import list_servers

    _quietly()
    return run_command(list_servers(_source(hub, config), wait=wait, is_json=is_json))


@cli.command()
@_with_source
@_with_wait
@_with_json
@click.option("--templates", is_flag=True, help="List families of resources instead.")
def resources(hub: str | None, config: Path | None, wait: float, *, is_json: bool, templates: bool) -> int:
    """List what can be read, and the servers that are missing."""
    from isthmus.cli.lists import list_features
    from isthmus.cli.running import run_command
    from isthmus.wire.mcp.lists import RESOURCES, TEMPLATES

    _quietly()
    shape = TEMPLATES if templates else RESOURCES
    return run_command(list_features(_source(hub, config), shape, wait=wait, is_json=is_json))


@cli.command()
@click.argument("uri")
@_with_source
@_with_wait
@_with_json
def read(uri: str, hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """Read a resource and print it."""
    from isthmus.cli.call import read_resource
    from isthmus.cli.running import run_command

    _quietly()
    return run_command(read_resource(_source(hub, config), uri, wait=wait, is_json=is_json))


@cli.command()
@_with_source
@_with_wait
@_with_json
def prompts(hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """List the prompts, and the servers that are missing."""
    from isthmus.cli.lists import list_features
    from isthmus.cli.running import run_command
    from isthmus.wire.mcp.lists import PROMPTS

    _quietly()
    return run_command(list_features(_source(hub, config), PROMPTS, wait=wait, is_json=is_json))


@cli.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY=@FILE]...")
@_with_source
@_with_wait
@_with_json
def prompt(
    name: str, arguments: tuple[str, ...], hub: str | None, config: Path | None, wait: float, *, is_json: bool
) -> int:
    """Write a prompt out, by its full name or a short one that is unique."""
    from isthmus.cli.call import Wanted, write_prompt
    from isthmus.cli.running import run_command

    _quietly()
    return run_command(write_prompt(_source(hub, config), Wanted(name, arguments, None, is_json), wait=wait))


@cli.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | KEY=@FILE]...")
@click.option("--args", "whole", metavar="JSON", help="All arguments as one JSON object, or @FILE, or @- for stdin.")
@_with_source
@_with_wait
@_with_json
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

    _quietly()
    return run_command(call_tool(_source(hub, config), Wanted(name, arguments, whole, is_json), wait=wait))


@cli.command()
@_with_source
@_with_wait
@_with_json
@click.option("--codes", "lists_codes", is_flag=True, help="List every kind of finding, and what mends it.")
def doctor(hub: str | None, config: Path | None, wait: float, *, is_json: bool, lists_codes: bool) -> int:
    """Say what is wrong with the configuration and with each server, and what mends it."""
    from isthmus.cli.doctor import examine, show_codes
    from isthmus.cli.running import run_command

    if lists_codes:
        return show_codes(is_json=is_json)
    _quietly()
    return run_command(examine(_source(hub, config), wait=wait, is_json=is_json))


@cli.command()
@click.argument("names", nargs=-1, metavar="[SERVER | SERVER.TOOL]...")
@click.option("--yes", "is_sure", is_flag=True, help="Approve without being asked.")
@click.option("--changes", "lists_changes", is_flag=True, help="Show how definitions have changed lately instead.")
@_with_config
@_with_json
def approve(names: tuple[str, ...], config: Path | None, *, is_sure: bool, lists_changes: bool, is_json: bool) -> int:
    """Show tools that are withheld because their servers describe them anew, and let callers see them.

    Alone it lists them; of those that are named it shows the difference and asks. It works on the state folder of a
    hub on this machine, whether or not that runs.
    """
    from isthmus.cli.approve import approve, show_changes

    if lists_changes:
        return show_changes(config, is_json=is_json)
    return approve(config, names, is_sure=is_sure, is_json=is_json)


@cli.command()
@click.argument("caller", required=False)
@click.option("--face", type=click.Choice(FACES), help="As it comes by this face, where it may be held to less.")
@click.option(
    "--diff",
    "new",
    type=click.Path(path_type=Path),
    metavar="NEW_CONFIG",
    help="Print what this configuration would change, for whom; exit 1 if anything.",
)
@_with_source
@_with_wait
@_with_json
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
    _quietly()
    if new is not None:
        if hub is not None or face is not None:
            raise click.UsageError("--diff compares two files, for every caller and face: --hub and --face exclude it.")
        return run_command(show_difference(config, new, wait=wait, is_json=is_json))
    source = source_of(hub, config if hub is None else None)
    return run_command(show_access(source, config, Asked(str(caller), face, is_json), wait=wait))


@cli.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@_with_config
@_with_json
def check(file: Path | None, config: Path | None, *, is_json: bool) -> int:
    """Check a configuration without starting anything."""
    from isthmus.cli.check import check_configuration

    if file is not None and config is not None:
        raise click.UsageError("FILE and --config are the same thing: give one of them.")
    return check_configuration(file or config, is_json=is_json)


@config.command()
@_with_config
@click.option("--origin", "with_origin", is_flag=True, help="Say where each value was written.")
@_with_json
def show(config: Path | None, *, with_origin: bool, is_json: bool) -> int:
    """Print the configuration as the hub sees it, secrets hidden."""
    from isthmus.cli.show import show_configuration

    return show_configuration(config, with_origin=with_origin, is_json=is_json)


@cli.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="FILE|CLIENT|all...")
@click.option("--dialect", metavar="D", help="Whose file it is, where its path does not tell.")
@click.option("--into", type=click.Path(path_type=Path), metavar="FILE", help="The isthmus.toml to write.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be written.")
@click.option("--replace", "may_replace", is_flag=True, help="Take servers that the file has otherwise.")
@_with_json
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


@cli.command()
@_with_source
def stdio(hub: str | None, config: Path | None) -> int:
    """Serve MCP on standard input and output, for clients that start their servers."""
    source = _source(hub, config)
    from isthmus.cli.stdio import serve_stdio

    return serve_stdio(source)


@cli.command(short_help="Bring local servers to a hub elsewhere.")
@click.argument("words", nargs=-1, metavar="[URL] [-- COMMAND...]")
@click.option("--url", metavar="URL", help="A local server that listens already, by HTTP or SSE.")
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="All servers of an mcp.json or isthmus.toml."
)
@click.option("--only", multiple=True, metavar="NAME", help="Of these, this one; may be given several times.")
@click.option("--server-id", metavar="ID", help="What the server is called at the hub.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Where the token is.")
@click.option("--compatible", "is_compatible", is_flag=True, help="A plain connection for each server.")
@click.option("--plain", "is_plain", is_flag=True, help="Log lines instead of a view that is redrawn.")
def dial(
    words: tuple[str, ...],
    url: str | None,
    config: Path | None,
    only: tuple[str, ...],
    server_id: str | None,
    token_file: Path | None,
    *,
    is_compatible: bool,
    is_plain: bool,
) -> int:
    """Bring local servers to a hub elsewhere, also from behind NAT: it dials out and listens nowhere.

    URL is the hub's address with its token, as `isthmus token relay` prints it, or MCP_ENDPOINT. The token may come by
    ISTHMUS_RELAY_TOKEN or --token-file instead, where nobody else on this machine can read it.
    """
    from isthmus.cli.dial import Wanted, dial_hub

    return dial_hub(Wanted(words, url, config, server_id, only, token_file, is_compatible, is_plain))


@cli.group()
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
@_with_config
@_with_json
def token_create(config: Path | None, **wanted: Any) -> int:
    """Make a caller NAME, and print its key, once. A hub that runs lets it in within a second.

    Only a digest of the key is kept, in the state folder. With the first key, a hub that was open wants keys.
    """
    from isthmus.cli.keys import Wanted, create_key

    return create_key(config, Wanted(**wanted))


@token.command("list")
@_with_config
@_with_json
def token_list(config: Path | None, *, is_json: bool) -> int:
    """List the callers that have keys, here and in the configuration, and how it is with each key."""
    from isthmus.cli.keys import list_keys

    return list_keys(config, is_json=is_json)


@token.command("rotate")
@click.argument("name")
@click.option("--overlap", metavar="TIME", default="24h", show_default=True, help="How long the old key is good still.")
@click.option("--expires", metavar="TIME", help="After how long the new one ends.  [default: as long as the old one]")
@_with_config
@_with_json
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
@_with_config
@_with_json
def token_relay(config: Path | None, **wanted: Any) -> int:
    """Print the addresses at which AGENT's servers dial in and its devices call."""
    from isthmus.cli.token import Wanted, mint_token

    return mint_token(config, Wanted(**wanted))


@token.command("revoke")
@click.argument("word", metavar="NAME|ID")
@_with_config
def token_revoke(word: str, config: Path | None) -> int:
    """Have all keys of the caller NAME, or the key or relay token with this ID, be good no more.

    What it had open is ended within a second.
    """
    from isthmus.cli.keys import revoke_key
    from isthmus.cli.token import revoke_token
    from isthmus.identity.relay import is_id

    return revoke_token(config, word) if is_id(word) else revoke_key(config, word)


@token.command("read")
@_with_config
@_with_json
def token_read(config: Path | None, *, is_json: bool) -> int:
    """Say what the token on standard input claims, or the one in the address that is there."""
    from isthmus.cli.token import read_token

    return read_token(config, is_json=is_json)


@cli.group()
def relay() -> None:
    """Look at the relay of a running hub, and have it forget who is away."""


@relay.command()
@_with_source
@click.option("--watch", "is_watched", is_flag=True, help="Show it anew every second, until Ctrl-C.")
@click.option("--tools", "has_tools", is_flag=True, help="Name the servers' tools, too.")
@_with_json
def status(hub: str | None, config: Path | None, *, is_watched: bool, has_tools: bool, is_json: bool) -> int:
    """List the agents, the servers that dialled in under them, and the devices that are connected."""
    from isthmus.cli.relay import hub_of, show_status, watch_status
    from isthmus.cli.running import run_command

    if is_watched and is_json:
        raise click.UsageError("--watch and --json exclude each other.")
    _quietly()
    source = hub_of(_source(hub, config))
    if not is_watched:
        return run_command(show_status(source, is_json=is_json, has_tools=has_tools))
    try:
        return run_command(watch_status(source, has_tools=has_tools))
    except KeyboardInterrupt:
        return Exit.WELL


@relay.command()
@click.argument("agent")
@click.argument("server_id", required=False)
@_with_source
def forget(agent: str, server_id: str | None, hub: str | None, config: Path | None) -> int:
    """Forget what AGENT's servers that are away had to offer, or one of them; who dials in again is there again."""
    from isthmus.cli.relay import forget_servers, hub_of
    from isthmus.cli.running import run_command

    _quietly()
    return run_command(forget_servers(hub_of(_source(hub, config)), agent, server_id))


@cli.group()
def audit() -> None:
    """Look through the audit log of a hub, show its end, or write it out. No hub has to run."""


@audit.command("verify")
@_with_config
@_with_json
def audit_verify(config: Path | None, *, is_json: bool) -> int:
    """Say whether the log is as the hub wrote it; if not, name the first record that is not, and end with 1."""
    from isthmus.cli.audit import verify_log
    from isthmus.cli.running import run_command

    return run_command(verify_log(config, is_json=is_json))


@audit.command("tail")
@click.option("-n", "count", type=click.IntRange(0, 100_000), default=20, show_default=True, help="How many records.")
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on with each that comes, until Ctrl-C.")
@_with_config
@_with_json
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
@_with_config
def audit_export(since: str | None, until: str | None, form: str, config: Path | None) -> int:
    """Print records, one a line, with the digests that chain them."""
    from isthmus.cli.audit import export_log
    from isthmus.cli.running import run_command

    return run_command(export_log(config, since, until, form))


@cli.command()
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
@_with_config
@_with_json
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

    _quietly()
    if is_list:
        return list_logins(config, is_json=is_json)
    if server is None:
        raise click.UsageError("Name the SERVER to log in at, or give --list.")
    return log_in_at(config, server, caller, scope=scope, is_device=is_device, seconds=seconds)


@cli.command()
@click.argument("server")
@click.option("--caller", metavar="NAME", help="Forget this caller's own login; TENANT/NAME in another tenant.")
@_with_config
def logout(server: str, caller: str | None, config: Path | None) -> int:
    """Forget the login at SERVER; a running hub does within a second."""
    from isthmus.cli.login import log_out_of

    return log_out_of(config, server, caller)


@cli.group()
def credentials() -> None:
    """Look after what the hub's logins at servers are kept with."""


@credentials.command("rotate")
@_with_config
def credentials_rotate(config: Path | None) -> int:
    """Seal every login anew under a new key, while the hub runs if it does."""
    from isthmus.cli.login import rotate_key

    return rotate_key(config)


@cli.command()
def version() -> int:
    """Print the version."""
    click.echo(f"isthmus {__version__}")
    return Exit.WELL
