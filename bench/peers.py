"""`make bench-peers`: the hub beside other gateways that come from package registries, in one run.

bench/peers.toml says how each is installed, started and called. All of them stand before the same echo server, and
take turns in short rounds with a direct call and the bare relay: figures are medians over the rounds, ratios are taken
within a round. CPU and memory are those of the process in the middle and of all that it starts. Files go to
build/peers. Ends with 2 when the hub itself could not be measured.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from time import monotonic, sleep
from typing import Literal

import msgspec

from bench.__main__ import ASKS_EACH, WARM_UP_SECONDS, NotMeasured, Round, take_turn
from bench.growth import GROWTH, figures_of
from bench.load import WrongAnswer, complaint_about_event
from bench.messages import VERSIONS, Ask, Era, asks, call_body, call_headers
from bench.peers_report import (
    About,
    Measured,
    Part,
    Record,
    changes,
    charts,
    merged,
    quickest,
    tables,
    with_figures,
)
from bench.processes import PORT_PRINTED, Family, NotStarted, Program, machine
from bench.stage import Scenario, Target, open_session, post, wait_until_served

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_name("peers.toml")
PUBLISHED = Path(__file__).with_name("peers_history.jsonl")
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images" / "peers"
FOLDER = ROOT / "build" / "peers"

START_SECONDS = 90.0
"""Time until a program serves its first call; one of them needs 25 s on two cores."""

INSTALL_SECONDS = 900.0
"""Time for one install; a program in Rust is built for minutes."""

SETTLE_SECONDS = 15.0
"""After a failure, time for the program to work off what it was sent, so that others are measured alone."""

ASKED_BYTES = 16 * 1024 * 1024
"""Of prepared calls, for each program: with long texts there are fewer."""

GROWING = 3
"""So many of the quickest programs are measured in the parts about growth, beside the hub."""

KIB = 1024
PARTS: Mapping[str, Sequence[tuple[int, int]]] = {
    "calls": [(16, 0)],
    "payloads": [(16, 64 * KIB), (16, KIB * KIB)],
    "connections": [(1, 0), (16, 0), (64, 0), (256, 0)],
    # The hub's default limit of a request is 4 MiB, with its escapes and envelope.
    "sizes": [(16, kib * KIB) for kib in (1, 16, 64, 256, 1024, 3584)],
}
"""The parts of a run: connections, and bytes of text."""

ALL_PARTS = (*PARTS, *GROWTH)

Registry = Literal["pypi", "npm", "go", "crates", "checkout"]


class NotInstalled(Exception):
    """A program that its registry or this machine does not give."""


class Registration(msgspec.Struct, frozen=True):
    """What a program is told over HTTP after its start."""

    path: str
    body: str


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of bench/peers.toml."""

    title: str
    registry: Registry
    program: str
    arguments: Sequence[str]
    package: str = ""
    version: str = ""
    path: str = "/mcp"
    tool: str = "echo"
    eras: Sequence[Era] = ("legacy",)
    headers: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    registration: Registration | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the tables: a program that runs, and how it is called."""

    name: str
    program: Program
    port: int
    tool: str = "echo"
    era: Era = "modern"
    path: str = "/mcp"
    headers: Mapping[str, str] = field(default_factory=dict)


def read_peers(text: str) -> dict[str, Peer]:
    """Return the rows of the table by name."""
    return msgspec.toml.decode(text, type=dict[str, Peer])


def install_commands(peer: Peer, folder: Path) -> list[list[str]]:
    """Return what installs a program into a folder."""
    place = str(folder)
    match peer.registry:
        case "pypi":
            pip = [
                f"{place}/bin/python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-input",
            ]
            return [[sys.executable, "-m", "venv", place], [*pip, f"{peer.package}=={peer.version}"]]
        case "npm":
            npm = ["npm", "install", "--prefix", place, "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
            return [[*npm, f"{peer.package}@{peer.version}"]]
        case "go":
            # In a module of its own: `go install` would ask for all versions too, which not every proxy lists.
            get = ["go", "get", f"{peer.package}@{peer.version}"]
            return [["go", "mod", "init", "peer"], get, ["go", "build", "-o", "bin/", peer.package]]
        case "crates":
            cargo = ["cargo", "install", "--quiet", "--locked", "--root", place]
            return [[*cargo, "--version", peer.version, peer.package]]
        case "checkout":
            return []


def install(name: str, peer: Peer) -> Path:
    """Return the folder of a program, which is installed if it is not there yet.

    Raises:
        NotInstalled: a tool is missing or the registry refuses; the whole answer is in a log beside the folder.
    """
    folder = FOLDER / "installed" / f"{name}-{peer.version or 'checkout'}"
    stamp = folder / ".ready"
    if peer.registry == "checkout" or stamp.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = folder.with_name(f"{folder.name}.log")
    print(f"installing {peer.title} {peer.version} …", file=sys.stderr)
    for command in install_commands(peer, folder):
        if shutil.which(command[0]) is None:
            raise NotInstalled(f"there is no {command[0]} on this machine")
        with log.open("ab") as output:
            try:
                subprocess.run(
                    command,
                    check=True,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=INSTALL_SECONDS,
                )
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"bench: {peer.title}: see {log.relative_to(ROOT)}", file=sys.stderr)
                raise NotInstalled(f"`{Path(command[0]).name}` could not install {peer.package}") from error
    stamp.touch()
    return folder


def start(held: ExitStack, name: str, peer: Peer, server: str) -> list[Subject]:
    """Start a program before the server and return its rows, which may not be served yet."""
    keys = keys_of(name, peer)
    home = Path(held.enter_context(tempfile.TemporaryDirectory(prefix=f"bench-{name}-")))
    port = free_port()
    words = {"server": server, "port": str(port), "folder": str(home), "python": sys.executable, "checkout": str(ROOT)}
    for file, text in peer.files.items():
        (home / file).write_text(Template(text).substitute(words))
    command = [str(install(name, peer) / Template(peer.program).substitute(words))]
    command += [Template(argument).substitute(words) for argument in peer.arguments]
    env = {"HOME": str(home)} | {key: Template(text).substitute(words) for key, text in peer.environment.items()}
    program = held.enter_context(Family(name, env=env, command=command, cwd=home))
    return [
        Subject(key, program, port, peer.tool, era, peer.path, peer.headers)
        for key, era in zip(keys, peer.eras, strict=True)
    ]


def keys_of(name: str, peer: Peer) -> list[str]:
    """Return the names of a program's rows, one for each era of its callers."""
    return [name if era == peer.eras[0] else f"{name}, {era}" for era in peer.eras]


