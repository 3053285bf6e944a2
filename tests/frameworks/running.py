"""Run the files of `inside` by a pytest of the frameworks' environment, and read the outcome of each test.

`conftest` and `test_inside` stand on this. The frameworks cannot share an environment with the other tests, which
hold newer versions of what they need.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from tests.peers.launch import CHECKOUT, sdk_python

INSIDE = Path(__file__).parent / "inside"
TEST_SECONDS = 60
"""How long one test inside may take; it includes the import of a framework, which takes seconds on a busy machine."""
RUN_SECONDS = 280.0
"""How long a whole run may take: less than the time that a test outside has."""
LENIENT = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "UserWarning")
"""Warnings that frameworks give about themselves. All others fail a test, as they do everywhere else."""

Ending = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Case:
    """How one test ended, with one set of parameters."""

    name: str
    ending: Ending
    words: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of some files: the cases by the file and the test's name, and all that was said."""

    cases: Mapping[tuple[str, str], list[Case]] = field(default_factory=dict)
    output: str = ""


def inner_tests() -> Iterator[tuple[str, str]]:
    """The name of each test with the file that has it, without importing a framework."""
    for file in sorted(INSIDE.glob("*.py")):
        for name in names_of_tests(file.read_text()):
            yield file.name, name


def run_of(file: str) -> str:
    """The run that a file belongs to. Two processes load the hub, pytest and the servers' SDK instead of eight."""
    return "adk" if file.startswith("adk_") else "others"


def names_of_tests(source: str) -> list[str]:
    """The tests of a module, those in its classes included, in order."""
    names: list[str] = []
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                names.append(name)
            case ast.ClassDef(name=owner, body=body) if owner.startswith("Test"):
                names += [
                    f"{owner}.{each.name}"
                    for each in body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
                ]
            case _:
                pass
    return names


def run_inside(name: str, folder: Path) -> Run:
    """Run all files of one run; whatever goes wrong, a `Run` says what was said."""
    report = folder / f"{name}.xml"
    files = dict.fromkeys(file for file, _ in inner_tests() if run_of(file) == name)
    code, output = _run_to_the_end([sdk_python("frameworks"), *_words(files, report)])
    cases = read_report(report.read_text()) if report.exists() else {}
    return Run(cases, f"{output}\n(pytest ended with {code})")


def _words(files: Iterable[str], report: Path) -> list[str]:
    lenient = [word for kind in LENIENT for word in ("-W", f"default::{kind}")]
    return [
        *("-m", "pytest", "-q", "--tb=short", "--color=no", "-p", "no:cacheprovider"),
        # The other tests' fixtures import what this environment does not have.
        *(f"--rootdir={CHECKOUT}", f"--confcutdir={INSIDE}", f"--junitxml={report}", "-o", "junit_logging=all"),
        *(f"--timeout={TEST_SECONDS}", *lenient, *(str(INSIDE / file) for file in files)),
    ]


def _run_to_the_end(words: list[str]) -> tuple[int | None, str]:
    """Run a program in a group of its own, so that one that hangs takes its children along."""
    with subprocess.Popen(
        words,
        cwd=CHECKOUT,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    return process.returncode, output


def _environment() -> dict[str, str]:
    """Ours, without what tells a pytest that it is one of ours."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    return {**ours, "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)])}


def read_report(report: str) -> dict[tuple[str, str], list[Case]]:
    """The cases of a JUnit report by their file and the name of their test, without parameters."""
    found: dict[tuple[str, str], list[Case]] = {}
    for element in ElementTree.fromstring(report).iter("testcase"):
        case = _read_case(element)
        module = element.get("classname", "").removesuffix(f".{_owner(element)}").rpartition(".")[2]
        found.setdefault((f"{module}.py", case.name.partition("[")[0]), []).append(case)
    return found


def _owner(element: ElementTree.Element) -> str:
    """The class that a case is in, if it is in one."""
    name = element.get("classname", "").rpartition(".")[2]
    return name if name.startswith("Test") else ""


def _read_case(element: ElementTree.Element) -> Case:
    name = element.get("name", "")
    if owner := _owner(element):
        name = f"{owner}.{name}"
    if troubles := [*element.iter("failure"), *element.iter("error")]:
        said = [trouble.text or trouble.get("message") or "" for trouble in troubles]
        said += [each.text or "" for each in (*element.iter("system-out"), *element.iter("system-err"))]
        return Case(name, "failed", "\n".join(said))
    if (skipped := element.find("skipped")) is not None:
        return Case(name, "skipped", skipped.get("message", ""))
    return Case(name, "passed")
