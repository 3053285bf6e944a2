"""Servers as a program describes them, combined with those of a file."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.library.errors import ConfigurationError
from isthmus.library.server_config import MCPServerConfig
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import HttpSettings, Reach, ServerSettings, StdioSettings


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
        else ServerSettings(ServerName("docs"), StdioSettings("x"), rules=ToolRules(("read",), is_trusted=base))
    )
    settings = MCPServerConfig("docs", command="x", trusted=said, base=known).settings()
    assert settings.rules.is_trusted is is_trusted
    assert settings.rules.only == (None if base is None else ("read",))


def test_trust_is_a_truth() -> None:
    with pytest.raises(ConfigurationError, match="trusted must be True or False, not 'yes'"):
        MCPServerConfig.of({"name": "docs", "command": "x", "trusted": "yes"})


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"command": "x", "endpoint": "", "url": ""}, StdioSettings("x")),
        ({"command": "", "endpoint": "http://h/mcp"}, HttpSettings("http://h/mcp", carrier="auto")),
        ({"command": "", "transport": "sse", "url": "http://h/sse"}, HttpSettings("http://h/sse", carrier="sse")),
        ({"endpoint": "", "url": "http://h/mcp"}, HttpSettings("http://h/mcp", carrier="auto")),
    ],
)
def test_an_empty_text_says_nothing(said: dict[str, Any], meant: Reach) -> None:
    assert MCPServerConfig("docs", **said).settings().reach == meant


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"command": ""}, r"give an endpoint \(or url\) or a command"),
        ({"command": "", "transport": "stdio"}, "stdio needs a command"),
        ({"url": "", "transport": "sse"}, r"give an endpoint \(or url\)"),
    ],
)
def test_and_is_missed(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        MCPServerConfig("docs", **said).settings()
