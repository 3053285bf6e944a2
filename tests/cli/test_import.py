"""Servers of other clients brought in and shown by the command itself."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from tests import hubs

pytestmark = pytest.mark.usefixtures("no_leftovers")

SAMPLES = Path(__file__).parents[1] / "unit" / "config" / "samples"
RUN_SECONDS = 60.0


async def run(folder: Path, *words: str) -> tuple[int, str, str]:
    env = {"HOME": str(folder / "home"), "SEARCH_TOKEN": "s3arch-t0ken"}
    ended = await hubs.run(*words, folder=folder, env=env)
    return ended.code, ended.out, ended.err


async def test_the_hub_sees_imported_servers(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "codex", tmp_path, dirs_exist_ok=True)
    code, out, err = await run(tmp_path, "import", "codex")
    assert (code, out.count("new")) == (0, 3), err
    table = tomllib.loads((tmp_path / "isthmus.toml").read_text())
    assert set(table["servers"]) == {"files", "search", "clock"}
    code, out, err = await run(tmp_path, "config", "show", "--origin", "--json")
    assert code == 0, err
    values = {value["path"]: value for value in json.loads(out)["values"]}
    assert values["servers.search.headers"]["value"] == {"Authorization": "***"}
    assert values["servers.search.headers"]["origin"]["borrowed"] == ["SEARCH_TOKEN"]
    assert "s3arch-t0ken" not in out
    code, out, err = await run(tmp_path, "config", "check")
    assert (code, "3 servers" in out) == (0, True), out
