"""The examples of `examples/library` that need no framework run as they are."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.hubs import CHECKOUT, environment

PAGE = (CHECKOUT / "docs" / "library.md").read_text()


def run(*words: str) -> str:
    program = [sys.executable, *words]
    ran = subprocess.run(program, text=True, capture_output=True, timeout=60, env=environment({}), check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_the_shortest_program_runs() -> None:
    output = run(str(CHECKOUT / "examples" / "library" / "connect.py"))
    assert "kept as number 1" in output
    assert "progress {'progress': 3, 'total': 3, 'message': 'reading the field notes'}" in output
    assert "executed: no. Invalid arguments for notes.add" in output


def test_the_notebook_runs_from_top_to_bottom() -> None:
    output = run(str(CHECKOUT / "examples" / "library" / "notebook.py"))
    assert "kept as number 1" in output
    assert "complete {'result': 'smooth'}" in output
    assert "Did you mean builtin.knead" in output


def test_every_example_that_the_page_names_is_there() -> None:
    named = re.findall(r"\]\(\.\./(examples/library/\w+\.py)\)", PAGE)
    assert named
    assert [path for path in named if not (CHECKOUT / path).exists()] == []


def test_the_example_without_a_framework_runs() -> None:
    output = run(str(CHECKOUT / "examples" / "library" / "plain_functions.py"))
    assert "meanwhile: reading the archive" in output
    assert '"is_error": true' in output
    assert "Tides are everywhere." in output


def test_so_it_does_with_a_server_that_logs() -> None:
    chatty = CHECKOUT / "tests" / "examples" / "chatty_server.py"
    example = CHECKOUT / "examples" / "library" / "plain_functions.py"
    code = (
        "import asyncio, runpy\n"
        f"main = runpy.run_path({str(example)!r})['main']\n"
        f"main.__globals__['CONFIG']['mcp_servers'][0]['args'] = [{str(chatty)!r}]\n"
        "asyncio.run(main())"
    )
    assert "Tides are everywhere." in run("-c", code)
