"""The tools of an MCP server for a program that speaks to a model's API by itself. Runs offline, without a framework.

    python examples/library/plain_functions.py

`Dispatcher.tools` is what to send, `Dispatcher.dispatch` executes the calls of a reply and gives the messages to send
next. Here it is Anthropic's API that is pretended; `"openai"`, `"chat_completions"` and `"gemini"` are the others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from isthmus.library import Dispatcher, ToolService, ToolStreamChunk

WORKSHOP = Path(__file__).resolve().parents[1] / "workshop_server.py"
CONFIG = {"mcp_servers": [{"name": "workshop", "command": sys.executable, "args": [str(WORKSHOP)]}]}


def pretended_api(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """What a model might reply: two calls at once, one of them wrong, and then an answer."""
    if len(messages) == 1:
        calls = {
            "mcp_workshop_survey": {"topic": "tides"},
            "mcp_workshop_measure": {"text": "low tide", "weight": "heavy"},
        }
        content = [
            {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": calls[name]}
            for number, name in enumerate(tool["name"] for tool in tools)
        ]
        return {"role": "assistant", "content": content}
    return {"role": "assistant", "content": [{"type": "text", "text": "Tides are everywhere."}]}


def tell(chunk: ToolStreamChunk) -> None:
    """Print what a tool says while it runs."""
    if chunk.chunk_type == "progress":  # the other kind is "log"
        print("  meanwhile:", chunk.content.get("message"))


async def main() -> None:
    """Ask, do what the model wants, and ask again, until it wants nothing."""
    service = ToolService()
    await service.initialize(CONFIG)
    try:
        dispatcher = Dispatcher(service, ["survey", "workshop.measure"], session_id="tides", on_event=tell)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Where are tides mentioned?"}]
        while True:
            reply = pretended_api(messages, await dispatcher.tools("anthropic"))
            messages.append(reply)
            answers = await dispatcher.dispatch(reply)
            if not answers:
                break
            messages += answers
        for message in messages:
            print(f"  {message['role']}: {json.dumps(message['content'])}")
    finally:
        await service.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
