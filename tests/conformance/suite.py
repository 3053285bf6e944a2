"""Run the conformance suite from npm against an address or with a client's command, and read what it found.

The suite writes a file of checks for each scenario. One scenario may make the same check several times, so a check is
known by its scenario, its two names and its turn. `run` decides what the findings mean.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias
from urllib.parse import urlsplit

from tests.peers.node import find_node

Revision = Literal["2025-06-18", "2025-11-25", "2026-07-28"]

SCENARIOS: Mapping[Revision, int] = {"2025-06-18": 27, "2025-11-25": 33, "2026-07-28": 40}
"""How many scenarios the pinned suite has for a server of each revision."""

CLIENT_SCENARIOS: Mapping[Revision, Mapping[str, int]] = {
    "2025-06-18": {"initialize": 2, "tools_call": 2},
    "2025-11-25": {
        "initialize": 2,
        "tools_call": 2,
        "elicitation-sep1034-client-defaults": 5,
        "sse-retry": 3,
        "json-schema-2020-12-preservation": 9,
    },
    "2026-07-28": {
        "tools_call": 2,
        "request-metadata": 5,
        "sep-2322-client-request-state": 6,
        "http-standard-headers": 10,
        "http-custom-headers": 18,
        "http-invalid-tool-headers": 1,
        "json-schema-ref-no-deref": 1,
        "json-schema-2020-12-preservation": 9,
    },
}
"""What the pinned suite has for a client of each revision and needs no authorisation server; `auth/*` is the rest.

With each scenario, how many checks it makes that idling does not pass: it makes none of what it is not asked for, so
that a client which stopped asking would seem to pass everything."""

FOLDER = Path(__file__).resolve().parent / "npm"
CHECKOUT = FOLDER.parents[2]
NODE_MAJOR = 22
RUN_SECONDS = 180.0
"""For all scenarios of a revision; they take a few seconds, and one that hangs gives up by itself after thirty."""

AT_ONCE = 2
"""Clients at the same time: each is two processes that mostly start and end."""

_STAMP = re.compile(r"-\d{4}-\d{2}-\d{2}T[\d-]+Z$")


FAILED = frozenset({"FAILURE", "WARNING"})
"""How the suite says that a check did not pass; what it only notes or leaves out is neither."""


class NotRun(Exception):
    """The suite could not be run, or did not finish."""


@dataclass(frozen=True, slots=True, order=True)
class Check:
    """One thing that the suite looks at."""

    scenario: str
    id: str
    name: str
    turn: int = 1

    def __str__(self) -> str:
        again = f" ({self.turn})" if self.turn > 1 else ""
        return f"{self.scenario}: {self.id} {self.name}{again}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the suite said of a check."""

    status: str
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether it is as it must be; a warning is not."""
        return self.status == "SUCCESS"


Findings: TypeAlias = Mapping[Check, Finding]


async def run_suite(
    url: str, revision: Revision, folder: Path, *, key: str | None = None, scenario: str | None = None
) -> Findings:
    """Run every scenario of a revision, or one of them; `folder` keeps what the suite wrote.

    Raises:
        NotRun: There is no suite or no Node.js for it, or a scenario left no findings.
    """
    chosen = ["--scenario", scenario] if scenario else ["--suite", "all"]
    words = ["server", "--url", url, "--spec-version", revision, *chosen, "--output-dir", str(folder)]
    await _run([*_node(key), str(_script()), *words], _environment(url, key), folder)
    findings = dict(read_findings(folder))
    seen = len({check.scenario for check in findings})
    if seen != (expected := 1 if scenario else SCENARIOS[revision]):
        raise NotRun(f"{seen} of {expected} scenarios of {revision} left findings in {folder}")
    return findings


async def run_client_suite(command: Sequence[str], revision: Revision, folder: Path) -> Findings:
    """Run every scenario for a client of a revision, with the words that start the client; see `run_suite`."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def run(scenario: str) -> Findings:
        async with turn:
            return await run_client_scenario(command, revision, scenario, folder / scenario)

    found = await asyncio.gather(*(run(scenario) for scenario in CLIENT_SCENARIOS[revision]))
    return {check: finding for findings in found for check, finding in findings.items()}


async def run_client_scenario(command: Sequence[str], revision: Revision, scenario: str, folder: Path) -> Findings:
    """Run one scenario for a client; a client that fails although every check passed is a failure too."""
    words = ["client", "--command", shlex.join(command), "--scenario", scenario, "--spec-version", revision]
    code = await _run([*_node(None), str(_script()), *words, "--output-dir", str(folder)], os.environ, folder)
    findings = dict(read_findings(folder))
    if not _has_findings(folder):
        raise NotRun(f"{scenario} of {revision} left no findings in {folder}")
    if code and all(finding.status not in FAILED for finding in findings.values()):
        findings[Check(scenario, "client-ends-well", "ClientEndsWell")] = Finding("FAILURE", f"see {folder}")
    return findings


def read_findings(folder: Path) -> Iterator[tuple[Check, Finding]]:
    """What every scenario in a folder found, without what the suite only notes."""
    for file in sorted(folder.glob("*/checks.json")):
        scenario = _STAMP.sub("", file.parent.name).removeprefix("server-")
        yield from _scenario_findings(scenario, json.loads(file.read_text()))


def _has_findings(folder: Path) -> bool:
    return any(folder.glob("*/checks.json"))


def _scenario_findings(scenario: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Check, Finding]]:
    turns: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        names = (entry["id"], entry["name"])
        turns[names] += 1
        check = Check(scenario, *names, turns[names])
        yield check, Finding(entry["status"], entry.get("errorMessage") or "")


async def _run(words: Sequence[str], env: Mapping[str, str], folder: Path) -> int:
    # It ends with 1 when a check fails, which is for the caller to see in the findings.
    with _open(folder / "said.txt") as said:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=env,
            cwd=CHECKOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(RUN_SECONDS):
                return await process.wait()
        except TimeoutError:
            raise NotRun(f"the suite did not end within {RUN_SECONDS:g} s; see {folder / 'said.txt'}") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _open(file: Path) -> BinaryIO:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.open("wb")


def _environment(url: str, key: str | None) -> dict[str, str]:
    parts = urlsplit(url)
    more = {} if key is None else {"CONFORMANCE_KEY": key, "CONFORMANCE_ORIGIN": f"{parts.scheme}://{parts.netloc}"}
    return {**os.environ, **more}


def _script() -> Path:
    script = FOLDER / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    if not script.exists():
        raise NotRun("the suite is not installed; `make conformance` does it, and needs npm")
    return script


def _node(key: str | None) -> list[str]:
    node = find_node()
    if node is None:
        raise NotRun(f"there is no Node.js; install {NODE_MAJOR} or newer")
    return [node] if key is None else [node, "--require", str(FOLDER / "key.cjs")]
