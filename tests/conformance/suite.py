"""Run the conformance suite from npm against an address or with a client's command, and read its findings.

The suite writes a file of checks for each scenario. One scenario may make the same check several times, so a check is
known by its scenario, its two names and its turn. `run` decides what the findings mean.
"""

from __future__ import annotations

import asyncio
import dataclasses
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

ClientRevision = Literal["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "extensions"]
"""What a client is examined for: a revision, or what extends them all."""

SCENARIOS: Mapping[Revision, int] = {"2025-06-18": 27, "2025-11-25": 33, "2026-07-28": 40}
"""How many scenarios the pinned suite has for a server of each revision."""

CLIENT_SCENARIOS: Mapping[ClientRevision, Mapping[str, int]] = {
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
"""What the pinned suite has for a client of each revision, beside logins.

With each scenario, how many checks it makes that idling does not pass: it makes none of what it is not asked for, so
that a client which stopped asking would seem to pass everything."""

_BASIC = {"token-endpoint-auth-basic": 16, "token-endpoint-auth-post": 16, "token-endpoint-auth-none": 16}

LOGIN_SCENARIOS: Mapping[ClientRevision, Mapping[str, int]] = {
    "2025-03-26": {"2025-03-26-oauth-metadata-backcompat": 9, "2025-03-26-oauth-endpoint-fallback": 4},
    "2025-06-18": _BASIC,
    "2025-11-25": {
        **_BASIC,
        "metadata-default": 15,
        "metadata-var1": 15,
        "metadata-var2": 15,
        "metadata-var3": 15,
        "basic-cimd": 10,
        "scope-from-www-authenticate": 11,
        "scope-from-scopes-supported": 11,
        "scope-omitted-when-undefined": 11,
        "scope-step-up": 12,
        "scope-retry-limit": 10,
        "pre-registration": 10,
    },
    "2026-07-28": {
        "token-endpoint-auth-basic": 17,
        "token-endpoint-auth-post": 17,
        "token-endpoint-auth-none": 17,
        "metadata-default": 16,
        "metadata-var1": 16,
        "metadata-var2": 16,
        "metadata-var3": 16,
        "basic-cimd": 10,
        "scope-from-www-authenticate": 12,
        "scope-from-scopes-supported": 12,
        "scope-omitted-when-undefined": 12,
        "scope-step-up": 14,
        "scope-retry-limit": 11,
        "pre-registration": 10,
        "resource-mismatch": 2,
        "offline-access-scope": 10,
        "offline-access-not-supported": 12,
        "authorization-server-migration": 12,
        "iss-supported": 12,
        "iss-not-advertised": 12,
        "iss-supported-missing": 8,
        "iss-wrong-issuer": 8,
        "iss-unexpected": 8,
        "iss-normalized": 8,
        "metadata-issuer-mismatch": 3,
    },
    "extensions": {
        "client-credentials-jwt": 5,
        "client-credentials-basic": 5,
        "wif-jwt-bearer": 5,
        "enterprise-managed-authorization": 6,
        "dpop": 12,
        "dpop-nonce": 14,
    },
}
"""The same for logins, all of which are under `auth/`; each check counts once, however often it is made."""

CLIENT_CHECKS: Mapping[ClientRevision, Mapping[str, int]] = {
    revision: {
        **CLIENT_SCENARIOS.get(revision, {}),
        **{f"auth/{scenario}": count for scenario, count in logins.items()},
    }
    for revision, logins in LOGIN_SCENARIOS.items()
}

MAY_END_BADLY = frozenset(
    f"auth/{scenario}"
    for scenario in (
        "scope-retry-limit",
        "resource-mismatch",
        "iss-supported-missing",
        "iss-wrong-issuer",
        "iss-unexpected",
        "iss-normalized",
        "metadata-issuer-mismatch",
    )
)
"""Scenarios in which a client must give up, and so may end with an error."""

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


async def run_client_suite(command: Sequence[str], revision: ClientRevision, folder: Path) -> Findings:
    """Run every scenario for a client of a revision, with the words that start the client; see `run_suite`."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def run(scenario: str) -> Findings:
        async with turn:
            return await run_client_scenario(command, revision, scenario, folder / scenario)

    found = await asyncio.gather(*(run(scenario) for scenario in CLIENT_CHECKS[revision]))
    return {check: finding for findings in found for check, finding in findings.items()}


async def run_client_scenario(
    command: Sequence[str], revision: ClientRevision, scenario: str, folder: Path
) -> Findings:
    """Run one scenario for a client; a client that fails although every check passed is a failure too.

    Unless that is what a client does which is led astray: then the suite looks only at what it did not do.
    """
    at = ["2025-11-25", "--force"] if revision == "extensions" else [revision]
    words = ["client", "--command", shlex.join(command), "--scenario", scenario, "--spec-version", *at]
    code = await _run([*_node(None), str(_script()), *words, "--output-dir", str(folder)], os.environ, folder)
    findings = once(dict(read_findings(folder)))
    if not _has_findings(folder):
        raise NotRun(f"{scenario} of {revision} left no findings in {folder}")
    may_fail = scenario in MAY_END_BADLY
    if code and not may_fail and all(finding.status not in FAILED for finding in findings.values()):
        findings[Check(scenario, "client-ends-well", "ClientEndsWell")] = Finding("FAILURE", f"see {folder}")
    return findings


def read_findings(folder: Path) -> Iterator[tuple[Check, Finding]]:
    """What every scenario in a folder found, without what the suite only notes."""
    for file in _files_in(folder):
        scenario = _STAMP.sub("", file.parent.relative_to(folder).as_posix()).removeprefix("server-")
        yield from _scenario_findings(scenario, json.loads(file.read_text()))


def _files_in(folder: Path) -> list[Path]:
    """Those with findings; names of scenarios have a folder in them."""
    return sorted([*folder.glob("*/checks.json"), *folder.glob("*/*/checks.json")])


def _has_findings(folder: Path) -> bool:
    return bool(_files_in(folder))


def _scenario_findings(scenario: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Check, Finding]]:
    turns: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        names = (entry["id"], entry["name"])
        turns[names] += 1
        check = Check(scenario, *names, turns[names])
        yield check, Finding(entry["status"], entry.get("errorMessage") or "")


def once(findings: Findings) -> dict[Check, Finding]:
    """Each check of a login once, with the worst that was found: how often it is made depends on who is how quick."""
    found: dict[Check, Finding] = {}
    for check, finding in findings.items():
        if not check.scenario.startswith("auth/"):
            found[check] = finding
            continue
        first = dataclasses.replace(check, turn=1)
        if first not in found or found[first].status not in FAILED:
            found[first] = finding
    return found


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
