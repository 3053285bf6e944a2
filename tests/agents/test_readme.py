"""The client that docs/a2a.md shows runs as it is written there."""

from __future__ import annotations

import asyncio

import pytest

from tests.agents.field import Field
from tests.hubs import CHECKOUT
from tests.peers.launch import sdk_python

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("agents")]


def snippet(word: str) -> str:
    """The Python block of docs/a2a.md that contains a word."""
    blocks = (CHECKOUT / "docs" / "a2a.md").read_text().split("```python\n")[1:]
    [found] = [block.partition("```")[0] for block in blocks if word in block]
    return found


async def test_the_client_of_the_page_gets_its_answer(field: Field) -> None:
    program = snippet("a2a.client").replace("http://127.0.0.1:8765", field.url)
    process = await asyncio.create_subprocess_exec(
        sdk_python("a2a10"), "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, said.decode()
    assert b'text: "hello"' in said
    assert b"TASK_STATE_COMPLETED" in said
