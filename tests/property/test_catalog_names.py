"""Whatever servers and tools are called, each name leads to its own tool, and no name to another's."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.library.catalog import Catalog
from isthmus.library.errors import AmbiguousToolError, ToolNotFoundError
from isthmus.model.calls import EVERYTHING
from tests.choices import IS_FULL
from tests.unit.core.doubles import tool
from tests.unit.library.catalogs import routes_of

# Few letters, so that names meet: `a` + `b_c` and `a_b` + `c`, tools called as others in full, or for language models.
SERVERS = st.one_of(st.sampled_from(["builtin", "mcp", "mcp_a"]), st.from_regex(r"[ab_-]{1,4}", fullmatch=True))
TOOLS = st.one_of(st.text("ab._-读", min_size=1, max_size=6), st.sampled_from(["mcp_a_b", "a.b", "mcp.a", "x" * 128]))
PAIRS = st.lists(st.tuples(SERVERS, TOOLS), min_size=1, max_size=12, unique=True)

LLM_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

steady = settings(deadline=None, derandomize=True, max_examples=100 if IS_FULL else 33)
"""The same examples every time, however busy the machine is."""


def catalog_of_pairs(pairs: list[tuple[str, str]]) -> Catalog:
    return Catalog({EVERYTHING: routes_of(*(tool(own, server) for server, own in pairs))})


def meant_by(said: str, tool_catalog: Catalog) -> set[str]:
    """The tool that a name leads to, or those that it could."""
    try:
        return {tool_catalog.resolve(said).full_name}
    except ToolNotFoundError:
        return set()
    except AmbiguousToolError as several:
        return set(several.candidates)


@given(PAIRS)
@steady
def test_every_tool_is_found_by_the_names_that_are_its_own(pairs: list[tuple[str, str]]) -> None:
    tool_catalog = catalog_of_pairs(pairs)
    assert len({entry.llm_name for entry in tool_catalog.entries.values()}) == len(tool_catalog.entries) == len(pairs)
    for entry in tool_catalog.entries.values():
        assert LLM_NAME.fullmatch(entry.llm_name)
        assert tool_catalog.by_llm_name(entry.llm_name) is entry
        assert tool_catalog.resolve(entry.full_name) is entry
        assert tool_catalog.resolve(entry.full_name, entry.server) is entry
        assert (entry.tool.name, entry.tool.metadata["llm_name"]) == (entry.full_name, entry.llm_name)


@given(PAIRS, st.one_of(TOOLS, SERVERS))
@steady
def test_any_other_name_leads_to_all_that_have_it(pairs: list[tuple[str, str]], said: str) -> None:
    tool_catalog = catalog_of_pairs(pairs)
    entries = tool_catalog.entries.values()
    if said in tool_catalog.entries:
        having = {said}
    elif said.startswith("mcp."):
        having = {entry.full_name for entry in entries if f"mcp.{entry.name}" == said and entry.server != "builtin"}
    else:
        short = {entry.full_name for entry in entries if entry.name == said}
        built_in = {f"builtin.{said}"} & short
        having = (built_in or short) | {entry.full_name for entry in entries if entry.llm_name == said}
    assert meant_by(said, tool_catalog) == having
