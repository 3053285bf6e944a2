"""`isthmus dial`: bring local servers to a hub elsewhere, until told to end."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from types import TracebackType
from typing import TYPE_CHECKING, TextIO
from urllib.parse import urlsplit

from isthmus.app.dial import Dialler, DialPlan, DialStatus, ServerShown, open_dialler
from isthmus.app.dial_line import BadAddress, BadToken, HubAddress, HubRefused, LineShown, read_address
from isthmus.app.dial_talk import LocalOffer
from isthmus.cli.config import configuration_of
from isthmus.cli.config import refused as unusable
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import Row, first_line, harmless, print_error
from isthmus.cli.running import run_service
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.settings import Configuration, unfiled_settings
from isthmus.config.variables import ENV_NAME, variables_of
from isthmus.model.names import ServerName, legal_server_name
from isthmus.telemetry.logs import configure
from isthmus.upstream.settings import HttpSettings, Reach, ServerSettings, StdioSettings

if TYPE_CHECKING:
    from rich.table import Table

SECONDS = 1.0
"""How often it is drawn when nothing happens: times grow."""

AGAIN_SECONDS = 0.1
"""How long changes are gathered before it is drawn."""


def line_in_words(line: LineShown, now: float) -> str:
    """How a connection stands."""
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


def lines_in_words(lines: Sequence[LineShown], now: float) -> list[str]:
    """How the connections stand: those that stand alike are counted."""
    if not lines:
        return ["waiting for a server"]
    if len(lines) == 1:
        return [line_in_words(lines[0], now)]
    connected = sum(line.state == "connected" for line in lines)
    others = [line_in_words(line, now) for line in lines if line.state != "connected"]
    return [f"{connected} of {len(lines)} connections", *dict.fromkeys(others)]


def server_row(server: ServerShown, now: float) -> Row:
    """One server: its name, its state, its tools, its calls, and what is wrong with it."""
    server_status = server.server_status
    calls = _counted(server.answered, "call") + (f", {server.running} now" if server.running else "")
    remark = server_status.reason or (f"as {server.hub_name}" if server.hub_name else "")
    state: str = server_status.state
    if state == "ready" and server.refusal is not None:
        seconds = max(0.0, server.refusal.again_at - now)
        state, remark = "refused", f"again in {seconds:.0f} s: {server.refusal.reason}"
    return (server.server_id, state, _counted(len(server_status.tools), "tool"), calls, first_line(remark))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A length of time in one or two units."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class DialView:
    """Draws until it is left. Used by `with`, around the running."""

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
        self._dialler.on_change = self._soon
        self._draw()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dialler.on_change = lambda: None
        if self._timer is not None:
            self._timer.cancel()
        self._live.stop()

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._plan(AGAIN_SECONDS)

    def _plan(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._draw)

    def _draw(self) -> None:
        self._is_due = False
        self._live.update(_table(self._dialler.shown(), time.time()), refresh=True)
        self._plan(SECONDS)


def _table(shown: DialStatus, now: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    whole = Table.grid()
    whole.add_row(Text(harmless(shown.hub, keep=""), style="bold"))
    for words in lines_in_words(shown.lines, now):
        whole.add_row(Text(harmless(words, keep=""), no_wrap=True, overflow="ellipsis"))
    servers = Table.grid(padding=(0, 2, 0, 0))
    for server in shown.servers:
        *cells, remark = (Text(harmless(cell, keep="")) for cell in server_row(server, now))
        for cell in cells if server.refusal is not None else (*cells, remark):  # what to do about it is told whole
            cell.no_wrap, cell.overflow = True, "ellipsis"
        servers.add_row(*cells, remark)
    whole.add_row(servers)
    return whole


TOKEN_VARIABLE = "ISTHMUS_RELAY_TOKEN"  # noqa: S105 - a variable's name
ENDPOINT_VARIABLE = "MCP_ENDPOINT"
CONFIG_VARIABLE = "MCP_CONFIG"
CONFIG_NAME = "mcp_config.json"
"""The last three are those of the pipe that people used before, which finds them in `./.env`, too."""

SECRET_VARIABLES = frozenset({TOKEN_VARIABLE, ENDPOINT_VARIABLE})
"""Local servers are not told by which token they are brought to the hub."""

SERVER_ID_LENGTH_MAX = 64

RUNNERS = frozenset({"bun", "bunx", "deno", "node", "npx", "pipx", "python", "python3", "run", "tsx", "uv", "uvx"})
"""Programs that only start others: what they start says what the server is."""


@dataclass(frozen=True, slots=True)
class DialOptions:
    """What was asked for on the command line."""

    words: tuple[str, ...]
    """The hub's address, and the command of one server."""
    url: str | None = None
    config: Path | None = None
    server_id: str | None = None
    only: tuple[str, ...] = ()
    token_file: Path | None = None
    is_compatible: bool = False
    is_plain: bool = False


