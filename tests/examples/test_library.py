"""What the page for programs shows runs as it is, and so does the notebook."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.hubs import CHECKOUT, environment

PAGE = (CHECKOUT / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXPECTED = (
    ["'builtin.add'", "success {'result': 3}"],
    ["progress {'progress': 3, 'total': 3, 'message': 'loaf 3'}", "complete {'result': 'baked'}"],
    ["['builtin.echo']", "'denied_tools': ['builtin.timestamp']"],
    ["hello"],
    ["'shout'", "HELLO"],
)


def run(*words: str) -> str:
    program = [sys.executable, *words]
    ran = subprocess.run(program, text=True, capture_output=True, timeout=60, env=environment({}), check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.mark.parametrize(("block", "said"), list(zip(BLOCKS, EXPECTED, strict=True)))
def test_each_program_on_the_page_runs(block: str, said: list[str]) -> None:
    output = run("-c", block)
    assert [words for words in said if words not in output] == []


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
