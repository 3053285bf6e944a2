"""Builds of the package, each from a copy of its sources that differs in all that must make no difference."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.supply.pins import ROOT

SOURCES = ("src", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
"""What a wheel is made of."""

_BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


def copied(folder: Path, *, at: float, mode: int) -> Path:
    """The sources elsewhere, as another checkout would have them: changed at another time, for other people."""
    for name in SOURCES:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, folder / name)
    for file in folder.rglob("*"):
        os.utime(file, (at, at))
        file.chmod(mode | (0o700 if file.is_dir() else 0))
    return folder


def built(folder: Path, into: Path, what: str = "wheel", **variables: str) -> Path:
    """The wheel or sdist of a checkout, built in a process of its own with these variables and hardly any others."""
    into.mkdir(parents=True, exist_ok=True)
    # The checkout stays as it is: importing hatch_build.py would leave bytecode there.
    clean = {"PATH": os.environ["PATH"], "HOME": str(into), "PYTHONDONTWRITEBYTECODE": "1"}
    environment: Mapping[str, str] = {**clean, **variables}
    command = [sys.executable, "-c", _BUILD, f"build_{what}", str(into)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]
