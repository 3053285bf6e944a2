"""The wheel and the sdist contain this source and nothing else.

Others were robbed by a release whose repository was clean: the wheel had one file more, a `.pth`, which Python runs at
every start.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

from isthmus import __version__
from tests.supply.building import built, copied
from tests.supply.pins import ROOT

INFO = f"isthmus-{__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    return zipfile.ZipFile(built(ROOT, folder / "first"))


@pytest.fixture(scope="module")
def other_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the same sources by somebody else, somewhere else, some other day."""
    folder = tmp_path_factory.mktemp("other")
    checkout = copied(folder / "checkout", at=1_700_000_000.0, mode=0o600)
    return built(checkout, folder / "second", TZ="Pacific/Kiritimati", LC_ALL="C", PYTHONHASHSEED="7")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built(ROOT, folder, "sdist")) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"isthmus-{__version__}"


def test_the_wheel_holds_the_package_and_its_metadata_only(wheel: zipfile.ZipFile) -> None:
    names = {PurePosixPath(name) for name in wheel.namelist()}
    said = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    sources = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "isthmus").rglob("*.py")}
    console = ROOT / "src" / "isthmus" / "frontends" / "console" / "static"
    pages = {path.relative_to(ROOT / "src") for path in console.rglob("*") if path.is_file()}
    assert {str(name) for name in names} == {str(path) for path in sources | pages} | {
        "isthmus/__init__.pyi",
        "isthmus/py.typed",
        "isthmus/wire/a2a/a2a.txtpb",
    } | said


def test_python_runs_nothing_of_it_unasked(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert not [name for name in names if name.endswith((".pth", ".so", ".pyd", ".dll", ".pyc", ".egg-link"))]
    assert not [name for name in names if PurePosixPath(name).name in ("sitecustomize.py", "usercustomize.py")]
    assert not [name for name in names if ".data/" in name]  # what is there lands in other folders


def test_every_file_is_the_one_in_the_repository(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        if not name.startswith(INFO):
            assert wheel.read(name) == (ROOT / "src" / name).read_bytes(), name


def test_its_record_vouches_for_every_file(wheel: zipfile.ZipFile) -> None:
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(wheel.read(f"{INFO}/RECORD").decode()))}
    assert rows.keys() == set(wheel.namelist())
    for name, said in rows.items():
        if not name.endswith("RECORD"):
            digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=")
            assert said == f"sha256={digest.decode()}", name


def test_it_brings_one_command_and_no_entry_point_that_others_load(wheel: zipfile.ZipFile) -> None:
    said = wheel.read(f"{INFO}/entry_points.txt").decode()
    assert said.split() == ["[console_scripts]", "isthmus", "=", "isthmus.cli.main:program"]


def test_a_build_that_knows_no_address_has_no_urls_and_the_readme_as_it_is(wheel: zipfile.ZipFile) -> None:
    said = Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode())
    assert said.get_all("Project-URL") is None
    assert said.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert said["Description-Content-Type"] == "text/markdown"


def test_a_release_has_the_address_of_its_repository_in_its_urls_and_links(tmp_path: Path) -> None:
    url = "https://forge.example/someone/isthmus"
    released = zipfile.ZipFile(built(ROOT, tmp_path, ISTHMUS_PROJECT_URL=f"{url}/"))
    said = Parser().parsestr(released.read(f"{INFO}/METADATA").decode())
    tag = f"v{__version__}"
    assert said.get_all("Project-URL") == [
        f"Documentation, {url}/tree/{tag}/docs",
        f"Source, {url}",
        f"Issues, {url}/issues",
        f"Changelog, {url}/blob/{tag}/CHANGELOG.md",
    ]
    readme = str(said.get_payload())
    assert f"]({url}/raw/{tag}/docs/images/overview.svg)" in readme
    assert f"]({url}/blob/{tag}/docs/cluster.md#what-is-not-there)" in readme
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", readme) == []


def test_requirements_are_named_and_never_fetched_from_an_address(wheel: zipfile.ZipFile) -> None:
    needed = Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode()).get_all("Requires-Dist") or []
    assert needed
    assert not [line for line in needed if "@" in line or "://" in line]


def test_two_builds_of_the_same_sources_are_equal_byte_for_byte(wheel: zipfile.ZipFile, other_wheel: Path) -> None:
    assert _digest(wheel) == hashlib.sha256(other_wheel.read_bytes()).hexdigest()


def test_the_sdist_makes_the_same_wheel(wheel: zipfile.ZipFile, unpacked: Path, tmp_path: Path) -> None:
    assert _digest(wheel) == hashlib.sha256(built(unpacked, tmp_path).read_bytes()).hexdigest()


def test_the_sdist_has_nothing_that_git_would_not(unpacked: Path) -> None:
    found = {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()}
    private = {".env", "isthmus.toml", "mcp.json", ".coverage"}
    assert not [path for path in found if path.name in private and path.parts[0] not in ("tests", "examples", "deploy")]
    assert not [path for path in found if path.suffix in (".pth", ".pyc", ".db", ".so")]
    assert not [
        path for path in found if any(part.startswith(".venv") or part == "node_modules" for part in path.parts)
    ]


def _digest(wheel: zipfile.ZipFile) -> str:
    assert wheel.filename is not None
    return hashlib.sha256(Path(wheel.filename).read_bytes()).hexdigest()


def test_it_runs_where_only_it_and_its_pinned_packages_are(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """As after `pip install isthmus`, `uvx isthmus` or `pipx install isthmus`, which all install the wheel."""
    assert wheel.filename is not None
    place = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, wheel.filename], check=True, capture_output=True)
    [packages] = place.glob("lib/*/site-packages")
    # The packages that it needs, as pinned. A path in a .pth file is searched last, and no .pth file there is read.
    pinned = sysconfig.get_path("purelib")
    (packages / "pinned.pth").write_text(f"{pinned}\n")

    def run(*words: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = str(place / "bin" / "isthmus")
    where = run(str(place / "bin" / "python"), "-c", "import isthmus; print(isthmus.__file__)")
    assert Path(where.strip()).is_relative_to(packages)
    assert run(command, "--version") == f"isthmus {__version__}\n"
    assert run(command, "call", "builtin.echo", "text=hello") == "hello\n"
    assert "_isthmus_completion" in run(command, "completion", "bash")
    assert command in run(command, "connect", "claude-desktop", "--print", "--config", _configuration(tmp_path))


def _configuration(folder: Path) -> str:
    file = folder / "isthmus.toml"
    file.write_text("[hub]\nport = 8765\n")
    return str(file)
