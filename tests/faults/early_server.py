"""A server over stdio, of the earlier era, that asks once after `initialize`, and works only after the answer.

It notes every answer in the file that is its argument. An error tells it nothing, and it does not ask again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.faults.eliciting_server import FORM, HELLO, TOOLS, send, tool_result


def main() -> None:
    can: dict[str, Any] = {}
    answer: dict[str, Any] = {}
    waiting: dict[str, Any] = {}
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                can = message["params"]["capabilities"]
                send({"id": message["id"], "result": HELLO})
            case "notifications/initialized" if "elicitation" in can:
                params = {"message": "hello", "requestedSchema": FORM}
                send({"id": "early", "method": "elicitation/create", "params": params})
            case "tools/list":
                send({"id": message["id"], "result": TOOLS})
            case "tools/call":
                waiting = message
            case None:
                answer = message
                with Path(sys.argv[1]).open("a", encoding="utf-8") as notes:
                    notes.write(line)
            case _ if "id" in message:
                send({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
            case _:
                pass
        if waiting and answer:
            send({"id": waiting["id"], "result": tool_result(waiting["params"]["arguments"]["nonce"], answer)})
            waiting = {}


if __name__ == "__main__":
    main()
