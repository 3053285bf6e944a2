"""`isthmus connect`: write the hub into the file of an MCP client, and take it out again.

`config.client_formats` knows where each client's files are and how it writes a server. The file is edited as text
(`config.text_editing`), after a diff and a question, and the first backup stays beside it until `--undo`.
"""

from __future__ import annotations

import difflib
import hmac
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from isthmus.app.key_files import keys_in
from isthmus.app.shared_state import key_store
from isthmus.app.state_folder import find_running
from isthmus.cli.config import access_of, configuration_of, home
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.find_hub import ENDPOINT, is_taken, source_of
from isthmus.cli.options import with_source
from isthmus.cli.output import harmless, print_error, print_output, print_table, wants_color
from isthmus.cli.relay_tokens import configured_origin
from isthmus.cli.rest_client import RemoteSource
from isthmus.cli.run_command import run_command
from isthmus.cli.token import KeyOptions, new_key
from isthmus.config.client_formats import (
    CLIENTS,
    WRITTEN_FORMS,
    HubAsProgram,
    HubOverHttp,
    WrittenEntry,
    WrittenForm,
    places_of,
    project_files,
    user_files,
)
from isthmus.config.findings import ConfigError, closest_match
from isthmus.config.formats import PARSERS
from isthmus.config.settings import Configuration
from isthmus.config.text_editing import CannotEdit, Keys, content_of, edit, replace_file
from isthmus.identity.keys import digest_of
from isthmus.model.callers import KEY_VARIABLE

NAME = "isthmus"
"""The name of the hub in a client's file, unless the user chooses another."""

BACKUP_SUFFIX = ".before-isthmus"
HIDDEN = "***"


