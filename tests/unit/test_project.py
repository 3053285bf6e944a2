"""Conventions of the project that no linter checks.

The sources are read as syntax trees, never imported, so a module that cannot load is still checked.
"""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "isthmus"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))
SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

STARTING_TASKS = {"create_task", "ensure_future", "TaskGroup", "run_coroutine_threadsafe"}
STARTING_PROCESSES = {
    "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell", "Popen",
    "os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.posix_spawnp", "os.execve",
}  # fmt: skip
CONNECTING = {
    "create_connection", "create_unix_connection", "open_connection", "open_unix_connection", "sock_connect",
    "connect_ex", "create_datagram_endpoint",
}  # fmt: skip
HTTP_CLIENTS = {"aiohttp", "http.client", "httpx", "requests", "urllib.request", "urllib3"}

LONGEST_FUNCTION = 75


def words_of(tree: ast.AST) -> set[str]:
    """Every name, attribute and imported name that a module mentions."""
    words: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=word):
                words.update({word, owner, f"{owner}.{word}"})
            case ast.Name(id=word) | ast.Attribute(attr=word):
                words.add(word)
            case ast.ImportFrom(module=str(module), names=names):
                words.update(alias.name for alias in names)
                words.update(f"{module}.{alias.name}" for alias in names)
            case _:
                pass
    return words


def imports_of(tree: ast.AST) -> set[str]:
    """Every module that a module imports, by its full name."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                found.add(module)
                found.update(f"{module}.{alias.name}" for alias in names)
            case _:
                pass
    return found


@cache
def read_sources() -> dict[str, tuple[set[str], set[str], list[str]]]:
    """The words, the imports and the overlong functions of every file."""
    trees = ((name, parsed(path.read_text(encoding="utf-8"), name)) for name, path in SOURCES.items())
    return {name: (words_of(tree), imports_of(tree), long_functions(tree, name)) for name, tree in trees}


def parsed(text: str, name: str) -> ast.AST:
    """The tree of a file, made in one piece.

    The collector could let another thread run in the middle, and if that writes a traceback, which parses too, Python
    3.11 takes the two for one and gives up: "AST constructor recursion depth mismatch".
    """
    gc.disable()
    try:
        return ast.parse(text, name)
    finally:
        gc.enable()


def files_that_mention(words: set[str]) -> set[str]:
    return {name for name, (mentioned, _, _) in read_sources().items() if mentioned & words}


def files_that_import(modules: set[str]) -> set[str]:
    return {name for name, (_, imported, _) in read_sources().items() if imported & modules}


def long_functions(tree: ast.AST, file: str) -> list[str]:
    """The functions of a file with more lines of code than anybody should read at once."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    # Counting takes long: only those are counted that span so many lines at all.
    tall = (each for each in functions if (each.end_lineno or 0) - first_line(each) >= LONGEST_FUNCTION)
    return [f"{file}:{each.name}" for each in tall if code_lines(each) > LONGEST_FUNCTION]


def first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def code_lines(function: ast.AST) -> int:
    """The lines of a function that hold code: no comments, no blank lines, no docstrings."""
    return len({node.lineno for node in ast.walk(function) if isinstance(node, ast.stmt | ast.expr)})


def requirements_in(path: Path) -> list[str]:
    joined = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def pins_in(path: Path) -> dict[str, str]:
    pairs = (re.match(r"([a-z0-9][a-z0-9._-]*)==(\S+)", line) for line in requirements_in(path))
    return {pair[1]: pair[2] for pair in pairs if pair}


def test_the_scanner_sees_calls_attributes_and_imports() -> None:
    source = "import os, http.client\nfrom asyncio import create_task\nloop().subprocess_exec(os.system)"
    tree = ast.parse(source)
    assert {"create_task", "subprocess_exec", "os.system"} <= words_of(tree)
    assert {"os", "http.client", "asyncio", "asyncio.create_task"} <= imports_of(tree)


def test_only_the_background_starts_tasks() -> None:
    # The listener starts one task for a request that must wait, as every ASGI server does, and owns it to its end. The
    # library carries coroutines to another thread's loop, whose caller waits for them: to begin and end a service, and
    # to put a question to a program. A call of a tool is none of these. Documents that nodes share are read and written
    # on a thread of their own, for the command line and for threads of the hub.
    crossing = {"library/loop_thread.py", "library/questions.py", "storage/postgres_state.py"}
    assert files_that_mention(STARTING_TASKS) == {"core/background.py", "frontends/http/connection.py"} | crossing


def test_only_the_process_channel_starts_processes() -> None:
    # The parent of `serve --workers` forks hubs, and starts no other program.
    assert files_that_mention(STARTING_PROCESSES) == {"transport/process.py", "app/workers.py"}
    assert files_that_import({"subprocess", "multiprocessing", "pty"}) <= {"transport/process.py"}


