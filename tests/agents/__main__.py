"""Run one client by name: `python tests/agents client_v1 …`, under whichever interpreter has its SDK."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Replace the script's folder on the module path by the checkout, then become the named client."""
    _, name, *rest = sys.argv
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.argv = [name, *rest]
    runpy.run_module(f"tests.agents.{name}", run_name="__main__", alter_sys=True)


main()
