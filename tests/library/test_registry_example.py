"""The example of an agent engine runs, as a reader would run it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from isthmus.library import ToolDef, ToolRegistry
from tests.hubs import CHECKOUT, environment


def test_the_engine_uses_its_own_functions_and_an_mcp_server(tmp_path: Path) -> None:
    words = [sys.executable, str(CHECKOUT / "examples" / "library" / "engine.py")]
    env = environment({"HOME": str(tmp_path)})
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "tools: shout, mcp_notes_add, mcp_notes_list",
        '  shout({"text": "buy milk"}) -> BUY MILK',
        '  mcp_notes_add({"text": "BUY MILK"}) -> kept as number 1',
        '  mcp_notes_ad({"text": "a tool that there is not"}) -> Error: '
        "There is no tool 'mcp_notes_ad'. Did you mean mcp_notes_add or mcp_notes_list?",
        "  mcp_notes_list({}) -> BUY MILK",
        "Your notes: BUY MILK",
    ]
    assert ended.stderr == ""


async def test_the_engine_reports_unreadable_arguments_to_the_model() -> None:
    class Broken:
        def __init__(self) -> None:
            self.received = ""

        async def respond(self, messages: list[dict[str, Any]], tools: Any) -> dict[str, Any]:
            if len(messages) > 1:
                self.received = messages[-1]["content"]
                return {"content": "I see."}
            function = {"name": "shout", "arguments": "{nonsense"}
            return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}

    engine = runpy.run_path(str(CHECKOUT / "examples" / "library" / "engine.py"))["AgentEngine"]
    model, registry = Broken(), ToolRegistry([ToolDef("shout", "Say it louder.", {"type": "object"}, str.upper)])
    assert await engine(model, registry).chat("Shout.") == "I see."
    assert model.received.startswith("Error: ")