def dial_hub(wanted: DialOptions) -> Exit:
    """Bring local servers to a hub until SIGTERM or SIGINT.

    Raises:
        CommandFailed: what was asked for cannot be done, or the hub does not want it.
    """
    plan = plan_of(wanted, os.environ)
    is_watched = sys.stderr.isatty() and not wanted.is_plain
    configure("error" if is_watched else plan.configuration.hub.log_level, plan.configuration.hub.log_format)
    environment = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    try:
        run_service(_run(plan, environment, is_watched=is_watched), plan.configuration.hub.state)
    except HubRefused as refused:
        raise _refused(plan.address, refused) from refused
    except ConfigError as error:
        raise unusable(error) from error
    return Exit.SUCCESS


async def _run(plan: DialPlan, environment: Mapping[str, str], *, is_watched: bool) -> None:
    dialler = await open_dialler(plan, environment)
    if not is_watched:
        await dialler.run()
        return

    view = DialView(dialler, sys.stderr)
    with view:
        await dialler.run()


def _refused(address: HubAddress, refused: HubRefused) -> CommandFailed:
    if refused.is_missing:
        advice = "Look at the address: it is the one that `isthmus token relay` prints at the hub."
        return CommandFailed(Exit.UNREACHABLE, f"{address} is no relay: {refused}", advice)
    advice = "Ask for a new token: `isthmus token relay AGENT` makes one at the hub."
    why = _why(str(refused))
    return CommandFailed(Exit.NOT_ALLOWED, f"{address} refused the connection: {refused}{why}", advice)


def _why(words: str) -> str:
    """What a hub's words on a token mean, where they are those of the protocol."""
    from isthmus.cli.relay_tokens import WHY
    from isthmus.frontends.relay.http import NO_LONGER_GOOD, WRONG_ROLE

    known = {**WHY, WRONG_ROLE: "it is a device's, and opens no server's end", NO_LONGER_GOOD: "it is good no more"}
    return f" (the token: {known[words]})" if words in known else ""


# -- from words to a plan --------------------------------------------------------------------------------------------


def plan_of(wanted: DialOptions, environment: Mapping[str, str]) -> DialPlan:
    """Return what to bring where.

    Raises:
        CommandFailed: it cannot be told, or makes no sense.
    """
    environment, odd = variables_of(Path(CONFIG_NAME), environment)
    url, command = _split(wanted.words, environment, odd)
    address = _address(url, _token(wanted.token_file, environment))
    configuration = _configuration(wanted, command, address.server_id, environment)
    servers = _chosen(configuration, wanted.only)
    ids = {server.name: str(server.name) for server in servers}
    given = wanted.server_id if wanted.server_id is not None else address.server_id
    if len(servers) == 1 and given is not None:
        ids = {servers[0].name: _server_id(given)}
    elif wanted.server_id is not None:
        names = ", ".join(ids)
        raise CommandFailed(Exit.USAGE, f"--server-id names one server, and there are several: {names}")
    offers = tuple(LocalOffer(server.name, ids[server.name]) for server in servers)
    return DialPlan(address, replace(configuration, servers=servers), offers, wanted.is_compatible)


def _split(words: Sequence[str], environment: Mapping[str, str], odd: Sequence[Finding]) -> tuple[str, tuple[str, ...]]:
    """Tell the hub's address from a server's command; `odd` is what of the variables could not be read."""
    if words and "://" in words[0]:
        return words[0], _command(words[1:])
    url = environment.get(ENDPOINT_VARIABLE, "")
    if not url:
        text = f"no hub to dial: name its address first, or set {ENDPOINT_VARIABLE}, also in ./{ENV_NAME}"
        told = "".join(f"\n  {finding}" for finding in odd)
        raise CommandFailed(Exit.USAGE, text + told, "For example: isthmus dial wss://hub.example -- python server.py")
    return url, _command(words)


