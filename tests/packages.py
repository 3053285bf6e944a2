"""Packages that are installed for one test: modules and entry points, in a folder on the path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest


def install(folder: Path, name: str, source: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Write a package as an installer leaves it: one module, and its entry points by their groups."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(source)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in of.items()) for group, of in points.items()
    )
    (about / "entry_points.txt").write_text("\n".join(groups))


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have Python find what is installed in a folder, and forget it again; for a fixture."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in set(sys.modules) - before:
        if (folder / f"{name}.py").exists():
            del sys.modules[name]
    importlib.invalidate_caches()
