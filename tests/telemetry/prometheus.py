"""Prometheus itself, as Debian packages it: scrapes a hub, with the rules that the project ships.

Without it on this machine such a test is skipped, loudly; in CI it fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.hubs import CHECKOUT

RULES = CHECKOUT / "deploy" / "prometheus" / "isthmus.rules.yml"
SECONDS = 60.0


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is; without it a test is skipped with the reason, and in CI it fails."""
    found = shutil.which(name)
    if found is not None:
        return found
    reason = f"no {name} on this machine; install it: sudo apt-get install prometheus"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Prometheus:
    """A running server."""

    def __init__(self, port: int, log: Path) -> None:
        self._port = port
        self.log = log

    def ask(self, path: str) -> Any:
        """The data of its HTTP API."""
        with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=SECONDS) as answer:
            read = json.load(answer)
        assert read["status"] == "success", read
        return read["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now."""
        return list(self.ask(f"query?query={quote(expression)}")["result"])


@contextmanager
def prometheus(folder: Path, hub_port: int, *, key: str = "") -> Iterator[Prometheus]:
    """A server that scrapes a hub every second."""
    folder.mkdir()
    authorization = f"\n    authorization: {{credentials: {key}}}" if key else ""
    (folder / "prometheus.yml").write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ["{RULES}"]
scrape_configs:
  - job_name: isthmus
    static_configs: [{{targets: ["127.0.0.1:{hub_port}"]}}]{authorization}
"""
    )
    with socket.socket() as free:  # it cannot choose a port itself
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log"
    words = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as written:
        process = subprocess.Popen(words, cwd=folder, stdout=written, stderr=written)
    try:
        yield Prometheus(port, log)
    finally:
        process.terminate()
        process.wait(SECONDS)


def expressions(dashboard: Path) -> list[str]:
    """The queries of a Grafana dashboard, with its variables filled in as Grafana does."""
    panels = json.loads(dashboard.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [re.sub(r"\$(instance|server)\b", ".*", each.replace("$__rate_interval", "1m")) for each in found]
