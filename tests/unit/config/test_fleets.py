"""Fleets of a file: what they fill in, and that a mistake leaves only that fleet out."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.config_diff import compare
from isthmus.config.codes import BAD_FLEET, BAD_SET
from isthmus.config.fleets import FLEET_KEYS
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.core.catalog.fleets import FleetSettings

SERVER = '[servers.sensor-1]\ncommand = "x"\n'


def loaded(folder: Path, text: str) -> Configuration:
    file = folder / "isthmus.toml"
    file.write_text(SERVER + text)
    return load(file, {}, folder, folder)


def test_every_key_of_a_fleet_is_documented_and_a_field() -> None:
    assert set(FLEET_KEYS) == {each.name for each in fields(FleetSettings) if each.init}


def test_a_fleet_has_patterns_and_bounds(tmp_path: Path) -> None:
    text = """
[fleets.one]
members = "sensor-*"

[fleets.two]
members = ["dialin:plant_*", "agent:x"]
hide_members = false
deadline = 2.5
at_once = 4
result_bytes = 8192
read_only = ["read"]

[callers.bot]
key = "0123456789abcdef"
allow = ["one.*"]
"""
    configuration = loaded(tmp_path, text)
    assert configuration.warnings == ()
    assert configuration.fleets == {
        "one": FleetSettings(("sensor-*",)),
        "two": FleetSettings(
            ("dialin:plant_*", "agent:x"),
            hide_members=False,
            deadline=2.5,
            at_once=4,
            result_bytes=8192,
            read_only=("read",),
        ),
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("[fleets.a]", "members must have a pattern"),
        ('[fleets.a]\nmembers = "x.y"', "a member must be server-*"),
        ("[fleets.a]\nmembers = 7", "members must be a list of texts"),
        ('[fleets.a]\nmembers = "x"\nhide = true', "must have only"),
        ('[fleets.a]\nmembers = "x"\ndedline = 1', "must have only"),
        ('[fleets.a]\nmembers = "x"\ndeadline = 0', "deadline must be"),
        ('[fleets.a]\nmembers = "x"\nat_once = 1000', "at_once must be 1 to 256"),
        ('[fleets.a]\nmembers = "x"\nresult_bytes = 1', "result_bytes must be"),
        ('[fleets.sensor-1]\nmembers = "x"', "must have another name than a server"),
        ('[fleets.builtin]\nmembers = "x"', "must have another name than a server"),
        ('[fleets."a.b"]\nmembers = "x"', "must have a name like that of a server"),
    ],
)
def test_a_fleet_with_a_mistake_is_left_out(tmp_path: Path, entry: str, problem: str) -> None:
    configuration = loaded(tmp_path, entry + '\n[fleets.good]\nmembers = "x"')
    assert list(configuration.fleets) == ["good"]
    (finding,) = configuration.warnings
    assert (finding.code, problem in finding.problem) == (BAD_FLEET, True), finding.problem
    assert ("did you mean deadline? Until it is fixed, the fleet" in finding.fix) is ("dedline" in entry)


def test_a_set_cannot_have_the_name_of_a_fleet(tmp_path: Path) -> None:
    (finding,) = loaded(tmp_path, '[fleets.a]\nmembers = "x"\n[sets.a]\ntools = ["*"]').warnings
    assert finding.code is BAD_SET


def test_a_changed_fleet_is_a_change_of_settings(tmp_path: Path) -> None:
    texts: list[Any] = ['[fleets.a]\nmembers = "x"', '[fleets.a]\nmembers = "y"']
    before, after = (loaded(tmp_path, text) for text in texts)
    assert compare(before, after).settings == ("fleets.a",)
