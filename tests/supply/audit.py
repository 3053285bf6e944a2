"""`python -m tests.supply.audit [--strict]`: look for known vulnerabilities in the pinned packages.

pip-audit, which is in the same environment, asks the package index and then the OSV database about each pin of each
requirement file. Ends with 1 when something that is shipped has one; of what only tests run on it is told. pip-audit
takes a package that nobody could be asked about for a sound one; here that is told, loudly, and ends with 2 if
`--strict` is given: releases use it, and without access to the index the rest still works. `make audit`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.supply.pins import FOLDER, SHIPPED, Pin, pins_of

SERVICES = ("pypi", "osv")
ASK_SECONDS = 300
STALL_SECONDS = 10
NAMED_MAX = 5
"""At most so many packages without an answer are named."""

NOT_AUDITED = "NOT AUDITED"
"""The prefix of important lines; CI repeats them at its end."""

Ask = Callable[[Sequence[Pin], str], str]
"""What pip-audit writes as JSON of these, by one of the services; empty if it failed."""


@dataclass(slots=True)
class FileAudit:
    """What is known of the packages of one file."""

    file: str
    unknown: set[str]
    """Packages without an answer."""
    known: set[str] = field(default_factory=set)
    flaws: dict[str, str] = field(default_factory=dict)
    """By the package, its version and the id of a vulnerability: these and what mends it."""


def ask(pins: Sequence[Pin], service: str) -> str:
    """Have pip-audit ask."""
    options = [f"--vulnerability-service={service}", f"--timeout={STALL_SECONDS}"]
    options += ["--disable-pip", "--require-hashes", "--format=json", "--progress-spinner=off"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        # Without the markers of the pins: what is for other systems is shipped too.
        file.writelines(f"{pin.name}=={pin.version} --hash=sha256:{pin.hashes[0]}\n" for pin in pins)
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--requirement", file.name, *options]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=ASK_SECONDS).stdout
        except subprocess.TimeoutExpired:
            return ""


def look_at(files: Sequence[Path], ask: Ask = ask) -> list[FileAudit]:
    """Ask about every pin of these files, until each has an answer; a silent service is not asked again."""
    services = list(SERVICES)
    found: list[FileAudit] = []
    for file in files:
        pins = pins_of(file)
        received = FileAudit(file.name, {_called(pin) for pin in pins})
        for service in list(services):
            missing = _rounds([pin for pin in pins if _called(pin) in received.unknown])
            answered = [_take(received, ask(each, service)) for each in missing]
            if missing and not any(answered):
                services.remove(service)
        found.append(received)
    return found


def _called(pin: Pin) -> str:
    return f"{pin.name} {pin.version}"


def _rounds(pins: Sequence[Pin]) -> list[list[Pin]]:
    """These pins in as few lists as may be: none may have a package twice, which markers may tell apart."""
    rounds: list[dict[str, Pin]] = []
    for pin in pins:
        fitting = next((each for each in rounds if pin.name not in each), None)
        if fitting is None:
            rounds.append(fitting := {})
        fitting[pin.name] = pin
    return [list(each.values()) for each in rounds]


def _take(received: FileAudit, answer: str) -> bool:
    """Note what was answered; return whether that was anything."""
    try:
        dependencies = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return False
    answered = [each for each in dependencies if "vulns" in each]  # the others have a `skip_reason` in its place
    for each in answered:
        called = f"{each['name']} {each['version']}"
        received.unknown.discard(called)
        received.known.add(called)
        for flaw in each["vulns"]:
            mended = " or ".join(flaw["fix_versions"]) or "no release yet"
            received.flaws[f"{called} {flaw['id']}"] = f"{called} ({flaw['id']}), mended by {mended}"
    return bool(answered)


def report(found: Sequence[FileAudit], *, is_strict: bool) -> tuple[list[str], int]:
    """What to say, and how to end."""
    lines = [line for received in found for line in _lines(received)]
    is_shipped = any(received.flaws for received in found if received.file == f"{SHIPPED}.txt")
    if is_shipped:
        lines.append("What is shipped has known vulnerabilities: make lock takes the newest versions.")
    elif any(received.flaws for received in found):
        lines.append("Only tests run on what has known vulnerabilities.")
    is_unknown = any(received.unknown for received in found)
    return lines, 1 if is_shipped else 2 if is_unknown and is_strict else 0


def _lines(received: FileAudit) -> list[str]:
    lines = [
        f"{received.file}: {len(received.known)} packages asked about, {len(received.flaws)} known vulnerabilities"
    ]
    lines += [f"  {flaw}" for flaw in sorted(received.flaws.values())]
    if received.unknown:
        some = ", ".join(sorted(received.unknown)[:NAMED_MAX]) + (" …" if len(received.unknown) > NAMED_MAX else "")
        lines.append(
            f"{NOT_AUDITED}: nobody could be asked about {len(received.unknown)} packages of {received.file}: {some}"
        )
    return lines


def main(arguments: Sequence[str], ask: Ask = ask) -> int:
    """Look at every file, what is shipped first."""
    files = sorted(FOLDER.glob("*.txt"), key=lambda file: (file.stem != SHIPPED, file.stem))
    lines, code = report(look_at(files, ask), is_strict="--strict" in arguments)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
