"""Record `docs/images/terminal.svg`, the animation of the README: `make recording`.

The commands under "Sixty seconds" of the README run on a terminal of 80 columns, with the server of its `mcp.json`.
Each is one screen of the animation: its command is typed, then its output appears. Readers who prefer reduced motion
see the screen of `isthmus tools` alone.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import sys
import tempfile
from html import escape
from pathlib import Path

from tests.cli.screens import shown
from tests.cli.terminals import COLUMNS, on_terminal
from tests.docs.pages import blocks_of, programs
from tests.hubs import CHECKOUT

IMAGE = CHECKOUT / "docs" / "images" / "terminal.svg"
README = CHECKOUT / "README.md"
FILE = "# Harbour\n\nCranes, ships and one hub.\n"
"""The README.md of the person at the terminal, which the recording reads."""

STILL = "isthmus tools"
"""The screen for readers who prefer reduced motion."""
TYPING_SECONDS, READING_SECONDS = 1.0, 4.0
CHARACTER, LINE, MARGIN, BAR = 8.4, 19, 16, 30
"""Width of a character and height of a line at 14 px, the margin, and the height of the title bar."""

_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07|\x1b[=>78]")
_COLOURS = {31: "red", 32: "green", 33: "yellow", 34: "blue", 36: "cyan", 91: "red", 92: "green", 93: "yellow"}

STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #dfe7e5; }
.red { fill: #f28b7a; } .green { fill: #4cc38a; } .yellow { fill: #e0a84e; } .blue, .cyan { fill: #4dbcc4; }
.bold { font-weight: 700; } .dim { fill: #8d9e99; } .prompt { fill: #4dbcc4; }
.title { fill: #8d9e99; font-size: 12px; } .screen { visibility: hidden; }
"""

MOVING = "@media (prefers-reduced-motion: no-preference) {"


def commands_of_the_readme() -> list[str]:
    """The commands under "Sixty seconds", without their comments."""
    block = next(block for block in blocks_of(README) if block.language == "sh" and "isthmus tools" in block.text)
    return [line.partition("  #")[0].strip() for line in block.text.splitlines()]


