"""Record the tools of real servers: `python -m tests.search.record FOLDER > tests/search/tools.jsonl`.

`servers.jsonl` names the servers: package, version, licence, and how they are started. Most ask for a key, and list
their tools with any. What is missing in FOLDER is installed there, without the scripts of packages; name servers after
it to record only these. Servers run as programs of this user, so record on a machine that has nothing to lose.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Literal

import msgspec
from mcp import Client, StdioServerParameters

from tests.peers.node import find_node

DATA = Path(__file__).parent
MEMBERS = ("title", "description", "inputSchema", "annotations")
"""What is recorded of a tool. Output schemas would be a quarter of the file, and no client shows them to a model."""
SECONDS = 90.0


class RecordedServer(msgspec.Struct, frozen=True):
    """One line of `servers.jsonl`."""

    server: str
    registry: Literal["npm", "PyPI"]
    package: str
    version: str
    licence: str
    arguments: tuple[str, ...] = ()
    """What follows the command; `{folder}` is its home folder."""
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    """Files in its home folder, which is otherwise empty."""
    requires: tuple[str, ...] = ()
    """What else must be installed for this version to start."""


def read_servers() -> list[RecordedServer]:
    """All servers."""
    lines = (DATA / "servers.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RecordedServer) for line in lines]


def command_of(server: RecordedServer, folder: Path) -> list[str]:
    """The words that start a server, which is installed first if it is not yet."""
    place = folder / f"{server.registry.lower()}-{server.package.replace('/', '-').removeprefix('@')}"
    if server.registry == "npm":
        package = place / "node_modules" / server.package
        if not package.exists():
            place.mkdir(parents=True, exist_ok=True)
            (place / "package.json").write_text('{"private": true}')
            wanted = [f"{server.package}@{server.version}", *server.requires]
            quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps", "--silent"]
            subprocess.run([_program("npm"), "install", *quiet, *wanted], cwd=place, check=True)
        scripts = json.loads((package / "package.json").read_text())["bin"]
        script = scripts if isinstance(scripts, str) else next(iter(scripts.values()))
        return [find_node() or _program("node"), str(package / script)]
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        wanted = [f"{server.package}=={server.version}", *server.requires]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    asked = "import importlib.metadata as m, sys; print(*(e.name for e in m.distribution(sys.argv[1]).entry_points))"
    names = subprocess.run([python, "-c", asked, server.package], check=True, capture_output=True, text=True)
    found = names.stdout.split()
    return [str(place / "bin" / (server.package if server.package in found else found[0]))]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not on PATH; install Node.js 18 or newer with npm")
    return found


async def record(server: RecordedServer, folder: Path) -> list[str]:
    """The lines of one server's tools."""
    with tempfile.TemporaryDirectory() as empty:
        for name, text in server.files.items():
            (Path(empty) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(empty) / name).write_text(text)
        arguments = [word.replace("{folder}", empty) for word in server.arguments]
        # Nothing of this user's environment but where programs are: neither keys nor folders.
        environment = {"PATH": os.environ["PATH"], "HOME": empty, "TMPDIR": empty, **server.environment}
        program, *words = [*command_of(server, folder), *arguments]
        started = StdioServerParameters(command=program, args=words, env=environment, cwd=empty)
        lines: list[str] = []
        async with asyncio.timeout(SECONDS), Client(started, mode="legacy", cache=None) as client:
            cursor: str | None = None
            while True:
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    found = tool.model_dump(by_alias=True, exclude_unset=True)
                    kept = {key: found[key] for key in MEMBERS if found.get(key) is not None}
                    line = {"server": server.server, "name": tool.name, **kept}
                    lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
                cursor = page.next_cursor
                if cursor is None:
                    return lines


def main() -> None:
    """Print the tools of every server, in the order of the file."""
    folder, *names = sys.argv[1:]
    for server in read_servers():
        if not names or server.server in names:
            lines = asyncio.run(record(server, Path(folder).resolve()))
            sys.stderr.write(f"{server.server}: {len(lines)} tools of {server.package} {server.version}\n")
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
