"""Modules that the configuration names for their functions: each costs only itself."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.app import hub as module
from isthmus.app.hub import import_tools, tool_modules
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import Limits
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.python.builtin import HubFunctions
from isthmus.upstream.python.link import begin_to_import
from isthmus.upstream.python.registry import REGISTRY
from tests.unit.core.doubles import Notes

GOOD = "from isthmus.library import tool\n@tool\ndef good_of_test_tools(): ..."


@pytest.fixture(autouse=True)
def own_imports() -> Iterator[None]:
    """What a test imports is forgotten after it."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.endswith("_module_of_test_tools"):
            del sys.modules[name]
            REGISTRY.forget(name)


def configuration(folder: Path, **texts: str) -> Configuration:
    for name, text in texts.items():
        (folder / f"{name}_module_of_test_tools.py").write_text(text)
    names = tuple(f"{name}_module_of_test_tools" for name in texts)
    return Configuration(folder / "isthmus.toml", HubSettings(tools=names))


async def imported(configuration: Configuration) -> ServerStatus:
    """How the server `builtin` stands once all has been imported that can be."""
    background, hub = BackgroundTasks("test"), Hub(Limits(), Notes())
    functions = HubFunctions(hub, background, [], is_settled=False)
    await import_tools(tool_modules(configuration), functions)
    functions.close()
    await background.aclose()
    return hub.snapshot.server_statuses[BUILTIN]


async def test_a_module_that_fails_costs_only_itself(tmp_path: Path) -> None:
    texts = {"bad": "raise ValueError('no')", "unmarked": "def f(): ...", "good": GOOD}
    server_status = await imported(configuration(tmp_path, **texts))
    assert server_status.is_settled
    assert [tool.name for tool in server_status.tools if tool.name.endswith("of_test_tools")] == ["good_of_test_tools"]
    bad, unmarked = server_status.notes
    assert bad.startswith("hub.tools.0 gives no tools: importing bad_module_of_test_tools failed: ValueError: no")
    assert unmarked.startswith(
        "hub.tools.1 gives no tools: nothing in the module unmarked_module_of_test_tools is marked"
    )


async def test_a_module_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.05)
    threading.test_tools_gate = gate = threading.Event()  # type: ignore[attr-defined]
    hanging = "import threading\nthreading.test_tools_gate.wait(30)"
    settings = configuration(tmp_path, hanging=hanging)
    (note,) = (await imported(settings)).notes
    assert "takes over 0.05 s" in note
    (reach,) = tool_modules(settings).values()
    still_under_way = begin_to_import(reach)
    gate.set()
    assert isinstance(still_under_way.exception(10), ConnectFailed)


def test_without_a_file_no_folder_is_searched() -> None:
    (reach,) = tool_modules(Configuration(None, HubSettings(tools=("gadgets",)))).values()
    assert (reach.target, reach.path) == ("gadgets", None)
