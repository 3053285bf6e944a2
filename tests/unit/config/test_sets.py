"""Sets of a file: what they fill in, and that a mistake never widens anything."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.config_diff import compare
from isthmus.config.codes import BAD_SET, IDLE_SET_ENTRY, SET_NAMES_COLLIDE, UNKNOWN_SERVER, UNKNOWN_SET
from isthmus.config.dialects import OWN
from isthmus.config.files import Document
from isthmus.config.findings import Finding
from isthmus.config.load import load
from isthmus.config.sets import SET_KEYS, SET_TOOL_KEYS, read_sets
from isthmus.config.settings import Configuration
from isthmus.config.variables import Variables
from isthmus.core.catalog.sets import SetSettings, SetTool

FILE = Path("/etc/hub/isthmus.toml")
VARIABLES = Variables({"REPO": "acme/x"}, FILE.parent, Path("/home/me"))


def read(sets: object, **tables: Any) -> tuple[dict[str, SetSettings], list[Finding]]:
    return read_sets(Document(FILE, {"sets": sets, **tables}, OWN), VARIABLES, {"github", "builtin"})


def loaded(folder: Path, text: str) -> Configuration:
    file = folder / "isthmus.toml"
    file.write_text(text)
    return load(file, {"REPO": "acme/x"}, folder, folder)


def test_a_set_has_patterns_and_changes() -> None:
    change = {"name": "new", "description": "Make one.", "fixed": {"repo": "${REPO}", "n": 1}, "hide": ["verbose"]}
    sets, findings = read(
        {
            "dev": {
                "tools": ["github.*", "tag:docs"],
                "exclude": ["github.delete"],
                "prompts": ["github.*"],
                "resources": ["github.repo://x"],
                "description": "For programmers.",
                "description_max": 200,
                "tool": {"github.create_issue": change},
            }
        }
    )
    assert findings == []
    made = SetTool("new", "Make one.", {"repo": "acme/x", "n": 1}, ("verbose",))
    assert sets == {
        "dev": SetSettings(
            ("github.*", "tag:docs"),
            ("github.*",),
            ("github.repo://x",),
            ("github.delete",),
            "For programmers.",
            200,
            {"github.create_issue": made},
        )
    }


def test_every_key_of_a_set_is_documented_and_a_field() -> None:
    assert set(SET_KEYS) == {each.name for each in fields(SetSettings) if each.init}
    assert set(SET_TOOL_KEYS) == {each.name for each in fields(SetTool)}


@pytest.mark.parametrize(
    ("entry", "problem", "fix"),
    [
        ({"tool": {"github": {}}}, "must be server.tool in quotation marks", 'write [sets.NAME.tool."server.tool"]'),
        ({"tools": ["git*"]}, "sets.dev.tools.0 must be *, server.*", 'write a pattern such as "server.*"'),
        (
            {"tools": "github.*"},
            "sets.dev.tools must be a list of texts, not 'github.*'",
            'write a list, such as ["server.*"]',
        ),
        ({"toolss": []}, "sets.dev must have only tools, prompts", "did you mean tools? Until it is fixed, callers"),
        (
            {"description_max": 5},
            "sets.dev.description_max must be 20 or more, not 5",
            "until it is fixed, callers",
        ),
        (
            {"tool": {"github.x": {"name": "a b"}}},
            'sets.dev.tool."github.x".name must be 1 to 128',
            "until it is fixed, callers",
        ),
        (
            {"tool": {"github.x": {"fixed": []}}},
            'sets.dev.tool."github.x".fixed must be a table',
            "until it is fixed, callers",
        ),
        (
            {"tool": {"github.x": {"fixed": {"a": 1}, "hide": ["a"]}}},
            "must not name an argument that is in fixed",
            "remove the argument from hide",
        ),
        (
            {"tool": {"github.x": {"fixed": {"a": "${NO}"}}}},
            "must have only variables that are set, not ${NO}",
            "set the variable where the hub starts",
        ),
        (
            {"tool": {"github.x": {"fix": {}}}},
            "must have only name, description, fixed, hide",
            "did you mean fixed?",
        ),
        ([], "must be a table", "until it is fixed, callers"),
    ],
)
def test_a_set_with_a_mistake_is_left_out_and_its_fix_says_what_to_write(entry: object, problem: str, fix: str) -> None:
    sets, findings = read({"dev": entry, "good": {"tools": ["*"]}})
    assert list(sets) == ["good"]
    (finding,) = findings
    assert problem in str(finding)
    assert finding.code is BAD_SET
    assert finding.fix.startswith(fix)
    assert finding.fix.endswith(" callers that are bound to it see nothing")


@pytest.mark.parametrize("name", ["github", "builtin", "a.b", "a b", ""])
def test_a_set_has_a_name_of_its_own_that_fits_into_a_path(name: str) -> None:
    sets, findings = read({name: {"tools": ["*"]}})
    assert sets == {}
    assert [finding.code for finding in findings] == [BAD_SET]


def test_names_that_collide_and_entries_without_effect_are_reported() -> None:
    changes = {"github.a": {"name": "x"}, "github.b": {"name": "x"}, "files.c": {"name": "y"}}
    _, findings = read({"dev": {"tools": ["github.*"], "tool": changes}, "empty": {}})
    assert [(each.code, each.path) for each in findings] == [
        (IDLE_SET_ENTRY, 'sets.dev.tool."files.c"'),
        (SET_NAMES_COLLIDE, "sets.dev"),
        (IDLE_SET_ENTRY, "sets.empty"),
    ]
    assert "gives the name x to github.a, github.b" in str(findings[1])


def test_a_binding_to_a_set_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    configuration = loaded(
        tmp_path,
        """
        [sets.writing]
        tools = ["githup.*"]
        [servers.github]
        command = "true"
        [callers.ann]
        key = "0123456789abcdef"
        allow = ["*"]
        set = "writting"
        """,
    )
    found = {finding.code: finding for finding in configuration.warnings}
    assert "did you mean writing?" in str(found[UNKNOWN_SET])
    assert "did you mean github.*?" in str(found[UNKNOWN_SERVER])
    ((_, caller),) = configuration.callers
    assert caller.grants.set == "writting"


@pytest.mark.parametrize("given", ['""', "7", '["dev"]', "true"])
def test_a_caller_with_a_malformed_binding_is_left_out(tmp_path: Path, given: str) -> None:
    text = f"""
        [callers.ann]
        key = "0123456789abcdef"
        allow = ["*"]
        set = {given}
        [callers.bob]
        key = "fedcba9876543210"
        allow = ["*"]
        """
    assert [caller.name for _, caller in loaded(tmp_path, text).callers] == ["bob"]


def test_a_caller_of_a_set_names_no_targets(tmp_path: Path) -> None:
    text = """
        [callers.ann]
        key = "0123456789abcdef"
        set = "dev"
        targets = true
        [callers.bob]
        key = "fedcba9876543210"
        allow = ["*"]
        """
    configuration = loaded(tmp_path, text)
    assert [caller.name for _, caller in configuration.callers] == ["bob"]
    assert any("targets must be false for a caller of a set" in str(each) for each in configuration.warnings)


def test_an_issuer_binds_its_callers(tmp_path: Path) -> None:
    text = """
        [issuers.corp]
        issuer = "https://id.example"
        audience = "hub"
        allow = ["*"]
        set = "dev"
        [sets.dev]
        tools = ["*"]
        """
    (issuer,) = loaded(tmp_path, text).issuers
    assert issuer.grants.set == "dev"


def test_a_changed_set_is_a_difference(tmp_path: Path) -> None:
    before = loaded(tmp_path, '[sets.dev]\ntools = ["a.*"]\n[sets.ops]\ntools = ["*"]')
    after = loaded(tmp_path, '[sets.dev]\ntools = ["b.*"]\n[sets.ops]\ntools = ["*"]\n[sets.new]\ntools = ["*"]')
    assert compare(before, after).settings == ("sets.dev", "sets.new")
