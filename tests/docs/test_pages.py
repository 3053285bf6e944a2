"""Every command and program of the documentation runs, in order, on a clean home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.pages import RUN, blocks_of, reader, unmatched
from tests.hubs import CHECKOUT

ELSEWHERE = {"docs/rest.md"}
"""tests/frontends/test_rest.py compares its answers exactly, with the servers that it names."""
FILESYSTEM = CHECKOUT / "tests" / "peers" / "npm" / "node_modules" / "@modelcontextprotocol" / "server-filesystem"
PAGES = sorted(
    page
    for page in [CHECKOUT / "README.md", CHECKOUT / "examples" / "README.md", *CHECKOUT.glob("docs/**/*.md")]
    if str(page.relative_to(CHECKOUT)) not in ELSEWHERE and any(block.language in RUN for block in blocks_of(page))
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_everything_on_the_page_runs(page: Path, tmp_path: Path) -> None:
    if any('"npx"' in block.text for block in blocks_of(page) if block.mark("file")) and not FILESYSTEM.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{FILESYSTEM} is missing: `make test` installs it")
    with reader(tmp_path) as person:
        person.read(page)


def test_blocks_that_are_not_run_have_a_reason() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            assert block.mark("not run") != "", f"{page}:{block.line}"


@pytest.mark.parametrize(
    ("shown", "said", "is_there"),
    [
        ("kept as number 1", "\x1b[1mkept as\n number 23\x1b[0m", True),
        ("files  ready  12 tools", "files ready 14 tools", True),
        ("Bearer ist1_…", "Bearer ist1_abc", True),
        ("files  ready", "files retrying", False),
    ],
)
def test_output_is_compared_loosely(shown: str, said: str, *, is_there: bool) -> None:
    assert (unmatched([shown], said) == []) is is_there
