"""`isthmus init`, `import`, `add`, `remove`, `enable` and `disable`: edit the servers of the configuration in use.

The file is edited as text (`config.text_editing`): comments and everything else stay. A running hub follows by itself.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import click
import msgspec

from isthmus.cli.config import configuration_of, finding_as_json, home
from isthmus.cli.documents import ServerInfo, read_servers
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.find_hub import running_hub, running_source
from isthmus.cli.local_hub import start_local_hub
from isthmus.cli.options import WholeNumber, with_config, with_json, with_wait
from isthmus.cli.output import aligned, counted, harmless, print_error, print_json, print_output, show_table
from isthmus.cli.rest_client import HubClient, RemoteSource
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.config.client_file_reader import ClientFiles, HostContext, read_client_files
from isthmus.config.client_formats import CLIENTS, DIALECTS, OWN
from isthmus.config.entry_secrets import secrets_of
from isthmus.config.extensions import Extension, read_extensions
from isthmus.config.files import ParsedFile, derived_state, find_file, home_folder, read_document, usual_files
from isthmus.config.findings import ConfigError, Finding, Place, closest_match
from isthmus.config.formats import parse
from isthmus.config.importing import ImportCandidate, ImportPlan, Outcome, load_servers, transport_of
from isthmus.config.servers_in_file import ServerFile
from isthmus.config.tables import CLUSTER
from isthmus.config.text_editing import CannotEdit, edit, replace_file
from isthmus.config.variables import Variables, variables_of
from isthmus.upstream.server_settings import ServerSettings

FILE_NAME = "isthmus.toml"

TEMPLATE = """\
# Isthmus: one address for all your MCP servers.
#
# isthmus serve     runs the hub; it follows changes of this file
# isthmus doctor    checks the file and each server
# isthmus connect   writes the hub into Claude Code, Cursor, VS Code and others

[hub]
# host = "127.0.0.1"
{port}

# A server is a command or an address; `isthmus add` writes such entries:
#
# [servers.files]
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "."]
#
# [servers.search]
# url = "https://search.example/mcp"
# headers = {{ Authorization = "Bearer ${{SEARCH_TOKEN}}" }}
#
# While there are no callers, every program on this machine may call everything.
# To require keys: isthmus token create NAME --allow '*'
"""

SCHEMES = ("http", "https", "ws", "wss")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
FOLLOW_SECONDS = 10.0
"""How long `add` waits until the running hub has started the server."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# -- init ------------------------------------------------------------------------------------------------------------


@click.command("init")
@click.option("--into", type=click.Path(path_type=Path), metavar="FILE", help="The file.  [default: ./isthmus.toml]")
@click.option("--user", "is_user", is_flag=True, help="Write ~/.config/isthmus/isthmus.toml, for every folder.")
@click.option("--import", "sources", multiple=True, metavar="CLIENT|FILE|all", help="Import these servers.")
@click.option("--no-import", "is_bare", is_flag=True, help="Import none, and do not ask.")
@click.option("--port", type=WholeNumber(1, 65535), metavar="N", help="The hub's port.  [default: 8765]")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Import every server that is found, and do not ask.")
def init(
    into: Path | None, sources: tuple[str, ...], port: int | None, *, is_user: bool, is_bare: bool, is_sure: bool
) -> int:
    """Write an isthmus.toml, with the servers of other clients on this machine.

    On a terminal it asks which clients' servers to import; elsewhere it imports what --import names.
    """
    if into is not None and is_user:
        raise CommandFailed(Exit.USAGE, "--into and --user exclude each other", "Give one of the two.")
    context = HostContext(os.environ, Path.cwd(), home())
    file = usual_files(os.environ, home())[0] if is_user else Path(os.path.abspath(into or FILE_NAME))
    if file.suffix.lower() != ".toml":
        raise CommandFailed(Exit.USAGE, f"--into must be a TOML file, got {file.name}", f"Try --into {FILE_NAME}.")
    if os.path.exists(file):
        advice = "isthmus add, isthmus import and isthmus remove edit it."
        raise CommandFailed(Exit.CONFIGURATION, f"{file} is there already", advice)
    plan = ImportPlan(file, context, may_replace=False)
    beside = file.with_name("mcp.json")
    if not is_bare:
        usual = [*([str(beside)] if beside.is_file() else []), "all"]
        can_ask = sys.stdin.isatty() and sys.stderr.isatty()
        _choose_servers(plan, sources or usual, is_named=bool(sources), is_sure=is_sure, can_ask=can_ask)
        if beside.is_file() and file.name == FILE_NAME and not (sources or is_sure or can_ask):
            text = f"{beside} would no longer be read, so {file.name} was not written"
            raise CommandFailed(
                Exit.USAGE, text, "--yes imports its servers; --no-import writes the file without them."
            )
    taken = [candidate for candidate in plan.candidates if candidate.is_taken]
    text = plan.merged_into(TEMPLATE.format(port=f"port = {port}" if port else "# port = 8765"))
    _write(file, "", text, is_private=any(candidate.has_secrets for candidate in taken))
    print_output(f"Wrote {file} with {counted(len(taken), 'server')}.")
    for candidate in plan.candidates:
        if candidate.outcome == "differs":
            origin = f"{candidate.entry.dialect.title}, {candidate.entry.place.file}"
            print_error(f"{candidate.name} of {origin} was left out: another server has its name")
    print_notes(taken)
    if beside.is_file() and not any(candidate.entry.place.file == beside for candidate in plan.candidates):
        print_error(f"{beside} is no longer read now that {file.name} exists: isthmus import {beside.name}")
    if taken:
        print_error("Next: `isthmus doctor` checks them, `isthmus serve` runs the hub.")
    else:
        print_error("Next: `isthmus add NAME -- COMMAND` or `isthmus add NAME URL`.")
    return Exit.SUCCESS


