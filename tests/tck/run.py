"""Run a compatibility kit of A2A against the hub, with the server that the kits expect behind it.

`python -m tests.tck.run --kit FOLDER [--python PYTHON] [--generation 1.0|0.3] [--grpc]`: the folder is a clone of the
official a2a-tck (branch `1.0-dev` or `0.3.x`), the interpreter one that has what the kit needs. Ends with 1 when a test
fails that is no known gap (`gaps.toml`) or a known gap is none any more, and with 2 when the kit could not be run.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.hubs import CARD_LEADS_HERE, serving, stdio
from tests.tck.server import Others, command

GAPS_FILE = Path(__file__).resolve().parent / "gaps.toml"
LIMITS = {"listing_seconds": 30.0, "max_calls": 1000, "call_seconds": 60.0}
OTHERS: dict[str, Others] = {"1.0": "complete", "0.3": "ask"}
"""What becomes of messages that name no scenario: the kit for 0.3 continues and cancels the tasks that they begin."""
RELAY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Counts:
    """How a kit came out."""

    passed: int
    skipped: int
    failed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Gap:
    """Tests that are known to fail, and why."""

    why: str
    kits: tuple[str, ...]
    tests: tuple[str, ...]

    def is_of(self, kit: str) -> bool:
        """Whether it is one of this kit, which is a generation, with gRPC or without."""
        return any(kit.startswith(each) for each in self.kits)

    def covers(self, kit: str, test: str) -> bool:
        """Whether this failure is known."""
        return self.is_of(kit) and any(fnmatchcase(test, pattern) for pattern in self.tests)


def read_gaps() -> list[Gap]:
    """What is known to fail."""
    tables = tomllib.loads(GAPS_FILE.read_text()).values()
    return [Gap(table["why"], tuple(table["kits"]), tuple(table["tests"])) for table in tables]


# -- what the kit's receiver of notifications needs ----------------------------------------------------------------


@asynccontextmanager
async def relay() -> AsyncIterator[int]:
    """Pass on what is pushed to `/relay:PORT/…`; yields where it listens.

    The kit receives at a port that nobody knows before, and the hub sends to private addresses only if they are listed.
    """
    server = await asyncio.start_server(_pass_on, "127.0.0.1", 0, limit=RELAY_BYTES)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):  # the kit may have ended by now
        await _forward(reader, writer)
    writer.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    port, _, path = head.split(b" ")[1].partition(b":")[2].partition(b"/")
    length = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), b":0")
    body = await reader.readexactly(int(length.partition(b":")[2]))
    answer, onward = await asyncio.open_connection("127.0.0.1", int(port))
    onward.write(b"POST /%b HTTP/1.1\r\nconnection: close\r\n" % path + head.partition(b"\r\n")[2] + body)
    writer.write(await answer.readuntil(b"\r\n\r\n"))
    onward.close()


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


# -- the kit -------------------------------------------------------------------------------------------------------


def tables_for(relay_port: int, grpc_port: int | None) -> dict[str, Any]:
    """What the hub is configured with, beside the server."""
    a2a: dict[str, Any] = {"text_tool": "tck.tck"}
    if grpc_port is not None:
        a2a["grpc_port"] = grpc_port
    targets = {"allow": [f"http://localhost:{relay_port}"]}
    return {"limits": LIMITS, "a2a": a2a, "targets": targets, "hub": CARD_LEADS_HERE}


def words_for(generation: str, port: int, relay_port: int, options: argparse.Namespace) -> list[str]:
    """The kit's own arguments."""
    if generation == "1.0":
        transports = "jsonrpc,http_json,grpc" if options.grpc else "jsonrpc,http_json"
        hook = f"localhost:{relay_port}/relay"
        return [
            "tests/compatibility",
            # Below which its card is: that of 1.0 alone, since the kit takes no member that 1.0 does not have.
            f"--sut-host=http://localhost:{port}/a2a/1.0",
            f"--transport={transports}",
            f"--webhook-host={hook}",
        ]
    return ["tests/mandatory", "tests/optional", f"--sut-url=http://localhost:{port}/a2a", "--test-scope=all"]


async def run_kit(options: argparse.Namespace, folder: Path) -> Counts | None:
    """Run the kit against a hub; None if it could not be run."""
    report = folder / "report.xml"
    generation: str = options.generation
    grpc_port = free_port() if options.grpc else None
    servers = {"tck": stdio(command(OTHERS[generation]))}
    async with (
        relay() as relay_port,
        serving(folder, servers, **tables_for(relay_port, grpc_port)) as hub,
    ):
        words = words_for(generation, hub.port, relay_port, options)
        kit = await asyncio.create_subprocess_exec(
            *(options.python, "-m", "pytest", *words, *options.more),
            *("-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}"),
            cwd=options.kit,
        )
        await kit.wait()
    return read_report(report) if report.exists() else None


def read_report(path: Path) -> Counts:
    """How the tests of a report came out."""
    failed: set[str] = set()
    passed = skipped = 0
    for case in ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.add(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return Counts(passed, skipped, frozenset(failed))


def judge(counts: Counts, kit: str, gaps: Sequence[Gap]) -> tuple[list[str], list[Gap]]:
    """Unknown failures, and known gaps that are fixed."""
    surprising = sorted(test for test in counts.failed if not any(gap.covers(kit, test) for gap in gaps))
    mended = [gap for gap in gaps if gap.is_of(kit) and not _is_open(gap, counts, kit)]
    return surprising, mended


def _is_open(gap: Gap, counts: Counts, kit: str) -> bool:
    return any(gap.covers(kit, test) for test in counts.failed)


def parse_options() -> argparse.Namespace:
    """What is to be run."""
    parser = argparse.ArgumentParser(description="Run a compatibility kit of A2A against the hub.")
    parser.add_argument("--kit", required=True, type=Path, help="a clone of a2a-tck")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has what the kit needs")
    parser.add_argument("--generation", choices=list(OTHERS), default="1.0")
    parser.add_argument("--grpc", action="store_true", help="over gRPC as well (1.0 only)")
    parser.add_argument("more", nargs="*", help="further arguments of the kit, after --")
    return parser.parse_args()


def main() -> int:
    """Run, and say how it went."""
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        counts = asyncio.run(run_kit(options, Path(folder)))
    if counts is None:
        print("the kit could not be run")
        return 2
    kit = f"{options.generation} grpc" if options.grpc else options.generation
    surprising, mended = judge(counts, kit, read_gaps())
    print(f"\n{counts.passed} passed, {len(counts.failed)} failed, {counts.skipped} skipped")
    for test in surprising:
        print(f"  failed: {test}")
    # What was left out of this run may be open still.
    for gap in mended if not options.more else ():
        print(f"  no gap any more: {gap.why}")
    return 1 if surprising or (mended and not options.more) else 0


if __name__ == "__main__":
    sys.exit(main())
