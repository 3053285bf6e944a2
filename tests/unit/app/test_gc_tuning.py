"""When the cycle collector looks at a crowd of servers: the tests of `gc_tuning_inside`, in a process of their own.

They have the collector look at everything, which takes seconds beside the thousands of tests of a worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.hubs import environment

INSIDE = Path(__file__).with_name("gc_tuning_inside.py")
COUNT = 5


def test_the_collector_looks_at_a_crowd_once_and_then_seldom(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path), "--noconftest"]
    ran = subprocess.run(
        [*words, "-p", "no:cacheprovider", str(INSIDE)],
        env=environment({"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{COUNT} passed" in ran.stdout, ran.stdout
