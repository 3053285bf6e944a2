"""`isthmus dial`: connects local servers to a hub elsewhere, and shows the connections until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit

import click

from isthmus.app.dial import (
    BadAddress,
    BadToken,
    ConnectionStatus,
    Dialler,
    DialPlan,
    DialStatus,
    HubAddress,
    HubRefused,
    LocalServerStatus,
    open_dialler,
    read_address,
)
from isthmus.app.dial_sessions import LocalOffer
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import with_log_level
from isthmus.cli.output import Row, counted, first_line, harmless, print_error, wants_color
from isthmus.cli.relay_tokens import SERVER_ID_LENGTH_MAX
from isthmus.cli.run_command import run_service
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.settings import Configuration, unfiled_settings
from isthmus.config.variables import ENV_NAME, variables_of
from isthmus.frontends.relay.http import NO_LONGER_GOOD, WRONG_ROLE
from isthmus.identity.relay_tokens import WHY
from isthmus.model.names import legal_server_name
from isthmus.telemetry.logs import configure
from isthmus.upstream.server_settings import HttpSettings, ServerSettings, StdioSettings

if TYPE_CHECKING:
    from rich.table import Table

TOKEN_VARIABLE = "ISTHMUS_RELAY_TOKEN"  # noqa: S105 - a variable's name
ENDPOINT_VARIABLE = "MCP_ENDPOINT"
CONFIG_VARIABLE = "MCP_CONFIG"
CONFIG_NAME = "mcp_config.json"
"""The last three are those of `mcp_pipe.py`, which also reads them from `./.env`."""

SECRET_VARIABLES = frozenset({TOKEN_VARIABLE, ENDPOINT_VARIABLE})
"""Local servers do not get the token."""

RUNNERS = frozenset({"bun", "bunx", "deno", "node", "npx", "pipx", "python", "python3", "run", "tsx", "uv", "uvx"})
"""Programs that start others: the name of the server comes from the next word."""

REDRAW_SECONDS = 1.0
"""How often the view is drawn if nothing changes: it shows durations."""

BATCH_SECONDS = 0.1
"""How long changes are collected before the view is drawn."""


@click.command()
@click.argument("words", nargs=-1, metavar="[URL] [-- COMMAND...]")
@click.option("--url", metavar="URL", help="A local server that is already listening, by HTTP or SSE.")
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="All servers of an mcp.json or isthmus.toml."
)
@click.option("--only", multiple=True, metavar="NAME", help="Only this server of the file; may be repeated.")
@click.option("--server-id", metavar="ID", help="The id of the server at the hub.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="The file with the token.")
@click.option("--compatible", "is_compatible", is_flag=True, help="One plain connection per server.")
@click.option("--plain", "is_plain", is_flag=True, help="Print log lines instead of a live view.")
@with_log_level
def dial(**options: Any) -> int:
    """Connect local servers to a hub elsewhere, also from behind NAT: it dials out and opens no port.

    URL is the hub's address with its token, as `isthmus token relay` prints it, or MCP_ENDPOINT. Other users of this
    machine can read arguments: to hide the token, pass it by ISTHMUS_RELAY_TOKEN or --token-file.
    """
    return dial_hub(DialOptions(**options))


@dataclass(frozen=True, slots=True)
class DialOptions:
    """The options of the command line."""

    words: tuple[str, ...]
    """The hub's address, and the command of one server."""
    url: str | None = None
    config: Path | None = None
    server_id: str | None = None
    only: tuple[str, ...] = ()
    token_file: Path | None = None
    is_compatible: bool = False
    is_plain: bool = False
    log_level: str | None = None


def dial_hub(options: DialOptions) -> Exit:
    """Connect local servers to a hub until SIGTERM or SIGINT.

    Raises:
        CommandFailed: the options are invalid, or the hub refuses the connection.
    """
    plan = plan_of(options, os.environ)
    is_watched = sys.stderr.isatty() and not options.is_plain
    hub = plan.configuration.hub
    configure("error" if is_watched else options.log_level or hub.log_level, hub.log_format, has_color=wants_color())
    environment = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}

    async def run() -> None:
        dialler = await open_dialler(plan, environment)
        with DialView(dialler, sys.stderr) if is_watched else nullcontext():
            await dialler.run()

    try:
        run_service(run(), plan.configuration.hub.state)
    except HubRefused as error:
        raise _connection_refused(plan.address, error) from error
    except ConfigError as error:
        raise refused(error) from error
    return Exit.SUCCESS


