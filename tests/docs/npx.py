"""Stands in for `npx -y PACKAGE …`: runs a package that `make test` has installed from its lock file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

NPM = Path(__file__).resolve().parents[1] / "peers" / "npm"

if __name__ == "__main__":
    node, package, *rest = [word for word in sys.argv[1:] if word != "-y"]
    folder = NPM / "node_modules" / package
    programs = json.loads((folder / "package.json").read_text())["bin"]
    script = programs if isinstance(programs, str) else next(iter(programs.values()))
    os.execv(node, [node, str(folder / script), *rest])
