"""An agent engine of one's own: a language model, functions of the program, and the tools of MCP servers.

`python examples/library/engine.py` runs it offline on `examples/mcp.json`. The model is scripted: it says what a real
one might say. To have a real one, give `AgentEngine` something with the same `respond`, which is what OpenAI's Chat
Completions take and give.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from isthmus.library import MCPManager, ToolDef, ToolError, ToolRegistry

TURNS_MAX = 10
"""How often the model may ask for tools before it has to come to an end."""


class Model(Protocol):
    """Something that answers messages."""

    async def respond(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The next message of the assistant: `content`, or `tool_calls`."""


class AgentEngine:
    """Asks a model, and does what it asks for, until it has an answer."""

    def __init__(self, model: Model, registry: ToolRegistry, workspace_root: str = ".") -> None:
        self._model = model
        self._registry = registry
        self._mcp_manager = MCPManager(workspace_root)

    async def initialize_mcp(self) -> None:
        """Connect the servers of the workspace's `mcp.json`; one that fails is left out."""
        await self._mcp_manager.initialize(self._registry)

    async def shutdown_mcp(self) -> None:
        """Close every connection."""
        await self._mcp_manager.shutdown()

    async def chat(self, text: str) -> str:
        """Answer one message."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        for _ in range(TURNS_MAX):
            # The registry is always up to date: nothing is asked of any server here.
            answer = await self._model.respond(messages, self._registry.to_openai_schema("chat_completions"))
            messages.append({"role": "assistant", **answer})
            if not answer.get("tool_calls"):
                return str(answer["content"])
            messages += [await self._result_of(call) for call in answer["tool_calls"]]
        return "I could not come to an end."

    async def _result_of(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        try:
            result = await self._registry.acall_tool(function["name"], json.loads(function["arguments"]))
        except (ToolError, json.JSONDecodeError) as error:
            result = f"Error: {error}"  # for the model to read: it may try another way
        print(f"  {function['name']}({function['arguments']}) -> {result}")
        return {"role": "tool", "tool_call_id": call["id"], "content": str(result)}


class ScriptedModel:
    """Stands in for a real model: it calls these tools one after the other, and then says what the last one said."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = list(calls)

    async def respond(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """See `Model`."""
        if not self._calls:
            return {"content": f"Your notes: {messages[-1]['content']}"}
        name, arguments = self._calls.pop(0)
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"content": None, "tool_calls": [{"id": f"call_{name}", "type": "function", "function": function}]}


def shout(text: str) -> str:
    """A function of the program itself."""
    return text.upper()


async def main() -> None:
    """Have something noted, shouted and read back."""
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    registry = ToolRegistry([ToolDef("shout", "Say it louder.", text, shout)])
    model = ScriptedModel(
        ("shout", {"text": "buy milk"}),
        ("mcp_notes_add", {"text": "BUY MILK"}),
        ("mcp_notes_ad", {"text": "a tool that there is not"}),
        ("mcp_notes_list", {}),
    )
    engine = AgentEngine(model, registry, str(Path(__file__).parents[1]))
    await engine.initialize_mcp()
    try:
        print("tools:", ", ".join(registry.names))
        print(await engine.chat("Note that I have to buy milk, loudly."))
    finally:
        await engine.shutdown_mcp()


if __name__ == "__main__":
    asyncio.run(main())
