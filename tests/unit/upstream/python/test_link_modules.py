"""Importing real modules: the functions found in them, and the error for each kind of failure."""

from __future__ import annotations

import builtins
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from structlog.testing import capture_logs

from isthmus.library import tool
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.python.link import Loaded, begin_to_import, begin_to_load, load
from isthmus.upstream.python.registry import REGISTRY
from isthmus.upstream.server_settings import PythonSettings


@pytest.fixture(autouse=True)
def own_imports() -> Iterator[None]:
    """What a test imports is forgotten after it."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
        REGISTRY.forget(name)


def write(folder: Path, text: str, name: str = "shop") -> Path:
    file = folder / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text))
    return file


def names(loaded: Loaded) -> list[str]:
    return [function.name for function in loaded.functions]


def why(folder: Path, target: str = "shop") -> str:
    with pytest.raises(ConnectFailed) as failed:
        load(PythonSettings(target, str(folder)))
    return str(failed.value)


def test_a_module_offers_the_public_functions_that_it_defines(tmp_path: Path) -> None:
    text = """
        from math import sqrt
        from os.path import join
        class Thing: ...
        TABLE = {}
        def buy(item: str) -> None: ...
        async def sell(item: str) -> None: ...
        def _count(): ...
        """
    write(tmp_path, text)
    assert names(load(PythonSettings("shop", str(tmp_path)))) == ["buy", "sell"]


def test_a_module_with_all_offers_its_public_names(tmp_path: Path) -> None:
    text = """
        from os.path import join
        from math import sqrt
        __all__ = ["sqrt", "Thing", "nothing", "LIMIT"]
        LIMIT = 3
        class Thing: ...
        def buy(): ...
        """
    write(tmp_path, text)
    assert names(load(PythonSettings("shop", str(tmp_path)))) == ["sqrt"]


def test_one_function_is_chosen_by_its_name(tmp_path: Path) -> None:
    write(tmp_path, "def buy(): ...\ndef sell(): ...", "stores/shop")
    assert names(load(PythonSettings("stores.shop:sell", str(tmp_path)))) == ["sell"]


def test_a_function_that_cannot_be_a_tool_costs_only_itself(tmp_path: Path) -> None:
    file = write(tmp_path, "def buy(): ...\ndef sell(*items): ...")
    loaded = load(PythonSettings("shop", str(tmp_path)))
    assert names(loaded) == ["buy"]
    assert loaded.notes == [f"'sell' left out: it takes *items, and arguments of a tool have names ({file}, line 2)"]


def test_the_path_is_searched_first(tmp_path: Path) -> None:
    write(tmp_path, "def buy(): ...", "a/shop")
    write(tmp_path, "def sell(): ...", "b/shop")
    sys.path.insert(0, str(tmp_path / "a"))
    assert names(load(PythonSettings("shop", str(tmp_path / "b")))) == ["sell"]
    assert sys.path[0] == str(tmp_path / "b")


def test_two_modules_of_one_name_are_reported_as_ambiguous(tmp_path: Path) -> None:
    first = write(tmp_path, "def buy(): ...", "a/shop")
    write(tmp_path, "def sell(): ...", "b/shop")
    load(PythonSettings("shop", str(tmp_path / "a")))
    assert (
        why(tmp_path / "b") == f"a module called shop was loaded from {first} before; give one of the two another name"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found' ({file}, line 1)"),
        ("x = 1\ny = x / 0", "ZeroDivisionError: division by zero ({file}, line 2)"),
        ("def f(:", "SyntaxError: invalid syntax (shop.py, line 1)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt ({file}, line 1)"),
    ],
)
def test_a_module_that_fails_says_how_and_where(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, text)
    assert why(tmp_path) == f"importing shop failed: {words.format(file=file)}"


def test_the_traceback_is_logged_once_and_begins_in_the_module(tmp_path: Path) -> None:
    write(tmp_path, "def count():\n    return 1 / 0\ncount()", "counting")
    with capture_logs() as logs:
        for _ in range(2):
            why(tmp_path, "counting")
        write(tmp_path, "raise OSError", "counting")
        why(tmp_path, "counting")
    first, second = [entry["exc_info"] for entry in logs]
    assert [frame.name for frame in traceback.extract_tb(first[2])] == ["<module>", "count"]
    assert first[0] is ZeroDivisionError
    assert second[0] is OSError


def test_a_module_that_ends_its_program_does_not_end_the_hub(tmp_path: Path) -> None:
    file = write(tmp_path, "import sys\n\nsys.exit(3)")
    assert why(tmp_path) == f"the module shop ended its program while it was imported ({file}, line 3)"


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert why(tmp_path, "nowhere") == "there is no Python module called nowhere; path says where to look for one"
    write(tmp_path, "", "stores/__init__")
    assert why(tmp_path, "stores.shop:buy").startswith("there is no Python module called stores.shop;")


def test_a_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    assert why(tmp_path / "away") == f"its path {tmp_path / 'away'} is not a folder"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("shop:sell", "the module shop has no sell ({file})"),
        ("shop:Thing", "Thing of the module shop is a class and not a function"),
        ("shop:LIMIT", "LIMIT of the module shop is of type int and not a function"),
        ("shop:many", "many cannot be a tool: it takes *items, and arguments of a tool have names ({file}, line 3)"),
    ],
)
def test_the_error_for_a_name_that_is_no_function_names_its_type(tmp_path: Path, target: str, words: str) -> None:
    file = write(tmp_path, "class Thing: ...\nLIMIT = 3\ndef many(*items): ...")
    assert why(tmp_path, target) == words.format(file=file)


def test_a_module_without_tools_says_so(tmp_path: Path) -> None:
    write(tmp_path, "LIMIT = 3")
    assert why(tmp_path) == "nothing in the module shop can be a tool: it defines no public function"


def test_a_module_fixed_since_the_last_attempt_is_imported(tmp_path: Path) -> None:
    write(tmp_path, "def f(:")
    why(tmp_path)
    write(tmp_path, "def buy(): ...  # mended")
    assert names(load(PythonSettings("shop", str(tmp_path)))) == ["buy"]


def test_modules_of_several_folders_are_imported_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many folders without a finder: clearing the caches takes long, and threads meet in it.
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys(map(str, range(100_000))))
    reaches = [PythonSettings(f"shop{each}", str(tmp_path / str(each))) for each in range(8)]
    for reach in reaches:
        write(Path(str(reach.path)), "def buy(): ...", reach.target)
    futures = [begin_to_load(reach) for reach in reaches]
    assert [names(future.result(60)) for future in futures] == [["buy"]] * len(reaches)
    assert {reach.path for reach in reaches} <= set(sys.path)


def test_an_import_under_way_is_waited_for_and_not_begun_again(tmp_path: Path) -> None:
    text = """
        import builtins
        builtins.shop_gate.wait(30)
        def buy(): ...
        """
    write(tmp_path, text)
    builtins.shop_gate = gate = threading.Event()  # type: ignore[attr-defined]
    reach = PythonSettings("shop", str(tmp_path))
    first = begin_to_load(reach)
    assert begin_to_load(reach) is first
    assert not first.cancel()
    gate.set()
    assert names(first.result(10)) == ["buy"]
    del builtins.shop_gate  # type: ignore[attr-defined]


# -- functions that their author marked ------------------------------------------------------------------------------

MARKED = """
    from isthmus.library import tool
    @tool(name="purchase")
    def buy(item: str) -> None: ...
    @tool
    def _count() -> int: ...
    def sell(item: str) -> None: ...
    """


def test_a_module_with_marked_functions_offers_these_alone_and_they_are_not_built_in(tmp_path: Path) -> None:
    write(tmp_path, MARKED, "own_shop")
    assert names(load(PythonSettings("own_shop", str(tmp_path)))) == ["purchase", "_count"]
    assert names(load(PythonSettings("own_shop", str(tmp_path)))) == ["purchase", "_count"]
    assert REGISTRY.functions().keys().isdisjoint({"purchase", "_count"})


def test_a_marked_function_that_is_named_has_the_name_its_author_gave_it(tmp_path: Path) -> None:
    write(tmp_path, MARKED, "single_shop")
    assert names(load(PythonSettings("single_shop:buy", str(tmp_path)))) == ["purchase"]
    assert names(load(PythonSettings("single_shop:sell", str(tmp_path)))) == ["sell"]


def test_a_marked_module_fixed_after_an_error_offers_its_current_functions(tmp_path: Path) -> None:
    write(tmp_path, f"{dedent(MARKED)}\nraise ValueError", "mended_shop")
    assert "ValueError" in why(tmp_path, "mended_shop")
    write(tmp_path, "def buy(): ...  # without marks", "mended_shop")
    assert names(load(PythonSettings("mended_shop", str(tmp_path)))) == ["buy"]


def test_a_module_that_is_imported_for_its_marks_has_built_in_tools(tmp_path: Path) -> None:
    write(tmp_path, MARKED, "open_shop")
    loaded = begin_to_import(PythonSettings("open_shop", str(tmp_path))).result(10)
    assert names(loaded) == ["purchase", "_count"]
    assert {"purchase", "_count"} <= REGISTRY.functions().keys()


def test_a_module_without_marks_says_so(tmp_path: Path) -> None:
    write(tmp_path, "def buy(): ...", "plain_shop")
    with pytest.raises(ConnectFailed, match="nothing in the module plain_shop is marked by @tool"):
        begin_to_import(PythonSettings("plain_shop", str(tmp_path))).result(10)


def test_a_module_without_marks_can_still_be_made_into_tools(tmp_path: Path) -> None:
    write(tmp_path, "def buy(): ...", "lent_shop")
    load(PythonSettings("lent_shop", str(tmp_path)))
    tool(sys.modules["lent_shop"].buy)
    assert "buy" in REGISTRY.functions()
