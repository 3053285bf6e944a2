"""The modules that importing the library loads, and those that it does not."""

from __future__ import annotations

import subprocess
import sys

import isthmus.library

UNWANTED = (
    "uvicorn",
    "starlette",
    "sqlite3",
    "asyncpg",
    "click",
    "watchfiles",
    "grpc",
    "google.adk",
    "langchain_core",
    "agents",
    "pydantic_ai",
    "trio",
)


def test_the_library_loads_no_web_server_no_database_and_no_framework() -> None:
    script = f"import sys, isthmus.library; print([name for name in {UNWANTED!r} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_importing_it_starts_no_thread() -> None:
    script = "import isthmus.library, threading; print(threading.active_count())"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "1"


def test_every_public_name_is_there() -> None:
    assert [name for name in isthmus.library.__all__ if not hasattr(isthmus.library, name)] == []


def test_names_that_need_a_framework_name_the_package_to_install() -> None:
    script = (
        "import sys; sys.modules['google.adk'] = None\n"
        "from isthmus import library\n"
        "try: library.AdkDomainAgent\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert "isthmus[adk]" in subprocess.check_output([sys.executable, "-c", script], text=True)
