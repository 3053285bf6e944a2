"""A catalog finds the one matching tool, or says why there is none, and keeps definitions unchanged."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import Snapshot
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.catalog.view import Route
from isthmus.library.catalog import Catalog
from isthmus.library.errors import AmbiguousToolError, ToolDeniedError, ToolNotFoundError, ToolUnreachableError
from isthmus.library.public_types import UniversalTool
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from tests.unit.core.doubles import raw, ready, tool
from tests.unit.library.catalogs import HUB, attached_to, catalog_of, routes_of, user

CATALOG = catalog_of(
    "builtin.echo", "files.a.b", "files.read", "files.search", "my-web.search", "web.echo", "web.fetch"
)


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "namespace", "meant"),
    [
        ("files.read", None, "files.read"),
        ("files.a.b", None, "files.a.b"),
        ("a.b", None, "files.a.b"),
        ("read", None, "files.read"),
        ("echo", None, "builtin.echo"),
        ("mcp.echo", None, "web.echo"),
        ("mcp.fetch", None, "web.fetch"),
        ("mcp_web_fetch", None, "web.fetch"),
        ("mcp_my_web_search", None, "my-web.search"),
        ("mcp_builtin_echo", None, "builtin.echo"),
        ("read", "", "files.read"),
        ("read", "files", "files.read"),
        ("a.b", "files", "files.a.b"),
        ("files.read", "files", "files.read"),
        ("mcp_files_read", "files", "files.read"),
        ("search", "my-web", "my-web.search"),
        ("echo", "mcp", "web.echo"),
        ("web.echo", "mcp", "web.echo"),
        ("echo", "web", "web.echo"),
    ],
)
def test_every_form_of_a_name_leads_to_its_tool(name: str, namespace: str | None, meant: str) -> None:
    assert CATALOG.resolve(name, namespace).full_name == meant
    assert CATALOG.resolve(name, namespace).full_name == meant


@pytest.mark.parametrize(
    ("name", "namespace"),
    [("e", None), ("earc", None), ("read", "web"), ("files.read", "web"), ("mcp_files_read", "web"), ("", None),
     ("builtin.echo", "mcp"), ("mcp.read_", None), ("FILES.READ", None), ("read", "files."), ("mcp", None)],
)  # fmt: skip
def test_a_part_of_a_name_or_another_servers_is_no_name(name: str, namespace: str | None) -> None:
    with pytest.raises(ToolNotFoundError):
        CATALOG.resolve(name, namespace)


@pytest.mark.parametrize("name", ["search", "mcp.search"])
def test_a_name_of_several_tools_is_an_error_that_names_them(name: str) -> None:
    with pytest.raises(AmbiguousToolError, match="use one of these full names") as several:
        CATALOG.resolve(name)
    assert several.value.candidates == ("files.search", "my-web.search")


def test_a_tool_named_like_the_llm_name_of_another_takes_no_name() -> None:
    tool_catalog = catalog_of("files.read", "rogue.mcp_files_read")
    with pytest.raises(AmbiguousToolError) as several:
        tool_catalog.resolve("mcp_files_read")
    assert several.value.candidates == ("files.read", "rogue.mcp_files_read")
    with pytest.raises(AmbiguousToolError) as more:
        catalog_of("files.read", "rogue.mcp_files_read", "rascal.mcp_files_read").resolve("mcp_files_read")
    assert more.value.candidates == ("files.read", "rascal.mcp_files_read", "rogue.mcp_files_read")
    assert tool_catalog.resolve("mcp_files_read", "files").full_name == "files.read"
    found = tool_catalog.by_llm_name("mcp_files_read")
    assert found is not None
    assert found.full_name == "files.read"


def test_a_tool_called_as_another_of_its_server_in_full_does_not_stand_in_for_it() -> None:
    tool_catalog = catalog_of("files.read", "files.files.read")
    assert tool_catalog.resolve("files.read", "files").full_name == "files.read"
    assert tool_catalog.resolve("files.files.read", "files").full_name == "files.files.read"


def test_a_near_miss_is_a_suggestion() -> None:
    with pytest.raises(ToolNotFoundError, match=r"Did you mean files.read") as unknown:
        CATALOG.resolve("files.raed")
    assert unknown.value.suggestions[0] == "files.read"
    with pytest.raises(ToolNotFoundError, match=r"Did you mean web.fetch"):
        CATALOG.resolve("fetsh")


def test_a_tool_of_a_server_that_did_not_come_is_missed_with_the_reason() -> None:
    tool_catalog = catalog_of("files.read", missing={"web": "connection refused"})
    for name, namespace in (("web.read", None), ("read", "web")):
        with pytest.raises(ToolNotFoundError, match="Server web is not connected: connection refused") as unknown:
            tool_catalog.resolve(name, namespace)
        assert unknown.value.suggestions == ()
    with pytest.raises(ToolNotFoundError, match="are not connected, so their tools are unknown: web"):
        tool_catalog.resolve("fetch")


def test_so_is_one_by_its_name_for_language_models() -> None:
    missing = {"web": "connection refused", "web-find": "it is starting"}
    tool_catalog = catalog_of("web_search.query", "files.read", missing=missing)
    for name, server in (("mcp_web_read", "web"), ("mcp_web_find_it", "web-find")):
        with pytest.raises(ToolUnreachableError) as unreachable:
            tool_catalog.resolve(name)
        assert (unreachable.value.server, str(unreachable.value)) == (
            server,
            f"There is no tool {name!r}. Server {server} is not connected: {missing[server]}",
        )
    for name in ("mcp_web_search_qery", "mcp_files_raed", "mcp_webs_read"):
        assert tool_catalog.unreachable(name) is None, "its server is there, or is none"


@pytest.mark.parametrize("name", ["web.fetch", "mcp_web_fetch"])
def test_a_caller_that_may_not_use_a_server_does_not_learn_that_it_is_missing(name: str) -> None:
    tool_catalog = catalog_of("files.read", missing={"web": "connection refused"})
    for denied in (user("files.*"), user("*", denied=["web.*"]), user("*", denied=[name])):
        with pytest.raises(ToolDeniedError):
            tool_catalog.resolve_for(denied, name)
    for allowed in (None, user("*"), user("web"), user("web.fetch")):
        with pytest.raises(ToolUnreachableError):
            tool_catalog.resolve_for(allowed, name)


def test_a_user_sees_only_its_own_tools() -> None:
    tool_catalog = catalog_of("files.read", "files.raze", missing={"web": "connection refused", "vault": "sealed"})
    with pytest.raises(ToolNotFoundError) as unknown:
        tool_catalog.resolve_for(user("files.read", "vault.open"), "files.raed")
    assert unknown.value.suggestions == ("files.read",)
    assert str(unknown.value).endswith("are not connected, so their tools are unknown: vault.")
    with pytest.raises(TypeError, match="must be a UserContext"):
        tool_catalog.resolve_for("ann", "web.fetch")  # type: ignore[arg-type]


def test_the_tools_of_an_away_server_stay_known() -> None:
    tool_catalog = catalog_of("files.read", missing={"files": "exited with code 1"})
    with pytest.raises(ToolNotFoundError, match=r"Did you mean files\.read") as unknown:
        tool_catalog.resolve("files.raed")
    assert not isinstance(unknown.value, ToolUnreachableError)


def test_every_tool_has_its_own_name_for_language_models() -> None:
    tool_catalog = catalog_of("web.search_query", "web_search.query", "web.读", "s." + "x" * 128)
    names = [entry.llm_name for entry in tool_catalog.entries.values()]
    assert len(set(names)) == len(names)
    for entry in tool_catalog.entries.values():
        assert tool_catalog.resolve(entry.llm_name) is tool_catalog.by_llm_name(entry.llm_name) is entry
    assert tool_catalog.by_llm_name("web.读") is None


# -- a hub elsewhere -----------------------------------------------------------------------------------------------


def test_the_tools_of_a_hub_elsewhere_are_called_as_it_calls_them() -> None:
    tool_catalog = attached_to("files.read", "files.a.b", "builtin.echo", "web.read")
    entry = tool_catalog.resolve("a.b")
    assert (entry.server, entry.name, entry.exposed, entry.surface) == ("files", "a.b", "files.a.b", HUB)
    assert tool_catalog.resolve("echo").full_name == "builtin.echo"
    with pytest.raises(AmbiguousToolError):
        tool_catalog.resolve("read")


def test_a_hub_that_names_tools_for_language_models_is_taken_at_its_word() -> None:
    tool_catalog = attached_to("mcp_files_read", "读")
    entry = tool_catalog.resolve("mcp_files_read")
    assert (entry.full_name, entry.namespace, entry.llm_name) == ("mcp_files_read", None, "mcp_files_read")
    assert entry.tool.required_permissions == ["mcp_files_read"]
    assert tool_catalog.may_use(user("mcp_files_read"), entry)
    assert not tool_catalog.may_use(user("files.read"), entry)
    assert tool_catalog.resolve("读").llm_name.isascii()


def test_of_two_tables_the_first_holds() -> None:
    here = Surface(server=ServerName("builtin"))
    own = routes_of(tool("echo", "builtin"), tool("mine", "builtin"), surface=here)
    tool_catalog = Catalog({HUB: routes_of(tool("builtin.echo", "hub"), surface=HUB), here: own})
    assert {name: entry.surface for name, entry in tool_catalog.entries.items()} == {
        "builtin.echo": HUB,
        "builtin.mine": here,
    }


# -- tools ---------------------------------------------------------------------------------------------------------


def test_a_tool_is_shown_as_its_server_describes_it() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    described = tool(
        "read",
        description="Reads a file.",
        title="Read",
        inputSchema=schema,
        outputSchema={"type": "object"},
        annotations={"readOnlyHint": True},
    )
    assert Catalog({EVERYTHING: routes_of(described)}).resolve("read").tool == UniversalTool(
        "files.read",
        "Reads a file.",
        schema,
        "files",
        ["files.read"],
        supports_streaming=True,
        metadata={
            "title": "Read",
            "annotations": {"readOnlyHint": True},
            "output_schema": {"type": "object"},
            "llm_name": "mcp_files_read",
        },
    )


def test_a_tool_of_a_server_that_is_trusted_says_so() -> None:
    def routes(*, is_trusted: bool) -> Mapping[str, Route]:
        server_status = ready(tool("read"), rules=ToolRules(is_trusted=is_trusted))
        snapshot = Snapshot(1, {server_status.server: server_status}, CheckCache(limit_bytes=4096))
        return snapshot.view(Grants(("*",)), EVERYTHING).routes

    assert "trusted" not in Catalog({EVERYTHING: routes(is_trusted=False)}).resolve("read").tool.metadata
    assert Catalog({EVERYTHING: routes(is_trusted=True)}).resolve("read").tool.metadata["trusted"] is True


def test_the_digest_changes_with_the_definition_of_a_tool() -> None:
    digests = [
        Catalog({EVERYTHING: routes_of(tool("read", description=text))}).resolve("read").digest
        for text in ("Reads.", "Reads.", "Reads a file.")
    ]
    assert digests[0] == digests[1] != digests[2]


def test_changing_a_tool_changes_it_for_no_other_user() -> None:
    entry = Catalog({EVERYTHING: routes_of(tool("read", inputSchema={"type": "object"}))}).resolve("read")
    entry.tool.parameters_schema["type"] = "string"
    assert entry.tool.parameters_schema == {"type": "object"}


@pytest.mark.parametrize("nonsense", [raw([1]), raw(7), msgspec.Raw(b"{"), msgspec.Raw(b"[" * 100_000)])
def test_nonsense_in_a_description_costs_that_member_only(nonsense: msgspec.Raw) -> None:
    members = dict.fromkeys(["description", "inputSchema", "title", "annotations", "outputSchema"], nonsense)
    odd = Tool(ServerName("files"), FeatureName("read"), members, b"")
    shown = Catalog({EVERYTHING: {"files.read": Route(odd, "files.read")}}).resolve("files.read").tool
    assert shown == UniversalTool(
        "files.read", "", {}, "files", ["files.read"], supports_streaming=True, metadata={"llm_name": "mcp_files_read"}
    )


# -- permissions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "denied", "names"),
    [
        ([], (), ["builtin.echo"]),
        (["files"], (), ["files.a.b", "files.read", "files.search"]),
        (["files.*", "web.fetch"], ["files.a.b"], ["files.read", "files.search", "web.fetch"]),
        (["*"], ["files", "web", "my-web"], ["builtin.echo"]),
        (["read"], (), []),
    ],
)
def test_a_user_reaches_the_tools_that_its_permissions_cover(
    permissions: list[str], denied: object, names: list[str]
) -> None:
    who = user(*permissions, denied=denied)
    assert [entry.full_name for entry in CATALOG.reachable(who)] == names
    assert [name for name, entry in CATALOG.entries.items() if CATALOG.may_use(who, entry)] == names


def test_a_program_reaches_everything() -> None:
    assert CATALOG.reachable(None) == list(CATALOG.entries.values())


@pytest.mark.parametrize("now", [(), ("files.delete.all",)])
@pytest.mark.parametrize("before", [(), ("files.delete.all",)])
def test_a_denial_by_llm_name_holds_when_the_name_changes(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    name = catalog_of("files.delete_all", *before).entries["files.delete_all"].llm_name
    tool_catalog = catalog_of("files.delete_all", "files.read", *now)
    who = user("*", denied=[name])
    assert not tool_catalog.may_use(who, tool_catalog.entries["files.delete_all"])
    assert "files.delete_all" not in [entry.full_name for entry in tool_catalog.reachable(who)]
    assert tool_catalog.may_use(who, tool_catalog.entries["files.read"])


@pytest.mark.parametrize("denied", ["mcp_files_delete_all", "mcp_files_delete-all", "files.delete-all", "delete-all"])
def test_a_tool_with_hyphens_is_denied_by_each_of_its_names(denied: str) -> None:
    for tool_catalog in (
        catalog_of("files.delete-all", "files.read"),
        attached_to("mcp_files_delete-all", "mcp_files_read"),
    ):
        (shown,) = tool_catalog.reachable(user("*", denied=[denied]))
        assert shown.full_name.endswith("read")


def test_underscores_find_a_tool_with_hyphens_unless_they_are_another_s_name() -> None:
    tool_catalog = catalog_of("m.get-weather", "m.set-x", "m.set_x")
    for name in ("mcp_m_get_weather", "mcp_m_get-weather"):
        assert tool_catalog.resolve(name) is tool_catalog.by_llm_name(name) is tool_catalog.entries["m.get-weather"]
    assert tool_catalog.resolve("mcp_m_set_x") is tool_catalog.entries["m.set_x"]
    assert tool_catalog.resolve("mcp_m_get_weather", "m") is tool_catalog.entries["m.get-weather"]


@pytest.mark.parametrize("denied", ["web", "web.*", "web.fetch", "mcp_web_fetch", "fetch", "mcp.fetch", "*"])
def test_denials_hold_where_a_hub_uses_llm_names(denied: str) -> None:
    tool_catalog = attached_to("mcp_files_read", "mcp_web_fetch", "mcp_web_fetch_0a1b2c")
    shown = {entry.full_name for entry in tool_catalog.reachable(user("*", denied=[denied]))}
    assert shown == (set() if denied == "*" else {"mcp_files_read"})
