"""Run one peer by name: `python tests/peers server_sdk2 --transport stdio`.

Peers are started by interpreters of several environments, from any directory and with a bare environment, so
the way to this checkout cannot come from PYTHONPATH: it is put in place here, before the peer's own imports.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Replace the script's folder on the module path by the checkout, then become the named peer."""
    _, name, *rest = sys.argv
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.argv = [name, *rest]
    runpy.run_module(f"tests.peers.{name}", run_name="__main__", alter_sys=True)


main()
