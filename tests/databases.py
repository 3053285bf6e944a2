"""A PostgreSQL server of a test's own: made in a folder, spoken to over a socket in it, killed and started again.

Without a server's programs on this machine such a test is skipped, loudly; in CI it fails.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

SECONDS = 60.0
POLL_SECONDS = 0.02
PASSWORD = "l0ng and w1nding"
HBA = """
local guarded someone scram-sha-256
local all all trust
local replication all trust
"""
SETTINGS = {
    "fsync": "off",  # a killed process loses nothing that the system has; only a lost machine would
    "shared_buffers": "16MB",
    # With `TEST_NODES` each hub is several.
    "max_connections": str(40 * int(os.environ.get("TEST_NODES", "1")) ** 2),
    "autovacuum": "off",
    "max_wal_size": "1GB",  # no checkpoints on the way
}


_EMPTY: list[Path] = []


def programs() -> Path:
    """The folder with a server's programs; without one a test is skipped with the reason, and in CI it fails."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    path = str(found[-1]) if found else shutil.which("initdb")
    if path is not None:
        return Path(path).resolve().parent
    reason = "no PostgreSQL server on this machine; install it: sudo apt-get install postgresql"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Database:
    """A server in a folder; `databases.running` makes it and takes it away."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.settings = dict(SETTINGS)
        """What it is started with."""
        self._programs = programs()
        self._user = "nobody" if os.geteuid() == 0 else None  # the server refuses to run as root
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = count(1)
        self.listens_at = ""
        """Addresses where it also takes connections without a password, each of a network of a test's own."""

    def make(self) -> None:
        """Make an empty database: a copy of this process's first one, because that takes a fifth of the time."""
        if not _EMPTY:
            # With logs of 1 MB instead of 16 there is less to copy.
            words = ("-U", "hub", "-A", "trust", "-E", "UTF8", "--locale=C", "-N", "--wal-segsize=1")
            self._run("initdb", "-D", str(self._data), *words)
            (self._data / "pg_hba.conf").write_text(HBA)
            kept = Path(tempfile.mkdtemp(prefix="pg-empty-", dir="/tmp"))
            atexit.register(shutil.rmtree, kept, ignore_errors=True)
            subprocess.run(["cp", "-a", str(self._data), str(kept)], check=True)
            _EMPTY.append(kept / self._data.name)
        else:
            subprocess.run(["cp", "-a", str(_EMPTY[0]), str(self._data)], check=True)

    @property
    def folder(self) -> Path:
        """The folder of its socket."""
        return self._folder

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def url(self, *, user: str = "hub", schema: str = "", beside: Database | None = None) -> str:
        """An address of it, with a schema that nobody else has unless one is named; or of it and another one."""
        named = schema or f"test_{next(self._schemas)}"
        hosts = f"{self._folder}" if beside is None else f"{self._folder},{beside._folder}"
        return f"postgresql://{user}@/postgres?host={hosts}&schema={named}"

    @property
    def socket(self) -> Path:
        """The Unix socket at which it takes connections."""
        return self._folder / ".s.PGSQL.5432"

    def listen(self, *addresses: str) -> None:
        """Take connections at these addresses, too, once it is started."""
        self.listens_at = ",".join(addresses)
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.writelines(f"host all all {address}/24 trust\n" for address in addresses)

    def start(self) -> None:
        """Start it, and return once it takes connections."""
        words = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        words += ["-c", f"unix_socket_directories={self._folder}", "-c", f"listen_addresses={self.listens_at}"]
        log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(self._data), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            user=self._user,
        )
        log.close()
        give_up = time.monotonic() + SECONDS
        while not self._is_ready():
            if time.monotonic() > give_up or self._process.poll() is not None:
                raise RuntimeError((self._folder / "log").read_text())
            time.sleep(POLL_SECONDS)

    def _is_ready(self) -> bool:
        """Whether the server's file says so, which costs less than to ask the server again and again."""
        assert self._process is not None
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The file of an earlier process stays if that was killed.
        return lines[:1] == [str(self._process.pid)] and lines[7:8] == ["ready   "]

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it, by default as a crash would: without notice or cleanup."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(SECONDS)
            self._process = None

    def processes(self) -> list[int]:
        """The server's process, and those of its connections and its own work."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and to the processes of its connections."""
        for each in self.processes():
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def copy(self, standby: Database, *addresses: str) -> None:
        """Make a standby that follows this server, and wait for it with every commit from now on.

        The standby takes connections at `addresses`, too.
        """
        standby._run(
            "pg_basebackup", "-h", str(self._folder), "-U", "hub", "-D", str(standby._data), "-R", "-c", "fast"
        )
        standby.listen(*addresses)
        standby.start()
        self.psql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.psql("SELECT pg_reload_conf()")
        give_up = time.monotonic() + SECONDS
        while self.psql("SELECT sync_state FROM pg_stat_replication") != "sync":
            assert time.monotonic() < give_up, "the standby does not follow"
            time.sleep(POLL_SECONDS)

    def promote(self) -> None:
        """Let a standby write, which takes over alone."""
        self._run("pg_ctl", "promote", "-D", str(self._data), "-w")
        self.psql("ALTER SYSTEM SET synchronous_standby_names = ''")
        self.psql("SELECT pg_reload_conf()")

    def demote(self) -> None:
        """Start it again as a standby, which reads and does not write; `pg_promote()` ends that."""
        self.stop()
        signal_file = self._data / "standby.signal"
        signal_file.touch()
        if self._user is not None:
            shutil.chown(signal_file, self._user)
        self.start()

    def psql(self, text: str) -> str:
        """What the server answers to a statement."""
        return self._run("psql", "-h", str(self._folder), "-U", "hub", "-d", "postgres", "-qAtc", text).strip()

    def psql_writing(self, text: str) -> None:
        """Run a statement although transactions only read by default."""
        options = "-c default_transaction_read_only=off"
        self._run("psql", "-h", str(self._folder), "-U", "hub", f"dbname=postgres options='{options}'", "-qAtc", text)

    def _run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [str(self._programs / program), *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=self._folder,
            user=self._user,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def placed() -> Iterator[Database]:
    """A place for a server."""
    # Not in pytest's folder: that is for its owner alone, and the path of a socket has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    database = Database(folder)
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        yield database
    finally:
        database.stop()
        shutil.rmtree(folder)


@contextmanager
def made(**settings: str) -> Iterator[Database]:
    """A server that does not run yet, for as long as the block lasts, with other settings than a test needs."""
    with placed() as database:
        database.settings |= settings
        database.make()
        yield database


@contextmanager
def running(**settings: str) -> Iterator[Database]:
    """A running server, for as long as the block lasts; see `made`."""
    with made(**settings) as database:
        database.start()
        yield database


@contextmanager
def replicated() -> Iterator[tuple[Database, Database]]:
    """A running server, and a standby that has everything that the server has acknowledged."""
    with running() as primary, placed() as standby:
        primary.copy(standby)
        yield primary, standby
