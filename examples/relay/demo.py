"""The whole scene: a hub, three servers that reach it from behind NAT over one outgoing connection, and a device.

`make devices` runs it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from device import Device, opened

HERE = Path(__file__).resolve().parent
ISTHMUS = [sys.executable, "-m", "isthmus"]
AGENT = "my_agent"
PATIENCE_SECONDS = 30.0


@contextmanager
def started(*command: str, **more: str) -> Iterator[subprocess.Popen]:
    """A program, for as long as it is needed."""
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env={**os.environ, **more}
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def address(hub: subprocess.Popen) -> str:
    """Where the hub listens, as it says itself."""
    heard = []
    for line in hub.stderr or ():
        if "listening" in line and (found := re.search(r"http://[\w.]+:\d+", line)):
            return found.group()
        heard.append(line)
    raise SystemExit(f"the hub did not start:\n{''.join(heard)}")


def minted(config: Path, url: str) -> dict[str, str]:
    """The two addresses of an agent: where its servers dial in, and where its devices call."""
    command = [*ISTHMUS, "token", "relay", AGENT, "--config", str(config), "--url", url, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def servers(url: str) -> dict[str, dict]:
    """The agent's servers, by the ids they dialled in with."""
    with urllib.request.urlopen(f"{url}/v1/relay/servers?agent={AGENT}") as answer:  # noqa: S310 - our own hub
        return {server["serverId"]: server for server in json.load(answer)["servers"]}


def until(url: str, state: str, *ids: str) -> None:
    """Wait until these servers are in a state."""
    until = time.monotonic() + PATIENCE_SECONDS
    while any(servers(url).get(id, {}).get("state") != state for id in ids):
        if time.monotonic() > until:
            raise SystemExit(f"not {state} within {PATIENCE_SECONDS:g} s: {servers(url)}")
        time.sleep(0.05)


def say(title: str) -> None:
    """Begin a scene."""
    print(f"\n── {title} {'─' * (76 - len(title))}", flush=True)


def call_by_rest(url: str) -> None:
    """Any caller of the hub can use what dialled in."""
    request = urllib.request.Request(  # noqa: S310 - our own hub
        f"{url}/v1/tools/{AGENT}_calculator_server.calculator",
        b'{"expression": "6 * 7"}',
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        print("6 * 7 =", json.load(answer)["content"][0]["text"])


def play(url: str, addresses: dict[str, str], device: Device, local: Path) -> None:
    """Every scene in turn."""
    say("a device comes first")
    print(f"it is ready, with {len(device.tools)} tools")
    say("three servers dial in on one connection, and another device")
    dial = [*ISTHMUS, "dial", addresses["server"], "--plain"]
    with started(*dial, "--config", str(local)):
        until(url, "ready", "calculator_server", "weather_server", "translator_server")
        subprocess.run([sys.executable, str(HERE / "device.py"), addresses["device"]], check=True)
        say("the same tools by REST, for any other agent")
        call_by_rest(url)
        say("the connection goes")
    until(url, "away", "calculator_server")
    print("calculator:", device.call("calculator", expression="1 + 1"))
    say("and a server comes back, on its own")
    calculator = [sys.executable, str(HERE / "calculator_server.py")]
    with started(*dial, "--server-id", "calculator_server", "--", *calculator):
        until(url, "ready", "calculator_server")
        print("calculator:", device.call("calculator", expression="1 + 1"))
        print("weather:", device.call("weather", city="Paris"))


def main() -> None:
    """Set the stage in a folder of its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        config = stage / "isthmus.toml"
        config.write_text(f'[hub]\nstate = "{stage / "state"}"\n')
        local = json.loads((HERE / "mcp.json").read_text())
        for server in local["mcpServers"].values():
            server |= {"command": sys.executable, "args": [str(HERE / server["args"][0])]}
        (stage / "mcp.json").write_text(json.dumps(local))
        with started(*ISTHMUS, "serve", "--config", str(config), "--port", "0") as hub:
            url = address(hub)
            addresses = minted(config, url)
            with opened(addresses["device"]) as device:
                play(url, addresses, device, stage / "mcp.json")


if __name__ == "__main__":
    main()
