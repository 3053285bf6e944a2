"""Sets: names in them, shortened descriptions, schemas without some arguments, and the views that are made of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.core.catalog.access_reasons import explain_access
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.sets import SetChange, SetSettings, UnusableInSet, change_feature, set_names
from isthmus.core.catalog.snapshot import SERVERS_FOR_SINGLE_VIEW, ServerStatus, Snapshot
from isthmus.core.catalog.tool_rules import CallChanges, ToolRules, fill_defaults
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, NO_CAPABILITIES, Kind, Style, Surface
from isthmus.model.features import Feature, Prompt, Tool
from isthmus.model.names import FeatureName, ServerName
from tests.unit.core.doubles import ABLE, prompt, ready, resource, template, tool

ALL = Grants(("*",))
DEV = Surface(set="dev")
BOUND = Grants(("*",), set="dev")
FILES, WEB = ServerName("files"), ServerName("web")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "root": {"$ref": "#/$defs/Root"}, "deep": {"type": "boolean"}},
    "required": ["path", "root"],
    "$defs": {"Root": {"type": "string", "minLength": 2}},
}


def defined(schema: Any = SCHEMA, name: str = "read", server: ServerName = FILES, **more: Any) -> Tool:
    members = {"inputSchema": schema, **more}
    return Tool.of(server, FeatureName(name), {key: msgspec.Raw(json.dumps(v).encode()) for key, v in members.items()})


def snapshot(settings: SetSettings, *statuses: ServerStatus) -> Snapshot:
    known = {status.server: status for status in statuses}
    return Snapshot(1, known, CheckCache(limit_bytes=1 << 16), sets={"dev": settings})


def schema_of(changed: Feature) -> dict[str, Any]:
    schema: dict[str, Any] = msgspec.json.decode(changed.definition["inputSchema"])
    return schema


# -- names ---------------------------------------------------------------------------------------------------------


def names(*pairs: tuple[str, str], style: Style = "canonical", **renamed: str) -> list[str]:
    """The names of some tools; `renamed` has new names by `server__tool`."""
    changes = {old.replace("__", "."): SetChange(name=new) for old, new in renamed.items()}
    typed = [(ServerName(server), FeatureName(own)) for server, own in pairs]
    table = set_names(typed, changes, style)
    assert set_names(reversed(typed), changes, style) == table
    return [table[pair] for pair in typed]


def test_a_tool_keeps_its_own_name_unless_another_has_it() -> None:
    assert names(("a", "x"), ("b", "y"), ("c", "y")) == ["x", "b.y", "c.y"]


def test_the_name_that_a_set_gives_wins() -> None:
    assert names(("a", "x"), ("b", "x"), a__x="z") == ["z", "x"]
    assert names(("a", "x"), ("b", "y"), a__x="y") == ["y", "b.y"]


def test_of_two_tools_with_one_name_the_first_keeps_it() -> None:
    assert names(("a", "x"), ("b", "y"), b__y="z", a__x="z") == ["z", "y"]


def test_no_name_stands_for_two_tools() -> None:
    found = names(("a", "b.x"), ("b", "x"), ("c", "x"), ("d", "y"), d__y="c.x")
    assert len(set(found)) == len(found)
    assert (found[0], found[3]) == ("b.x", "c.x")


def test_names_are_legal_for_language_models_if_the_hub_is_for_them() -> None:
    found = names(("a", "x"), ("b", "read.file"), ("c", "y"), ("d", "y"), ("e", "z" * 70), style="llm")
    assert found[:4] == ["x", "mcp_b_read_file", "mcp_c_y", "mcp_d_y"]
    assert len(found[4]) <= 64


# -- arguments -----------------------------------------------------------------------------------------------------


def test_a_fixed_argument_leaves_the_schema_and_is_filled_in() -> None:
    variant = change_feature(defined(), SetChange(fixed={"root": "/srv"}))
    schema = schema_of(variant.feature)
    assert list(schema["properties"]) == ["path", "deep"]
    assert schema["required"] == ["path"]
    changes = CallChanges(variant.fixed, variant.accepted)
    given = msgspec.Raw(b'{"path":"a"}')
    assert changes.refusal(given) is None
    assert json.loads(bytes(fill_defaults(given, changes.defaults))) == {"path": "a", "root": "/srv"}
    assert changes.refusal(msgspec.Raw(b'{"path":"a","root":"/"}')) == "not accepted here: root (accepted: deep, path)"


def test_a_tool_with_removed_arguments_takes_only_declared_ones() -> None:
    open_schema = {**SCHEMA, "additionalProperties": {"type": "string"}, "patternProperties": {"^r": {}}}
    variant = change_feature(defined(open_schema), SetChange(hide=("deep",)))
    schema = schema_of(variant.feature)
    assert schema["additionalProperties"] is False
    assert "patternProperties" not in schema
    assert variant.accepted == frozenset({"path", "root"})


def test_nothing_in_the_schema_shows_a_removed_argument() -> None:
    received = {**SCHEMA, "default": {"deep": True}, "examples": [{"deep": False}]}
    text = bytes(change_feature(defined(received), SetChange(hide=("deep",))).feature.definition["inputSchema"])
    assert b"deep" not in text


def test_the_last_required_argument_leaves_no_empty_list() -> None:
    schema = schema_of(change_feature(defined(), SetChange(fixed={"root": "/srv", "path": "a"})).feature)
    assert "required" not in schema  # an empty list is invalid in draft 4


def test_an_unchanged_tool_stays_the_same_object() -> None:
    plain = defined(description="Reads.")
    assert change_feature(plain, SetChange(), (), 20).feature is plain


def test_a_required_argument_can_be_hidden_if_the_operator_fills_it_in() -> None:
    variant = change_feature(defined(), SetChange(hide=("root",)), {"root"})
    assert variant.accepted == frozenset({"path", "deep"})


@pytest.mark.parametrize(
    ("schema", "change", "why"),
    [
        (SCHEMA, SetChange(fixed={"rot": "/"}), "it declares no argument 'rot'"),
        (SCHEMA, SetChange(hide=("root",)), "its argument 'root' is required: fix it instead of hiding it"),
        ({**SCHEMA, "allOf": []}, SetChange(hide=("deep",)), "has allOf"),
        ({"$ref": "#/$defs/A", "$defs": {"A": SCHEMA}}, SetChange(hide=("deep",)), "has $ref"),
        ({**SCHEMA, "dependentRequired": {"path": ["deep"]}}, SetChange(hide=("deep",)), "has dependentRequired"),
        ({**SCHEMA, "minProperties": 2}, SetChange(hide=("deep",)), "has minProperties"),
        ({**SCHEMA, "enum": [{"path": "a"}]}, SetChange(hide=("deep",)), "has enum"),
        (
            {**SCHEMA, "properties": {**SCHEMA["properties"], "again": {"$ref": "#/properties/deep"}}},
            SetChange(hide=("deep",)),
            "refers to itself",
        ),
        (
            {**SCHEMA, "properties": {**SCHEMA["properties"], "more": {"items": {"$ref": "#"}}}},
            SetChange(hide=("deep",)),
            "refers to itself",
        ),
        (
            {**SCHEMA, "properties": {**SCHEMA["properties"], "Deep": {}}},
            SetChange(hide=("deep",)),
            "'Deep' differs from a fixed or hidden one by case only",
        ),
        ({"properties": []}, SetChange(hide=("deep",)), "malformed"),
        (True, SetChange(hide=("deep",)), "declares no arguments"),
    ],
)
def test_a_schema_that_cannot_be_changed_safely_is_refused(schema: Any, change: SetChange, why: str) -> None:
    with pytest.raises(UnusableInSet) as refused:
        change_feature(defined(schema), change)
    assert why in str(refused.value)


def test_arguments_that_are_no_object_are_refused() -> None:
    changes = CallChanges(accepted=frozenset({"a"}))
    for text in (b"[]", b"7", b"null", b'{"a":', b'{"\xff":1}'):
        assert changes.refusal(msgspec.Raw(text)) == "must be a JSON object"


def prompted(*arguments: Any) -> Prompt:
    definition = {"name": msgspec.Raw(b'"ask"'), "arguments": msgspec.Raw(json.dumps(arguments).encode())}
    return Prompt.of(FILES, FeatureName("ask"), definition)


@pytest.mark.parametrize(
    ("arguments", "change", "why"),
    [
        ([{"name": "a"}], SetChange(fixed={"b": "x"}), "it declares no argument 'b'"),
        ([{"name": "a", "required": True}], SetChange(hide=("a",)), "'a' is required: fix it instead of hiding it"),
        ([{"name": "a"}, {"name": "A"}], SetChange(hide=("a",)), "'A' differs from a fixed or hidden one by case only"),
        ([{"name": 7}], SetChange(hide=("a",)), "its arguments are malformed"),
    ],
)
def test_a_prompt_that_cannot_be_changed_safely_is_refused(arguments: list[Any], change: SetChange, why: str) -> None:
    with pytest.raises(UnusableInSet) as refused:
        change_feature(prompted(*arguments), change)
    assert why in str(refused.value)


def test_a_prompt_keeps_what_a_set_leaves_as_it_is() -> None:
    unknown = {"name": "b", "required": False, "new": [1]}
    variant = change_feature(prompted({"name": "a", "required": True}, unknown), SetChange(fixed={"a": "x"}))
    assert json.loads(bytes(variant.feature.definition["arguments"])) == [unknown]
    assert variant.accepted == frozenset({"b"})


# -- views ---------------------------------------------------------------------------------------------------------


def test_a_fixed_value_that_does_not_fit_leaves_the_tool_out() -> None:
    settings = SetSettings(tools=("files.*",), tool={"files.read": SetChange(fixed={"root": "/"})})
    taken = snapshot(settings, ready(defined()))
    view = taken.view(ALL, DEV)
    assert list(view.routes) == []
    assert view.left_out["tools", "files.read"] == "its inputSchema does not accept the value of fixed.root"
    assert [note.text for note in taken.set_notes("dev")] == [f"is left out: {view.left_out['tools', 'files.read']}"]


def test_notes_name_patterns_and_changes_without_effect() -> None:
    settings = SetSettings(
        tools=("files.read", "files.raed", "tag:none"), exclude=("web.*",), tool={"files.write": SetChange(name="w")}
    )
    notes = snapshot(settings, ready(tool())).set_notes("dev")
    assert [(note.path, note.text) for note in notes] == [
        (("tools",), "has files.raed, which matches nothing"),
        (("tools",), "has tag:none, which matches nothing"),
        (("exclude",), "has web.*, which matches nothing"),
        (("tool", "files.write"), "is not among the tools of the set"),
    ]


def test_notes_name_changes_of_prompts_and_resources_without_effect() -> None:
    change = SetChange(name="x")
    settings = SetSettings(
        prompts=("files.ask", "files.aks"),
        resources=("files.a:{id}", "files.b:1"),
        prompt={"files.ask": SetChange(hide=("no",)), "files.aks": change},
        resource={"files.a:{id}": change, "files.a:1": change},
    )
    status = ready(prompts=[prompt()], resources=[resource("a:1")], templates=[template("a:{id}")])
    assert [(note.path, note.text) for note in snapshot(settings, status).set_notes("dev")] == [
        (("prompt", "files.ask"), "is left out: it declares no argument 'no'"),
        (("prompts",), "has files.aks, which matches nothing"),
        (("resources",), "has files.b:1, which matches nothing"),
        (("prompt", "files.aks"), "is not among the prompts of the set"),
        (("resource", "files.a:1"), "is not among the resources of the set"),
    ]


def test_a_tool_and_a_prompt_of_one_name_and_definition_are_changed_apart() -> None:
    settings = SetSettings(
        tools=("*",), prompts=("*",), tool={"files.ask": SetChange(title="T")}, prompt={"files.ask": SetChange("p")}
    )
    view = snapshot(settings, ready(tool("ask"), prompts=[prompt("ask")])).view(ALL, DEV)
    assert (type(view.routes["ask"].feature), type(view.prompts["p"].feature)) == (Tool, Prompt)


def test_of_two_prompts_with_one_name_the_first_keeps_it() -> None:
    change = {"files.ask": SetChange("x"), "web.find": SetChange("x")}
    both = (ready(prompts=[prompt("ask")]), ready(prompts=[prompt("find", WEB)], server=WEB))
    view = snapshot(SetSettings(prompts=("*",), prompt=change), *both).view(ALL, DEV)
    assert {name: route.feature.name for name, route in view.prompts.items()} == {"x": "ask", "find": "find"}


def test_patterns_of_rules_that_name_no_tool_are_found() -> None:
    taken = snapshot(SetSettings(), ready(tool()))
    patterns = ("*", "files", "files.*", "files.read", "files.raed", "web.read", "tag:x", "agent:files.x")
    assert [each for each in patterns if taken.names_nothing(each)] == ["files.raed"]


def test_patterns_are_not_reported_while_a_server_has_listed_nothing() -> None:
    settings = SetSettings(tools=("files.read", "web.search"))
    assert snapshot(settings, ready(tool()), ServerStatus(WEB)).set_notes("dev") == []


def test_a_set_shows_the_state_of_its_own_servers_only() -> None:
    settings = SetSettings(tools=("files.*",))
    view = snapshot(settings, ServerStatus(FILES, "retrying", "gone"), ServerStatus(WEB, "retrying", "gone")).view(
        ALL, DEV
    )
    assert list(view.missing) == list(view.servers) == ["files"]


def test_a_server_has_only_the_abilities_that_its_set_shows() -> None:
    status = ready(tool(), prompts=[prompt()], resources=[resource("a:b")], abilities=ABLE)
    assert snapshot(SetSettings(tools=("files.*",)), status).view(ALL, DEV).abilities == {"tools", "logging"}
    prompts = snapshot(SetSettings(prompts=("files.*",)), status).view(ALL, DEV)
    assert prompts.abilities == {"prompts", "completions", "logging"}
    resources = snapshot(SetSettings(resources=("files.*",)), status).view(ALL, DEV)
    assert resources.abilities == {"resources", "subscribe", "completions", "logging"}


def test_a_resource_keeps_its_uri_if_no_other_in_the_set_has_it() -> None:
    both = (ready(resources=[resource("a:b")]), ready(server=WEB, resources=[resource("a:b", WEB)]))
    assert list(snapshot(SetSettings(resources=("files.*",)), *both).view(ALL, DEV).resources) == ["a:b"]
    shared = snapshot(SetSettings(resources=("*",)), *both).view(ALL, DEV)
    assert list(shared.resources) == ["isthmus://hub/files/a:b", "isthmus://hub/web/a:b"]
    assert shared.find_resource("a:b") is None


def test_a_set_reads_templates_that_it_picks_and_nothing_that_it_excludes() -> None:
    status = ready(resources=[resource("a:secret")], templates=[template("a:{x}")], abilities=ABLE)
    view = snapshot(SetSettings(resources=("files.a:{x}",), exclude=("files.a:secret",)), status).view(ALL, DEV)
    assert view.find_resource("a:other") is not None
    assert view.find_resource("a:secret") is None
    assert view.find_resource("b:other") is None


@pytest.mark.parametrize("kind", ["method", "tool"])
def test_methods_of_servers_are_in_no_set(kind: Kind) -> None:
    plain = ready(is_unlisted=True)
    for surface, grants in ((DEV, ALL), (Surface("own", FILES), BOUND), (Surface("own", FILES, "dev"), ALL)):
        view = snapshot(SetSettings(tools=("*",)), plain).view(grants, surface)
        assert view.whole is None
        for name in ("files.read", "read"):
            assert view.find(kind, name) is None


def test_a_server_of_a_bound_caller_has_the_names_of_the_set() -> None:
    settings = SetSettings(tools=("*",), tool={"files.read": SetChange(name="load")})
    taken = snapshot(settings, ready(tool()), ready(tool("find", WEB), server=WEB))
    assert list(taken.view(BOUND, EVERYTHING).routes) == ["load", "find"]
    for style in ("own", "canonical"):
        assert list(taken.view(BOUND, Surface(style, FILES)).routes) == ["load"]
    assert list(taken.view(BOUND, Surface("llm")).routes) == ["load", "find"]


def test_a_caller_of_one_set_sees_nothing_in_another() -> None:
    taken = Snapshot(
        1,
        {FILES: ready(tool())},
        CheckCache(limit_bytes=99),
        sets={"dev": SetSettings(("*",)), "ops": SetSettings(("*",))},
    )
    assert list(taken.view(BOUND, Surface(set="ops")).routes) == []
    assert list(taken.view(BOUND, Surface(set="dev")).routes) == ["read"]
    assert list(taken.view(Grants(("*",), set="gone"), EVERYTHING).servers) == []


def test_with_many_servers_a_call_still_goes_through_the_set() -> None:
    statuses = [
        ready(tool("read", ServerName(f"s{n}")), server=ServerName(f"s{n}")) for n in range(SERVERS_FOR_SINGLE_VIEW + 1)
    ]
    taken = snapshot(SetSettings(tools=("s1.read",)), *statuses)
    for grants, surface in ((ALL, DEV), (BOUND, EVERYTHING)):
        assert taken.find_tool(grants, surface, NO_CAPABILITIES, "s1.read") is None
        assert taken.find_tool(grants, surface, NO_CAPABILITIES, "s2.read") is None
        found = taken.find_tool(grants, surface, NO_CAPABILITIES, "read")
        assert found is not None
        assert found.feature.server == "s1"


def test_a_tool_of_a_server_that_was_never_reached_is_known_by_its_name_in_the_set() -> None:
    settings = SetSettings(
        tools=("files.read", "web.*"), exclude=("web.hidden",), tool={"files.read": SetChange(name="load")}
    )
    taken = snapshot(settings, ServerStatus(FILES, "retrying"), ready(tool("find", WEB), server=WEB))
    assert taken.find_unreached(ALL, DEV, "load") == "files"
    assert taken.find_unreached(ALL, DEV, "other") is None
    assert taken.find_unreached(Grants(("web.*",)), DEV, "load") is None
    open_set = snapshot(settings, ServerStatus(WEB, "retrying"))
    assert open_set.find_unreached(ALL, DEV, "web.find") == open_set.find_unreached(ALL, DEV, "find") == "web"
    assert open_set.find_unreached(ALL, DEV, "hidden") is None


def test_a_forbidden_tool_of_a_set_is_denied_by_its_name_in_the_set() -> None:
    settings = SetSettings(tools=("files.*",), exclude=("files.write",), tool={"files.read": SetChange(name="load")})
    taken = snapshot(settings, ready(tool("read"), tool("write")), ready(tool("find", WEB), server=WEB))
    few = Grants(("web.*",))
    assert taken.is_denied(few, DEV, "tools", "load")
    assert not taken.is_denied(few, DEV, "tools", "files.read")
    assert not taken.is_denied(few, DEV, "tools", "web.find"), "the set does not have it for anybody"
    assert not taken.is_denied(ALL, DEV, "tools", "load")
    assert taken.is_denied(BOUND, EVERYTHING, "tools", "web.find"), "the caller is bound to the set"
    assert taken.is_denied(BOUND, EVERYTHING, "tools", "files.write")
    assert not taken.is_denied(BOUND, EVERYTHING, "tools", "web.none")


def test_defaults_and_caches_of_a_server_hold_in_a_set() -> None:
    rules = ToolRules(defaults={"read": {"root": "/srv"}}, cached=("read",), hidden=("write",))
    status = ready(defined(), defined(name="write"), rules=rules)
    settings = SetSettings(tools=("*",), tool={"files.read": SetChange(hide=("deep",))})
    view = snapshot(settings, status).view(ALL, DEV)
    assert list(view.routes) == ["read"]
    route = view.routes["read"]
    assert schema_of(route.feature)["required"] == ["path"]
    assert route.changes is not None
    assert (list(route.changes.defaults), route.keep_seconds > 0, route.own) == (["root"], True, status.tools[0])


def test_a_fixed_value_wins_over_a_default() -> None:
    status = ready(defined(), rules=ToolRules(defaults={"read": {"root": "/other"}}))
    settings = SetSettings(tools=("*",), tool={"files.read": SetChange(fixed={"root": "/srv"})})
    changes = snapshot(settings, status).view(ALL, DEV).routes["read"].changes
    assert changes is not None
    assert bytes(changes.defaults["root"]) == b'"/srv"'


def test_access_is_explained_with_the_names_of_the_set() -> None:
    settings = SetSettings(tools=("files.*",), tool={"files.read": SetChange(name="load")})
    taken = snapshot(settings, ready(tool()), ready(tool("find", WEB), server=WEB))
    found = {str(each.route.feature.name): each for each in explain_access(taken, BOUND)}
    assert (found["read"].exposed, found["read"].set_note) == ("load", "files.read in the set dev")
    assert (found["find"].is_reached, found["find"].set_note) == (False, "not in the set dev")


def test_a_binding_survives_tenants_and_frontends() -> None:
    caller = Caller("ann", "t", BOUND, frontends=(("mcp", Grants(("files.*",))),))
    assert BOUND.bounded_by(Grants(("files.*",))).set == "dev"
    assert caller.on("mcp").grants.set == caller.on("mcp").at_large.grants.set == "dev"
    assert not Caller("ann", "t", BOUND, may_name_targets=True).can_name_targets
