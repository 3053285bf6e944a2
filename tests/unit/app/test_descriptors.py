"""The limit on open files, in a process of its own: it cannot be put back."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")

SCRIPT = """
import resource, sys
from isthmus.app.process_setup import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
print(*[raise_limit(int(wanted)) for wanted in sys.argv[1:]], resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("wanted", "held"),
    [(["250"], [250, 250]), (["100000"], [300, 300]), (["100"], [200, 200]), (["260", "100"], [260, 260, 260])],
)
def test_the_limit_is_lifted_as_far_as_it_may_be_and_never_lowered(wanted: list[str], held: list[int]) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *wanted], capture_output=True, text=True, check=True)
    assert [int(word) for word in done.stdout.split()] == held