def _choose_servers(plan: ImportPlan, sources: Sequence[str], *, is_named: bool, is_sure: bool, can_ask: bool) -> None:
    """Add the servers of these clients and files to the plan, after asking about each file unless they were named."""
    try:
        found = read_client_files(sources, Place(None), plan.around.cwd, plan.around)
    except ConfigError as error:
        raise refused(error) from error
    if is_named:
        for finding in found.findings:
            print_error(f"{finding.code.number}: {finding}")
    is_wanted = is_named or is_sure
    for document in found.documents:
        trial = ImportPlan(plan.file, plan.around, may_replace=False)
        trial.add([document])
        names = [str(candidate.name) for candidate in trial.candidates if candidate.is_taken]
        if not names:
            continue
        print_error(f"{document.dialect.title}, {document.file}: {', '.join(names)}")
        these = "this server" if len(names) == 1 else f"these {len(names)} servers"
        if is_wanted or (can_ask and click.confirm(f"Import {these}?", default=True, err=True)):
            plan.add([document])
        elif not can_ask:
            client = document.dialect.name
            source = client if client in CLIENTS else shlex.quote(str(document.file))
            print_error(f"  not imported: --import {source} or --yes imports them")


# -- add -------------------------------------------------------------------------------------------------------------


class AddCommand(click.Command):
    """Explains that options of the server's command come after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and add the explanation to the error for an unknown option."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            words = "Options of the server's command come after --: isthmus add NAME -- COMMAND [ARGS]..."
            raise click.UsageError(f"{error.format_message()} {words}", ctx) from error


@click.command("add", cls=AddCommand)
@click.argument("name")
@click.argument("words", nargs=-1, required=True, metavar="URL | -- COMMAND [ARGS]...", type=click.UNPROCESSED)
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="A variable; without a value, the hub's own.")
@click.option("--header", "headers", multiple=True, metavar="NAME: VALUE", help="A header of every request to the URL.")
@click.option("--cwd", metavar="DIR", help="The folder of the command.")
@click.option("--type", "kind", type=click.Choice(["http", "sse", "agent", "rpc"]), help="What is at the URL.")
@click.option("--replace", "may_replace", is_flag=True, help="Replace a server of that name.")
@click.option("--no-check", "is_unchecked", is_flag=True, help="Do not try to start or reach it.")
@with_config
@with_wait
def add(name: str, words: tuple[str, ...], config: Path | None, wait: float, **options: Any) -> int:
    """Add a server: a command to start, after --, or an address.

    \b
    isthmus add files -- npx -y @modelcontextprotocol/server-filesystem .
    isthmus add search https://search.example/mcp --header 'X-Key: ${SEARCH_KEY}'

    It is started or reached once, and written only if that works. A running hub follows.
    """  # noqa: D301 - click reads this as: do not wrap the next lines
    if _NAME.fullmatch(name) is None:
        advice = "Use 1 to 50 letters, digits, _ and -."
        raise CommandFailed(Exit.USAGE, f"a server cannot be called {name!r}", advice)
    if name == "builtin":
        raise CommandFailed(Exit.USAGE, "builtin is the name of the hub's own tools", "Choose another name.")
    target = ConfigFile.open(config, may_begin=True)
    fields = _fields(target, words, **{key: options[key] for key in ("env", "headers", "cwd", "kind")})
    present = target.raw(name)
    if present == fields:
        print_output(f"{name} is in {target.file} already.")
        return Exit.SUCCESS
    if present is not None and not options["may_replace"]:
        advice = f"--replace replaces it; `isthmus remove {name}` removes it."
        raise CommandFailed(Exit.USAGE, f"{target.file} has another server called {name}", advice)
    text = target.edited((*target.root_of(name), name), fields)
    outcome = _try(target, text, name, wait, is_unchecked=options["is_unchecked"])
    is_private = any("${" not in secret and not secret.startswith("env:") for secret in secrets_of(fields))
    target.write(text, is_private=is_private)
    print_output(f"{f'Replaced {name} in' if present else f'Added {name} to'} {target.file}{outcome}")
    if "cwd" in fields and options["cwd"] is None:
        print_error(f"It runs in {target.file.parent if fields['cwd'] == '.' else fields['cwd']} (cwd).")
    _, running = running_hub(config)
    if running is not None and not run_command(_follows(running_source(running), name)):
        print_error(f"The hub at {running.origin} has not started it yet: `isthmus servers` shows when it has.")
    return Exit.SUCCESS


async def _follows(source: RemoteSource, name: str) -> bool:
    """Wait until the running hub has started the new server, so that the next command can use it."""
    quiet_logs()
    until = time.monotonic() + FOLLOW_SECONDS
    with suppress(CommandFailed):
        async with aclosing(HubClient(source)) as hub:
            while time.monotonic() < until:
                infos = read_servers(await hub.servers())
                if any(info.name == name and info.state != "starting" for info in infos):
                    return True
                await asyncio.sleep(FOLLOW_SECONDS / 100)
    return False


def _fields(
    target: ConfigFile,
    words: Sequence[str],
    *,
    env: Sequence[str],
    headers: Sequence[str],
    cwd: str | None,
    kind: str | None,
) -> dict[str, object]:
    """The entry of a server, as the file writes it."""
    first, *rest = words
    if "://" in first and not rest:
        scheme = first.partition("://")[0]
        if _SCHEME.fullmatch(scheme) and scheme.lower() not in SCHEMES:
            text = f"{scheme} is not a scheme of servers: {first}"
            raise CommandFailed(Exit.USAGE, text, "Use http, https, ws or wss. Nothing was written.")
        if env or cwd is not None:
            text = f"{'--env' if env else '--cwd'} is for a command, and {first} is an address"
            raise CommandFailed(Exit.USAGE, text, "Give headers with --header.")
        fields: dict[str, object] = {kind if kind in ("agent", "rpc") else "url": first}
        fields |= {"type": kind} if kind in ("http", "sse") else {}
        return fields | ({"headers": dict(map(_header, headers))} if headers else {})
    if headers or kind:
        text = f"{'--header' if headers else '--type'} is for an address, and {first} is a command"
        raise CommandFailed(Exit.USAGE, text, "Give variables with --env.")
    fields = {"command": first}
    here = Path.cwd()
    is_elsewhere = target.file.parent != here
    if is_elsewhere and os.sep in first and not first.startswith(("/", "~", "$")):
        fields["command"] = str(here / first)
    fields |= {"args": rest} if rest else {}
    fields |= {"env": dict(_variable(pair, is_own=target.is_own) for pair in env)} if env else {}
    if cwd is not None:
        fields["cwd"] = str(here / cwd) if is_elsewhere and not cwd.startswith(("/", "~", "$")) else cwd
    elif any(_is_path(word, here) for word in rest) and (is_elsewhere or target.is_own):
        # Servers of our own file run where the hub does; these words mean this folder.
        fields["cwd"] = str(here) if is_elsewhere else "."
    return fields


def _is_path(word: str, folder: Path) -> bool:
    value = word.partition("=")[2] if word.startswith("-") else word
    if not value or value.startswith(("/", "~", "$", "-")) or "\0" in value:
        return False
    return value in (".", "..") or value.startswith(("./", "../")) or os.path.exists(folder / value)


def _header(line: str) -> tuple[str, str]:
    name, found, value = line.partition(":") if ":" in line.partition("=")[0] else line.partition("=")
    if not found or not name.strip():
        raise CommandFailed(Exit.USAGE, f"--header must be 'NAME: VALUE', got {name!r}", "Quote it for the shell.")
    return name.strip(), value.strip()


def _variable(pair: str, *, is_own: bool) -> tuple[str, str]:
    name, found, value = pair.partition("=")
    if _VARIABLE.fullmatch(name) is None:
        raise CommandFailed(Exit.USAGE, f"--env must be NAME=VALUE or NAME, got {name!r}", "A name has no spaces.")
    return name, value if found else f"env:{name}" if is_own else f"${{{name}}}"


def _try(target: ConfigFile, text: str, name: str, wait: float, *, is_unchecked: bool) -> str:
    """Read the new text, start or reach the server, and return how that went as the end of a sentence.

    Raises:
        CommandFailed: the entry is wrong, or the server does not start.
    """
    server = target.read_server(text, name)
    if is_unchecked:
        return ", not checked."
    quiet_logs()
    if os.path.exists(target.file):
        present = configuration_of(target.file)
    else:  # a file that is yet to be written has a state folder already
        present = configuration_of(None)
        state = str(derived_state(target.file, os.environ, home_folder()))
        present = replace(present, hub=replace(present.hub, state=state))

    async def reach() -> ServerInfo:
        configuration = replace(present, servers=(replace(server, disabled=False),))
        local = await start_local_hub(configuration, os.environ, within=wait, keeps_lists=True)
        try:
            return next(info for info in read_servers(await local.client.servers()) if info.name == server.name)
        finally:
            await local.client.aclose()

    info = run_command(reach())
    if info.state == "login":
        return f". It wants a login: isthmus login {name}"
    if info.state != "ready":
        why = info.trouble or f"it is {info.state} after {wait:g} s"
        advice = "Nothing was written; --no-check adds it all the same."
        raise CommandFailed(Exit.CALL_FAILED, f"{name} does not work: {why}", advice)
    tools = counted(info.tools, "tool")
    return f": {tools}." if not info.unlisted else ". It lists no tools; its methods are called by name."


# -- remove, enable, disable -------------------------------------------------------------------------------------------


@click.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@with_config
def remove(names: tuple[str, ...], config: Path | None) -> int:
    """Remove servers from the configuration. A running hub ends them after their calls."""
    target = ConfigFile.open(config)
    paths = [target.path_of(name) for name in names]
    text = target.text
    for path in paths:
        text = target.edited(path, None, text)
    target.write(text)
    print_output(f"Removed {', '.join(names)} from {target.file}.")
    return Exit.SUCCESS


@click.command("enable")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@with_config
def enable(names: tuple[str, ...], config: Path | None) -> int:
    """Switch servers on that are disabled."""
    return _switch(names, config, is_on=True)


@click.command("disable")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@with_config
def disable(names: tuple[str, ...], config: Path | None) -> int:
    """Switch servers off, and keep their entries."""
    return _switch(names, config, is_on=False)


def _switch(names: Sequence[str], config: Path | None, *, is_on: bool) -> Exit:
    word = "enabled" if is_on else "disabled"
    target = ConfigFile.open(config)
    text, changed = target.text, []
    for name in names:
        path = target.path_of(name)
        if target.is_on(path) is not is_on:
            changed.append(name)
            with target.editing():
                text = target.switched(path, is_on=is_on, text=text)
    if same := [name for name in names if name not in changed]:
        print_output(f"{', '.join(same)} {'is' if len(same) == 1 else 'are'} {word} already.")
    if changed:
        target.write(text)
        print_output(f"{word.capitalize()} {', '.join(changed)} in {target.file}.")
    return Exit.SUCCESS


# -- the file ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ConfigFile(ServerFile):
    """The configuration in use; what goes wrong with it ends the command."""

    context: HostContext

    @classmethod
    def open(cls, config: Path | None, *, may_begin: bool = False) -> ConfigFile:
        """Find and read it. If no file exists and one may be created, it is `isthmus.toml` here.

        Raises:
            CommandFailed: no file exists, it cannot be read, or its servers are in a database.
        """
        context = HostContext(os.environ, Path.cwd(), home())
        try:
            file = find_file(config, context.environment, context.cwd, context.home)
            if file is None and may_begin:
                file = context.cwd / FILE_NAME
                return cls(file, "", ParsedFile(file, {}, OWN), context)
            if file is None:
                advice = "Write one with `isthmus init`, or name it with --config FILE."
                raise CommandFailed(Exit.CONFIGURATION, "there is no configuration here", advice)
            file = Path(os.path.normpath(file))
            document = read_document(file)  # first: it names what cannot be read
            if document.section(CLUSTER).get("config") == "database":
                advice = "Edit the text of `isthmus config pull`, and store it with `isthmus config push FILE`."
                raise CommandFailed(Exit.CONFIGURATION, f"{file} leaves its servers to a database", advice)
            return cls(file, file.read_bytes().decode(), document, context)
        except ConfigError as error:
            raise refused(error) from error

    def path_of(self, name: str) -> tuple[str, ...]:
        """The keys that lead to a server's entry, by its name in the file or in the hub.

        Raises:
            CommandFailed: the file has no such server.
        """
        if (path := self.find(name)) is not None:
            return path
        names = self.names()
        advice = f"It has {', '.join(names)}." if names else "`isthmus add` adds one."
        if meant := closest_match(name, names):
            advice = f"Did you mean {meant}?"
        else:
            configuration = configuration_of(self.file)
            origin = configuration.origins.get(f"servers.{name}")
            if origin is not None and origin.file not in (None, self.file):
                advice = f"It comes from {origin.file}, which `import` names: edit that file."
        raise CommandFailed(Exit.USAGE, f"{self.file} has no server {name!r}", advice)

    def edited(self, path: tuple[str, ...], value: object, text: str | None = None) -> str:
        """The text with a value set, or removed.

        Raises:
            CommandFailed: it cannot be edited without changing something else.
        """
        with self.editing():
            return edit(self.file, self.text if text is None else text, path, value)

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Turn a file that cannot be edited without changing something else into `CommandFailed`."""
        try:
            yield
        except CannotEdit as error:
            advice = "Nothing was changed. Edit it by hand; a running hub follows."
            raise CommandFailed(Exit.CONFIGURATION, f"{self.file}: {error}", advice) from error

    def read_server(self, text: str, name: str) -> ServerSettings:
        """The settings of a server in a text of this file.

        Raises:
            CommandFailed: its entry is wrong.
        """
        try:
            table, _ = parse(self.file, text.removeprefix("\ufeff"))
            loaded = load_servers(ParsedFile(self.file, table, self.document.dialect), self.context)
        except ConfigError as error:
            raise refused(error) from error
        server = loaded.servers.get(loaded.called[name]) if name in loaded.called else None
        findings = [finding for finding in loaded.findings if f".{name}" in finding.path]
        if server is None:
            raise refused(ConfigError(*findings or loaded.findings))
        for finding in findings:
            print_error(f"{finding.code.number}: {finding}")
        return server

    def write(self, text: str, *, is_private: bool = False) -> None:
        """Replace the file, and keep the old one as `.bak`.

        Raises:
            CommandFailed: it cannot be written.
        """
        _write(self.file, self.text, text, is_private=is_private)


