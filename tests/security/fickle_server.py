"""A server over stdio that lists the current content of a file: `python fickle_server.py FILE`.

The file holds `tools`, perhaps `asked` (what is listed to clients that can be asked something instead), `prompts`,
`resources` and `instructions`. Calling `announce` has it say that its list has changed; every other call returns its
own name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def tool(name: str, description: str = "Does what it says.", **more: Any) -> dict[str, Any]:
    """A definition."""
    return {"name": name, "description": description, "inputSchema": SCHEMA, **more}


ANNOUNCE = tool("announce", "Says that the list has changed.")


def main() -> None:
    """Answer until stdin ends."""
    file, can_ask = Path(sys.argv[1]), False
    for line in sys.stdin:
        message = json.loads(line)
        params = message.get("params", {})
        if message["method"] == "initialize":
            can_ask = bool(params["capabilities"])
        if "id" not in message:
            continue
        answer = _answer(message["method"], params, json.loads(file.read_text()), can_ask=can_ask)
        end = {"error": {"code": -32601, "message": "no"}} if answer is None else {"result": answer}
        _say({"id": message["id"], **end})
        if params.get("name") == "announce":
            _say({"method": "notifications/tools/list_changed"})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def _answer(method: str, params: dict[str, Any], lists: dict[str, Any], *, can_ask: bool) -> dict[str, Any] | None:
    tools = lists.get("asked", lists["tools"]) if can_ask else lists["tools"]
    match method:
        case "initialize":
            abilities = {key: {"listChanged": True} for key in ("tools", "prompts", "resources") if key in lists}
            me = {"name": "fickle", "version": "1"}
            said = {"instructions": lists["instructions"]} if "instructions" in lists else {}
            return {"protocolVersion": "2025-06-18", "capabilities": abilities, "serverInfo": me, **said}
        case "tools/list":
            return {"tools": [*tools, ANNOUNCE]}
        case "prompts/list":
            return {"prompts": lists["prompts"]}
        case "resources/list":
            return {"resources": lists["resources"]}
        case "tools/call":
            if (lists.get("fails") or {}).get(params["name"]) is not None:
                return {"content": [{"type": "text", "text": lists["fails"][params["name"]]}], "isError": True}
            text = lists.get("answers", {}).get(params["name"], params["name"])
            return {"content": [{"type": "text", "text": text}]}
        case "ping":
            return {}
        case _:
            return None


if __name__ == "__main__":
    main()
