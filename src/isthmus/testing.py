"""A pytest plugin: tests of agents record the calls of their hub once, and replay them without servers and keys.

Switch it on in the topmost `conftest.py` with `pytest_plugins = ["isthmus.testing"]`. The first run of a test records a
cassette beside the test, later runs replay it, and `pytest --isthmus-record` records it again. See
`docs/cassettes.md`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import pytest

from isthmus.app.cassette import ReplayPlace, open_player, replay_configuration
from isthmus.core.cassette_matching import CassetteError, Player
from isthmus.library.connection import BlockingHub, ConnectedHub, HubConnection
from isthmus.library.errors import ConfigurationError
from isthmus.library.questions import Questions
from isthmus.library.server_config import CONFIG_KEYS, read_plan
from isthmus.transport.process import start_reporting

__all__ = ["CassetteConnection", "Cassettes", "isthmus_cassette", "pytest_addoption"]

OPTION: Final = "--isthmus-record"
FOLDER: Final = "cassettes"
END_SECONDS: Final = 30.0
"""How long a hub may take to end after its test."""

_ADDRESS = re.compile(rb"listening at (http://\S+)")
_NOT_MADE = re.compile(rb"isthmus: (.* were not made.*)")
_ODD = re.compile(r"[^\w.-]+")

Config = Mapping[str, Any] | str | os.PathLike[str]
"""The path of an `mcp.json` or `isthmus.toml`, or a dictionary of servers by name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--isthmus-record`."""
    parser.getgroup("isthmus").addoption(OPTION, action="store_true", help="Record the cassettes of isthmus again.")


@pytest.fixture
def isthmus_cassette(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cassettes:
    """Connects the test to a hub that records or replays; see `Cassettes`."""
    name = _ODD.sub("-", f"{request.path.stem}.{request.node.name}").strip("-")
    folder = request.path.parent / FOLDER
    temporary = tmp_path_factory.mktemp("isthmus")
    return Cassettes(folder, name, temporary, is_recording=bool(request.config.getoption(OPTION)))


@dataclass(slots=True)
class Cassettes:
    """The cassettes of one test: calling it opens a hub as `isthmus.connect` does, `serve` one with an address."""

    folder: Path
    """Where the cassettes are: `cassettes` beside the test's file."""
    name: str
    temporary: Path
    is_recording: bool
    """Whether existing cassettes are recorded again."""
    _used: int = 0

    def __call__(
        self,
        config: Config,
        *,
        match: Literal["strict", "lenient"] = "strict",
        timeout: float | None = None,
        questions: Questions | None = None,
    ) -> CassetteConnection:
        """A hub in this process, for `with` and `async with`.

        Without a cassette, the servers of `config` are started and the calls recorded; a failing test leaves none. With
        one, nothing is started. `match` is that of `isthmus replay`; if it is strict, every recorded call must be made.

        Args:
            config: the path of a configuration, or a dictionary of servers by name.
            match: `strict`: the same calls in the same order. `lenient`: any order, as often as wanted.
            timeout: seconds for each call.
            questions: handlers for requests from servers.

        Raises:
            ConfigurationError: the cassette is damaged, or cannot be written.
        """
        file, records = self._next()
        if not records:
            player = _open(file, match)
            configuration = replay_configuration(player, ReplayPlace(str(self.temporary)))
            return CassetteConnection(configuration, player, timeout, questions)
        is_bare = isinstance(config, Mapping) and bool(config) and CONFIG_KEYS.isdisjoint(config)
        plan = read_plan({"mcpServers": config} if is_bare else config, None, None)
        hub = replace(plan.configuration.hub, cassette=str(file), cassette_timing=False)
        return CassetteConnection(replace(plan.configuration, hub=hub), None, timeout, questions)

    @contextmanager
    def serve(self, config: Config, *, match: Literal["strict", "lenient"] = "strict") -> Iterator[str]:
        """A hub of its own process, for agents that connect to an address; yields the address of MCP.

        Raises as calling does, and `AssertionError` if the hub cannot start.
        """
        file, records = self._next()
        draft = self.temporary / file.name
        if records:
            if isinstance(config, Mapping):
                servers = config if not CONFIG_KEYS.isdisjoint(config) else {"mcpServers": config}
                path = self.temporary / f"mcp-{self._used}.json"
                path.write_text(json.dumps(servers), encoding="utf-8")
            else:
                path = Path(config).absolute()
            words = ["record", str(draft), "--no-timing", "--config", str(path)]
        else:
            _open(file, match)
            words = ["replay", str(file), "--match", match]
        with _hub([*words, "--port", "0", "--quiet"]) as url:
            yield url
        if records:  # only here: a failing test leaves no cassette
            shutil.move(draft, file)

    def _next(self) -> tuple[Path, bool]:
        """The next cassette of the test, and whether it is to be recorded."""
        self._used += 1
        number = "" if self._used == 1 else f"-{self._used}"
        file = self.folder / f"{self.name}{number}.jsonl"
        records = self.is_recording or not file.exists()
        if records:
            self.folder.mkdir(parents=True, exist_ok=True)
        return file, records


class CassetteConnection:
    """Opens a hub that records or replays, for `async with` (a `ConnectedHub`) or `with` (a `BlockingHub`)."""

    def __init__(
        self, configuration: Any, player: Player | None, timeout: float | None, questions: Questions | None
    ) -> None:
        self._player = player
        self._connection = HubConnection(configuration, key=None, timeout=timeout, questions=questions)
        self._hub: ConnectedHub | BlockingHub | None = None

    async def __aenter__(self) -> ConnectedHub:
        self._hub = hub = await self._connection.__aenter__()
        return hub

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._judge(has_failed=error is not None)
        await self._connection.__aexit__(kind, error, trace)
        self._check(has_failed=error is not None)

    def __enter__(self) -> BlockingHub:
        self._hub = hub = self._connection.__enter__()
        return hub

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._judge(has_failed=error is not None)
        self._connection.__exit__(kind, error, trace)
        self._check(has_failed=error is not None)

    def _judge(self, *, has_failed: bool) -> None:
        """Discard the recording of a failed test."""
        engine = self._connection._service._engine
        if engine is not None and engine.running.cassette is not None:
            engine.running.cassette.is_discarded = has_failed
            engine.running.cassette.may_be_empty = True  # a test may look at the lists only

    def _check(self, *, has_failed: bool) -> None:
        """Fail if a strict cassette has calls that were not made."""
        if has_failed or self._player is None or self._player.match != "strict":
            return
        if left := self._player.unplayed():
            raise AssertionError(
                f"{len(left)} of {len(self._player.cassette.calls)} recorded calls were not made; the first is"
                f" {left[0].title} in line {left[0].line} of the cassette. If that is right, run pytest {OPTION}"
            )


def _open(file: Path, match: Literal["strict", "lenient"]) -> Player:
    try:
        return open_player(file, match)
    except CassetteError as error:
        raise ConfigurationError(f"{file} is not a whole cassette: {error}; run pytest {OPTION}") from error


@contextmanager
def _hub(words: list[str]) -> Iterator[str]:
    """Run `isthmus` with these words during the block; yields its address."""
    child = start_reporting([sys.executable, "-m", "isthmus", *words])
    assert child.stderr is not None
    said: list[bytes] = []
    # A hub whose output nobody reads would stop one day.
    reader = threading.Thread(target=said.extend, args=(child.stderr,), daemon=True)
    try:
        found = None
        while found is None and (line := child.stderr.readline()):
            said.append(line)
            found = _ADDRESS.search(line)
        if found is None:
            raise AssertionError(f"the hub did not start:\n{b''.join(said).decode('utf-8', 'replace')}")
        reader.start()
        yield found[1].decode()
    finally:
        child.terminate()
        child.wait(END_SECONDS)
        if reader.is_alive():
            reader.join(END_SECONDS)
        child.stderr.close()
    rest = b"".join(said)
    if child.returncode:
        raise AssertionError(f"the hub ended with {child.returncode}:\n{rest.decode('utf-8', 'replace')}")
    if (left := _NOT_MADE.search(rest)) is not None:
        raise AssertionError(f"{left[1].decode()}. If that is right, run pytest {OPTION}")