def free_port() -> int:
    """Return a port that was free just now; programs here cannot say which one they took."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until_ready(subject: Subject, registration: Registration | None, server: str) -> None:
    """Register the server where that is needed, and call until the answer is right.

    Raises:
        NotStarted: it was not, in time.
    """
    give_up = monotonic() + START_SECONDS
    while True:
        try:
            if registration is not None:
                body = Template(registration.body).substitute(server=server).encode()
                reply, answer = post(subject.port, body, {"Content-Type": "application/json"}, registration.path)
                if reply.status >= 400:
                    raise NotStarted(f"{subject.name} answered its registration with {reply.status} {answer[:300]!r}")
            headers = call_headers(subject.tool, subject.era, session_of(subject))
            ask = Ask(call_body(1, subject.tool, "ready?", subject.era), 1, "ready?")
            row = scenario_of(subject)
            wait_until_served(row, subject.program, subject.port, ask, subject.path, headers, complaint_about_event)
            return
        except OSError as error:  # it does not listen yet
            if monotonic() > give_up or not subject.program.is_running():
                raise NotStarted(f"{subject.name}: {error}\n{subject.program.output()[-2000:]}") from error
            sleep(0.1)


def scenario_of(subject: Subject) -> Scenario:
    """Return the row as `bench.stage` knows it."""
    return Scenario(subject.name, subject.name, subject.tool, subject.era)


def session_of(subject: Subject) -> dict[str, str]:
    """Return the headers of one caller; each caller of the earlier era has a session of its own, as clients do."""
    session = open_session(subject.port, subject.headers, subject.path) if subject.era == "legacy" else {}
    return {**subject.headers, **session}


def prepare(subject: Subject, connections: int, text_bytes: int) -> Target:
    """Return the row ready to be driven."""
    count = max(2, min(ASKS_EACH, ASKED_BYTES // connections // max(1, text_bytes)))
    asks_of = [
        asks(
            subject.path,
            subject.tool,
            subject.era,
            session_of(subject),
            first_id=1 + number * count,
            count=count,
            text_bytes=text_bytes,
        )
        for number in range(connections)
    ]
    return Target(scenario_of(subject), subject.program, subject.port, asks_of, complaint_about_event)


def measure(subjects: Sequence[Subject], connections: int, text_bytes: int, rounds: int, seconds: float) -> Measured:
    """Let the rows take turns at one setting; a row that fails is left out of the rounds after that."""
    failed: dict[str, str] = {}
    targets: dict[str, Target] = {}
    taken: dict[str, list[Round]] = {}
    for number in range(-1, rounds):
        for subject in subjects:
            if subject.name in failed:
                continue
            try:
                if subject.name not in targets:
                    targets[subject.name] = prepare(subject, connections, text_bytes)
                target = targets[subject.name]
                turn = take_turn(target, seconds if number >= 0 else min(seconds, WARM_UP_SECONDS))
            except (WrongAnswer, NotMeasured, OSError) as error:
                print(f"bench: {subject.name}: {error}", file=sys.stderr)
                failed[subject.name] = reason(str(error))
                taken.pop(subject.name, None)
                settle(subject.program)
                continue
            if number >= 0:
                taken.setdefault(subject.name, []).append(turn)
    figures = figures_of(taken, {subject.name: subject.program for subject in subjects})
    return Measured(connections, text_bytes, figures, failed)


def reason(text: str) -> str:
    """Return the start of a complaint, as a cell of a table can show it."""
    return " ".join(text.replace("|", "/").replace("`", "'").split())[:100]


def settle(program: Program) -> None:
    """Wait until a program is idle again."""
    give_up = monotonic() + SETTLE_SECONDS
    while program.is_running() and monotonic() < give_up:
        before = program.cpu_seconds()
        sleep(0.5)
        if program.cpu_seconds() - before < 0.05:
            return


def about_of(peers: Mapping[str, Peer]) -> dict[str, About]:
    """Return how each row is shown, in the order of the tables."""
    rows = {"direct": About("direct call", "", "", "yardstick"), "relay": About("bare relay", "", "", "yardstick")}
    for name, peer in peers.items():
        kind: Literal["own", "other"] = "own" if peer.registry == "checkout" else "other"
        for key, era in zip(keys_of(name, peer), peer.eras, strict=True):
            rows[key] = About(peer.title, peer.version, VERSIONS[era], kind)
    return rows


def set_stage(held: ExitStack, peers: Mapping[str, Peer]) -> tuple[list[Subject], dict[str, str]]:
    """Start everything; return the rows that are served, and why others are not."""
    direct = held.enter_context(Program("bench.direct"))
    port = direct.port(PORT_PRINTED)
    relay = held.enter_context(Program("bench.relay", str(port)))
    subjects = [Subject("direct", direct, port), Subject("relay", relay, relay.port(PORT_PRINTED))]
    server = f"http://127.0.0.1:{port}/mcp"
    absent: dict[str, str] = {}
    started: dict[str, list[Subject]] = {}
    for name, peer in peers.items():
        try:
            started[name] = start(held, name, peer, server)
        except (NotInstalled, OSError) as error:
            absent[peer.title] = reason(str(error))
    for name, rows in started.items():
        try:
            for number, row in enumerate(rows):
                wait_until_ready(row, None if number else peers[name].registration, server)
            subjects += rows
        except NotStarted as error:
            print(f"bench: {error}", file=sys.stderr)
            absent[peers[name].title] = "it did not serve a first call"
            rows[0].program.end()
    return subjects, absent


def run(peers: Mapping[str, Peer], parts: Sequence[str], rounds: int, seconds: float, before: Record | None) -> Record:
    """Measure the parts, and return what they gave; `before` says which programs were the quickest so far."""
    rows = about_of(peers)
    done: dict[str, Part] = {}
    for name in [part for part in parts if part in GROWTH]:
        print(name, file=sys.stderr)
        done[name] = part_of(GROWTH[name](rounds, seconds), rounds, seconds)
    parts = [part for part in parts if part in PARTS]
    if not parts:
        return Record(machine(), rows, done)
    if not {"calls", "payloads"} & set(parts):
        growing = growing_of(before, rows)
        peers = {name: peer for name, peer in peers.items() if growing & set(keys_of(name, peer))}
    with ExitStack() as held:
        subjects, absent = set_stage(held, peers)
        for name in parts:
            chosen = subjects
            if name == "payloads":  # its own rows without the audit log are left out, for time
                chosen = [each for each in subjects if not each.name.startswith("unaudited")]
            elif name != "calls":
                growing = growing_of(Record(machine(), rows, done) if "calls" in done else before, rows)
                chosen = [each for each in subjects if each.name in growing]
            settings: list[Measured] = []
            for connections, text_bytes in PARTS[name]:
                print(f"{name}: {connections} connections, {text_bytes} bytes, {len(chosen)} rows", file=sys.stderr)
                settings.append(measure(chosen, connections, text_bytes, rounds, seconds))
            done[name] = part_of(settings, rounds, seconds)
    return Record(machine(), rows, done, absent)


def part_of(settings: Sequence[Measured], rounds: int, seconds: float) -> Part:
    """Return one part, measured today in this revision."""
    return Part(datetime.now(UTC).date().isoformat(), commit(), rounds, seconds, settings)


def growing_of(known: Record | None, rows: Mapping[str, About]) -> set[str]:
    """Return the rows that are measured at many settings; as long as nobody knows the quickest, all of them."""
    others = [name for name in quickest(known, len(rows)) if name in rows][:GROWING]
    return {"direct", "relay", "hub", "hub, legacy", *others} if others else set(rows)


def commit() -> str:
    """Return the revision that changed the hub last, with a plus if its files have changed since."""
    git = ["git", "-C", str(ROOT)]
    try:
        last = subprocess.check_output([*git, "log", "-1", "--format=%h", "--", "src"], text=True)
        changed = subprocess.check_output([*git, "status", "--porcelain", "--", "src"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return last.strip() + ("+" if changed.strip() else "")


def read_history(file: Path) -> list[Record]:
    """Return the records of a file, oldest first; without the file there are none."""
    if not file.exists():
        return []
    return [msgspec.json.decode(line, type=Record) for line in file.read_bytes().splitlines() if line.strip()]


def write(record: Record, folder: Path) -> None:
    """Write tables, JSON and charts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(tables(record))
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
    for name, text in charts(record).items():
        (folder / name).write_text(text)


