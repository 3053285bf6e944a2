"""Run the command blocks and programs of a documentation page, in order, as a reader would.

`sh` and `console` blocks are run line by line, `python` blocks as programs, in one folder with a clean home. Comments
before a block say what a reader knows anyway:

    <!-- not run: REASON -->     this block cannot run here
    <!-- file: NAME -->          this block is the content of a file
    <!-- before: COMMAND -->     run this first
    <!-- output -->              this block is what the block before printed
    <!-- exit: CODE -->          the last command ends with this code
    <!-- within: SECONDS -->     it may take so long until it does: the command is repeated
    <!-- python: NAME -->        run this program with the Python of .venv-NAME
    <!-- env: NAME=VALUE -->     set a variable for the rest of the page
    <!-- input: TEXT -->         what the commands read
    <!-- terminal: TEXT -->      the same, typed on a terminal

A `serve` or `dial` stays in the background until the page ends. `…` in a command stands for what an earlier command
printed there, and `ID` for the last id. Shown output is compared without white space; numbers may differ and `…`
matches anything.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from tests.fork_server import quick_isthmus
from tests.hubs import CHECKOUT
from tests.peers.node import find_node

RUN = frozenset({"sh", "console", "python"})
SECONDS = 120.0
DOCUMENTED_PORT = "8765"
DOCUMENTED_FOLDER = "/home/me"
POLL_SECONDS = 0.02

_BLOCK = re.compile(r"((?:^ *<!-- [^\n]*-->\n+)*)^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- ([a-z ]+?)(?:: (.*?))? -->")
_BACKGROUND = re.compile(r"\b(isthmus (serve|dial)|make serve)\b")
_OF_THE_MACHINE = re.compile(
    r"(LANG|LC_ALL|TMPDIR|SSL_\w+|REQUESTS_CA_BUNDLE|NODE_EXTRA_CA_CERTS|(PIP|UV)_\w+|\w+_proxy)$", re.IGNORECASE
)
"""Variables that do not belong to a user: the language, and how this machine reaches the network."""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block and the marks before it."""

    line: int
    language: str
    text: str
    marks: tuple[tuple[str, str], ...]

    def mark(self, name: str) -> str | None:
        """The value of a mark; None if the block does not have it."""
        return next((value for key, value in self.marks if key == name), None)


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        marks, indent, language, body = match.groups()
        line = text.count("\n", 0, match.start(3)) + 1
        body = re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        found.append(Block(line, language, body, tuple(_MARK.findall(marks))))
    return found


def commands_in(block: Block) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, each with the output that is shown below it."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "sh":
        yield from ((line, []) for line in lines if line.strip() and not line.startswith("#"))
        return
    command: str | None = None
    shown: list[str] = []
    for line in [*lines, "$ "]:
        if not line.startswith("$ "):
            shown.append(line)
            continue
        if command is not None:
            yield command, shown
        command, shown = line[2:], []


def unmatched(shown: list[str], said: str) -> list[str]:
    """The documented lines that are not in the output."""
    squeezed = "".join(_ESCAPE.sub("", said).split())
    return [line for line in shown if not re.search(_pattern(line), squeezed)]


def _pattern(line: str) -> str:
    pieces = re.split(r"(…|\d+(?:\.\d+)?)", "".join(line.split()))
    return "".join(
        ".*?" if piece == "…" else r"[\d.]+" if piece[:1].isdigit() else re.escape(piece) for piece in pieces
    )


