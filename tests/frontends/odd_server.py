"""A legacy server over stdio with unusual but legal texts, which tests compare with those at the caller."""

from __future__ import annotations

import json
import sys

TOOL = (
    '{"name":"odd.tool","title":"Ünï","description":"a\\u0041\\n","inputSchema":{"type":"object","x":1.0},'
    '"outputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"x-hint":1e2},'
    '"icons":[{"src":"data:,","sizes":["any"]}],"_meta":{"vendor/key":null},"x-new":{"big":9007199254740993}}'
)
RESULT = (
    '{"content":[{"type":"new","x":1.50}],"structuredContent":{"n":1e2},"isError":false,'
    '"_meta":{"vendor/key":9007199254740993},"x-new":[ "\\u00e4" ]}'
)
WELCOME = '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"odd","version":"1"}}'
ANSWERS = {"initialize": WELCOME, "tools/list": f'{{"tools":[{TOOL}]}}', "tools/call": RESULT, "ping": "{}"}


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        message = json.loads(line)
        answer = ANSWERS.get(message["method"])
        if "id" not in message:
            continue
        end = f'"result":{answer}' if answer else '"error":{"code":-32601,"message":"no"}'
        sys.stdout.write(f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},{end}}}\n')
        sys.stdout.flush()


if __name__ == "__main__":
    main()
