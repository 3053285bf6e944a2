"""The `isthmus` command: what it is made of, and how it ends.

The words and options of its commands are in `cli.commands`; what they do is in the other modules of `cli`, which each
loads when it runs. Only click is loaded before that, so that `--help` and a mistyped option answer at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import click

from isthmus import __version__
from isthmus.cli import lean
from isthmus.cli.commands.access import access, approve
from isthmus.cli.commands.audit import audit
from isthmus.cli.commands.call import call, prompt, prompts, read, resources, servers, tools
from isthmus.cli.commands.config import config, doctor, import_
from isthmus.cli.commands.login import credentials, login, logout
from isthmus.cli.commands.relay import relay
from isthmus.cli.commands.serve import dial, serve, stdio
from isthmus.cli.commands.token import token
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import say

COMMANDS: tuple[click.Command, ...] = (
    *(serve, stdio, dial),
    *(tools, call, resources, read, prompts, prompt, servers),
    *(config, import_, doctor, access, approve),
    *(token, login, logout, credentials),
    *(relay, audit),
)


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


@cli.command()
def version() -> int:
    """Print the version."""
    click.echo(f"isthmus {__version__}")
    return Exit.WELL


for command in COMMANDS:
    cli.add_command(command)
