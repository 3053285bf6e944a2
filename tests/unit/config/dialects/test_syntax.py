"""Other clients' variables, in our own words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.dialects.clients import CURSOR, DIALECTS, GEMINI, OPENCODE, VSCODE, Dialect
from isthmus.config.dialects.syntax import WorkspaceContext, inputs_used, with_hub_variables

AROUND = WorkspaceContext(
    Path("/srv/shop"),
    Path("/home/me"),
    {"team": {"id": "team", "default": "blue"}, "odd": {"default": "{x}"}, "none": {}},
)


@pytest.mark.parametrize(
    ("dialect", "text", "ours"),
    [
        (CURSOR, "${userHome}/bin", "/home/me/bin"),
        (CURSOR, "${workspaceFolder}|${workspaceRoot}|${cwd}", "/srv/shop|/srv/shop|/srv/shop"),
        (CURSOR, "${workspaceFolderBasename}", "shop"),
        (CURSOR, "a${pathSeparator}b${/}c", f"a{os.sep}b{os.sep}c"),
        (CURSOR, "${env:TOKEN} ${VAR:-x} ${file:/a}", "${env:TOKEN} ${VAR:-x} ${file:/a}"),
        (CURSOR, "$HOME %PATH% {env:X}", "$HOME %PATH% {env:X}"),
        (GEMINI, "$TOKEN ${TOKEN} %TOKEN% $5 100%", "${TOKEN} ${TOKEN} ${TOKEN} $5 100%"),
        (OPENCODE, "{env:TOKEN} {file:~/x} ${env:A}", "${TOKEN} ${file:~/x} ${env:A}"),
        (VSCODE, "${input:api-key}", "${ISTHMUS_INPUT_API_KEY}"),
        (VSCODE, "${input:team}", "${ISTHMUS_INPUT_TEAM:-blue}"),
        (VSCODE, "${input:odd}${input:none}", "${ISTHMUS_INPUT_ODD}${ISTHMUS_INPUT_NONE}"),
    ],
)
def test_every_way_to_write_a_variable_is_put_into_ours(dialect: Dialect, text: str, ours: str) -> None:
    assert with_hub_variables(text, dialect, AROUND) == ours


def test_the_inputs_of_a_text_are_named() -> None:
    assert inputs_used("${input:a} ${input:b-c} ${env:input}") == ["a", "b-c"]


@given(st.text(alphabet="${}%:/-AB input"), st.sampled_from(list(DIALECTS.values())))
def test_no_text_is_too_odd(text: str, dialect: Dialect) -> None:
    with_hub_variables(text, dialect, AROUND)