@click.command("connect")
@click.argument("client", required=False, metavar="[CLIENT]", shell_complete=lambda *_: [*WRITTEN_FORMS])
@click.option("--project", "is_project", is_flag=True, help="Write the client's file of this folder, not the user's.")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="Write this file of the client.")
@click.option("--stdio", "is_stdio", is_flag=True, help="Let the client start the hub, instead of its address.")
@click.option("--name", default=NAME, show_default=True, metavar="NAME", help="The hub's name in the client.")
@click.option("--print", "is_print", is_flag=True, help="Only print what would be written.")
@click.option("--undo", "is_undo", is_flag=True, help="Take the hub out of the client's file again.")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@with_source
def connect(client: str | None, file: Path | None, **options: Any) -> int:
    """Write the hub into an MCP client. Without CLIENT, list the clients.

    CLIENT is one of claude-code, claude-desktop, cursor, vscode, windsurf, cline, codex, gemini, zed, goose, kiro,
    opencode, copilot.

    Clients that speak Streamable HTTP get the hub's address, and a key if the hub requires keys: the one in
    ISTHMUS_KEY, or a new one. Others start `isthmus stdio`. The change is shown before it is written, and the old file
    is kept.
    """
    chosen = ConnectOptions(**options)
    if client is None:
        return list_clients(chosen.name)
    if client not in WRITTEN_FORMS:
        meant = closest_match(client, WRITTEN_FORMS)
        advice = f"Did you mean {meant}?" if meant else f"Known are {', '.join(WRITTEN_FORMS)}."
        raise CommandFailed(Exit.USAGE, f"there is no client {client!r}", advice)
    target = ClientFile(client, _file_of(client, file, is_project=chosen.is_project), chosen.name)
    if chosen.is_undo:
        return target.undo(is_sure=chosen.is_sure)
    plan = Plan.make(target, chosen)
    if chosen.is_print:
        print_error(f"{target.file}:")
        print_output(target.snippet(plan.entry(plan.key or (HIDDEN if plan.needs_key else ""))))
        if plan.needs_key:
            print_error(f"For {HIDDEN}, make a key: isthmus token create {client} --allow '*'")
        return Exit.SUCCESS
    return plan.carry_out(is_sure=chosen.is_sure)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The options of the command line."""

    name: str
    hub: str | None
    config: Path | None
    is_project: bool
    is_stdio: bool
    is_print: bool
    is_undo: bool
    is_sure: bool


def list_clients(name: str) -> Exit:
    """Print the clients, whether each is on this machine, and whether the hub is in its file."""
    rows = []
    for client in WRITTEN_FORMS:
        files = [path for path in _all_files(client) if path.is_file()]
        connected = [path for path in files if ClientFile(client, path, name).has_hub()]
        state = "connected" if connected else "not connected" if files else ""
        shown = connected or files or [_file_of(client, None, is_project=False)]
        path = shown[0]
        rows.append((client, state, f"~/{path.relative_to(home())}" if path.is_relative_to(home()) else str(path)))
    print_table(("CLIENT", "STATE", "FILE"), rows, ("cyan", "", "dim"), is_wrapped=True)
    if sys.stdout.isatty():
        print_error("\n`isthmus connect CLIENT` writes the hub into a file; it shows the change first.")
    return Exit.SUCCESS


def _all_files(client: str) -> list[Path]:
    return places_of(CLIENTS[client], home(), Path.cwd(), os.environ)


def _user_files(client: str) -> list[Path]:
    return user_files(CLIENTS[client], home(), os.environ)


def _file_of(client: str, file: Path | None, *, is_project: bool) -> Path:
    """The file to write: the named one, the first that exists, or where the client would make one."""
    title = CLIENTS[client].title
    if file is not None:
        formats = {PARSERS[path.suffix] for path in _all_files(client)}
        if PARSERS.get(file.suffix.lower()) not in formats:
            text = f"--file must be a file of {title}, such as {_user_files(client)[0].name}, got {file.name}"
            raise CommandFailed(Exit.USAGE, text, "Leave --file out for the usual one.")
        return Path(os.path.abspath(file))
    paths = project_files(CLIENTS[client], Path.cwd()) if is_project else _user_files(client)
    if not paths:
        text = f"{title} has no file for {'a project' if is_project else 'a user'}"
        raise CommandFailed(Exit.USAGE, text, "Leave --project out, or name a file with --file.")
    # Cline is chiefly an extension of VS Code, whose file comes after those of its command line.
    usual = next((path for path in paths if "Code" in path.parts), paths[0])
    return next((path for path in paths if path.is_file()), usual)


# -- what to write -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Plan:
    """What a client's file gets."""

    target: ClientFile
    entry: Callable[[str], WrittenEntry]
    """The entry with a key in it."""
    key: str | None
    """The key, if one is known; empty if none is needed."""
    configuration: Configuration | None
    """None for a hub that was named by its address."""
    url: str = ""
    """Empty for a hub that the client starts."""
    is_running: bool = True

    @property
    def needs_key(self) -> bool:
        """Whether a key must be made."""
        return self.key is None

    @classmethod
    def make(cls, target: ClientFile, options: ConnectOptions) -> Plan:
        """Decide on the address or the program, and on the key.

        Raises:
            CommandFailed: the configuration cannot be used, or no configuration was found to start.
        """
        client = WRITTEN_FORMS[target.client]
        source = source_of(options.hub, options.config)
        known = os.environ.get(KEY_VARIABLE, "")
        is_stdio = options.is_stdio or client.http is None
        configuration, needs_key, is_running, url = None, False, True, ""
        if isinstance(source, RemoteSource):
            url = source.url
        else:
            configuration = configuration_of(options.config)
            running = find_running(Path(configuration.hub.state))
            is_running = running is not None
            if not is_stdio:
                # A hub that runs may have another port than its file says.
                url = (configured_origin(configuration.hub) if running is None else running.origin) + ENDPOINT
            try:
                needs_key = not is_stdio and access_of(configuration) == "keys"
            except ConfigError as error:
                raise refused(error) from error
            known = known if needs_key else ""
        if is_stdio:
            return cls(target, _started(target, client, source, configuration), known, configuration)

        def entry(key: str) -> WrittenEntry:
            assert client.http is not None
            # A key does not belong in a file that is shared with the project.
            value = client.variable if options.is_project and client.variable else key
            headers = {"Authorization": f"Bearer {value}"} if key else {}
            return client.http(HubOverHttp(target.name, url, headers))

        return cls(target, entry, (known or None) if needs_key else known, configuration, url, is_running=is_running)

    def carry_out(self, *, is_sure: bool) -> Exit:
        """Show the change, ask, make a key if one is needed, and write.

        Raises:
            CommandFailed: it was not confirmed, or the file cannot be written.
        """
        target, title = self.target, CLIENTS[self.target.client].title
        if self.needs_key:
            self.key = self._present_key()
        shown = target.edited(self.entry(HIDDEN if self.key or self.needs_key else ""))
        if self.key is not None and target.edited(self.entry(self.key)) == target.text:
            print_output(f"{title} has the hub already: {target.file}")
            return Exit.SUCCESS
        if not self.is_running and self.url:
            self._check_address()
        target.print_diff(shown)
        before, now = _pointed_to(target.entry()), _pointed_to(self.entry(HIDDEN))
        if before and before != now:
            advice = "--name gives this hub another name"
            print_error(f"This replaces the entry {target.name}, which pointed to {before}; {advice}.")
        caller = None
        if self.needs_key:
            assert self.configuration is not None
            caller = _free_name(self.configuration, target.client)
            print_error(f"The hub requires keys: this makes one for the caller {caller}, which may call everything.")
        target.confirm(f"Write {target.file}?", is_sure=is_sure)
        if caller is not None and self.configuration is not None:
            self.key, _ = new_key(self.configuration, KeyOptions(caller, allow=("*",)))
        is_written = HIDDEN in shown and self.key is not None and self.key in target.edited(self.entry(self.key))
        target.write(target.edited(self.entry(self.key or "")), is_private=is_written)
        print_output(f"Wrote {target.name} into {target.file}.")
        if target.backup.exists():
            print_error(f"The file as it was: {target.backup}; --undo restores it.")
        if caller is not None and not is_written:
            print_error(f"Set {KEY_VARIABLE} for {title} to this key, which is not stored: {self.key}")
        print_error(f"{title}: {WRITTEN_FORMS[target.client].afterwards}")
        if not self.is_running:
            print_error(f"The hub does not run yet: `isthmus serve` serves {self.url}.")
        if self.configuration is None and not self.key:
            print_error(f"If the hub requires a key, set {KEY_VARIABLE} and run this again.")
        return Exit.SUCCESS

    def _present_key(self) -> str | None:
        """The key that the client has for this hub, if the hub accepts it."""
        entry = self.target.entry()
        match = re.search(r"Bearer +([^\s'\"]+)", str(entry))
        key = "" if match is None else match[1]
        if self.configuration is None or _pointed_to(entry) != _pointed_to(self.entry(HIDDEN)) or not key:
            return None
        digest, now = digest_of(key).hex(), time.time()
        try:
            keys = keys_in(key_store(self.configuration)) or ()
        except ConfigError as error:
            raise refused(error) from error
        is_good = any(hmac.compare_digest(key.digest, digest) and key.is_good(now) for key in keys)
        return key if is_good else None

    def _check_address(self) -> None:
        """Refuse the address of another program: the client would use that, and send it the key.

        Raises:
            CommandFailed: something listens there, and it is not this hub.
        """
        if not run_command(is_taken(self.url)):
            return
        file = None if self.configuration is None else self.configuration.file
        named = "this hub" if file is None else f"the hub of {os.path.abspath(file)}"
        origin = self.url.removesuffix(ENDPOINT)
        harm = "would use that one" if self.key == "" else "would send its key there"
        raise CommandFailed(
            Exit.CONFIGURATION,
            f"{named} does not run, and another program listens at {origin}: the client {harm}",
            "Start this hub first, at another port: `isthmus serve --port N`, or `port` under [hub].",
            "If it is this hub all the same, name it with --hub URL, and its key in ISTHMUS_KEY.",
        )


