"""Any set and any caller: exactly the listed tools can be called."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.access.policy import Policy
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.names import canonical, llm_form
from isthmus.core.catalog.sets import SetChange, SetSettings, UnusableInSet, change_feature
from isthmus.core.catalog.snapshot import Snapshot
from isthmus.core.catalog.tool_rules import CallChanges, fill_defaults
from isthmus.core.catalog.view import View
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING, NO_CAPABILITIES, Style, Surface
from isthmus.model.features import Prompt
from isthmus.model.names import FeatureName, ServerName
from tests.choices import IS_FULL
from tests.unit.core.doubles import call, prompt, raw, ready, tool

steady = settings(deadline=None, derandomize=True, max_examples=150 if IS_FULL else 50)
"""The same examples every time, however busy the machine is."""

# Few letters, so that names meet: own names, full names, names for models and names that a set gives.
SERVERS = st.sampled_from(["a", "b", "a_b", "mcp"])
NAMES = st.one_of(st.text("ab._-", min_size=1, max_size=3), st.sampled_from(["a.b", "b.a", "mcp_a_b", "x" * 70, "读"]))
PAIRS = st.lists(st.tuples(SERVERS, NAMES), min_size=1, max_size=8, unique=True)
PATTERNS = st.one_of(
    st.just("*"), SERVERS, SERVERS.map("{}.*".format), st.tuples(SERVERS, NAMES).map(".".join), st.just("tag:none")
)
LISTS = st.lists(PATTERNS, max_size=3).map(tuple)
GRANTS = st.builds(Grants, st.one_of(st.just(("*",)), LISTS), LISTS)
GIVEN = st.from_regex(r"[ab._-]{1,3}", fullmatch=True)


@st.composite
def hubs(draw: st.DrawFn) -> tuple[Snapshot, SetSettings, list[tuple[ServerName, FeatureName]]]:
    pairs = [(ServerName(server), FeatureName(own)) for server, own in draw(PAIRS)]
    changes = {canonical(pair): SetChange(name=draw(GIVEN)) for pair in pairs if draw(st.booleans())}
    picked = draw(st.one_of(st.just(("*",)), LISTS))
    chosen = SetSettings(tools=picked, prompts=picked, exclude=draw(LISTS), tool=changes, prompt=changes)
    statuses = {}
    for server, _ in pairs:
        names = [own for whose, own in pairs if whose == server]
        prompts = [prompt(own, server) for own in names]
        statuses[server] = ready(*(tool(own, server) for own in names), prompts=prompts, server=server)
    return Snapshot(1, statuses, CheckCache(limit_bytes=4096), sets={"dev": chosen}), chosen, pairs


def pairs_of(view: View) -> dict[str, tuple[ServerName, FeatureName]]:
    pairs = {name: (route.feature.server, route.feature.name) for name, route in view.routes.items()}
    assert pairs == {name: (route.feature.server, route.feature.name) for name, route in view.prompts.items()}
    return pairs


@given(hubs(), GRANTS, st.sampled_from(["canonical", "llm"]))
@steady
def test_callable_is_listed_and_listed_is_allowed(hub: Any, grants: Grants, style: Style) -> None:
    snapshot, chosen, pairs = hub
    view = snapshot.view(grants, Surface(style, set="dev"))
    listed = pairs_of(view)
    picked, allowed = Policy(Grants(chosen.tools, chosen.exclude)), Policy(grants)
    assert set(listed.values()) == {pair for pair in pairs if picked.allows(*pair) and allowed.allows(*pair)}
    assert len(set(listed.values())) == len(listed)
    said = {form for pair in pairs for form in (canonical(pair), pair[1], llm_form(pair), f"mcp.{pair[1]}")}
    said |= {change.name for change in chosen.tool.values()} | set(listed)
    for name in said:
        found = snapshot.find_tool(grants, Surface(style, set="dev"), NO_CAPABILITIES, name)
        assert (found is None) == (name not in listed)
        assert found is None or (found.feature.server, found.feature.name) == listed[name]
        prompted = view.find("prompt", name)
        assert (None if prompted is None else prompted.route.feature.server) == (found and found.feature.server)


@given(hubs(), GRANTS)
@steady
def test_a_name_means_the_same_to_all_callers_and_to_a_bound_one(hub: Any, grants: Grants) -> None:
    snapshot, _, _ = hub
    everybody = pairs_of(snapshot.view(Grants(("*",)), Surface(set="dev")))
    listed = pairs_of(snapshot.view(grants, Surface(set="dev")))
    assert listed.items() <= everybody.items()
    bound = msgspec.structs.replace(grants, set="dev")
    assert pairs_of(snapshot.view(bound, EVERYTHING)) == listed
    for server in snapshot.server_statuses:
        own = {name: pair for name, pair in listed.items() if pair[0] == server}
        assert pairs_of(snapshot.view(bound, Surface("own", server))) == own


ARGUMENTS = st.sampled_from(["repo", "Repo", "title", "t", ""])
VALUES: st.SearchStrategy[Any] = st.one_of(st.none(), st.booleans(), st.text("ab", max_size=2), st.just({"repo": "x"}))
MEMBERS = st.dictionaries(ARGUMENTS, st.sampled_from([{}, {"type": "string"}, {"$ref": "#/$defs/S"}]), max_size=4)
SENT = st.lists(st.tuples(ARGUMENTS, VALUES), max_size=4)
"""Members may be repeated."""


@given(MEMBERS, st.lists(ARGUMENTS, max_size=3), st.dictionaries(ARGUMENTS, VALUES, max_size=2), SENT)
@steady
def test_a_fixed_value_always_wins_and_removed_arguments_are_never_sent(
    properties: dict[str, Any], required: list[str], fixed: dict[str, Any], sent: list[tuple[str, Any]]
) -> None:
    schema = {"type": "object", "properties": properties, "required": required, "$defs": {"S": {"type": "string"}}}
    hidden = tuple(name for name in properties if name not in fixed)[:1]
    try:
        variant = change_feature(tool(inputSchema=schema), SetChange(fixed=fixed, hide=hidden))
    except UnusableInSet:
        return
    text = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in sent)
    arguments, changes, removed = (
        msgspec.Raw(f"{{{text}}}".encode()),
        CallChanges(variant.fixed, variant.accepted),
        {*fixed, *hidden},
    )
    if not removed:
        assert changes.refusal(arguments) is None
    elif changes.refusal(arguments) is None:
        filled = json.loads(bytes(fill_defaults(arguments, changes.defaults)))
        assert {name: filled[name] for name in fixed} == fixed
        assert not filled.keys() & set(hidden)
    else:
        assert {name for name, _ in sent} - (properties.keys() - removed)


TEXTS = st.dictionaries(ARGUMENTS, st.text("ab", max_size=2), max_size=2)
CONTEXTS = st.one_of(st.none(), VALUES, st.builds(lambda given: {"arguments": given}, st.one_of(VALUES, TEXTS)))


@given(st.lists(ARGUMENTS, max_size=4, unique=True), TEXTS, ARGUMENTS, CONTEXTS)
@steady
def test_a_completion_names_only_arguments_that_are_left(
    declared: list[str], fixed: dict[str, str], completed: str, context: object
) -> None:
    hidden = tuple(name for name in declared if name not in fixed)[:1]
    definition = {"arguments": raw([{"name": name} for name in declared])}
    plain = Prompt.of(ServerName("a"), FeatureName("p"), definition)
    try:
        variant = change_feature(plain, SetChange(fixed=fixed, hide=hidden))
    except UnusableInSet:
        return
    given = call("p", {"name": completed, "value": "x"}, kind="prompt_argument")
    extra = {} if context is None else {"context": raw(context)}
    changed = CallChanges(variant.fixed, variant.accepted).applied_to(msgspec.structs.replace(given, extra=extra))
    if not fixed and not hidden:
        assert not isinstance(changed, str)
        assert (changed.arguments, changed.extra) == (given.arguments, extra)
    elif not isinstance(changed, str):
        left = set(declared) - {*fixed, *hidden}
        assert json.loads(bytes(changed.arguments)) == {"name": completed, "value": "x"}
        assert completed in left
        sent = json.loads(bytes(changed.extra.get("context", b"{}"))).get("arguments", {})
        assert {name: value for name, value in sent.items() if name in fixed} == fixed
        assert set(sent) <= left | set(fixed)
    elif completed in set(declared) - {*fixed, *hidden}:
        assert context is not None
