"""The check of the environments reads installed versions right; `make resolve` alone runs pip itself."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.frameworks import resolve
from tests.frameworks.resolve import (
    CHECKOUT,
    EXTRAS,
    LOOK_INSIDE,
    EnvironmentFailed,
    Versions,
    frameworks_of,
    look_at,
    module_of,
    table,
    verdict,
)

NAMED = {"one": ["a"], "two": ["b", "c"]}
ALONE = {"a": "2.10", "b": "1.0", "c": "1.0"}


class Installed:
    """Stands in for pip: what is there beside the hub, by extra. What is not told cannot be installed."""

    def __init__(self, **beside: dict[str, str]) -> None:
        self._beside = beside
        self.asked: list[str | list[str]] = []

    def alone(self, names: Sequence[str]) -> Versions:
        self.asked.append([*names])
        return {name: Version(ALONE[name]) for name in names}

    def beside(self, extra: str) -> Versions:
        self.asked.append(extra)
        if extra not in self._beside:
            raise EnvironmentFailed(extra)
        return {name: Version(version) for name, version in self._beside[extra].items()}


def test_every_extra_is_looked_at_alone_and_beside_the_hub() -> None:
    installed = Installed(one={"a": "2.10"}, two={"b": "1.0", "c": "1.1"})
    rows = look_at(NAMED, installed)
    assert [(row.extra, row.name, str(row.alone), str(row.beside), row.is_older) for row in rows] == [
        ("one", "a", "2.10", "2.10", False),
        ("two", "b", "1.0", "1.0", False),
        ("two", "c", "1.0", "1.1", False),
    ]
    assert sorted(installed.asked, key=str) == [["a"], ["b", "c"], "one", "two"]


def test_a_framework_that_is_older_beside_the_hub_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = look_at(NAMED, Installed(one={"a": "2.9"}, two={"b": "1.0", "c": "1.0"}))
    assert [row.is_older for row in rows] == [True, False, False]
    assert verdict(rows) == 1
    said = capsys.readouterr()
    assert said.out == f"{table(rows)}\n"
    assert [line.split() for line in said.out.splitlines()[1:]] == [
        ["one", "a", "2.10", "2.9", "older"],
        ["two", "b", "1.0", "1.0"],
        ["two", "c", "1.0", "1.0"],
    ]
    assert "a 2.10 becomes 2.9 beside isthmus[one]" in said.err
    assert verdict(rows[1:]) == 0


def test_a_failed_installation_beside_the_hub_is_no_success() -> None:
    with pytest.raises(EnvironmentFailed, match="two"):
        look_at(NAMED, Installed(one={"a": "2.10"}))


def test_an_extra_that_brings_no_framework_is_no_success() -> None:
    with pytest.raises(EnvironmentFailed, match=r"isthmus\[two\] did not bring c"):
        look_at(NAMED, Installed(one={"a": "2.10"}, two={"b": "1.0"}))


def test_installed_versions_are_read_after_other_output() -> None:
    said = resolve._run(sys.executable, "-I", "-c", f"print('hello', end='')\n{LOOK_INSIDE}", "pytest")
    versions = msgspec.json.decode(said.splitlines()[-1], type=dict[str, str])
    assert versions["pytest"] == pytest.__version__


def test_an_import_error_is_reported_in_its_own_words() -> None:
    with pytest.raises(EnvironmentFailed, match="No module named 'isthmus_nothing'"):
        resolve._run(sys.executable, "-c", LOOK_INSIDE, "isthmus_nothing")


def test_this_checkout_is_not_seen_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{CHECKOUT / 'src'}")
    seen = resolve._run(sys.executable, "-c", "import os; print(os.environ.get('PYTHONPATH'))")
    assert seen.split() == [b"None"]


def test_every_wait_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "STEP_SECONDS", 0.1)
    with pytest.raises(EnvironmentFailed, match=r"this took over 0\.1 s"):
        resolve._run(sys.executable, "-c", "import threading; threading.Event().wait()")


def test_every_extra_that_is_looked_at_names_frameworks_by_a_floor_alone() -> None:
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in EXTRAS:
        assert frameworks_of(extra)
        for wanted in map(Requirement, extras[extra]):
            assert [each.operator for each in wanted.specifier] == [">="], f"{extra} must not hold {wanted.name} back"


def test_every_integration_is_looked_at() -> None:
    spec = importlib.util.find_spec("isthmus.integrations")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or []
    found = {path.stem for path in Path(folder).iterdir() if not path.name.startswith(("_", "."))}
    # `untrusted_descriptions` is what integrations share: it stands on no framework.
    assert found - {"untrusted_descriptions"} == {module_of(extra).rpartition(".")[2] for extra in EXTRAS}
