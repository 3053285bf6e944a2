"""What the command line does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from isthmus.app import collector
from isthmus.cli.lean import COLLECT, WithoutRich
from tests.hubs import environment

LOADED = "print('structlog' in sys.modules, 'rich' in sys.modules); import rich; print(structlog.dev.rich)"


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("from isthmus.cli import lean; lean.install(); import isthmus.cli.serve", ["True False", "None"]),
        ("import isthmus.cli.serve", ["True True", "<module"]),  # a program of somebody else's
    ],
)
def test_a_hub_starts_without_rich_and_what_it_loads_may_use_it(first: str, said: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; {first}; import structlog; {LOADED}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment(),
    )
    assert [line[: len(expected)] for line, expected in zip(ran.stdout.splitlines(), said, strict=True)] == said


def test_the_collector_looks_as_seldom_as_that_of_a_hub() -> None:
    assert COLLECT == (collector.COLLECT_AFTER, collector.COLLECT_OLD_AFTER, collector.COLLECT_OLD_AFTER)


def test_once_structlog_is_there_rich_is_found() -> None:
    assert WithoutRich().find_spec("rich") is None
    assert WithoutRich().find_spec("structlog.dev") is None
