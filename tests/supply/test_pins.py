"""Exactly the pinned packages are installed: by the hashes of their files, and from no address of ours."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.supply.pins import FOLDER, ROOT, SHIPPED, file_of, pins_of

PINNED = sorted(FOLDER.glob("*.txt"))
WISHES = sorted(FOLDER.glob("*.in"))
LOCKS = [ROOT / place / "package-lock.json" for place in ("tests/peers/npm", "tests/conformance/npm")]

BROUGHT = {SHIPPED: ("grpc", "postgres"), "frameworks": ("adk", "langchain", "openai-agents", "pydantic-ai")}
"""The extras of pyproject.toml that an environment has beside what the project needs anyway."""

ADDRESS = re.compile(r"--(?:extra-)?index-url|--find-links|--trusted-host|--index\b|\w+://|\bfile:| @ ", re.IGNORECASE)
# In two parts, so that this file has none either.
REGISTRIES = [f"{name}.{end}" for name, end in (
    ("pypi", "org"), ("pythonhosted", "org"), ("registry.npmjs", "org"), ("yarnpkg", "com"), ("pypi", "python.org"),
)]  # fmt: skip


@pytest.mark.parametrize("file", PINNED, ids=lambda file: file.stem)
def test_every_pin_has_hashes_and_its_origin(file: Path) -> None:
    pins = pins_of(file)  # refuses every line that is no pin, hash or reason
    assert pins
    assert all(pin.hashes and pin.whose for pin in pins)
    assert len({(pin.name, pin.marker) for pin in pins}) == len(pins)


@pytest.mark.parametrize("file", [*PINNED, *WISHES], ids=lambda file: file.name)
def test_no_requirement_file_says_where_to_fetch_from(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")] if file.suffix == ".in" else [text]
    assert not [found for line in lines for found in ADDRESS.findall(line)]


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.parent.parent.name)
def test_every_package_from_npm_has_a_hash_and_no_address(file: Path) -> None:
    packages = json.loads(file.read_text(encoding="utf-8"))["packages"]
    fetched = {name: said for name, said in packages.items() if name and not said.get("link")}
    assert fetched
    assert not [name for name, said in fetched.items() if not said.get("integrity", "").startswith("sha512-")]
    assert not [name for name, said in fetched.items() if "resolved" in said]


def test_no_file_of_the_repository_names_a_registry() -> None:
    """Who builds elsewhere gets the same packages, by their hashes, from whichever index is configured there."""
    words = [option for host in REGISTRIES for option in ("-e", host)]
    command = ["git", "grep", "--untracked", "-l", "-i", "-F", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr


@pytest.mark.parametrize("name", ["serve", SHIPPED, "test", "frameworks", "fuzz"])
def test_requirements_are_pinned_at_a_matching_version(name: str) -> None:
    """A new or raised dependency has to be pinned again, because only pins have hashes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(each for extra in BROUGHT.get(name, ()) for each in extras[extra])]
    pinned = {pin.name: pin.version for pin in pins_of(file_of(name))}
    wanted = [Requirement(each) for each in needed]
    assert [str(each) for each in wanted if not each.specifier.contains(pinned.get(each.name, "0"))] == []


@pytest.mark.parametrize("file", WISHES, ids=lambda file: file.name)
def test_a_floor_is_that_of_the_extra_that_brings_the_package(file: Path) -> None:
    """Said twice they part, and what is tested is not what is promised. One version exactly is a test's own to want."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    promised = {each.name: each.specifier for extra in extras.values() for each in map(Requirement, extra)}
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line and line[0] not in "#-"]
    wanted = [each for each in map(Requirement, lines) if each.name in promised and "==" not in str(each.specifier)]
    assert [str(each) for each in wanted if each.specifier != promised[each.name]] == []


def test_no_state_of_a_hub_is_in_the_repository() -> None:
    """A test that forgets to say where its hub keeps things leaves keys and databases behind, for who adds all."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    left = re.compile(r"(^|/)~|(^|/)(journal\.(key|db|lock)|definitions\.db|(audit|credentials|access|relay)/key)$")
    there = [name for name in done.stdout.splitlines() if (ROOT / name).exists()]
    assert [name for name in there if left.search(name)] == []


def test_few_packages_are_shipped() -> None:
    """Each is code that runs beside everybody's credentials. A hub with all its extras stands on these."""
    assert len(pins_of(file_of(SHIPPED))) <= 35
    direct = [pin for pin in pins_of(file_of("serve")) if any(who.startswith("isthmus") for who in pin.whose)]
    assert len(direct) <= 15


@pytest.mark.parametrize(
    "text",
    [
        "click>=8\n",
        "click==8 --hash=md5:00\n",
        "click==8 \\\n    --hash=sha256:00\n",
        "-r other.txt\n",
        "click @ git+ssh\n",
    ],
)
def test_an_invalid_pin_is_reported(text: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"not a pin|neither a hash"):
        pins_of(file)


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile"])
def test_an_install_from_pins_never_looks_for_other_versions(name: str) -> None:
    """Two packages may want one of ours with different extras; pip then looks at its newest release, not at the pin."""
    installs = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if "--require-hashes" in line]
    assert installs
    assert [line for line in installs if "--no-deps" not in line] == []
