"""Options, variables and files decide which hub a command works against."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.sources import HUB_VARIABLE, KEY_VARIABLE, Own, Running, configuration_of, home, source_of


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (HUB_VARIABLE, KEY_VARIABLE, "ISTHMUS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def running(hub: str) -> Running:
    source = source_of(hub, None)
    assert isinstance(source, Running)
    return source


def test_without_anything_a_hub_of_ones_own_is_meant() -> None:
    assert source_of(None, None) == Own(None)


def test_the_variable_names_a_running_hub_and_an_option_wins_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HUB_VARIABLE, "http://from.variable:1")
    assert isinstance(source := source_of(None, None), Running)
    assert source.reach.url == "http://from.variable:1/mcp"
    assert running("http://from.option:2").reach.url == "http://from.option:2/mcp"
    assert source_of(None, Path("mcp.json")) == Own(Path("mcp.json"))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/mcp", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/mcp/files", "http://127.0.0.1:8765/mcp/files"),
        ("https://hub.example/behind/proxy", "https://hub.example/behind/proxy"),
    ],
)
def test_the_hubs_own_address_will_do(given: str, url: str) -> None:
    assert running(given).reach.url == url


def test_the_key_comes_from_the_environment_and_is_sent_as_a_bearer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert running("http://hub").reach.headers == {}
    monkeypatch.setenv(KEY_VARIABLE, "k3y")
    source = running("http://hub")
    assert source.reach.headers == {"Authorization": "Bearer k3y"}
    assert source.has_key
    assert "k3y" not in repr(source)


@pytest.mark.parametrize("address", ["localhost:8765", "ftp://hub", "http://", "http://a b", "http://u:p@hub"])
def test_a_bad_address_is_a_usage_error(address: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        source_of(address, None)
    assert failed.value.exit == Exit.USAGE
    assert "http://127.0.0.1:8765" in failed.value.advice[0]


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "two\nlines")
    with pytest.raises(CommandFailed) as failed:
        source_of("http://hub", None)
    assert failed.value.exit == Exit.CONFIGURATION
    assert "lines" not in failed.value.message


def test_a_hub_and_a_file_exclude_each_other() -> None:
    with pytest.raises(CommandFailed) as failed:
        source_of("http://hub", Path("mcp.json"))
    assert failed.value.exit == Exit.USAGE


def test_the_usual_places_are_searched_and_options_win(tmp_path: Path) -> None:
    assert configuration_of(None).file is None
    (tmp_path / "isthmus.toml").write_text("[hub]\nport = 1\n")
    assert configuration_of(None).hub.port == 1
    assert configuration_of(None, host="::1", port=2).hub.host == "::1"
    assert configuration_of(None, port=2).hub.port == 2


def test_a_configuration_that_cannot_be_used_is_told_with_every_finding(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[hub]\nport = 99999\n")
    with pytest.raises(CommandFailed) as failed:
        configuration_of(tmp_path / "bad.toml")
    assert failed.value.exit == Exit.CONFIGURATION
    assert "bad.toml: hub.port must be 0 to 65535, not 99999" in failed.value.message


def test_a_system_that_knows_no_home_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert home() == Path("~")