def _started(
    target: ClientFile, client: WrittenForm, source: object, configuration: Configuration | None
) -> Callable[[str], WrittenEntry]:
    """The entry of a hub that the client starts."""
    if isinstance(source, RemoteSource):
        options = ["--hub", source.url]
    elif configuration is not None and configuration.file is not None:
        options = ["--config", os.path.abspath(configuration.file)]
    else:
        advice = "Write one with `isthmus init`, or name it with --config FILE."
        raise CommandFailed(Exit.CONFIGURATION, "there is no configuration to start the hub from", advice)
    command, *words = this_program()
    return lambda key: client.stdio(
        HubAsProgram(target.name, command, [*words, "stdio", *options], {KEY_VARIABLE: key} if key else {})
    )


def this_program() -> list[str]:
    """The words that run this command from anywhere."""
    started = sys.argv[0]
    path = os.path.abspath(shutil.which(started) or started)
    parts = Path(path).parts
    for runner, cache, *run in (("uvx", "uv"), ("pipx", "pipx", "run")):
        # Such a runner removes its cache now and then, and with it the program that it started.
        is_cached = cache in parts and any(part.startswith("archive-v") or "cache" in part for part in parts)
        if is_cached and (found := shutil.which(runner)) is not None:
            source = _installed_from()
            option = "--from" if runner == "uvx" else "--spec"
            return [found, *run, *([option, source] if source else []), NAME]
    return [sys.executable, "-m", NAME] if path.endswith(".py") else [path]


