"""`python -m tests.frameworks.resolve`: does a framework get older when the hub is installed beside it?

For each extra that brings a framework, on its own: pip resolves the framework alone, from nothing; then this checkout
is installed with the extra into a fresh environment. There the versions are read, `pip check` has to find nothing
broken, and the integration is imported; afterwards the environment is removed. Ends with 1 when a framework is older
beside the hub than alone, 2 when pip could not resolve or install something, or what it installed does not work. It
asks the package index that pip is configured for, so it is no test that everybody runs: `make resolve`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

CHECKOUT = Path(__file__).resolve().parents[2]
EXTRAS = ("adk", "langchain", "openai-agents", "pydantic-ai")
AT_ONCE = 2
"""How many pips run beside each other: each keeps one core busy, and CI has two."""

STALL_SECONDS = 15
"""How long pip waits for a silent index before it asks again."""

STEP_SECONDS = 300.0
"""When to give up on one step: to resolve or to install one framework takes some ten seconds."""

QUIET = ("--quiet", "--no-input", "--disable-pip-version-check")

LOOK_INSIDE = """
import importlib, importlib.metadata, json, sys
importlib.import_module(sys.argv[1])
print()
print(json.dumps({each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}))
"""
"""Run in a new environment: imports an integration and says, on its last line, what is installed."""

Versions = Mapping[str, Version]
"""What is, or would be, installed, by canonical name."""


class _Metadata(msgspec.Struct):
    name: str
    version: str


class _Installed(msgspec.Struct):
    metadata: _Metadata


class _Report(msgspec.Struct):
    install: list[_Installed]


class EnvironmentFailed(Exception):
    """pip found no index or no versions that go together, or what it installed does not work."""


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


class Environments(Protocol):
    """Where versions come from. Both may be asked from several threads, and raise `EnvironmentFailed`."""

    def alone(self, names: Sequence[str]) -> Versions:
        """What would be installed with these packages into an empty environment."""
        ...

    def beside(self, extra: str) -> Versions:
        """What is installed with the hub and one extra in an empty environment, in which both work."""
        ...


def frameworks_of(extra: str) -> list[str]:
    """The packages that an extra names."""
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [canonicalize_name(Requirement(wanted).name) for wanted in extras[extra]]


def module_of(extra: str) -> str:
    """What a program imports that has installed an extra."""
    return f"isthmus.integrations.{extra.replace('-', '_')}"


# -- pip ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PipEnvironments:
    """Environments in a folder; each lasts for one check."""

    folder: Path
    wheel: Path

    def alone(self, names: Sequence[str]) -> Versions:
        """See `Environments`."""
        said = _pip("install", *QUIET, "--dry-run", "--ignore-installed", "--report=-", *names)
        found = msgspec.json.decode(said, type=_Report).install
        return _versions({each.metadata.name: each.metadata.version for each in found})

    def beside(self, extra: str) -> Versions:
        """See `Environments`."""
        with TemporaryDirectory(dir=self.folder) as home:
            venv.create(home, symlinks=True, with_pip=False)
            python = f"{home}/bin/python"
            # Most of what is installed is never imported: to compile it would take longer than to install it.
            _pip("--python", python, "install", *QUIET, "--no-compile", f"{self.wheel}[{extra}]")
            _pip("--python", python, "check", *QUIET)
            said = _run(python, "-I", "-B", "-c", LOOK_INSIDE, module_of(extra))
        return _versions(msgspec.json.decode(said.splitlines()[-1], type=dict[str, str]))


@contextmanager
def pip_environments() -> Iterator[PipEnvironments]:
    """Build the hub once for all of them.

    Raises:
        EnvironmentFailed: it cannot be built.
    """
    with TemporaryDirectory(prefix="isthmus-resolve-") as name:
        folder = Path(name)
        # The build tool is here already; in isolation it would be fetched anew.
        _pip("wheel", *QUIET, "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", str(CHECKOUT))
        (wheel,) = folder.glob("*.whl")
        yield PipEnvironments(folder, wheel)


def _versions(found: Mapping[str, str]) -> Versions:
    return {canonicalize_name(name): Version(version) for name, version in found.items()}


def _pip(*words: str) -> bytes:
    return _run(sys.executable, "-m", "pip", f"--timeout={STALL_SECONDS}", *words)


def _run(*command: str) -> bytes:
    """What a program said, which sees nothing of this checkout but what it is given.

    Raises:
        EnvironmentFailed: it failed, or took too long.
    """
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=STEP_SECONDS, env=bare)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"this took over {STEP_SECONDS:g} s: {' '.join(command)}") from None
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise EnvironmentFailed(f"this ended with {done.returncode}: {' '.join(command)}\n{said}")
    return done.stdout


# -- what was found ----------------------------------------------------------------------------------------------------


def look_at(named: Mapping[str, Sequence[str]], environments: Environments) -> list[Row]:
    """Both versions of every framework, by the extra that brings it.

    Raises:
        EnvironmentFailed: one of them cannot be had, alone or beside the hub.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            asked = [
                (extra, names, pool.submit(environments.alone, names), pool.submit(environments.beside, extra))
                for extra, names in named.items()
            ]
            return [
                row
                for extra, names, alone, beside in asked
                for row in _rows(extra, names, alone.result(), beside.result())
            ]
        finally:
            pool.shutdown(cancel_futures=True)  # if one has failed, the others need not begin


def _rows(extra: str, names: Sequence[str], alone: Versions, beside: Versions) -> list[Row]:
    if absent := [name for name in names if name not in beside]:
        raise EnvironmentFailed(f"isthmus[{extra}] did not bring {', '.join(absent)}")
    return [Row(extra, name, alone[name], beside[name]) for name in names]


def table(rows: Sequence[Row]) -> str:
    """The versions as text for a terminal."""
    lines = [f"{'extra':<16}{'framework':<20}{'alone':>12}{'beside the hub':>18}"]
    for row in rows:
        versions = f"{row.alone!s:>12}{row.beside!s:>18}"
        lines.append(f"{row.extra:<16}{row.name:<20}{versions}{'  older' if row.is_older else ''}")
    return "\n".join(lines)


def verdict(rows: Sequence[Row]) -> int:
    """Print what was found; 1 if something got older, else 0."""
    print(table(rows))
    older = [row for row in rows if row.is_older]
    for row in older:
        received = f"{row.name} {row.alone} becomes {row.beside} beside isthmus[{row.extra}]"
        print(f"resolve: {received}; loosen what the hub depends on", file=sys.stderr)
    return 1 if older else 0


def main() -> int:
    """Install everything, print, and say whether something got older."""
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks.resolve", description=__doc__)
    parser.add_argument("--only", action="append", choices=EXTRAS, help="an extra to look at (default all)")
    extras: Sequence[str] = parser.parse_args().only or EXTRAS
    try:
        with pip_environments() as environments:
            return verdict(look_at({extra: frameworks_of(extra) for extra in extras}, environments))
    except EnvironmentFailed as error:
        print(f"resolve: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
