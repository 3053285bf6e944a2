"""`python -m tests.frameworks.resolve`: does a framework get older when the hub is installed beside it?

pip resolves this checkout with all the extras that bring a framework, from nothing and without installing anything.
What is the newest release then cannot be newer alone, and is so beside the hub without the others too; what is not is
resolved alone, and if it is newer so, beside the hub without the others. That takes half a minute, where two
resolutions for each extra would take two. Ends with 1 when a framework is older beside the hub than alone, 2 when pip
could not resolve something. It asks the package index that pip is configured for, so it is no test that everybody
runs: `make resolve`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

CHECKOUT = Path(__file__).resolve().parents[2]
EXTRAS = ("adk", "langchain", "openai-agents", "pydantic-ai")
STALL_SECONDS = 15
"""How long pip waits for a silent index before it asks again."""

RESOLVE_SECONDS = 300.0
"""When to give up on one resolution, which takes some ten seconds, or twenty of all."""

Versions = Mapping[str, Version]
"""What would be installed, by canonical name."""

Resolve = Callable[..., Versions]


class _Metadata(msgspec.Struct):
    name: str
    version: str


class _Installed(msgspec.Struct):
    metadata: _Metadata


class _Report(msgspec.Struct):
    install: list[_Installed]


class NotResolved(Exception):
    """pip found no versions that go together, or no index."""


@dataclass(frozen=True, slots=True)
class Row:
    """One framework as it is without the hub and beside it."""

    extra: str
    name: str
    alone: Version
    beside: Version

    @property
    def is_older(self) -> bool:
        """Whether the hub has cost its user something."""
        return self.beside < self.alone


def frameworks_of(extra: str) -> list[str]:
    """The packages that an extra names."""
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [canonicalize_name(Requirement(wanted).name) for wanted in extras[extra]]


def resolve(*words: str) -> Versions:
    """What pip would install into an empty environment.

    Raises:
        NotResolved: nothing.
    """
    options = ["--dry-run", "--ignore-installed", "--quiet", "--no-input", "--disable-pip-version-check"]
    # The hub's own build tool is here already; in isolation it would be fetched anew each time.
    options += ["--no-build-isolation", f"--timeout={STALL_SECONDS}", "--report=-"]
    command = [sys.executable, "-m", "pip", "install", *options, *words]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=RESOLVE_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotResolved(f"pip took over {RESOLVE_SECONDS:g} s for {' '.join(words)}") from None
    if done.returncode:
        raise NotResolved(f"pip could not resolve {' '.join(words)}:\n{done.stderr.decode(errors='replace').strip()}")
    found = msgspec.json.decode(done.stdout, type=_Report).install
    return {canonicalize_name(each.metadata.name): Version(each.metadata.version) for each in found}


def look_at(named: Mapping[str, Sequence[str]], resolve: Resolve = resolve) -> list[Row]:
    """Resolve the hub with all extras, and where some framework is not the newest so, whatever tells why."""
    newest = resolve("--no-deps", *(name for names in named.values() for name in names))
    try:
        together = resolve(f"{CHECKOUT}[{','.join(named)}]")
    except NotResolved:
        together = {}  # they do not go together, which need not be the hub's fault
    rows: list[Row] = []
    for extra, names in named.items():
        alone, beside = newest, together
        if not _is_level(names, alone, beside):
            alone = resolve(*names)
        if not _is_level(names, alone, beside):
            beside = resolve(f"{CHECKOUT}[{extra}]")
        rows += [Row(extra, name, alone[name], beside[name]) for name in names]
    return rows


def _is_level(names: Sequence[str], alone: Versions, beside: Versions) -> bool:
    return all(name in beside and beside[name] >= alone[name] for name in names)


def table(rows: Sequence[Row]) -> str:
    """The versions as text for a terminal."""
    lines = [f"{'extra':<16}{'framework':<20}{'alone':>12}{'beside the hub':>18}"]
    for row in rows:
        versions = f"{row.alone!s:>12}{row.beside!s:>18}"
        lines.append(f"{row.extra:<16}{row.name:<20}{versions}{'  older' if row.is_older else ''}")
    return "\n".join(lines)


def main() -> int:
    """Resolve everything, print, and say whether something got older."""
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks.resolve", description=__doc__)
    parser.add_argument("--only", action="append", choices=EXTRAS, help="an extra to look at (default all)")
    extras: Sequence[str] = parser.parse_args().only or EXTRAS
    try:
        rows = look_at({extra: frameworks_of(extra) for extra in extras})
    except NotResolved as error:
        print(f"resolve: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    older = [row for row in rows if row.is_older]
    for row in older:
        told = f"{row.name} {row.alone} becomes {row.beside} beside isthmus[{row.extra}]"
        print(f"resolve: {told}; loosen what the hub depends on", file=sys.stderr)
    return 1 if older else 0


if __name__ == "__main__":
    sys.exit(main())
