"""Write the screens of `docs/cli.md` anew: `python -m tests.cli.screens`. A test compares them.

A screen stands below `<!-- screen: COMMAND -->`. All are taken at 80 columns from real commands, beside one hub with
three servers, in the order of the page.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from tests.cli.terminals import ESCAPES, on_terminal, run
from tests.hubs import CHECKOUT

PAGE = CHECKOUT / "docs" / "cli.md"
SCREEN = re.compile(r"(<!-- screen: ([^\n]+) -->\n```text\n)(.*?)(```)", re.DOTALL)
SHOWN_FOLDER = "/home/ada/hub"
SHOWN_PORT = "8765"

SHOP = """
import json, sys
print("3 products loaded", file=sys.stderr, flush=True)
text, number = {"type": "string"}, {"type": "integer", "minimum": 1}
tools = [
    {"name": "find_products", "description": "Find products by words in their name.", "inputSchema": {
        "type": "object", "required": ["words"], "properties": {
            "words": {**text, "description": "Words to look for, such as `green tea`"},
            "limit": {**number, "default": 10, "description": "How many to return"}}}},
    {"name": "order", "description": "Order a product. It is shipped the next day.", "inputSchema": {
        "type": "object", "required": ["product", "amount"], "properties": {
            "product": {**text, "description": "Its name, as found"}, "amount": number,
            "gift": {"type": "boolean", "default": False, "description": "Whether to wrap it"}}}},
]
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "tools/call":
        print("called", asked["params"]["name"], file=sys.stderr, flush=True)
    result = {
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "green tea, 100 g\\ngreen tea, 250 g"}]},
    }.get(asked["method"])
    if "id" in asked and result is not None:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"resultType": "complete", **result}}
        print(json.dumps(answer), flush=True)
"""

WEATHER = '''
def forecast(city: str, days: int = 3) -> str:
    """Forecast the weather of a city, day by day."""
    return f"{city}: rain for {days} days"
'''

BROKEN = "echo 'no licence file at /etc/search.lic' >&2; exit 3"


def scene(folder: Path) -> None:
    """Write the configuration and the servers that the screens show."""
    (folder / "shop.py").write_text(SHOP)
    (folder / "weather.py").write_text(WEATHER)
    python = json.dumps(sys.executable)
    (folder / "isthmus.toml").write_text(
        "[servers.shop]\n"
        f'command = {python}\nargs = ["-S", "-E", "shop.py"]\n\n'
        "[servers.weather]\n"
        f'python = "weather"\npath = "."\n\n'
        "[servers.search]\n"
        f'command = "/bin/sh"\nargs = ["-c", {json.dumps(BROKEN)}]\n'
    )


async def screens(commands: list[str], folder: Path) -> dict[str, str]:
    """Run the commands one after the other, and return what each shows."""
    scene(folder)
    home = {"HOME": str(folder / "home"), "NO_COLOR": "1", "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": ""}
    taken: dict[str, str] = {}
    async with on_terminal(folder, "serve", "--port", "0", env=home) as hub:
        port = (await hub.until(r"url=http://127.0.0.1:(\d+)/mcp"))[1]
        await hub.until("server ready +server=shop.*")
        await hub.until("server ready +server=weather.*")
        await hub.until(r"server not connected[^\n]*\n[^\n]*\n")
        for command in commands:
            if command == "isthmus serve":
                text = hub.text
            elif command == "isthmus top":
                text = await _top(folder, home)
            else:
                _, text = await run(folder, *shlex.split(command)[1:], env=home)
            taken[command] = shown(text, folder, port)
        hub.process.terminate()
        assert await hub.ended() == 0
    return taken


async def _top(folder: Path, home: dict[str, str]) -> str:
    """The last frame of the dashboard after a call, without its escapes."""
    async with on_terminal(folder, "top", env=home) as top:
        await top.until("SERVER +STATE")
        await run(folder, "call", "forecast", "city=Ulm", env=home)
        # To its last line: a frame may arrive in parts.
        found = await top.until(r"weather +ready +\d+ +[0-9.]+ +0 +0 +[0-9.]+ ms.*?q quits")
        frame = top.text[: found.end()].rpartition("\x1b[H")[2]
        top.type(b"q")
        assert await top.ended() == 0
    return ESCAPES.sub("", frame)


def shown(text: str, folder: Path, port: str) -> str:
    """A screen without what differs from machine to machine."""
    text = text.replace(str(folder), SHOWN_FOLDER).replace(port, SHOWN_PORT).replace(sys.executable, "python3")
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def commands_of(page: str) -> list[str]:
    """The commands whose screens the page shows."""
    return [found[2] for found in SCREEN.finditer(page)]


def comparable(text: str) -> list[str]:
    """The words of a screen, sorted, with all numbers alike: times, durations and the order of starts differ."""
    return sorted(re.sub(r"\d+(\.\d+)?", "0", text).split())


async def write() -> None:
    """Write the screens into the page."""
    page = PAGE.read_text(encoding="utf-8")
    # As long as the folder that is shown, so that lines break in the same places.
    folder = Path(tempfile.mkdtemp(prefix="", dir="/tmp"))
    try:
        taken = await screens(commands_of(page), folder)
    finally:
        shutil.rmtree(folder)
    PAGE.write_text(SCREEN.sub(lambda f: f"{f[1]}$ {f[2]}\n{taken[f[2]]}{f[4]}", page), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(write())
