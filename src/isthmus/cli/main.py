"""The `isthmus` command: its subcommands, its exit code, and a short start.

Each subcommand is in the module named in `SECTIONS`, which is imported when the subcommand runs. Before that only
click is loaded, so `isthmus --help` and a mistyped command answer at once.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import click

from isthmus import __version__
from isthmus.cli import COMPLETE_VARIABLE
from isthmus.cli.exits import CommandFailed, Exit, OutputClosed
from isthmus.cli.output import print_error, print_output

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "serve": ("serve.serve_command", "Run the hub: MCP at /mcp, REST at /v1."),
        "stdio": ("serve.stdio_command", "Serve MCP on standard input and output."),
        "connect": ("connect.connect", "Write the hub into Claude Code, Cursor, VS Code and others."),
        "record": ("cassette.record", "Record calls into a cassette."),
        "replay": ("cassette.replay", "Serve a cassette, without its servers."),
        "dial": ("dial.dial", "Connect local servers to a hub elsewhere."),
        "completion": ("completion.completion", "Print or install the completion of a shell."),
        "version": ("main.version", "Print the version."),
    },
    "Use and look": {
        "call": ("call.call", "Call a tool."),
        "tools": ("tools.tools", "List the tools, show one, or search them."),
        "prompt": ("call.prompt", "Get a prompt and print it."),
        "prompts": ("tools.prompts", "List the prompts, or show one."),
        "read": ("call.read", "Read a resource and print it."),
        "resources": ("lists.resources", "List the resources."),
        "servers": ("lists.servers", "List the servers and their states."),
        "logs": ("logs.logs", "Print the last lines of a server, and follow them."),
        "top": ("top.top", "Watch calls, rates, durations and faults; q quits."),
        "doctor": ("doctor.doctor", "Check the configuration and each server; say how to fix it."),
    },
    "Servers": {
        "init": ("edit_servers.init", "Write an isthmus.toml with the servers of other clients."),
        "add": ("edit_servers.add", "Add a server: a command or an address."),
        "remove": ("edit_servers.remove", "Remove servers."),
        "enable": ("edit_servers.enable", "Switch servers on."),
        "disable": ("edit_servers.disable", "Switch servers off, and keep their entries."),
        "restart": ("restart.restart", "Restart a server of a running hub."),
        "approve": ("definition_approvals.approve_command", "Review tools whose definition changed."),
        "config": ("config.config", "Check or print the configuration."),
        "credentials": ("login.credentials", "Manage the key that encrypts logins."),
        "import": ("edit_servers.import_command", "Import the servers of other clients into isthmus.toml."),
        "login": ("login.login", "Log the hub in at a server by OAuth."),
        "logout": ("login.logout", "Delete the login at a server."),
        "relay": ("relay.relay", "Show or forget the servers that dialled in."),
        "cluster": ("cluster.cluster", "Show the nodes of a cluster and their servers."),
        "migrate": ("migrate.migrate", "Copy keys and logins into the database of a cluster."),
    },
    "Access": {
        "access": ("access.access_command", "Print what a caller can reach, and why."),
        "approvals": ("call_approvals.approvals", "Decide about calls that wait for a person."),
        "audit": ("audit.audit", "Verify, tail or export the audit log."),
        "budgets": ("budgets.budgets", "Print how much of each budget is used."),
        "token": ("token.token", "Manage the keys of callers and the tokens of the relay."),
    },
}
"""Every command, by section of `isthmus --help`: where it is, and its line there, which fits into 80 columns."""

COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

TRACEBACK_VARIABLE = "ISTHMUS_TRACEBACK"
"""If set, a defect of a command ends in a traceback."""

PATH_LENGTH_MAX = 200
"""How much of a path or word an error repeats."""

COLLECT = (20_000, 2, 2)
"""Thresholds of the garbage collector. Loaded modules stay; scanning them again and again takes a tenth of the start.
The same values as in `app.process_setup`, which is not loaded here."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now; None if it is unknown."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].rpartition(".")
        command = getattr(importlib.import_module(f"isthmus.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a similar name for an unknown command: click knows only names of commands that are loaded."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib

            meant = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
            advice = f" Did you mean {meant[0]}?" if meant else ""
            raise click.UsageError(f"No such command {name[:PATH_LENGTH_MAX]!r}.{advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without importing them."""
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                # All sections have one column of names.
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in commands.items()])


class WithoutRich:
    """Hides rich from structlog, only while that is being imported.

    structlog would load it for tracebacks that the hub does not use, which takes a sixth of a start.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing, and raise for rich while structlog is imported.

        Raises:
            ModuleNotFoundError: structlog is being imported.
        """
        structlog = sys.modules.get("structlog")
        if fullname == "rich" and structlog is not None and not hasattr(structlog, "get_logger"):
            raise ModuleNotFoundError("No module named 'rich' while structlog is loaded", name="rich")
        return None


def program() -> int:
    """Run `main` as the whole process: also tune the garbage collector and imports, which are global."""
    _open_standard_streams()
    gc.set_threshold(*COLLECT)
    sys.meta_path.insert(0, WithoutRich())
    code = main()
    if code == Exit.SUCCESS:
        # The hub has ended in good order. A second SIGTERM must not make that look like a failure, but the interpreter
        # restores the default action at its exit. Not in `main`: its caller lives on, and processes that it starts
        # would inherit the ignored signal.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_at_once()
    return code


def _open_standard_streams() -> None:
    """Open the null device for each standard stream that the parent closed, as cron jobs and supervisors do.

    Otherwise Python has None for it, and the next socket gets its descriptor.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for the process


def _end_at_once() -> None:
    """End the process with success. Taking the loaded modules apart first takes a sixth of a short command."""
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the reader is gone: the interpreter knows what to do
    os._exit(Exit.SUCCESS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Only this function prints errors."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # for terminals that cannot show every character
    if COMPLETE_VARIABLE in os.environ:
        from isthmus.cli.completion import complete

        if complete(os.environ[COMPLETE_VARIABLE], cli, {name: text for name, (_, text) in COMMANDS.items()}):
            return Exit.SUCCESS
    words = sys.argv[1:] if arguments is None else arguments
    try:
        _check_text(words)
        return int(cli.main(words, "isthmus", standalone_mode=False) or Exit.SUCCESS)
    except CommandFailed as failed:
        after_key = "\n" if failed.exit is Exit.INTERRUPTED else ""  # the terminal shows ^C on the line
        print_error(f"{after_key}isthmus: {failed.message}")
        for line in failed.advice:
            print_error(line)
        return failed.exit
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print_error("\ninterrupted")
        return Exit.INTERRUPTED
    except OutputClosed:
        return Exit.SUCCESS
    except OSError as error:
        if error.filename is None and os.environ.get(TRACEBACK_VARIABLE):
            raise
        # A file or folder that a command was given or needs: too long, no permission, no space.
        named = "" if error.filename is None else f" {str(error.filename)[:PATH_LENGTH_MAX]!r}"
        print_error(f"isthmus: cannot use{named}: {error.strerror or error}")
        print_error("Check the path, its permissions and the space on its disk.")
        return Exit.CONFIGURATION
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        # A person at a terminal cannot use a traceback; a report of the defect needs it.
        print_error(f"isthmus: this is a defect of isthmus: {type(error).__name__}: {error}")
        print_error(f"Set {TRACEBACK_VARIABLE}=1 to see where it happened, and please report it.")
        return Exit.CALL_FAILED


def _check_text(words: Sequence[str]) -> None:
    """Refuse words with bytes that are not UTF-8, which Python keeps as lone surrogates: no file or hub takes them.

    Raises:
        CommandFailed: there is one.
    """
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            shown = word[:PATH_LENGTH_MAX].encode("utf-8", "backslashreplace").decode()
            raise CommandFailed(Exit.USAGE, f"{shown!r} is not valid UTF-8", "Write it in UTF-8, as the terminal does.")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="isthmus %(version)s")
def cli() -> None:
    """One address for all your MCP servers.

    `serve` runs the hub. Other commands use the running hub of their configuration, or start one for themselves;
    `stdio` is always a hub of its own, unless --hub names one. The configuration is --config, ISTHMUS_CONFIG,
    ./isthmus.toml, ./mcp.json, ~/.config/isthmus/isthmus.toml or ~/.isthmus/mcp.json. --hub or ISTHMUS_HUB names a hub
    elsewhere, with the key in ISTHMUS_KEY.

    Exit codes: 0 success, 1 the call failed, 2 usage, 3 configuration, 4 cannot reach the hub, 5 not allowed.
    """


@click.command()
def version() -> int:
    """Print the version."""
    print_output(f"isthmus {__version__}")
    return Exit.SUCCESS