def _installed_from() -> str:
    """The file, folder or repository that the package was installed from; empty for a package index."""
    try:
        origin = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    url = str(origin.get("url", ""))
    return unquote(urlsplit(url).path) if url.startswith("file:") else url


def _free_name(configuration: Configuration, client: str) -> str:
    """A name for the caller that no other has."""
    try:
        keys = keys_in(key_store(configuration)) or ()
    except ConfigError as error:
        raise refused(error) from error
    taken = {key.name for key in keys} | set(configuration.named)
    names = (client if number == 1 else f"{client}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


# -- the client's file -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ClientFile:
    """The file of a client."""

    client: str
    file: Path
    name: str
    text: str = field(init=False, default="")

    def __post_init__(self) -> None:
        try:
            self.text = self.file.read_bytes().decode() if self.file.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            advice = "`--print` prints what to write into it by hand."
            raise CommandFailed(Exit.CONFIGURATION, f"{self.file} cannot be read: {why}", advice) from error

    @property
    def backup(self) -> Path:
        """The file as it was before the hub was written into it."""
        return self.file.with_name(self.file.name + BACKUP_SUFFIX)

    @property
    def path(self) -> Keys:
        """The keys that lead to the hub."""
        return (*WRITTEN_FORMS[self.client].root, self.name)

    def has_hub(self) -> bool:
        """Whether the file names the hub; a file that cannot be read does not."""
        try:
            return self.edited(None) != self.text
        except CommandFailed:
            return False

    def entry(self) -> object:
        """The present entry of that name; None if the file has no such entry."""
        return _entry_at(self.file, self.text, self.path)

    def edited(self, entry: object) -> str:
        """The text with another entry of the hub, or without any if it is None.

        Raises:
            CommandFailed: it cannot be edited without changing something else.
        """
        try:
            return edit(self.file, self.text, self.path, entry)
        except CannotEdit as error:
            advice = "Nothing was changed. `--print` prints what to write into it by hand."
            raise CommandFailed(Exit.CONFIGURATION, f"{self.file}: {error}", advice) from error

    def snippet(self, entry: WrittenEntry) -> str:
        """The entry in a file of its own."""
        return edit(self.file, "", self.path, entry)

    def print_diff(self, text: str) -> None:
        """Show what changes in the file."""
        old, new = _without_keys(self.text), _without_keys(text)
        if old == new and self.text != text:
            print_error(f"Only the key of {self.name} changes in {self.file}.")
        lines = difflib.unified_diff(
            old.splitlines(), new.splitlines(), str(self.file), str(self.file), "", "", n=2, lineterm=""
        )
        if not (sys.stderr.isatty() and wants_color()):
            print_error("\n".join(line.rstrip() for line in lines), is_wrapped=False)
            return
        colors = {"+": "green", "-": "red", "@": "cyan"}
        for line in lines:
            click.secho(harmless(line), fg=colors.get(line[:1]), err=True)

    def confirm(self, question: str, *, is_sure: bool) -> None:
        """Ask whether to go on.

        Raises:
            CommandFailed: the answer is no, or there is no terminal to ask on.
        """
        if is_sure:
            return
        if not sys.stdin.isatty():
            raise CommandFailed(Exit.USAGE, "nothing was written", "Confirm with --yes; --print only prints it.")
        if not click.confirm(question, default=True, err=True):
            raise CommandFailed(Exit.CALL_FAILED, "nothing was written")

    def write(self, text: str, *, is_private: bool) -> None:
        """Replace the file. The first backup stays.

        Raises:
            CommandFailed: it cannot be written.
        """
        backup = None if self.backup.exists() or self.has_hub() else self.backup
        try:
            replace_file(self.file, text.encode(), is_private=is_private, backup=backup)
        except OSError as error:
            advice = "Nothing was changed. `--print` prints what to write into it by hand."
            raise CommandFailed(
                Exit.CONFIGURATION, f"{self.file} cannot be written: {error.strerror}", advice
            ) from error

    def undo(self, *, is_sure: bool) -> Exit:
        """Take the hub out. If nothing else has changed, the file is as it was, byte for byte.

        Raises:
            CommandFailed: it was not confirmed, or the file cannot be written.
        """
        title = CLIENTS[self.client].title
        if not self.has_hub():
            print_output(f"{title} does not have {self.name}: {self.file}")
            return Exit.SUCCESS
        entry = self.entry()
        try:
            before = self.backup.read_bytes().decode() if self.backup.exists() else ""
            text = self.edited(_entry_at(self.file, before, self.path))
        except (OSError, ValueError) as error:
            advice = f"Remove it, and run the command again: it then only takes {self.name} out."
            raise CommandFailed(Exit.CONFIGURATION, f"the backup {self.backup} cannot be read", advice) from error
        if content_of(self.file, text) == content_of(self.file, before):
            text = before
        self.print_diff(text)
        is_all = not self.backup.exists() and not content_of(self.file, text)
        self.confirm(f"{'Remove' if is_all else 'Write'} {self.file}?", is_sure=is_sure)
        try:
            if is_all:
                self.file.unlink()
                print_output(f"Removed {self.file}, which had nothing else in it.")
            else:
                replace_file(self.file, text.encode(), is_private=False)
                self.backup.unlink(missing_ok=True)
                print_output(f"Took {self.name} out of {self.file}.")
        except OSError as error:
            advice = "Take it out by hand."
            raise CommandFailed(
                Exit.CONFIGURATION, f"{self.file} cannot be written: {error.strerror}", advice
            ) from error
        if "Bearer " in str(entry):
            print_error("Its key stays valid: `isthmus token list` shows it, `isthmus token revoke` ends it.")
        return Exit.SUCCESS


_KEY = re.compile(r"""(Bearer +|isk_|ISTHMUS_KEY['"]?\s*[:=]\s*['"]?)(?![$])[^\s'",}]+""")


def _without_keys(text: str) -> str:
    """The text of a client's file as a terminal may show it. Variables such as `${ISTHMUS_KEY}` stay."""
    return _KEY.sub(rf"\g<1>{HIDDEN}", text)


def _pointed_to(entry: object) -> str:
    """The address or the configuration of the hub in an entry; empty if it has none."""
    if isinstance(entry, dict):
        return next(filter(None, map(_pointed_to, entry.values())), "")
    if isinstance(entry, list):
        words = [str(word) for word in entry]
        return next((value for word, value in pairwise(words) if word in ("--config", "--hub")), "")
    return entry if isinstance(entry, str) and entry.startswith(("http://", "https://")) else ""


def _entry_at(file: Path, text: str, path: Keys) -> object:
    table = content_of(file, text)
    for key in path:
        table = table.get(key) if isinstance(table, dict) else None
    return table
