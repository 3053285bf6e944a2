"""The recording in the README matches the output of its commands, and is small."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path

import pytest

from tests.cli.recording import IMAGE, commands_of_the_readme, draw, line_of, record
from tests.cli.screens import comparable
from tests.docs.test_pages import FILESYSTEM

BYTES_MAX = 100_000


def words_of(image: str) -> list[str]:
    return comparable(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", "\n", image, flags=re.DOTALL)))


async def test_the_recording_matches_the_commands_of_the_readme(tmp_path: Path) -> None:
    if not FILESYSTEM.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{FILESYSTEM} is missing: `make test` installs it")
    again = draw(await record(tmp_path))
    assert words_of(again) == words_of(IMAGE.read_text(encoding="utf-8")), "run: make recording"


def test_the_recording_shows_the_commands_of_the_readme_and_stands_still_on_request() -> None:
    image = IMAGE.read_text(encoding="utf-8")
    assert len(image.encode()) < BYTES_MAX
    assert "@media (prefers-reduced-motion: no-preference)" in image
    typed = [unescape(found) for found in re.findall(r'class="typed"[^>]*>(.*?)</text>', image)]
    assert typed == commands_of_the_readme()
    assert [command.split()[1] for command in typed] == ["serve", "tools", "call", "doctor"]


def test_colours_of_a_terminal_become_classes_and_markup_is_text() -> None:
    assert line_of("\x1b[1;32mready\x1b[0m a<b") == (
        'textLength="75.6" xml:space="preserve"><tspan class="bold green">ready</tspan> a&lt;b</text>'
    )
    assert line_of("\x1b[31mred\x1b[39m \x1b[2Kplain").endswith('<tspan class="red">red</tspan> plain</text>')
    assert line_of("  ") == ""
