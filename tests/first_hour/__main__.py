"""`make firsthour`: five people use the hub in a clean clone, each with a clean home, and follow the pages.

Their clients are real: npm's inspector, the official MCP client, FastMCP's client, a2a-sdk, agent frameworks and a
device. Every command is printed with its seconds. The SDKs come from the environments that `make test` makes; the hub
is the one that `make serve` installs in the clone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.docs import pages
from tests.docs.pages import Reader, reader
from tests.hubs import CHECKOUT

HUB = "http://127.0.0.1:8765/mcp"
INSPECTOR = (
    f"npx -y @modelcontextprotocol/inspector --cli {HUB} --method tools/call "
    "--tool-name builtin.echo --tool-arg text=hello"
)
CLIENTS = CHECKOUT / "tests" / "first_hour" / "clients.py"
SERVERS = 10
INSTALL_SECONDS = 900.0


def developer(person: Reader) -> None:
    """From `git clone` to a tool that a real client calls; the README, two more clients, two more ways to install."""
    began = time.monotonic()
    person.type("make serve", "README.md")
    person.type(INSPECTOR, "README.md")
    print(f"    {time.monotonic() - began:6.1f} s  in all, in three commands with `git clone`")
    person.read(person.folder / "README.md")
    person.type(f"{sys.executable} {CLIENTS} mcp {HUB}", "official MCP client")
    person.type(f"{sys.executable} {CLIENTS} fastmcp {HUB}", "FastMCP's client")
    person.type("uvx --from . isthmus serve", "README.md")
    person.type("python3 -m venv ~/own && ~/own/bin/pip install --quiet . && ~/own/bin/isthmus --version", "README.md")


def operator(person: Reader) -> None:
    """Keys, permissions, the audit log and what is wrong."""
    person.read(person.folder / "docs" / "permissions.md")
    (person.folder / "isthmus.toml").unlink()
    person.read(person.folder / "docs" / "operating.md")
    (person.folder / "mcp.json").unlink()
    person.type("isthmus token create agent --allow builtin.echo", "docs/operating.md")
    key = next(word for word in person.said.split()[::-1] if word.startswith("isk"))
    person.type("isthmus serve", "docs/operating.md")
    url = HUB.replace("/mcp", "/v1/tools/builtin.echo")
    person.type(
        f"curl {url} -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{{\"text\": \"hello\"}}'",
        "REST",
    )
    person.type(f"curl {url}", "REST without a key", 22)
    person.type(f"{sys.executable} {CLIENTS} mcp {HUB} {key}", "official MCP client with a key")
    person.type("isthmus access agent", "docs/permissions.md")
    person.type("isthmus audit verify", "docs/audit.md")


def orchestrator(person: Reader) -> None:
    """A task of a2a-sdk's client, and everything that `make demo` shows."""
    person.read(person.folder / "docs" / "a2a.md")
    person.type("make demo", "README.md")


def framework_author(person: Reader) -> None:
    """The library's page, and an agent of each framework."""
    person.read(person.folder / "docs" / "library.md")
    for name in ("adk", "langgraph", "openai_agents", "pydantic_ai"):
        person.type(
            f"PYTHONPATH=src .venv-frameworks/bin/python examples/library/{name}_agent.py", "examples/README.md"
        )


def device_owner(person: Reader) -> None:
    """Servers dial in, a device calls them."""
    person.read(person.folder / "docs" / "relay.md")
    person.type("make devices", "README.md")


def many_servers(person: Reader) -> None:
    """How soon a hub with ten servers answers, and has listed them all."""
    entry = f'{{"command": "{sys.executable}", "args": ["{person.folder}/examples/notes_server.py"]}}'
    names = ", ".join(f'"notes{number}": {entry}' for number in range(SERVERS))
    (person.folder / "ten.json").write_text(f'{{"mcpServers": {{{names}}}}}')
    words = [person.python, "-m", "isthmus", "serve", "--config", "ten.json", "--port", str(person.port)]
    env = pages.clean_environment(person.home)
    for attempt in ("first", "second", "third"):
        began = time.monotonic()
        with subprocess.Popen(words, cwd=person.folder, env=env, stderr=subprocess.DEVNULL) as hub:
            for path in ("livez", "readyz"):
                while not _answers(f"http://127.0.0.1:{person.port}/{path}"):
                    assert hub.poll() is None
                    time.sleep(0.005)
                used = psutil.Process(hub.pid).cpu_times()
                print(
                    f"    {time.monotonic() - began:6.2f} s  {attempt} start: /{path} of a hub with {SERVERS} servers "
                    f"({used.user + used.system:.2f} s of CPU)"
                )
            hub.terminate()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


SCENES: tuple[tuple[str, Callable[[Reader], None]], ...] = (
    ("a developer with an mcp.json", developer),
    ("an operator", operator),
    ("the author of an orchestrator", orchestrator),
    ("the author of an agent framework", framework_author),
    ("the owner of devices", device_owner),
    ("ten servers", many_servers),
)


def _report(command: str, seconds: float) -> None:
    command = command.replace(sys.executable, "python").replace(f"{CHECKOUT}/", "")
    command = re.sub(r"isk_[\w-]+", "KEY", " ".join(command.partition("  #")[0].split()))
    print(f"    {seconds:6.1f} s  {command}", flush=True)


def main(wanted: list[str]) -> int:
    """Play the scenes, or those whose function is named; return how many failed."""
    failed = 0
    pages.SECONDS = INSTALL_SECONDS
    with tempfile.TemporaryDirectory(prefix="isthmus-first-hour-") as name:
        folder = Path(name)
        clone = folder / "isthmus"
        began = time.monotonic()
        subprocess.run(["git", "clone", "-q", str(CHECKOUT), str(clone)], check=True)
        print(f"machine: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"    {time.monotonic() - began:6.1f} s  git clone")
        for title, scene in SCENES:
            if wanted and scene.__name__ not in wanted:
                continue
            print(f"I am {title}" if scene is not many_servers else title, flush=True)
            subprocess.run(["git", "checkout", "-q", "."], cwd=clone, check=True)
            subprocess.run(["git", "clean", "-fdxq", "-e", ".venv*"], cwd=clone, check=True)
            began = time.monotonic()
            try:
                with reader(folder / scene.__name__, clone) as person:
                    person.on_done = _report
                    scene(person)
            except (pytest.fail.Exception, pytest.skip.Exception, subprocess.SubprocessError, AssertionError) as error:
                failed += 1
                print(f"    FAILED: {error}")
            print(f"    {time.monotonic() - began:6.1f} s  altogether")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
