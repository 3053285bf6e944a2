"""The `[audit]` table, and `[hub] audit`."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.settings import Configuration


def read(folder: Path, text: str) -> Configuration:
    file = folder / "isthmus.toml"
    file.write_text(text)
    return load(file, {}, folder, folder)


def test_by_default_calls_are_written_in_batches_and_kept_for_ninety_days(tmp_path: Path) -> None:
    configuration = read(tmp_path, "")
    assert (configuration.hub.audit, configuration.audit.keep) == ("batched", 90 * 86_400.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [('"36h"', 36 * 3600.0), ('" 7D "', 7 * 86_400.0), ('"2w"', 14 * 86_400.0), ("90000", 90_000.0)],
)
def test_how_long_records_are_kept_is_a_time(tmp_path: Path, text: str, seconds: float) -> None:
    assert read(tmp_path, f"[audit]\nkeep = {text}").audit.keep == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[audit]\nkeep = "soon"', "audit.keep must be a time like 36h, 90d or 52w, not 'soon'"),
        ("[audit]\nkeep = []", "audit.keep must be a number, not a list"),
        ("[audit]\nkeep = 60", "audit.keep must be a day (1d) or more, not 60 s"),
        ('[hub]\naudit = "loose"', "hub.audit must be one of off, batched, strict, not 'loose'"),
    ],
)
def test_a_value_that_is_none_refuses_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


def test_an_unknown_key_is_told_of(tmp_path: Path) -> None:
    (finding,) = read(tmp_path, "[audit]\nkeeps = 5").warnings
    assert "audit.keeps" in str(finding)


def test_another_clients_file_has_no_such_table(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}, "audit": {"keep": 5}}')
    assert load(file, {}, tmp_path, tmp_path).audit.keep == 90 * 86_400.0
