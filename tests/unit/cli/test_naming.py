"""A person's name for a tool leads to one tool, or to words that help."""

from __future__ import annotations

import pytest

from isthmus.cli.call import choose, servers_for
from isthmus.cli.documents import FeatureList, ListedFeature, UnavailableServer
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.config.settings import Configuration, HubSettings
from isthmus.model.names import ServerName
from isthmus.upstream.settings import ServerSettings, StdioSettings
from isthmus.wire.mcp.lists import PROMPTS


def offer(name: str) -> ListedFeature:
    return ListedFeature(name, name.partition(".")[0], {})


OFFERS = [offer(name) for name in ("builtin.echo", "files.read", "files.a.b", "web.echo", "web.read", "mcp_web_get")]
GONE = {"search": UnavailableServer("retrying", "connection refused", is_listed=False)}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("files.read", "files.read"),
        ("files.a.b", "files.a.b"),
        ("a.b", "files.a.b"),
        ("echo", "builtin.echo"),
        ("mcp.echo", "web.echo"),
        ("mcp_web_get", "mcp_web_get"),
    ],
)
def test_full_short_and_mcp_names_are_found(name: str, meant: str) -> None:
    assert choose(name, FeatureList(OFFERS, {})).name == meant


def failure(name: str, absences: dict[str, UnavailableServer] | None = None) -> CommandFailed:
    with pytest.raises(CommandFailed) as failed:
        choose(name, FeatureList(OFFERS, absences or {}))
    return failed.value


def test_a_short_name_of_several_tools_lists_them() -> None:
    failed = failure("read")
    assert failed.exit == Exit.USAGE
    assert failed.message == "'read' could be any of these:\n  files.read\n  web.read"


def test_a_mistyped_name_brings_suggestions() -> None:
    failed = failure("file.raed")
    assert failed.exit == Exit.CALL_FAILED
    assert "Did you mean files.read" in failed.advice[0]


def test_a_mistyped_short_name_suggests_every_tool_that_has_it() -> None:
    assert "builtin.echo or web.echo" in failure("ecoh").advice[0]


def test_a_name_like_no_other_points_to_the_list_and_tells_who_is_missing() -> None:
    assert failure("zzz", GONE).advice == (
        "`isthmus tools` lists what there is. Not connected, so not listed: search.",
    )


def test_a_tool_of_a_missing_server_tells_why_it_is_missing() -> None:
    failed = failure("search.query", GONE)
    assert failed.exit == Exit.CALL_FAILED
    assert failed.message == "cannot call search.query: server search is not connected: connection refused"
    assert "executed: no" in failed.advice[0]
    assert failure("mcp_search_query", GONE).message.startswith("cannot call mcp_search_query: server search is not")
    starting = {"search": UnavailableServer("starting", None, is_listed=False)}
    assert failure("search.query", starting).message.endswith("it is starting")


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("files.read", {"files"}),
        ("builtin.echo", set()),
        ("echo", set()),
        ("read", None),
        ("mcp.read", None),
        ("other.read", None),
        ("files", None),
    ],
)
def test_only_the_servers_that_can_have_the_tool_are_started(name: str, needed: set[str] | None) -> None:
    servers = tuple(ServerSettings(ServerName(name), StdioSettings("x")) for name in ("files", "web"))
    assert servers_for(name, Configuration(None, HubSettings(), servers)) == needed


def test_a_prompt_has_no_built_in_namesake() -> None:
    servers = (ServerSettings(ServerName("files"), StdioSettings("x")),)
    assert servers_for("echo", Configuration(None, HubSettings(), servers), PROMPTS) is None


def test_words_about_prompts_speak_of_prompts() -> None:
    with pytest.raises(CommandFailed) as failed:
        choose("zzz", FeatureList([], {}), PROMPTS)
    assert failed.value.message == "there is no prompt 'zzz'"
    assert failed.value.advice == ("`isthmus prompts` lists what there is.",)