async def record(folder: Path) -> dict[str, str]:
    """Run the commands beside one hub, and return what each shows, with its colours."""
    config = next(block for block in blocks_of(README) if block.mark("file") == "mcp.json")
    (folder / "mcp.json").write_text(config.text)
    (folder / "README.md").write_text(FILE)
    (folder / "bin").mkdir()
    npx = folder / "bin" / "npx"
    npx.write_text(f'#!/bin/sh\nexec {programs(sys.executable)["npx"]} "$@"\n')
    npx.chmod(0o755)
    home = {"HOME": str(folder / "home"), "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
    home |= {"XDG_STATE_HOME": "", "XDG_CONFIG_HOME": "", "PAGER": "cat"}
    taken: dict[str, str] = {}
    async with on_terminal(folder, "serve", "--port", "0", env=home) as hub:
        port = (await hub.until(r"http://127.0.0.1:(\d+)/mcp"))[1]
        await hub.until("server ready.*?files.*?\n")
        for command in commands_of_the_readme():
            if command == "isthmus serve":
                text = hub.text
            else:
                async with on_terminal(folder, *shlex.split(command)[1:], env=home) as terminal:
                    assert await terminal.ended() == 0, terminal.text
                    text = terminal.text
            # What a line showed before a carriage return, such as progress, is no longer there.
            taken[command] = shown(re.sub(r"[^\n]*\r", "", text), folder, port)
        hub.process.terminate()
        assert await hub.ended() == 0
    return taken


def line_of(text: str) -> str:
    """One line of a terminal as an SVG element without its place: colours become classes."""
    text = _OTHER_ESCAPE.sub("", text)
    length = len(_SGR.sub("", text).rstrip())
    if length == 0:
        return ""
    spans, classes, at = [], set[str](), 0
    for found in [*_SGR.finditer(text), None]:
        piece = text[at : found.start() if found else len(text)]
        if piece:
            mark = f' class="{" ".join(sorted(classes))}"' if classes else ""
            spans.append(f"<tspan{mark}>{escape(piece, quote=False)}</tspan>" if mark else escape(piece, quote=False))
        if found:
            at = found.end()
            classes = _after(classes, [int(code or 0) for code in found[1].split(";")])
    body = "".join(spans).rstrip()
    return f'textLength="{length * CHARACTER:.1f}" xml:space="preserve">{body}</text>'


def _after(classes: set[str], codes: list[int]) -> set[str]:
    for code in codes:
        if code == 0:
            classes = set()
        elif code in (1, 2):
            classes = {*classes, "bold" if code == 1 else "dim"}
        elif code == 22:
            classes = classes - {"bold", "dim"}
        elif code in _COLOURS or code == 39:
            classes = {name for name in classes if name in ("bold", "dim")} | {_COLOURS.get(code, "")} - {""}
    return classes


def draw(screens: dict[str, str]) -> str:
    """The animation of the screens, in their order."""
    rows = max(len(text.splitlines()) for text in screens.values()) + 1
    width, height = round(COLUMNS * CHARACTER) + 2 * MARGIN, BAR + rows * LINE + 2 * MARGIN
    total = len(screens) * (TYPING_SECONDS + READING_SECONDS)
    groups = []
    # Without animations, and for readers who prefer reduced motion, one screen stands still.
    style = [STYLE, f"#s{list(screens).index(STILL)} {{ visibility: visible; }}", MOVING]
    for number in range(len(screens)):
        begin, end = 100 * number / len(screens), 100 * (number + 1) / len(screens)
        typed = begin + 100 * TYPING_SECONDS / total
        # A step holds until the next; the first screen begins at 0.
        hidden = f"0%, {begin - 0.01:.2f}% {{ visibility: hidden; }} " if number else ""
        style += [
            f"@keyframes s{number} {{ {hidden}{begin:.2f}%, {end - 0.01:.2f}% {{ visibility: visible; }}",
            f"  {end:.2f}%, 100% {{ visibility: hidden; }} }}",
            f"@keyframes o{number} {{ 0%, {typed - 0.01:.2f}% {{ opacity: 0; }}",
            f"  {typed:.2f}%, 100% {{ opacity: 1; }} }}",
            f"@keyframes t{number} {{ 0%, {begin:.2f}% {{ clip-path: inset(0 100% 0 0); }}",
            f"  {typed:.2f}%, 100% {{ clip-path: inset(0 0 0 0); }} }}",
            f"#s{number} {{ animation: s{number} {total:g}s step-end infinite; }}",
            f"#s{number} .output {{ animation: o{number} {total:g}s step-end infinite; }}",
            f"#s{number} .typed {{ animation: t{number} {total:g}s linear infinite; }}",
        ]
    style.append("}")
    for number, (command, text) in enumerate(screens.items()):
        lines = [
            f'<text x="{MARGIN}" y="{BAR + (row + 2) * LINE}" {line}'
            for row, line in enumerate(map(line_of, text.splitlines()))
            if line
        ]
        prompt = f'<text x="{MARGIN}" y="{BAR + LINE}" class="prompt">$</text>'
        typing = f'<text class="typed" x="{MARGIN + 2 * CHARACTER}" y="{BAR + LINE}" {line_of(command)}'
        output = "\n".join(lines)
        groups.append(f'<g id="s{number}" class="screen">{prompt}{typing}\n<g class="output">\n{output}\n</g></g>')
    dots = "".join(f'<circle cx="{18 + 18 * at}" cy="15" r="5" fill="#3a4a48"/>' for at in range(3))
    label = "A terminal: " + ", ".join(screens)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(label)}">',
            "<style>",
            *style,
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0e1514"/>{dots}',
            f'<text class="title" x="{width / 2:g}" y="19" text-anchor="middle">~/hub</text>',
            *groups,
            "</svg>\n",
        ]
    )


async def write() -> None:
    """Record and draw."""
    folder = Path(tempfile.mkdtemp(prefix="", dir="/tmp"))
    try:
        IMAGE.write_text(draw(await record(folder)), encoding="utf-8")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    asyncio.run(write())
