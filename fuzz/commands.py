"""`python -m fuzz.commands [--cases N] [--seed N]`: every command and option of `isthmus` with made-up values.

The commands, their options and arguments are found by introspection, so new ones are tried, too. Each case runs in a
fork of this process, which has loaded everything, in an empty home and folder of its own: no command may end in a
traceback or with an exit code that is not documented. A command that runs on is ended by SIGTERM, as a service is.

Values never name a place outside of the case's own folder, and no address but closed ports of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from isthmus.cli import main as entry

CODES = {0, 1, 2, 3, 4, 5, 128 + signal.SIGTERM}
"""The documented exit codes; the last is that of a command which this program ended."""

DEFECT = 99
"""The exit code of a case that raised."""

RUN_SECONDS = 5.0
"""How long a case may run before it is ended, unless `--run-seconds` says: a service runs on."""

END_SECONDS = 30.0
"""How long it may take to end then, on a busy machine."""

TEXTS = (
    "", " ", "0", "-1", "1", "2.5", "nan", "inf", "1e999", "9" * 30, "x", "é", "\udcff", "\x1b[2J", "a b", "*", "%s",
    "{}", "[1]", "{", "=", "a=", "a=b", "a:=1", "a:={", "a=@none", "@none", "@-", "-", "--", "x" * 5000, "../up",
    "none/none", "isthmus.toml", "mcp.json", "folder", "binary", "broken.toml", "broken.json", "http://",
    "http://127.0.0.1:1",
    "http://127.0.0.1:99999", "http://[::1", "ftp://x", "ws://127.0.0.1:1", "builtin", "builtin.echo", "builtin.*",
    "down", "down.tool", "12h", "0s", "2026-01-01", "default", "bash", "claude-code", "accept", "text=hi", "~",
)  # fmt: skip

FILES = {
    "isthmus.toml": '[hub]\nport = 0\n\n[servers.down]\ncommand = "/no/such/program"\n',
    "mcp.json": json.dumps({"mcpServers": {"down": {"command": "/no/such/program"}}}),
    "broken.toml": "[hub\n",
    "broken.json": "{",
}


WORD_LENGTH_MAX = 60
LINE_LENGTH_MAX = 200
"""How much of a case is shown."""


class Case(NamedTuple):
    """The words of one command."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        words = (word if len(word) < WORD_LENGTH_MAX else f"{word[:WORD_LENGTH_MAX]}…" for word in self.words)
        return shlex.join(("isthmus", *words)).encode("utf-8", "backslashreplace").decode()


class FoundCommand(NamedTuple):
    """A command that introspection found."""

    path: tuple[str, ...]
    options: Sequence[click.Option]
    arguments: int
    """How many positional arguments it needs."""


def found_commands() -> list[FoundCommand]:
    """Every command, also those of groups."""
    return list(_walk(entry.cli, ()))


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterator[FoundCommand]:
    options = [each for each in command.params if isinstance(each, click.Option)]
    needed = sum(max(each.nargs, 1) for each in command.params if isinstance(each, click.Argument))
    yield FoundCommand(path, options, needed)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from _walk(inner, (*path, name))


def systematic_cases(commands: Sequence[FoundCommand], choose: random.Random) -> list[Case]:
    """Each command alone, and with each of its options once, with a value of its own."""
    cases = []
    for command in commands:
        cases.append(Case(command.path))
        cases.extend(_case(command, [option], choose) for option in command.options)
    return cases


def random_case(commands: Sequence[FoundCommand], choose: random.Random) -> Case:
    """Any command with some of its options."""
    command = choose.choice(commands)
    count = min(choose.choice([0, 1, 1, 2, 3]), len(command.options))
    return _case(command, choose.sample(list(command.options), count), choose)


def _case(command: FoundCommand, options: Sequence[click.Option], choose: random.Random) -> Case:
    words = list(command.path)
    for option in options:
        words.append(choose.choice([*option.opts, *option.secondary_opts]))
        if not option.is_flag and not option.count:
            words += [choose.choice(TEXTS) for _ in range(max(option.nargs, 1))]
    words += [choose.choice(TEXTS) for _ in range(max(0, command.arguments + choose.choice([0, 0, 0, 0, 1, -1])))]
    return Case(tuple(words))


# -- running ---------------------------------------------------------------------------------------------------------


def run_case(case: Case, scratch: Path, run_seconds: float = RUN_SECONDS) -> str | None:
    """Run one case; returns what is wrong with how it ended, or None."""
    folder = scratch / "case" / "work"
    shutil.rmtree(folder.parent, ignore_errors=True)
    (folder / "folder").mkdir(parents=True)
    (folder.parent / "home").mkdir()
    (folder / "binary").write_bytes(bytes(range(256)))
    for name, text in FILES.items():
        (folder / name).write_text(text)
    said = scratch / "said"
    child = os.fork()
    if child == 0:
        _run_here(case, folder, said)
    code = _wait(child, run_seconds)
    text = said.read_text(errors="replace")
    if code in CODES and "Traceback (most recent call last)" not in text:
        return None
    shown = "\n".join(line[:LINE_LENGTH_MAX] for line in text.splitlines()[-30:])
    ending = f"it did not end within {END_SECONDS:g} s of SIGTERM" if code is None else f"exit code {code}"
    return f"{ending}\n{shown}"


def _run_here(case: Case, folder: Path, said: Path) -> None:
    """Be the command: never returns."""
    code = DEFECT
    try:
        os.setsid()
        os.chdir(folder)
        for variable in [name for name in os.environ if name.startswith(("ISTHMUS_", "XDG_"))]:
            del os.environ[variable]
        os.environ |= {"HOME": str(folder.parent / "home"), entry.TRACEBACK_VARIABLE: "1", "COLUMNS": "80"}
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - the process is theirs
        code = entry.main(case.words)
    except BaseException:  # noqa: BLE001 - that is what this looks for
        import traceback  # noqa: PLC0415 - rarely needed

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(child: int, run_seconds: float) -> int | None:
    """The exit code; a command that runs on gets SIGTERM. None if that does not end it."""
    began, is_told = time.monotonic(), False
    try:
        while time.monotonic() - began < run_seconds + END_SECONDS:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code  # as a shell shows it
            if not is_told and time.monotonic() - began > run_seconds:
                is_told = True
                os.kill(child, signal.SIGTERM)
            time.sleep(0.005)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # and whatever it started
    os.waitpid(child, 0)
    return None


def main() -> int:
    """Run the cases; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.commands", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="random cases after one for each option")
    parser.add_argument("--seed", type=int, default=None, help="the same number gives the same cases")
    parser.add_argument("--run-seconds", type=float, default=RUN_SECONDS, help="before a case is ended")
    words = parser.parse_args()
    seed = words.seed if words.seed is not None else random.SystemRandom().randrange(1 << 30)
    choose = random.Random(seed)  # noqa: S311 - it makes up values
    commands = found_commands()
    for module in sorted({where.rpartition(".")[0] for where, _ in entry.COMMANDS.values()} | {"local_hub"}):
        importlib.import_module(f"isthmus.cli.{module}")
    cases = systematic_cases(commands, choose)
    cases += [random_case(commands, choose) for _ in range(words.cases)]
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases:
            if (wrong := run_case(case, Path(scratch), words.run_seconds)) is not None:
                failures += 1
                print(f"{case}\n{wrong}\n", flush=True)
    print(f"commands: {len(commands)} commands, {len(cases)} cases, seed {seed}, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