def test_only_the_egress_guard_connects_to_anything() -> None:
    # The nodes of a cluster reach each other by Unix sockets of their own, and NATS by its library: the operator names
    # both, and no caller can.
    assert files_that_mention(CONNECTING) == {"transport/egress.py", "cluster/unix.py"}
    assert files_that_import(HTTP_CLIENTS) == set()
    with_sockets = files_that_import({"socket"})
    assert files_that_mention({"connect"}) & with_sockets <= {"transport/egress.py"}


def test_only_packages_that_create_hubs_read_the_environment() -> None:
    readers = files_that_mention({"environ", "environb", "getenv", "getenvb"})
    assert {name.split("/")[0] for name in readers} <= {"app", "cli", "library"}


def test_functions_stay_short() -> None:
    assert [name for _, _, long in read_sources().values() for name in long] == []


def test_there_are_requirement_files_for_serving_testing_the_image_and_each_sdk_that_needs_its_own() -> None:
    sdks = {"a2a03", "a2a10", "agentvault", "frameworks", "mcp1"}
    others = {"audit", "docs", "fuzz", "image", "serve", "stdio", "test", "tokens"}
    assert {path.stem for path in REQUIREMENTS} == others | sdks


@pytest.mark.parametrize(("smaller", "larger"), [("serve", "image"), ("image", "test")])
def test_one_environment_can_serve_and_test(smaller: str, larger: str) -> None:
    small, large = (pins_in(ROOT / "requirements" / f"{name}.txt") for name in (smaller, larger))
    assert small.items() <= large.items()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_table_of_a_document_is_whole(path: Path) -> None:
    """Rows without a heading, after a blank line say, are shown as text."""
    lines = ["", *path.read_text(encoding="utf-8").splitlines(), ""]
    begun = [at for at in range(1, len(lines)) if lines[at].startswith("|") and not lines[at - 1].startswith("|")]
    assert [lines[at] for at in begun if not re.match(r"\|[ :|-]+\|$", lines[at + 1])] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_place_that_a_document_points_to_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")]
    assert [link for link in links if not _is_there(path, link)] == []
    named = re.findall(r"`((?:src|tests|docs|examples|bench|fuzz|requirements)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def _is_there(document: Path, link: str) -> bool:
    name, _, heading = link.partition("#")
    target = document.parent / name if name else document
    return target.exists() and (not heading or heading in _headings(target))


def _headings(document: Path) -> set[str]:
    """The headings of a document, as links spell them."""
    lines = [line.lstrip("#").strip() for line in document.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def test_every_page_of_the_console_has_its_pictures() -> None:
    app = (PACKAGE / "frontends/console/static/app.js").read_text()
    pages = re.findall(r"^  \{ id: \"(\w+)\", title:", app, re.MULTILINE)
    assert len(pages) >= 10
    there = {path.name for path in (ROOT / "docs/images/console").glob("*.png")}
    missing = {f"{page}-{theme}.png" for page in pages for theme in ("light", "dark")} - there
    assert missing == set(), "take them with `make screenshots`"


def test_every_threat_has_its_tests() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| T\d", line)]
    files = sorted(path.name[5:8] for path in (ROOT / "tests" / "security").glob("test_T*.py"))
    assert [row[0] for row in rows] == files == [f"T{number:02d}" for number in range(1, len(rows) + 1)]
    for row in rows:
        named = re.findall(r"`(?:tests/security/)?(test_\w+\.py)`", row[-1])
        assert any(name.startswith(f"test_{row[0]}_") for name in named), row[0]
        assert [name for name in named if not (ROOT / "tests" / "security" / name).exists()] == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"a test for each of {len(rows)} threats" in readme


def test_every_promise_names_tests_and_commands_that_exist() -> None:
    page = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| R\d", line)]
    assert [row[0] for row in rows] == [f"R{number:02d}" for number in range(1, 31)]
    unproven = [row[0] for row in rows if "`tests/" not in row[2] and row[2] != "not shown yet"]
    assert unproven == [], "name a test, or say that it is not shown yet"
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", page)
    assert [path for path, _ in named if not (ROOT / path).is_file()] == []
    assert [test for path, test in named if test and f"def {test}(" not in (ROOT / path).read_text()] == []
    assert [name for name in re.findall(r"`python -m ([\w.]+)", page) if not _is_program(name)] == []
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make (\w+)", page)) <= set(targets)


def _is_program(module: str) -> bool:
    """Whether `python -m` runs it."""
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_dependencies_have_floors_and_internals_are_capped_at_the_tested_minor_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = pins_in(ROOT / "requirements" / "serve.txt")
    for dependency in project["dependencies"]:
        cap, name = "", dependency.split(">=")[0]
        if name in ("uvicorn", "websockets"):
            major, minor, *_ = tested[name].split(".")
            cap = rf",<{major}\.{int(minor) + 1}"
        assert re.fullmatch(rf"[a-z0-9-]+>=[0-9.]+{cap}(; .*)?", dependency)


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {dependency.split(">=")[0] for dependency in project["dependencies"]}
    assert names <= pins_in(ROOT / "requirements" / "serve.txt").keys()
