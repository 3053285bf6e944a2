"""The pytest plugin of `isthmus.testing`, in a pytest of its own: the first run records, later ones replay."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cassettes.test_replay import odd_server
from tests.hubs import environment

TESTS = """
import asyncio
import isthmus
import pytest

def test_blocking(isthmus_cassette):
    with isthmus_cassette("mcp.json") as hub:
        assert hub.call("odd.square", n=4, ms=0).text == "16"

@pytest.mark.parametrize("name", ["a/b", "ü"])
def test_async(isthmus_cassette, name):
    async def work():
        async with isthmus_cassette(SERVERS) as hub:
            assert "odd.square" in {tool.name for tool in await hub.tools()}
            assert (await hub.call("odd.square", n=5, ms=0)).text == "25"
            with pytest.raises(isthmus.ToolError, match="it failed"):
                await hub.call("odd.fails")
    asyncio.run(work())

def test_served(isthmus_cassette):
    with isthmus_cassette.serve(SERVERS) as url, isthmus.connect(url) as hub:
        assert hub.call("odd.square", n=6, ms=0).text == "36"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with tests of an agent."""
    servers = {"odd": odd_server()}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["isthmus.testing"]\n')
    (tmp_path / "test_agent.py").write_text(f"SERVERS = {servers!r}\n{TESTS}")
    return tmp_path


def run(project: Path, *options: str) -> tuple[int, str]:
    """How pytest ended, and what it printed."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(project), *options]
    # Without the plugins of this environment, which take longer to load than the tests run.
    env = environment({"HOME": str(project), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    ended = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=100)
    return ended.returncode, ended.stdout + ended.stderr


def without_servers(project: Path) -> None:
    """Take the servers away: whatever still starts one fails."""
    for name in ("mcp.json", "test_agent.py"):
        file = project / name
        file.write_text(file.read_text().replace("odd_server.py", "gone.py").replace("key-0123456789", "no-key"))


def test_the_first_run_records_and_later_ones_need_no_servers_and_no_keys(project: Path) -> None:
    code, said = run(project)
    assert (code, "4 passed" in said) == (0, True), said
    names = sorted(path.name for path in (project / "cassettes").iterdir())
    assert names == [
        "test_agent.test_async-a-b.jsonl",
        "test_agent.test_async-xfc.jsonl",
        "test_agent.test_blocking.jsonl",
        "test_agent.test_served.jsonl",
    ]
    recorded = {path: path.read_bytes() for path in (project / "cassettes").iterdir()}
    without_servers(project)
    code, said = run(project)
    assert (code, "4 passed" in said) == (0, True), said
    assert {path: path.read_bytes() for path in (project / "cassettes").iterdir()} == recorded
    assert run(project, "--isthmus-record", "-k", "blocking")[0] == 1


def test_a_test_that_calls_something_else_fails_until_it_is_recorded_again(project: Path) -> None:
    assert run(project, "-k", "blocking or served")[0] == 0
    file = project / "test_agent.py"
    file.write_text(file.read_text().replace('n=4, ms=0).text == "16"', 'n=9, ms=0).text == "81"'))
    code, said = run(project, "-k", "blocking")
    assert code == 1
    assert "arguments.n is 4 there and 9 here" in said
    code, said = run(project, "-k", "blocking", "--isthmus-record")
    assert code == 0, said
    assert run(project, "-k", "blocking")[0] == 0

    file.write_text(re.sub(r"assert hub\.call\(.*", "pass", file.read_text()))
    code, said = run(project, "-k", "blocking or served")
    assert code == 1
    assert "1 of 1 recorded calls were not made; the first is odd.square" in said
    assert re.search(r"1 of 1 calls of .* were not made; the first is odd\.square", said)


def test_a_failing_test_leaves_no_cassette_and_a_damaged_one_says_how_to_go_on(project: Path) -> None:
    file = project / "test_agent.py"
    good = file.read_text()
    file.write_text(good.replace('== "16"', '== "17"').replace('== "36"', '== "37"'))
    assert run(project, "-k", "blocking or served")[0] == 1
    assert list((project / "cassettes").iterdir()) == []
    file.write_text(good)
    assert run(project, "-k", "blocking or served")[0] == 0
    for cassette in (project / "cassettes").iterdir():
        cassette.write_bytes(cassette.read_bytes()[:-9])
    code, said = run(project, "-k", "blocking or served")
    assert code == 1
    assert "the line has no end: the file was cut; run pytest --isthmus-record" in said
