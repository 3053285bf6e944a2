"""The shortest way to call a tool: `isthmus.connect`, by `async with` and by `with`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import isthmus
from isthmus.library import ConfigurationError, ToolContext, ToolNotFoundError
from tests.hubs import serving
from tests.library.services import raw_server

RAW = {key: value for key, value in raw_server().items() if key != "name"}


async def test_a_file_of_servers_is_enough_to_call_a_tool(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"raw": RAW, "gone": {"command": "no-such-program"}}}))
    async with isthmus.connect(file) as hub:
        assert {"raw.pay", "builtin.echo"} <= {tool.name for tool in await hub.tools()}
        assert list(hub.failures) == ["gone"]
        result = await hub.call("builtin.echo", text="hello")
        assert (result.text, result.content) == ("hello", [{"type": "text", "text": "hello"}])
        assert (await hub.call("raw.pay", {"nonce": "1"})).is_success
        with pytest.raises(isthmus.ToolError, match="nonce") as refused:
            await hub.call("raw.pay", {"nonce": 1})
        assert refused.value.executed == "no"
        with pytest.raises(ToolNotFoundError, match=r"builtin\.echo"):
            await hub.call("builtin.eco")


def test_code_that_blocks_uses_a_plain_with() -> None:
    with isthmus.connect({"raw": RAW}) as hub:
        assert "raw.pay" in {tool.name for tool in hub.tools()}
        assert hub.call("raw.pay", nonce="1").is_success
        with pytest.raises(isthmus.ToolError) as failed:
            hub.call("raw.pay", nonce="2", mode="die_after_ledger")
        assert failed.value.executed == "unknown"
        with pytest.raises(ToolNotFoundError):
            hub.call("raw.pray")


def test_a_server_that_dies_says_why_in_its_own_words() -> None:
    dying = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no licence')"]}
    with isthmus.connect({"dying": dying}) as hub:
        assert hub.failures == {"dying": "exited with code 1; its last output: no licence"}


@pytest.fixture
def baking() -> Iterator[None]:
    isthmus.tool(bake)
    yield
    isthmus.tool.remove("bake")


def bake(context: ToolContext, loaves: int) -> dict[str, int]:
    """Bake some bread."""
    for number in range(loaves):
        context.progress(number + 1, loaves, "baking")
    if not loaves:
        raise ValueError("nothing to bake")
    return {"loaves": loaves}


@pytest.mark.usefixtures("baking")
async def test_a_stream_has_progress_then_the_result() -> None:
    async with isthmus.connect() as hub:
        chunks = [chunk async for chunk in hub.stream("bake", loaves=2)]
        assert [chunk.chunk_type for chunk in chunks] == ["progress", "progress", "data", "complete"]
        assert chunks[-1].result is not None
        assert chunks[-1].result.data == {"loaves": 2}
        with pytest.raises(isthmus.ToolError, match="nothing to bake") as failed:
            [chunk async for chunk in hub.stream("bake", loaves=0)]
        assert failed.value.executed == "yes"


@pytest.mark.usefixtures("baking")
def test_a_stream_without_a_loop() -> None:
    with isthmus.connect(timeout=10) as hub:
        assert [chunk.chunk_type for chunk in hub.stream("bake", loaves=1)] == ["progress", "data", "complete"]
        with pytest.raises(isthmus.ToolError, match="nothing to bake"):
            list(hub.stream("bake", loaves=0))


async def test_an_address_is_a_hub_that_runs(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, {"raw": RAW}) as process,
        isthmus.connect(f"http://127.0.0.1:{process.port}") as hub,
    ):
        assert (await hub.call("raw.pay", nonce="1")).is_success


def test_an_unusable_target_raises_an_error_with_the_reason() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"), isthmus.connect("nowhere/mcp.json"):
        pass
    with pytest.raises(ConfigurationError, match="cannot be reached"), isthmus.connect("http://127.0.0.1:9"):
        pass


def test_importing_the_package_alone_is_cheap() -> None:
    script = "import sys, isthmus; print('asyncio' in sys.modules, 'isthmus.library' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == ["False", "False"]
    with pytest.raises(AttributeError, match="conect"):
        isthmus.conect  # type: ignore[attr-defined]  # noqa: B018
