"""Questions that a server asks before any call reach the next caller, after any delay."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.upstream import questions
from tests.faults.eliciting_servers import CAN, CAPABILITIES_KEY, SECONDS, AnsweringCaller, Era, Line, text_of
from tests.faults.scripted import hub_of, listening
from tests.faults.watching import eventually
from tests.hubs import META, MODERN, stdio

ROOT = Path(__file__).parents[2]


async def listed_to(person: AnsweringCaller, line: Line) -> Any:
    """What a caller is listed that can be asked something."""
    headers, params = person.session, {}
    if person.era == "modern":
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/list"}
        params = {"_meta": {**META, CAPABILITIES_KEY: CAN}}
    line.write("/mcp", headers, {"id": 1, "method": "tools/list", "params": params})
    async with asyncio.timeout(SECONDS):
        return await line.body(await line.head())


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_question_during_initialize_goes_to_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: Era, *, is_late: bool
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setattr(questions, "EARLY_SECONDS", 0.0 if is_late else 600.0)
    server = stdio([sys.executable, "-m", "tests.faults.early_server", str(notes)], era="legacy", cwd=str(ROOT))
    async with hub_of(tmp_path, {"pipe": server}) as hub, listening(hub) as port:
        await hub.ready("pipe")
        person, lines = AnsweringCaller(port, "ann", "", era), (await Line.open(port), await Line.open(port))
        await person.enter()
        await listed_to(person, lines[0])
        if is_late:
            await eventually(lambda: "error" in notes.read_text("utf-8"), "the question waited for long enough")
            monkeypatch.setattr(questions, "EARLY_SECONDS", 600.0)
        received, asked = await person.call(lines, "pipe.ask", "n")
        assert (text_of(received), asked) == ("n ann:hello", ["hello"])
        for line in lines:
            line.close()
