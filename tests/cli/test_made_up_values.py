"""Every command and option with made-up values: no traceback, and only documented exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fuzz.commands import found_commands
from tests.hubs import CHECKOUT, environment

SOAK = bool(os.environ.get("ISTHMUS_SOAK"))


@pytest.mark.timeout(3600 if SOAK else 300)
def test_no_value_of_any_option_ends_in_a_traceback() -> None:
    # One case for each option of each command; `make fuzz` and `make soak` try thousands.
    words = ["--cases", "3000"] if SOAK else ["--cases", "0", "--seed", "1", "--run-seconds", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "fuzz.commands", *words],
        cwd=CHECKOUT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-10_000:] + ran.stderr[-2_000:]


def test_commands_of_groups_are_found_too() -> None:
    found = {" ".join(command.path): command for command in found_commands()}
    assert {"call", "token create", "audit export"} <= found.keys()
    assert any("--wait" in option.opts for option in found["call"].options)