def _command(words: Sequence[str]) -> tuple[str, ...]:
    """What starts a server; a script alone is run by Python, as the pipe does, unless it is a command."""
    is_script = len(words) == 1 and words[0].endswith(".py") and Path(words[0]).is_file()
    return ("python3", words[0]) if is_script and shutil.which(words[0]) is None else tuple(words)


def _token(file: Path | None, environment: Mapping[str, str]) -> str | None:
    if file is None:
        return environment.get(TOKEN_VARIABLE) or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise CommandFailed(Exit.CONFIGURATION, f"the token cannot be read from {file}: {why}") from error


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
    wanted: DialOptions, command: tuple[str, ...], server_id: str | None, environment: Mapping[str, str]
) -> Configuration:
    """The servers: one that a command starts, one at an address, or those of a file."""
    sources = [name for name, value in _sources(wanted, command) if value]
    if len(sources) > 1:
        raise CommandFailed(Exit.USAGE, f"{' and '.join(sources)} exclude each other: name servers in one way")
    if wanted.config is not None or not sources:
        return _of_file(wanted.config or _found(environment))
    reach, name = _reach(wanted.url, command)
    name = wanted.server_id or server_id or name
    try:
        server = ServerSettings(as_name(name), reach)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, str(error)) from None
    return Configuration(None, unfiled_settings(), (server,))


def _sources(wanted: DialOptions, command: tuple[str, ...]) -> tuple[tuple[str, object], ...]:
    return (("a command", command), ("--url", wanted.url), ("--config", wanted.config))


def _found(environment: Mapping[str, str]) -> Path | None:
    """The file that the pipe would have read; None for the usual places."""
    named = environment.get(CONFIG_VARIABLE, "")
    if named:
        return Path(named)
    return Path(CONFIG_NAME) if Path(CONFIG_NAME).is_file() else None


def _of_file(file: Path | None) -> Configuration:
    configuration = configuration_of(file)
    for finding in configuration.warnings:
        print_error(str(finding))
    return configuration


def _reach(url: str | None, command: tuple[str, ...]) -> tuple[Reach, str]:
    try:
        if url is not None:
            return HttpSettings(url), name_of_url(url)
        return StdioSettings(command[0], tuple(command[1:])), name_of_command(command)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, str(error)) from None


def _chosen(configuration: Configuration, only: tuple[str, ...]) -> tuple[ServerSettings, ...]:
    enabled = {server.name: server for server in configuration.servers if not server.disabled}
    unknown = [name for name in only if name not in enabled]
    if unknown:
        known = ", ".join(enabled) or "none"
        raise CommandFailed(Exit.USAGE, f"there is no server {unknown[0]!r} to bring; there is {known}")
    servers = tuple(server for name, server in enabled.items() if not only or name in only)
    if not servers:
        where = configuration.file or "the configuration"
        advice = "Name one: isthmus dial URL -- COMMAND, --url http://…, or --config FILE with servers in it."
        raise CommandFailed(Exit.CONFIGURATION, f"no server to bring to the hub in {where}", advice)
    return servers


def _server_id(text: str) -> str:
    if not 0 < len(text) <= SERVER_ID_LENGTH_MAX or not text.isprintable():
        raise CommandFailed(
            Exit.USAGE, f"a server id must be 1 to {SERVER_ID_LENGTH_MAX} printable characters, not {text!r}"
        )
    return text


# -- what servers are called -----------------------------------------------------------------------------------------


def name_of_command(command: Sequence[str]) -> str:
    """What to call a server that a command starts: by the program, or by what an interpreter or a runner starts."""
    for word in command:
        stem = PurePath(word).name if word.startswith("@") else PurePath(word).stem
        is_version = stem.startswith("python") and stem.strip("python0123456789.") == ""
        if not word.startswith("-") and stem not in RUNNERS and not is_version:
            return stem
    return PurePath(command[0]).stem


def name_of_url(url: str) -> str:
    """What to call a server at an address: by its host, or by its port where the host is only this machine."""
    parts = urlsplit(url)
    host = parts.hostname or "server"
    is_number = host.replace(".", "").isdigit() or ":" in host
    return f"http-{parts.port or 80}" if is_number or host == "localhost" else host


def as_name(text: str) -> ServerName:
    """Return a text as the name that the server has here."""
    return legal_server_name(text)
