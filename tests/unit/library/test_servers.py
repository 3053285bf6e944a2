"""Servers as a program describes them, and what a file says of them besides."""

from __future__ import annotations

import pytest

from isthmus.core.catalog.rules import Rules
from isthmus.library.errors import ConfigurationError
from isthmus.library.servers import MCPServerConfig
from isthmus.model.names import ServerName
from isthmus.upstream.settings import ServerSettings, StdioSettings


@pytest.mark.parametrize(
    ("said", "base", "is_trusted"),
    [(False, False, False), (True, False, True), (False, True, True), (True, None, True)],
)
def test_a_server_is_trusted_if_the_program_or_the_file_says_so(
    *, said: bool, base: bool | None, is_trusted: bool
) -> None:
    known = (
        None
        if base is None
        else ServerSettings(ServerName("docs"), StdioSettings("x"), rules=Rules(("read",), is_trusted=base))
    )
    settings = MCPServerConfig("docs", command="x", trusted=said, base=known).settings()
    assert settings.rules.is_trusted is is_trusted
    assert settings.rules.only == (None if base is None else ("read",))


def test_trust_is_a_truth() -> None:
    with pytest.raises(ConfigurationError, match="trusted must be True or False, not 'yes'"):
        MCPServerConfig.of({"name": "docs", "command": "x", "trusted": "yes"})
