"""`python -m tests.again LOG`: runs the failed tests of a log of pytest again, each alone; `.ci/run` calls it.

A test that fails in the whole suite and passes alone depends on load or on others: it is named, so that somebody fixes
the test, and it does not keep everything else from being examined. More than a few failures are no accident.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FAILURES_MAX = 3
SECONDS = 600.0

_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py::\w+(?:\[.*?\](?=@| - |$))?)", re.MULTILINE)


def failed_tests(log: str) -> list[str]:
    """The ids of the tests that failed, without the groups that xdist adds."""
    return list(dict.fromkeys(_FAILED.findall(log)))


def main(log: Path) -> int:
    """Run them again; 0 if each passes."""
    found = failed_tests(log.read_text(errors="replace"))
    if not 0 < len(found) <= FAILURES_MAX:
        print(f"{len(found)} failed tests are not run again (at most {FAILURES_MAX} are).")
        return 1
    for each in found:
        print(f"running again, alone: {each}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", each]
        code = subprocess.run(command, timeout=SECONDS, check=False).returncode
        if code:
            return code
        print(f"FLAKY: failed beside others and passed alone: {each}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