def publish(record: Record) -> None:
    """Put the figures into the documentation, and into the committed history."""
    PAGE.write_text(with_figures(PAGE.read_text(), tables(record)))
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, text in charts(record).items():
        (IMAGES / name).write_text(text)
    with PUBLISHED.open("ab") as history:
        history.write(msgspec.json.encode(record) + b"\n")


def main() -> int:
    """Install, measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--peers", metavar="A,B", help="programs to measure beside the hub (default: all)")
    parser.add_argument(
        "--parts", metavar="A,B", default=",".join(ALL_PARTS), help=f"of {', '.join(ALL_PARTS)} (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each row (default 3)")
    parser.add_argument("--seconds", type=float, default=1.2, help="length of a turn (default 1.2)")
    parser.add_argument("--install", action="store_true", help="install what is missing, and measure nothing")
    parser.add_argument("--publish", action="store_true", help="put the newest figures into docs; measure nothing")
    options = parser.parse_args()
    peers = read_peers(TABLE.read_text())
    parts = [part for part in options.parts.split(",") if part]
    asked = options.peers.split(",") if options.peers else list(peers)
    if unknown := [name for name in [*asked, *parts] if name not in {*peers, *ALL_PARTS}]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join([*peers, *ALL_PARTS])}")
    peers = {name: peer for name, peer in peers.items() if peer.registry == "checkout" or name in asked}
    history = FOLDER / "history.jsonl"
    if options.publish:
        record = merged(read_history(history))
        if record is None:
            parser.error("nothing has been measured yet")
        publish(record)
        return 0
    if options.install:
        for name, peer in peers.items():
            try:
                install(name, peer)
            except NotInstalled as error:
                print(f"bench: {error}", file=sys.stderr)
        return 0
    record = run(peers, parts, options.rounds, options.seconds, merged(read_history(history)))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with history.open("ab") as runs:
        runs.write(msgspec.json.encode(record) + b"\n")
    newest = merged(read_history(history)) or record
    write(newest, FOLDER)
    print(tables(record))
    for sentence in changes(record, merged(read_history(PUBLISHED))):
        print(sentence)
    print(f"bench: tables, JSON and charts are in {FOLDER.relative_to(ROOT)}", file=sys.stderr)
    is_whole = all("hub" in each.figures for part in record.parts.values() for each in part.settings)
    return 0 if is_whole else 2


if __name__ == "__main__":
    sys.exit(main())
