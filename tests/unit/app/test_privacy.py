from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, resource
from isthmus.app.process_setup import keep_private
assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1
keep_private()
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)[0])
"""


def test_a_private_process_cannot_be_looked_into_and_leaves_no_memory_behind() -> None:
    received = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=30)
    assert received.stdout.split() == ["0", "0"]