def _connection_refused(address: HubAddress, error: HubRefused) -> CommandFailed:
    if error.is_missing:
        advice = "Check the address: `isthmus token relay` prints it at the hub."
        return CommandFailed(Exit.UNREACHABLE, f"there is no relay at {address}: {error}", advice)
    reasons = {**WHY, WRONG_ROLE: "it is for devices, not for servers", NO_LONGER_GOOD: "it is no longer valid"}
    known = reasons.get(str(error))  # the hub's own words are those of the protocol, in Chinese
    why = str(error) if known is None else f"the token: {known}"
    advice = "Ask for a new token: `isthmus token relay AGENT` makes one at the hub."
    return CommandFailed(Exit.NOT_ALLOWED, f"{address} refused the connection: {why}", advice)


# -- from options to a plan ------------------------------------------------------------------------------------------


def plan_of(options: DialOptions, environment: Mapping[str, str]) -> DialPlan:
    """The servers to connect, and the hub's address.

    Raises:
        CommandFailed: something is missing or invalid.
    """
    environment, findings = variables_of(Path(CONFIG_NAME), environment)
    url, command = _split(options.words, environment, findings)
    token = environment.get(TOKEN_VARIABLE) or None
    if options.token_file is not None:
        try:
            token = options.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            text = f"the token cannot be read from {options.token_file}: {why}"
            raise CommandFailed(Exit.CONFIGURATION, text) from error
    address = _address(url, token)
    configuration = _configuration(options, command, address.server_id, environment)
    servers = _chosen(configuration, options.only)
    ids = {server.name: str(server.name) for server in servers}
    given = options.server_id if options.server_id is not None else address.server_id
    if len(servers) == 1 and given is not None:
        if not 0 < len(given) <= SERVER_ID_LENGTH_MAX or not given.isprintable():
            text = f"a server id must be 1 to {SERVER_ID_LENGTH_MAX} printable characters, got {given!r}"
            raise CommandFailed(Exit.USAGE, text)
        ids = {servers[0].name: given}
    elif options.server_id is not None:
        raise CommandFailed(Exit.USAGE, f"--server-id is for one server, but there are several: {', '.join(ids)}")
    offers = tuple(LocalOffer(server.name, ids[server.name]) for server in servers)
    return DialPlan(address, replace(configuration, servers=servers), offers, options.is_compatible)


def _split(
    words: Sequence[str], environment: Mapping[str, str], findings: Sequence[Finding]
) -> tuple[str, tuple[str, ...]]:
    """The hub's address and a server's command; `findings` are about the variables."""
    if words and "://" in words[0]:
        url, words = words[0], words[1:]
    else:
        url = environment.get(ENDPOINT_VARIABLE, "")
    if not url:
        text = f"no hub to dial: name its address first, or set {ENDPOINT_VARIABLE}, also in ./{ENV_NAME}"
        listed = "".join(f"\n  {finding}" for finding in findings)
        advice = "For example: isthmus dial wss://hub.example -- python server.py"
        raise CommandFailed(Exit.USAGE, text + listed, advice)
    # As `mcp_pipe.py` does, Python runs a script that is no command itself.
    is_script = len(words) == 1 and words[0].endswith(".py") and Path(words[0]).is_file()
    return url, ("python3", words[0]) if is_script and shutil.which(words[0]) is None else tuple(words)


def _address(url: str, token: str | None) -> HubAddress:
    try:
        return read_address(url, token)
    except BadToken as error:
        advice = f"A token may be part of the address, or come by {TOKEN_VARIABLE} or --token-file."
        raise CommandFailed(Exit.USAGE, str(error), advice) from None
    except BadAddress as error:
        advice = "`isthmus token relay AGENT` at the hub prints the address at which servers dial in."
        raise CommandFailed(Exit.USAGE, str(error), advice) from None


def _configuration(
    options: DialOptions, command: tuple[str, ...], server_id: str | None, environment: Mapping[str, str]
) -> Configuration:
    """The servers: one that a command starts, one at an address, or those of a file."""
    named = (("a command", command), ("--url", options.url), ("--config", options.config))
    sources = [name for name, value in named if value]
    if len(sources) > 1:
        raise CommandFailed(Exit.USAGE, f"{' and '.join(sources)} exclude each other: name servers in one way")
    if options.config is not None or not sources:
        file = options.config
        if file is None and (variable := environment.get(CONFIG_VARIABLE, "")):
            file = Path(variable)
        elif file is None and Path(CONFIG_NAME).is_file():
            file = Path(CONFIG_NAME)
        configuration = configuration_of(file)
        for finding in configuration.warnings:
            print_error(str(finding))
        return configuration
    try:
        if options.url is not None:
            reach, name = HttpSettings(options.url), name_of_url(options.url)
            server = ServerSettings(legal_server_name(options.server_id or server_id or name), reach)
        else:
            process, name = StdioSettings(command[0], tuple(command[1:])), name_of_command(command)
            server = ServerSettings(legal_server_name(options.server_id or server_id or name), process)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, str(error)) from None
    return Configuration(None, unfiled_settings(environment), (server,))


