"""Why something is reached, beside the table that says whether."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.catalog.rules import ToolRules
from isthmus.core.catalog.schema import CheckCache
from isthmus.core.catalog.snapshot import Snapshot, explain_access
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.names import ServerName
from tests.unit.core.doubles import prompt, ready, resource, template, tool

WEB, FILES = ServerName("web"), ServerName("files")
STANDINGS = {
    FILES: ready(
        tool("read", annotations={"readOnlyHint": True}),
        tool("write"),
        prompts=[prompt("ask")],
        resources=[resource("note:one")],
        templates=[template("note:{n}")],
        rules=ToolRules(is_trusted=True, tags={"write": ("loud",)}),
    ),
    WEB: ready(tool("read", WEB, annotations={"readOnlyHint": True}), server=WEB),
}
SNAPSHOT = Snapshot(1, STANDINGS, CheckCache(limit_bytes=4096))
PATTERNS = st.sampled_from(["*", "files", "files.read", "web.*", "tag:loud", "hint:read-only", "hint:destructive"])
LISTS = st.lists(PATTERNS, max_size=3).map(tuple)


@given(LISTS, LISTS, st.one_of(st.none(), LISTS))
def test_everything_is_told_of_and_the_reason_is_why_the_table_has_it_or_not(
    allow: tuple[str, ...], deny: tuple[str, ...], bounds: tuple[str, ...] | None
) -> None:
    grants = Grants(allow, deny, None if bounds is None else Grants(bounds))
    found = explain_access(SNAPSHOT, grants)
    assert [(reason.listed, reason.exposed) for reason in found] == [
        ("tools", "files.read"), ("tools", "files.write"), ("tools", "web.read"), ("prompts", "files.ask"),
        ("resources", "note:one"), ("templates", "note:{n}"),
    ]  # fmt: skip
    view = SNAPSHOT.view(grants, EVERYTHING)
    reached = [*view.routes, *view.prompts, *view.resources, *view.templates]
    for reason in found:
        assert reason.is_reached == (reason.exposed in reached)
        assert reason.is_reached == all(why[0] == "allow" and why[2] is not None for why in reason.why)
