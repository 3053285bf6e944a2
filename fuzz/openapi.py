"""`python -m fuzz.openapi [--examples N]`: schemathesis against what a running hub says of its own REST frontend.

It starts a hub with callers, reads `/openapi.json`, and sends requests that fit it and some that do not: none may end
in a server's error, in an answer that is not described, or be let in without a key.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

KEY = "key-of-the-fuzzer-0123456789"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth"
SOURCES = Path(__file__).resolve().parents[1] / "src"
_URL = re.compile(r"http://[^/\s\"]+:\d+")


def main() -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.openapi", description=__doc__)
    parser.add_argument("--examples", type=int, default=20, help="for each operation")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="isthmus-fuzz-") as folder:
        return _run(Path(folder), words.examples)


def _run(folder: Path, examples: int) -> int:
    config = folder / "isthmus.json"
    callers = {"fuzz": {"key": KEY, "allow": ["*"], "operator": True}}
    config.write_text(json.dumps({"hub": {"state": str(folder / "state")}, "callers": callers}))
    words = [sys.executable, "-m", "isthmus", "serve", "--config", str(config), "--port", "0"]
    paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    hub = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths})
    try:
        assert hub.stderr is not None
        url = next(found[0] for line in hub.stderr if "listening" in line and (found := _URL.search(line)))
        return subprocess.run(_schemathesis(url, examples), check=False, cwd=folder).returncode
    finally:
        hub.send_signal(signal.SIGTERM)
        hub.communicate()


def _schemathesis(url: str, examples: int) -> list[str]:
    return [
        sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", CHECKS,
        "--max-examples", str(examples), "--phases", "examples,coverage,fuzzing",
        "--header", f"Authorization: Bearer {KEY}", "--seed", "1", "--request-timeout", "20",
        "--suppress-health-check", "all",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
