"""The owner of a state folder, and the lock of the hub that uses it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from isthmus.app.state_folder import (
    RUNNING_FILE,
    RunningHubInfo,
    announced,
    claim,
    configuration_name,
    find_running,
    new_operator_key,
)
from isthmus.config.files import derived_state
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings

HUB = RunningHubInfo(os.getpid(), "http://127.0.0.1:1", "a key", "the default hub")


def test_a_hub_is_found_while_it_runs(tmp_path: Path) -> None:
    with announced(tmp_path, HUB):
        assert find_running(tmp_path) == HUB
        assert (tmp_path / RUNNING_FILE).stat().st_mode & 0o777 == 0o600
        other = RunningHubInfo(1, "http://127.0.0.1:2", "another", "the default hub")
        with announced(tmp_path, other):
            assert find_running(tmp_path) == HUB
        assert find_running(tmp_path) == HUB
    assert find_running(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": "x"}'])
def test_a_file_that_says_nothing_useful_is_no_hub(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RUNNING_FILE).write_bytes(content)
    with (tmp_path / RUNNING_FILE).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert find_running(tmp_path) is None


def test_a_file_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with announced(tmp_path, HUB):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert find_running(tmp_path) == HUB, "the folder is its owner's, too"
        monkeypatch.setattr(os, "stat", lambda _: os.stat_result((0, 0, 0, 0, 54321, 0, 0, 0, 0, 0)))
        assert find_running(tmp_path) is None


def test_a_read_only_folder_only_hides_the_hub_from_commands(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with announced(tmp_path / "file" / "state", HUB):
        assert find_running(tmp_path / "file" / "state") is None


def test_other_servers_of_the_environment_make_another_configuration(tmp_path: Path) -> None:
    names = {configuration_name(file, {"MCP_SERVER_MAP": more}) for file in (None, tmp_path) for more in ("", "a", "b")}
    assert len(names) == 6
    assert len({new_operator_key() for _ in range(3)}) == 3


@pytest.mark.parametrize("is_open", [True, False])
def test_a_folder_for_all_hubs_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = tmp_path / ".local" / "state" / "isthmus"
    (usual / "keys").mkdir(parents=True)
    own = Configuration(None, HubSettings(state=str(usual)))
    assert claim(own, is_open=False) is None
    file = tmp_path / "shop" / "mcp.json"
    chosen = Configuration(file, HubSettings(state=str(tmp_path / "chosen")))
    assert claim(chosen, is_open=is_open) is None
    derived = Configuration(file, HubSettings(state=str(derived_state(file, {}, tmp_path))))
    if is_open:
        with pytest.raises(ConfigError, match="has some of an earlier version; without them the hub would be open"):
            claim(derived, is_open=True)
    assert "keys of an earlier version" in (claim(derived, is_open=is_open, is_insecure=True) or "")
    assert claim(derived, is_open=is_open) is None
    assert {file.name for file in usual.iterdir()} == {"keys", "hubs"}
