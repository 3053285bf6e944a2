"""Fixtures for tests over real processes and sockets: ledgers, peers, and that nothing is left behind.

Unit tests need none of them. Peers are killed by their pid (or the group they lead), never by name.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import pwd
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import pytest
import structlog
from hypothesis import HealthCheck, settings
from structlog.dev import ConsoleRenderer, plain_traceback

from isthmus.cli.main import WithoutRich
from tests import fork_server
from tests.choices import IS_FULL
from tests.faults.oracle import read_ledger
from tests.hubs import NODES
from tests.peers import forking
from tests.peers.launch import HttpPeer, http_peer

# How long one example takes says more about the machine than about what is tested. Where twenty examples do not reach
# the rare case, a test names it or has its own number; `make fuzz` looks for what nobody thought of.
settings.register_profile(
    "unhurried",
    settings.default,
    deadline=None,
    max_examples=50 if IS_FULL else 20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")

# Where nothing is configured, structlog shows a traceback with the values of every frame. That takes half a second for
# some of the errors that tests provoke.
for processor in structlog.get_config()["processors"]:
    if isinstance(processor, ConsoleRenderer):
        processor.exception_formatter = plain_traceback

# Tests that are started in the background ignore it, and so does every process that they interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Containers often set it, and then each of the suite's many hubs compiles its whole source again: half of its start.
# So does who runs the tests without workers, with every module of theirs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What tests start finds the hub's folders below this HOME, or below one of the test's own; not those of the user that
# runs the tests, as `users_folders_stay` checks.
for _folder in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
    os.environ.pop(_folder, None)
os.environ["HOME"] = tempfile.mkdtemp(prefix="isthmus-home-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

# With it gRPC, which some tests load, makes itself new descriptors whenever a later test forks.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

UNIT = Path(__file__).parent / "unit"
FAULTS = Path(__file__).parent / "faults"
POLL_SECONDS = 0.01
"""How often a file or process that cannot notify us is looked at."""
LEFTOVER_SECONDS = 20.0
"""How long processes and descriptors of a finished test may take to go."""


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """A command in the tests' own process changes it for good, for every later test.

    It says less from then on, loads other things, and its collector looks seldom.
    """
    looks = gc.get_threshold()
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
    if gc.get_threshold() != looks:
        gc.set_threshold(*looks)
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, WithoutRich)]


@pytest.fixture(scope="session", autouse=True)
def users_folders_stay() -> Iterator[None]:
    """Fail a run whose hubs or commands leave something in the folders of the user that runs it."""
    before = _in_users_folders()
    yield
    left = _in_users_folders() - before
    assert not left, f"tests wrote into the home of the user that runs them: {sorted(map(str, left))}"


def _in_users_folders() -> set[Path]:
    """What the user's folders of Isthmus have, those of other hubs included."""
    with suppress(KeyError):  # a user without a name has no home
        # As `Path.home` finds it in a process without HOME.
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        patterns = (".config/isthmus/*", ".local/state/isthmus/*", ".local/state/isthmus/hubs/*")
        return {path for pattern in patterns for path in home.glob(pattern)}
    return set()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of one process where each hub is a cluster (`TEST_NODES`)."""
    mark = item.get_closest_marker("one_process")
    if mark is not None and NODES > 1:
        pytest.skip(f"it is about one process: {mark.args[0]}")


def pytest_configure(config: pytest.Config) -> None:
    """Have xdist deal the tests out in the order in which they are collected, and ignore a false warning."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    # `pytest_collection` freezes objects, so hypothesis does not see what refers to its own generator. Not in
    # pyproject.toml: the environments of frameworks have no hypothesis.
    line = "ignore:It looks like `register_random` was passed:hypothesis.errors.HypothesisWarning"
    config.addinivalue_line("filterwarnings", line)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make soak` runs, and tell xdist which tests stay together.

    xdist 3.8 writes that where pytest 9.2 no longer reads it.

    Each worker would otherwise start every server of the matrix for itself, and every hub that a module's tests share.
    Unit tests come last: they are short, so all workers end at the same time. Tests of faults wait most of their time,
    so they are spread among the first of those, which do not.
    """
    if not os.environ.get("ISTHMUS_SOAK"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak")])
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    if not config.getoption("loadgroup", default=False):
        return
    groups: Counter[str] = Counter()
    for item in items:
        group = "_".join(sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")}))
        # Quick ones are dealt out by the module too: xdist looks through all that it dealt before it deals again, which
        # took it twelve seconds of the whole suite.
        if not group and (_is_sharing(item) or UNIT in item.path.parents):
            group = f"{item.path.parent.name}.{item.path.stem}"
        if group and not item.nodeid.endswith(f"@{group}"):
            item._id = item.id.parse(f"{item.nodeid}@{group}")
        groups[item.nodeid.rpartition("@")[2]] += 1
    items.sort(key=lambda item: (UNIT in item.path.parents, -groups[item.nodeid.rpartition("@")[2]]))
    waiting = [item for item in items if FAULTS in item.path.parents]
    others = [item for item in items if FAULTS not in item.path.parents]
    first = next((at for at, item in enumerate(others) if UNIT in item.path.parents), len(others))
    items[:] = [*others[:first], *_spread(waiting, others[first:])]


def _spread(waiting: list[pytest.Item], quick: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Put a test that waits after every so many quick ones, until two thirds of these are dealt."""
    each = max(1, len(quick) * 2 // 3 // max(1, len(waiting)))
    left = iter(waiting)
    for at, item in enumerate(quick, 1):
        yield item
        if at % each == 0:
            yield from islice(left, 1)
    yield from left


def _is_sharing(item: pytest.Item) -> bool:
    """Whether a test uses something that others of its module use too; pytest-asyncio's own names begin with `_`."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(found[-1].scope == "module" for name, found in known.items() if not name.startswith("_"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and keep the tests themselves out of its sight from then on.

    It finds nothing among the thousands: looking takes a third of their collection, and an eighth of the unit tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the server that forks hubs ready by the time that they are wanted, and among no test's leftovers."""
    if not session.config.option.collectonly and any(UNIT not in item.path.parents for item in session.items):
        fork_server.start()


@dataclass(frozen=True, slots=True)
class Ledger:
    """A file that servers write to, unique to one test. Give its path by `--ledger` or as LEDGER in `env`."""

    path: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment that names it to the official servers."""
        return {"LEDGER": str(self.path)}

    def lines(self) -> list[str]:
        """Everything noted so far."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    def ran(self) -> dict[str, int]:
        """How often each nonce ran, by a raw server's ledger."""
        return dict(read_ledger(self.path))

    async def wait_for(self, line: str, within: float = 20.0) -> None:
        """Wait until a line is there; servers of other processes have no other way to tell.

        Raises:
            TimeoutError: It did not come in time.
        """
        async with asyncio.timeout(within):
            while line not in self.lines():  # noqa: ASYNC110 (another process writes it, and cannot wake us)
                await asyncio.sleep(POLL_SECONDS)


class Spawn(Protocol):
    """Starts a peer over HTTP that lives until the end of the test."""

    async def __call__(self, peer: str, *options: str, env: dict[str, str] | None = None) -> HttpPeer: ...


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    async with AsyncExitStack() as stack:

        async def start(peer: str, *options: str, env: dict[str, str] | None = None) -> HttpPeer:
            return await stack.enter_async_context(http_peer(peer, *options, env=env))

        yield start


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port on which nobody listens, and nobody can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fail a test that leaves processes, zombies too, or descriptors; ask for it before other fixtures."""
    known = _started()
    before = descriptors()
    yield
    left = _settle(known)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"processes were left behind: {left}"
    extra = _closed(before)
    assert not extra, f"descriptors were left open: {_named(extra)}"


def _settle(known: set[int]) -> dict[int, str]:
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while (left := {pid: state(pid) for pid in _started() - known}) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return left


def _started() -> set[int]:
    """The processes that the tests of this process started, the hubs that were forked for them included."""
    servers = {fork_server.start(), *forking.servers()}
    return (children() - forking.servers()).union(*map(children, servers))


def _closed(before: set[int]) -> set[int]:
    """The descriptors that are open since; a thread that ends, or what awaits the collector, may still have some."""
    before = before | forking.pipes  # the test may be the first that has a peer forked
    if not descriptors() - before:
        return set()  # to collect takes a third of a second beside all that the tests have loaded
    gc.collect()
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while (extra := descriptors() - before) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return extra


def _named(numbers: set[int]) -> dict[int, str]:
    """Descriptors with what they are of."""
    named = {}
    for number in sorted(numbers):
        with suppress(OSError):
            named[number] = os.readlink(f"/proc/self/fd/{number}")
    return named


def children(of: int | None = None) -> set[int]:
    """The pids of a process's children, dead ones that nobody has waited for included."""
    found: set[int] = set()
    with suppress(OSError):  # the process itself may go while it is looked at
        for tasks in Path(f"/proc/{of or os.getpid()}/task").glob("*/children"):
            with suppress(OSError):
                found |= {int(pid) for pid in tasks.read_text().split()}
    return found


def state(pid: int) -> str:
    """A process's state letter and name, such as `Z (python)`; `gone` if there is none."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return "gone"
    return f"{rest.split()[0]} ({name})"


def zombies(of: int) -> set[int]:
    """Those children of a process that are dead and not waited for."""
    return {pid for pid in children(of) if state(pid).startswith("Z")}


def descriptors() -> set[int]:
    """The descriptors that this process has open."""
    listed = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            entry.readlink()
            listed.add(int(entry.name))
    return listed
