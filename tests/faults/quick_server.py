"""A stdio server that starts in a twentieth of a second, for tests that kill it a hundred times.

`python -S -E quick_server.py LEDGER [MARK]` speaks the modern era only. `pay(nonce)` writes the ledger as the raw
server does and answers, once somebody has opened the pipe `until` if it names one; `hold(nonce)` writes it too and
never answers. It is a script, so that its interpreter loads
next to nothing; `MARK` is only there to be found in the list of processes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

VERSION = "2026-07-28"
SCHEMA = {"type": "object", "properties": {"nonce": {"type": "string"}, "until": {"type": "string"}}}


def command(ledger: Path, mark: str = "") -> list[str]:
    """The words that start it; neither the site's packages nor the environment's are looked for."""
    return [sys.executable, "-S", "-E", str(Path(__file__).resolve()), str(ledger), mark]


def main() -> None:
    """Answer lines until the end of input."""
    ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        result = respond(request, ledger) if "id" in request else None
        if result is not None:
            whole = {"jsonrpc": "2.0", "id": request["id"], "result": {"resultType": "complete", **result}}
            os.write(1, json.dumps(whole).encode() + b"\n")


def respond(request: dict[str, Any], ledger: int) -> dict[str, Any] | None:
    """The result of a request, or None if it is never to have one."""
    match request["method"]:
        case "server/discover":
            return {"supportedVersions": [VERSION], "capabilities": {"tools": {}}}
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": SCHEMA} for name in ("pay", "hold")]}
        case "tools/call":
            arguments = request["params"]["arguments"]
            nonce = arguments.get("nonce")
            os.write(ledger, json.dumps({"nonce": nonce, "pid": os.getpid()}).encode() + b"\n")
            os.fsync(ledger)
            if "until" in arguments:
                os.close(os.open(arguments["until"], os.O_RDONLY))
            answer = {"content": [{"type": "text", "text": nonce}]}
            return answer if request["params"]["name"] == "pay" else None
        case _:
            return None


if __name__ == "__main__":
    main()
