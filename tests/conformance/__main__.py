"""Become the fixture: `python tests/conformance --transport stdio --era modern`.

The hub starts it from a folder of its own and with a bare environment, so the way to this checkout is put in place
here, before the fixture's own imports.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
runpy.run_module("tests.conformance.fixture", run_name="__main__", alter_sys=True)
