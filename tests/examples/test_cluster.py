"""`make cluster` runs a real cluster, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from contextlib import suppress

import psutil  # type: ignore[import-untyped]
import pytest

from tests import databases
from tests.examples.test_examples import EXAMPLES, run
from tests.fork_server import quick_isthmus
from tests.hubs import environment

START_SECONDS = 240.0


@pytest.mark.timeout(600)
async def test_a_cluster_starts_with_one_command_and_stops_with_ctrl_c() -> None:
    databases.programs()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / "cluster.py"),
        "--port",
        "0",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(),
    )
    assert process.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(START_SECONDS):
            while "Ctrl-C" not in said:
                line = await process.stdout.readline()
                assert line, said
                said += line.decode()
        children = psutil.Process(process.pid).children(recursive=True)
        found = re.search(r"http://127\.0\.0\.1:\d+(?=/mcp)", said)
        assert found is not None, said
        for words in re.findall(r"^    isthmus call (.*)$", said, re.MULTILINE):
            code, output = await run(*quick_isthmus("call", *re.sub("'", "", words).split(" ", 3)))
            assert (code, output.strip()) in [(0, "42"), (0, "kept as number 1")], words
        code, output = await run(*quick_isthmus("cluster", "status", "--hub", found[0], "--json"))
        assert code == 0, output
        nodes = json.loads(output)["nodes"]
        assert sorted(node["name"] for node in nodes) == ["node1", "node2", "node3"]
        assert [server for node in nodes for server in node["servers"]] == ["my_agent_calculator"]
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        rest, _ = await process.communicate()
    assert process.returncode == 0, rest.decode()
    assert psutil.wait_procs(children, 10)[1] == []
    folder = re.search(r"Logs are in (\S+)\.", said)
    assert folder is not None
    assert not (EXAMPLES.parent / "build" / folder[1].rpartition("/")[2]).exists()
