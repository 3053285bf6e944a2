"""A notebook on a real Jupyter kernel: cells of the example and of the documentation, interrupted, and started anew."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import KernelManager

from tests.frameworks.inside.served import CHECKOUT
from tests.library.services import wait_for_line

SECONDS = 40.0

EXAMPLE = CHECKOUT / "examples" / "library" / "notebook.py"
MANUAL = CHECKOUT / "docs" / "library.md"

WITHOUT_HISTORY = "--HistoryManager.enabled=False"
"""What was typed is not kept: a kernel that is interrupted meanwhile says in the middle of a cell that it could not."""

SLOW = 'pay("{nonce}", "sleep:60")'
QUICK = 'pay("next")'


class Notebook:
    """Cells, and what they print."""

    def __init__(self, folder: Path) -> None:
        self._manager = KernelManager(connection_file=str(folder / "kernel.json"))
        self._said = (folder / "kernel.log").open("w")
        self._manager.start_kernel(cwd=str(CHECKOUT), stderr=self._said, extra_arguments=[WITHOUT_HISTORY])
        self._connect()

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=SECONDS)

    def run(self, cell: str) -> str:
        """Run a cell, and return what it prints, and the name of what it raises."""
        return self.ended(self.begin(cell))

    def begin(self, cell: str) -> str:
        """Have a cell run; what is returned stands for it."""
        return str(self._client.execute(cell))

    def ended(self, cell: str) -> str:
        """What came of it."""
        found, until = "", time.monotonic() + SECONDS
        while True:
            message: dict[str, Any] = self._client.get_iopub_msg(timeout=max(0.0, until - time.monotonic()))
            content = message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            match message["msg_type"]:
                case "stream":
                    found += content["text"]
                case "error":
                    found += f"{content['ename']}: {content['evalue']}"
                case "status" if content["execution_state"] == "idle":
                    return found
                case _:
                    pass

    def interrupt(self) -> None:
        """The button."""
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """The other one."""
        self._client.stop_channels()
        self._manager.restart_kernel()
        self._connect()

    def processes(self) -> list[psutil.Process]:
        """What the kernel has started."""
        found: list[psutil.Process] = psutil.Process(self._manager.provisioner.pid).children(recursive=True)
        return found

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel()
        self._said.close()


@pytest.fixture(scope="module", autouse=True)
def nobody_s_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels and their clients read and leave nothing in the home folder of the user that runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    made = Notebook(tmp_path_factory.mktemp("kernel"))
    yield made
    made.close()


@pytest.fixture
def ledger(notebook: Notebook, tmp_path: Path) -> Iterator[Path]:
    """What the server notes that `tools` has, in the notebook."""
    path = tmp_path / "ledger.jsonl"
    assert not notebook.run(f"""
from pathlib import Path
from isthmus.library import BlockingToolService
from tests.library.services import pay, raw_server, with_servers
tools = BlockingToolService(with_servers(raw_server(ledger=Path({str(path)!r}))))
tools.initialize()
""")
    yield path
    assert not notebook.run("tools.shutdown()")


def test_the_example_runs_cell_by_cell(notebook: Notebook) -> None:
    cells = re.split(r"(?m)^(?=# %%)", EXAMPLE.read_text())[1:]
    said = [notebook.run(cell) for cell in cells]
    assert [len(cells), said[1], said[-1]] == [5, "kept as number 1\n", ""]
    assert "notes.add" in said[0]
    assert said[2].splitlines()[-1] == "complete {'result': 'smooth'}"
    assert "Did you mean builtin.knead" in said[3]


def test_examples_of_the_manual_run_in_cells(notebook: Notebook, tmp_path: Path) -> None:
    shown = re.findall(r"```python\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}}')
    cells = [
        cell.replace("asyncio.run(main())", "await main()").replace('"mcp.json"', repr(str(file))) for cell in shown
    ]
    said = [notebook.run(cell) for cell in cells]
    assert len(said) == 9
    assert not [words for words in said if "Error" in words or not words]
    assert said[0].splitlines()[-1] == "hello"
    assert said[4].splitlines()[-1] == "success {'result': 3}"


@pytest.mark.parametrize(
    "cell",
    [
        "tools.execute_tool({slow})",
        "for chunk in tools.execute_tool_stream({slow}): pass",
        "await tools.service.execute_tool({slow})",
        "async for chunk in tools.service.execute_tool_stream({slow}): pass",
    ],
)
def test_a_cell_that_is_interrupted_stops_its_tool_and_leaves_the_service_usable(
    notebook: Notebook, ledger: Path, cell: str
) -> None:
    running = notebook.begin(cell.format(slow=SLOW.format(nonce="slow")))
    wait_for_line(ledger, '"nonce": "slow"')
    notebook.interrupt()
    # A kernel hears that a cell is to stop which awaits when its loop has something else to do as well: the next cell.
    following = notebook.begin(f"print(tools.execute_tool({QUICK}).text)")
    assert notebook.ended(running).startswith("CancelledError" if "await" in cell or "async" in cell else "Keyboard")
    wait_for_line(ledger, '"cancelled": "slow"')
    assert notebook.ended(following) in ("next\n", "")  # what follows an error is left out, unless it came after it
    assert notebook.run(f"print(tools.execute_tool({QUICK}).text)") == "next\n"
    assert notebook.run(f"print((await tools.service.execute_tool({QUICK})).text)") == "next\n"


def test_a_kernel_that_is_started_anew_leaves_no_server_behind(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path)
    try:
        first, call, *_ = re.split(r"(?m)^(?=# %%)", EXAMPLE.read_text())[1:]
        for _ in range(2):
            assert "notes.add" in notebook.run(first)
            assert notebook.run(call) == "kept as number 1\n"
            servers = notebook.processes()
            assert servers
            notebook.restart()
            assert psutil.wait_procs(servers, timeout=SECONDS)[1] == []
    finally:
        notebook.close()
