"""The examples run, as a reader would run them."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.fork_server import quick_isthmus
from tests.hubs import CHECKOUT, PATIENT, Raw, environment, serving, stdio

EXAMPLES = CHECKOUT / "examples"
NOTES = stdio([sys.executable, str(EXAMPLES / "notes_server.py")])


async def run(*words: str, **env: str) -> tuple[int | None, str]:
    """Run a command and return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment(env)
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, output.decode()


async def test_the_first_call_of_the_example_configuration_works() -> None:
    config = str(EXAMPLES / "mcp.json")
    words = quick_isthmus("call", "--config", config, "notes.add", "text=buy milk")
    assert await run(*words) == (0, "kept as number 1\n")


async def test_the_example_for_two_callers_is_a_good_configuration() -> None:
    check = quick_isthmus("config", "check", str(EXAMPLES / "isthmus.toml"))
    code, output = await run(*check, PLANNER_KEY="0123456789abcdef-planner", READER_KEY="0123456789abcdef-reader")
    assert code == 0, output


async def test_the_example_agent_reads_its_note_back(tmp_path: Path) -> None:
    async with serving(tmp_path, {"notes": NOTES}, limits=PATIENT) as hub:
        code, output = await run(sys.executable, str(EXAMPLES / "agent.py"), hub.url)
        assert code == 0, output
        assert "notes.add: Keep a note." in output
        assert output.endswith("hello from an agent\n")
        async with Raw(hub.url) as caller:
            answer = await caller.call("notes.list")
            assert answer["result"]["content"][0]["text"] == "hello from an agent"


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("words.count_words", "text=one two three"), "3\n"),
        (("words.most_common", "text=a b A", "limit=1"), '[{"word":"a","times":2}]\n'),
        (("words.read_aloud", "text=one two"), "2 words read to local\n"),
        (("html.escape", "s=a < b"), "a &lt; b\n"),
    ],
)
async def test_the_example_functions_are_tools(words: tuple[str, ...], output: str) -> None:
    config = str(EXAMPLES / "python_tools" / "isthmus.toml")
    code, said = await run(*quick_isthmus("call", "--config", config, *words))
    assert code == 0, said
    assert said.endswith(output), said


@pytest.mark.parametrize(
    "words",
    [
        ("agent.py", "--help"),
        ("a2a/client_0_1.py", "8765"),
        ("a2a/client_0_3.py", "8765"),
        ("a2a/client_1_0.py", "8765"),
        ("a2a/client_agentvault.py", "8765"),
        ("a2a/orchestrator.py", "otters"),
        ("library/connect.py", "no-such-file.json"),
        ("relay/device.py",),
        ("relay/device.py", "kitchen"),
    ],
)
async def test_wrong_arguments_get_a_usage_line(words: tuple[str, ...]) -> None:
    program, *arguments = words
    code, output = await run(sys.executable, str(EXAMPLES / program), *arguments)
    assert (code, output.startswith("usage: "), output.count("\n")) == (1, True, 1), output


async def test_a_device_without_a_hub_says_so(deaf_port: int) -> None:
    address = f"ws://127.0.0.1:{deaf_port}/mcp_endpoint/call/?token=x"
    code, output = await run(sys.executable, str(EXAMPLES / "relay/device.py"), address)
    assert (code, output.startswith("no connection: "), output.count("\n")) == (1, True, 1), output


async def test_the_scene_with_agents_plays_to_its_end() -> None:
    code, said = await run(sys.executable, str(EXAMPLES / "a2a" / "demo.py"))
    assert code == 0, said
    for line in (
        "measured: {'words': 3, 'weight': 27021597764222979}, exact: True",
        "  … reading the field notes",
        "completed: “Rivers”, signed by Ada: otters live there; beavers too",
        "answer 7: survey, measure, publish",
        "  {'words': 3, 'weight': 3}",
        "and knows of 11 tasks in all",
    ):
        assert line in said.splitlines(), said
    assert re.search(r"a new hub says of \w+: TASK_STATE_FAILED", said)


async def test_the_scene_with_a_device_plays_to_its_end() -> None:
    code, said = await run(sys.executable, str(EXAMPLES / "relay" / "demo.py"))
    assert code == 0, said
    for line in (
        "it is ready, with 0 tools",
        "calculator                   calculator_server",
        "2 + 3 * 4 = 14",
        "Oslo: snow, snow",
        "晴 雨",
        "the tool says no: KeyError: 'Atlantis'",
        "failed (-32601): 工具 'nonexistent_tool' 不存在",
        "6 * 7 = 42",
        "calculator: failed (-32001): 工具端未连接",
        "calculator: 2",
        "weather: failed (-32001): 工具端未连接",
    ):
        assert line in said.splitlines(), said
    clashing = {"languages", "weather_server.languages", "translator_server.languages"}
    assert len(clashing & {line.split()[0] for line in said.splitlines() if line.strip()}) == 2, said


async def test_the_example_for_agents_is_a_good_configuration() -> None:
    code, said = await run(*quick_isthmus("config", "check", str(EXAMPLES / "a2a" / "isthmus.toml")))
    assert code == 0, said