def _chosen(configuration: Configuration, only: tuple[str, ...]) -> tuple[ServerSettings, ...]:
    enabled = {server.name: server for server in configuration.servers if not server.disabled}
    unknown = [name for name in only if name not in enabled]
    if unknown:
        names = f"Configured servers: {', '.join(enabled)}." if enabled else "No servers are configured."
        raise CommandFailed(Exit.USAGE, f"there is no server {unknown[0]!r}", names)
    servers = tuple(server for name, server in enabled.items() if not only or name in only)
    if not servers:
        where = configuration.file or "the configuration"
        advice = "Name one: isthmus dial URL -- COMMAND, --url http://…, or --config FILE with servers in it."
        raise CommandFailed(Exit.CONFIGURATION, f"there are no servers in {where}", advice)
    return servers


def name_of_command(command: Sequence[str]) -> str:
    """A server's name from its command: the program, or what an interpreter or a runner starts."""
    for word in command:
        stem = PurePath(word).name if word.startswith("@") else PurePath(word).stem
        is_version = stem.startswith("python") and stem.strip("python0123456789.") == ""
        if not word.startswith("-") and stem not in RUNNERS and not is_version:
            return stem
    return PurePath(command[0]).stem


def name_of_url(url: str) -> str:
    """A server's name from its address: the host, or the port if the host is this machine."""
    parts = urlsplit(url)
    host = parts.hostname or "server"
    is_number = host.replace(".", "").isdigit() or ":" in host
    return f"http-{parts.port or 80}" if is_number or host == "localhost" else host


# -- the live view ---------------------------------------------------------------------------------------------------


def connection_text(line: ConnectionStatus, now: float) -> str:
    """The state of a connection."""
    match line.state:
        case "starting":
            return "waiting for a server"
        case "connecting":
            return f"connecting; {line.reason}" if line.reason else "connecting"
        case "connected":
            how = "one connection for all" if line.is_muxed else "one connection"
            return f"connected for {duration(now - line.since)}, {how}"
        case "pausing":
            seconds = max(0.0, (line.again_at or now) - now)
            return f"reconnecting in {seconds:.0f} s: {line.reason}"


def connection_texts(lines: Sequence[ConnectionStatus], now: float) -> list[str]:
    """The states of the connections; equal ones are counted."""
    if not lines:
        return ["waiting for a server"]
    if len(lines) == 1:
        return [connection_text(lines[0], now)]
    connected = sum(line.state == "connected" for line in lines)
    others = [connection_text(line, now) for line in lines if line.state != "connected"]
    return [f"{connected} of {len(lines)} connections", *dict.fromkeys(others)]


def server_row(server: LocalServerStatus, now: float) -> Row:
    """One server: its id, state, tools, calls, and a remark."""
    status = server.server_status
    calls = counted(server.answered, "call") + (f", {server.running} now" if server.running else "")
    remark = status.reason or (f"as {server.hub_name}" if server.hub_name else "")
    state: str = status.state
    if state == "ready" and server.refusal is not None:
        seconds = max(0.0, server.refusal.again_at - now)
        state, remark = "refused", f"again in {seconds:.0f} s: {server.refusal.reason}"
    return (server.server_id, state, counted(len(status.tools), "tool"), calls, first_line(remark))


def duration(seconds: float) -> str:
    """A duration in one or two units."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class DialView:
    """A live table of the connections and servers, from `__enter__` to `__exit__`."""

    def __init__(self, dialler: Dialler, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._dialler = dialler
        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def __enter__(self) -> None:
        self._live.start()
        self._dialler.on_change = self._draw_soon
        self._draw()

    def __exit__(self, *_: object) -> None:
        self._dialler.on_change = lambda: None
        if self._timer is not None:
            self._timer.cancel()
        self._live.stop()

    def _draw_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._schedule(BATCH_SECONDS)

    def _schedule(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._draw)

    def _draw(self) -> None:
        self._is_due = False
        self._live.update(_table(self._dialler.status(), time.time()), refresh=True)
        self._schedule(REDRAW_SECONDS)


def _table(shown: DialStatus, now: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    whole = Table.grid()
    whole.add_row(Text(harmless(shown.hub, keep=""), style="bold"))
    for words in connection_texts(shown.lines, now):
        whole.add_row(Text(harmless(words, keep=""), no_wrap=True, overflow="ellipsis"))
    servers = Table.grid(padding=(0, 2, 0, 0))
    for server in shown.servers:
        *cells, remark = (Text(harmless(cell, keep="")) for cell in server_row(server, now))
        for cell in cells if server.refusal is not None else (*cells, remark):  # the reason of a refusal is never cut
            cell.no_wrap, cell.overflow = True, "ellipsis"
        servers.add_row(*cells, remark)
    whole.add_row(servers)
    return whole
