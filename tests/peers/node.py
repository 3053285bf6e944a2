"""The Node.js on which everything from npm runs: the pinned one that npm installed, else the machine's own."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "npm"

_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}


def find_node() -> str | None:
    """Where it is; a machine for which npm has no package needs one of its own."""
    machine = _MACHINES.get(platform.machine().lower(), platform.machine())
    packaged = FOLDER / "node_modules" / f"node-{platform.system().lower()}-{machine}" / "bin" / "node"
    return str(packaged) if packaged.exists() else shutil.which("node")