def _write(file: Path, before: str, text: str, *, is_private: bool) -> None:
    if text == before:
        return
    try:
        replace_file(file, text.encode(), is_private=is_private, backup=file.with_name(f"{file.name}.bak"))
    except OSError as error:
        advice = "Nothing was changed. Name another file."
        raise CommandFailed(Exit.CONFIGURATION, f"{file} cannot be written: {error.strerror}", advice) from error


# -- isthmus import ----------------------------------------------------------------------------------------------------


BACKUP_SUFFIX = ".bak"

_OUTCOMES: dict[Outcome, str] = {
    "new": "new",
    "same": "already there",
    "differs": "differs, left unchanged",
    "replaced": "replaced",
    "broken": "broken, skipped",
}

PlanRow: TypeAlias = tuple[str, ...]


@click.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="FILE|CLIENT|all...")
@click.option("--dialect", metavar="D", help="The client whose format a file has, if its path does not tell.")
@click.option("--into", type=click.Path(path_type=Path), metavar="FILE", help="The isthmus.toml to write.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be written.")
@click.option("--replace", "may_replace", is_flag=True, help="Replace servers that differ in the file.")
@with_json
def import_command(
    sources: tuple[str, ...],
    dialect: str | None,
    into: Path | None,
    *,
    is_dry: bool,
    may_replace: bool,
    is_json: bool,
) -> int:
    """Import the servers of other clients into isthmus.toml.

    CLIENT is one of claude-desktop, claude-code, cursor, vscode, windsurf, cline, roo, gemini, codex, goose, zed,
    kiro, copilot, opencode, mcpproxy, fastmcp.
    """
    options = ImportOptions(sources, dialect, into, is_dry=is_dry, may_replace=may_replace, is_json=is_json)
    return import_servers(options)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of the command line."""

    sources: Sequence[str]
    dialect: str | None = None
    into: Path | None = None
    is_dry: bool = False
    may_replace: bool = False
    is_json: bool = False


def import_servers(options: ImportOptions) -> Exit:
    """Read the servers, write them into our own file, and print them.

    Raises:
        CommandFailed: our own file cannot be read or written.
    """
    context = HostContext(os.environ, Path.cwd(), home())
    file = _target(options.into, context)
    try:
        found = _read_sources(options, context, file)
        plan = ImportPlan(file, context, options.may_replace)
        plan.begin(read_document(file) if file.exists() else None)
    except ConfigError as error:
        raise refused(error) from error
    # `all` may find our own file, too.
    plan.add(document for document in found.documents if not _is_same(document.file, file))
    is_written = not options.is_dry and _write_imported(plan)
    if options.is_json:
        print_json(_as_json(found, plan, is_written=is_written))
    else:
        _print_plan(found, plan, is_dry=options.is_dry, is_written=is_written)
    return Exit.SUCCESS if plan.candidates else Exit.CONFIGURATION


def _read_sources(options: ImportOptions, context: HostContext, file: Path) -> ClientFiles:
    importers: dict[str, Extension] = {}
    if file.exists():  # its extensions may read the files of other programs
        variables = Variables(variables_of(file, context.environment)[0], file.parent, context.home)
        extensions, _ = read_extensions(read_document(file), variables)
        importers = {each.name: each for each in extensions.in_group("importers")}
    dialect = None
    if options.dialect is not None:
        dialect = DIALECTS.get(options.dialect)
        if dialect is None:
            meant = closest_match(options.dialect, DIALECTS)
            advice = f"Did you mean {meant}?" if meant else f"Known dialects: {', '.join(DIALECTS)}."
            raise CommandFailed(Exit.USAGE, f"there is no dialect {options.dialect!r}", advice)
    return read_client_files(options.sources, Place(None), context.cwd, context, dialect, importers=importers)


def _target(into: Path | None, context: HostContext) -> Path:
    """The file to write: the named one, the one in use, or a new one here."""
    try:
        used = into if into is not None else find_file(None, context.environment, context.cwd, context.home)
    except ConfigError as error:
        raise refused(error) from error
    if into is None and (used is None or used.suffix != ".toml"):
        used = context.cwd / FILE_NAME
    assert used is not None
    if used.suffix.lower() != ".toml":
        advice = f"Name a file that ends in .toml, or leave --into out for ./{FILE_NAME}."
        raise CommandFailed(Exit.USAGE, f"--into must be a TOML file, got {used.name}", advice)
    # A symbolic link stays; the file behind it is written.
    return Path(os.path.realpath(context.cwd / used))


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


# -- writing ---------------------------------------------------------------------------------------------------------


def _write_imported(plan: ImportPlan) -> bool:
    """Write the file if there is anything to add, and keep a backup of the old one."""
    added = [candidate for candidate in plan.candidates if candidate.is_taken]
    if not added:
        return False
    file = plan.file
    try:
        before = file.read_bytes() if file.exists() else b""
        mark = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
        text = plan.merged_into(before.removeprefix(mark).decode())
        backup = file.with_name(file.name + BACKUP_SUFFIX)
        is_private = any(candidate.has_secrets for candidate in added)
        replace_file(file, mark + text.encode(), is_private=is_private, backup=backup)
    except CannotEdit as error:
        advice = "Write it as [servers.NAME] tables, or import into another file with --into FILE."
        raise CommandFailed(Exit.CONFIGURATION, f"{file}: {error}", advice) from error
    except OSError as error:
        advice = "Nothing was changed. Import into another file with --into FILE."
        raise CommandFailed(Exit.CONFIGURATION, f"{file} cannot be written: {error.strerror}", advice) from error
    return True


# -- printing --------------------------------------------------------------------------------------------------------


def _as_json(found: ClientFiles, plan: ImportPlan, *, is_written: bool) -> bytes:
    servers = [
        {
            "name": candidate.name,
            "client": candidate.entry.dialect.name,
            "file": str(candidate.entry.place.file),
            "path": candidate.entry.place.path,
            "transport": None if candidate.server is None else transport_of(candidate.server.reach),
            "outcome": candidate.outcome,
            "literal_secrets": candidate.has_secrets,
        }
        for candidate in plan.candidates
    ]
    return msgspec.json.encode(
        {
            "into": str(plan.file),
            "written": is_written,
            "files": [{"file": str(document.file), "client": document.dialect.name} for document in found.documents],
            "servers": servers,
            "findings": [finding_as_json(finding, "warning") for finding in _findings(found, plan)],
        }
    )


def _findings(found: ClientFiles, plan: ImportPlan) -> list[Finding]:
    return list(dict.fromkeys([*found.findings, *plan.findings]))


def _print_plan(found: ClientFiles, plan: ImportPlan, *, is_dry: bool, is_written: bool) -> None:
    if plan.candidates and sys.stdout.isatty():
        groups: dict[str, list[PlanRow]] = {}
        for candidate in plan.candidates:
            heading = f"{candidate.entry.dialect.title}: {candidate.entry.place.file}"
            groups.setdefault(heading, []).append(_plan_row(candidate))
        show_table(sys.stdout, list(groups.items()), ("cyan", "", ""))
    elif plan.candidates:
        rows = [(*_plan_row(candidate), str(candidate.entry.place.file)) for candidate in plan.candidates]
        print_output("\n".join(aligned(rows)))
    for finding in _findings(found, plan):
        print_error(f"{finding.code.number}: {finding}")
    added = [candidate for candidate in plan.candidates if candidate.is_taken]
    count = counted(len(added), "server")
    if not plan.candidates:
        print_error("No servers were found.")
    elif is_dry:
        print_error(f"Would write {count} into {plan.file}. Run it without --dry-run to write them.")
    elif is_written:
        print_error(f"Wrote {count} into {plan.file}.")
    else:
        print_error(f"Nothing new for {plan.file}.")
    print_notes(added)
    if plan.can_replace:
        print_error("To import the ones that differ: --replace.")
    # A new isthmus.toml replaces an mcp.json beside it as the configuration.
    beside, backup = plan.file.with_name("mcp.json"), plan.file.with_name(plan.file.name + BACKUP_SUFFIX)
    is_hidden = is_written and not backup.exists() and beside.exists()
    if is_hidden and not any(_is_same(document.file, beside) for document in found.documents):
        print_error(f"{beside} is no longer read now that {plan.file.name} exists: import it too.")


def print_notes(added: Sequence[ImportCandidate]) -> None:
    """Print the folders in which imported servers run, and which of them have secrets in the file."""
    for candidate in added:
        if candidate.entry.folder is not None:
            print_error(f"{candidate.name} runs in {candidate.entry.folder} (cwd), the folder of its file.")
    if with_secrets := [candidate.name for candidate in added if candidate.has_secrets]:
        contain = "contains" if len(with_secrets) == 1 else "contain"
        print_error(
            f"{', '.join(with_secrets)} {contain} plaintext secrets. Only you may read the file; env:NAME is safer."
        )


def _plan_row(candidate: ImportCandidate) -> PlanRow:
    transport = "" if candidate.server is None else transport_of(candidate.server.reach)
    return harmless(candidate.name, keep=""), transport, _OUTCOMES[candidate.outcome]