@dataclass(slots=True)
class Reader:
    """A reader that types the commands of a page, in a folder and a home of its own."""

    folder: Path
    home: Path
    port: int
    python: str = sys.executable
    on_done: Callable[[str, float], None] = lambda command, seconds: None
    """Called with each command and how long it took, or took to be ready."""
    said: str = ""
    """Everything that commands have printed so far."""
    _last: str = ""
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _hub: subprocess.Popen[bytes] | None = None
    _variables: dict[str, str] = field(default_factory=dict)

    def read(self, page: Path) -> None:
        """Do what the page says.

        Raises:
            AssertionError: a command failed, or printed something else than the page shows.
        """
        for block in blocks_of(page):
            place = f"{page.name}:{block.line}"
            if block.mark("not run") is not None:
                continue
            for name, command in block.marks:
                if name == "before":
                    self.type(command, place)
                elif name == "env":
                    variable, _, value = command.partition("=")
                    self._variables[variable] = value
            if (file := block.mark("file")) is not None:
                (self.folder / file).write_text(self._here(block.text), encoding="utf-8")
            elif block.mark("output") is not None:
                self._compare(block.text.splitlines(), place)
            elif block.language == "python":
                self._run_program(block, place)
            elif block.language in RUN:
                commands = list(commands_in(block))
                for number, (command, shown) in enumerate(commands, 1):
                    exit_code = int(block.mark("exit") or 0) if number == len(commands) else 0
                    self.type(command, place, exit_code, block)
                    self._compare(shown, place)

    def type(self, command: str, place: str, exit_code: int = 0, block: Block | None = None) -> None:
        """Run one command line."""
        began = time.monotonic()
        self._type(self._completed(self._here(command)), place, exit_code, block)
        self.on_done(command, time.monotonic() - began)

    def _type(self, command: str, place: str, exit_code: int, block: Block | None) -> None:
        if _BACKGROUND.search(command):
            self._start(command, place)
            return
        typed = block.mark("terminal") if block is not None else None
        given = typed or (block.mark("input") if block is not None else None) or ""
        given = self._completed(self._here(given))
        words, where = ["bash", "-c", command], f"{place}: {command}"
        deadline = time.monotonic() + float((block.mark("within") if block is not None else None) or 0)
        while (code := self._run(words, given, is_typed=typed is not None)) != exit_code:
            if time.monotonic() > deadline:
                self._fail(where, code, exit_code)
            time.sleep(POLL_SECONDS)

    def _here(self, text: str) -> str:
        # Not within a number: the port of this run may end with the documented one.
        text = re.sub(rf"(?<!\d){DOCUMENTED_PORT}(?!\d)", str(self.port), text)
        return text.replace(DOCUMENTED_FOLDER, str(self.folder))

    def _completed(self, command: str) -> str:
        def complete(match: re.Match[str]) -> str:
            found = re.findall(re.escape(match[1]) + r"[\w.%=&-]+", self.said)
            return found[-1] if found else match[0]

        ids = re.findall(r"\b[0-9a-f]{16,18}\b", self.said)
        command = re.sub(r"\bID\b", ids[-1] if ids else "ID", command)
        return re.sub(r"([^\s'\"]+)…", complete, command)

    def _run(self, words: list[str], given: str = "", *, is_typed: bool = False) -> int:
        """Run a program to its end, and return its exit code."""
        writing, reading = pty.openpty() if is_typed else os.pipe()[::-1]
        os.write(writing, f"{given}\n".encode())
        if not is_typed:
            os.close(writing)
        ran = subprocess.run(
            words,
            cwd=self.folder,
            env=self._environment(words),
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        os.close(reading)
        if is_typed:
            os.close(writing)
        self._last = self._here(ran.stdout)
        self.said += self._last
        return ran.returncode

    def _run_program(self, block: Block, place: str) -> None:
        sdk = block.mark("python")
        python = self.python if sdk is None else str(CHECKOUT / f".venv-{sdk}" / "bin" / "python")
        if not Path(python).exists():
            missing = pytest.fail if os.environ.get("CI") else pytest.skip
            missing(f"{place} needs {python}: run `make test` once")
        began = time.monotonic()
        if code := self._run([python, "-c", self._here(block.text)]):
            self._fail(place, code, 0)
        self.on_done(f"the program at {place}", time.monotonic() - began)
        self._compare(re.findall(r"print\(.*\)  # (.*)", block.text), place)

    def _fail(self, place: str, code: int, wanted: int) -> NoReturn:
        pytest.fail(f"{place}\nended with {code}, not {wanted}:\n{self._last}", pytrace=False)

    def _compare(self, shown: list[str], place: str) -> None:
        missing = unmatched([self._here(line) for line in shown if line.strip()], self._last)
        if missing:
            shows = "\n".join(missing)
            pytest.fail(f"{place}\nThe page shows\n{shows}\nbut the output is\n{self._last}", pytrace=False)

    def _start(self, command: str, place: str) -> None:
        command = command.partition("  #")[0]
        is_hub = "isthmus dial" not in command
        if is_hub:
            self._end_hub()
            command = _with_port(command, self.port)
        folder, _, program = command.rpartition("&& ")
        log = self.home / f"background-{len(self._running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"{folder}{'&& ' if folder else ''}exec {program}"],
                cwd=self.folder,
                env=self._environment([command]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._running.append(process)
        if is_hub:
            self._hub = process
        deadline = time.monotonic() + SECONDS
        while not (self._is_ready() if is_hub else _has_offered(log)):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{place}: {command}\ndid not become ready:\n{log.read_text()}", pytrace=False)
            time.sleep(POLL_SECONDS)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _end_hub(self) -> None:
        if self._hub is not None and self._hub.poll() is None:
            self._hub.send_signal(signal.SIGTERM)
            self._hub.wait(SECONDS)
        self._hub = None

    def close(self) -> None:
        """End everything that still runs."""
        for process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._running:
            process.wait(SECONDS)

    def _environment(self, words: list[str]) -> dict[str, str]:
        # Commands for a running hub look for it at the documented port.
        hub = {"ISTHMUS_HUB": f"http://127.0.0.1:{self.port}"} if words[-1].startswith("isthmus relay") else {}
        return {**clean_environment(self.home, self.home / "bin"), **self._variables, **hub}


def _with_port(command: str, port: int) -> str:
    if str(port) in command:
        return command
    if "make serve" not in command:
        return f"{command} --port {port}"
    return (
        command.replace('ARGS="', f'ARGS="--port {port} ') if "ARGS=" in command else f'{command} ARGS="--port {port}"'
    )


def _has_offered(log: Path) -> bool:
    """Whether `isthmus dial` has offered all its servers to the hub."""
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    offered = sum(event["event"] == "server offered" for event in events)
    return bool(events) and offered == len(events[0].get("servers", ()))


def clean_environment(home: Path, *paths: Path) -> dict[str, str]:
    """The variables of a new user of this machine."""
    kept = {name: value for name, value in os.environ.items() if _OF_THE_MACHINE.match(name)}
    path = os.pathsep.join([*map(str, paths), os.environ["PATH"]])
    return {**kept, "HOME": str(home), "PATH": path, "COLUMNS": "160", "TERM": "dumb"}


@contextmanager
def reader(folder: Path, clone: Path | None = None) -> Iterator[Reader]:
    """A reader with the programs that pages use, in a clone of the repository or beside a copy of its examples."""
    home, work = folder / "home", clone or folder / "work"
    (home / "bin").mkdir(parents=True)
    python = sys.executable if clone is None else str(clone / ".venv" / "bin" / "python")
    if clone is None:
        shutil.copytree(CHECKOUT / "examples", work / "examples")
        shutil.copy(CHECKOUT / "README.md", work)
        (work / ".venv").symlink_to(sys.prefix)
        (work / "src").symlink_to(CHECKOUT / "src")
    for environment in CHECKOUT.glob(".venv-*"):
        if not (work / environment.name).exists():
            (work / environment.name).symlink_to(environment)
    for name, line in programs(python).items():
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        program.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    for program in (work / "examples").rglob("*.py"):
        program.write_text(program.read_text().replace(DOCUMENTED_PORT, str(port)))
    person = Reader(work, home, port, python)
    try:
        yield person
    finally:
        person.close()


def programs(python: str) -> dict[str, str]:
    """Programs that pages call by name, as shell words."""
    python, own = shlex.quote(python), shlex.quote(sys.executable)
    found = {"isthmus": f"{python} -m isthmus", "python": python}
    if python == own:
        found |= {"python3": python, "isthmus": shlex.join(quick_isthmus())}
    toys = shlex.quote(str(CHECKOUT / "tests" / "docs" / "toy_server.py"))
    found |= {"files-server": f"{own} {toys} read write delete", "web-server": f"{own} {toys} fetch"}
    if (curl := shutil.which("curl")) is not None:
        found["curl"] = f"{curl} -sS --fail-with-body"
    if (node := find_node()) is not None and python == own:
        # `npx -y PACKAGE …` without the network: the pinned packages are in the checkout.
        found["npx"] = f"{own} {shlex.quote(str(CHECKOUT / 'tests' / 'docs' / 'npx.py'))} {node}"
    return found
