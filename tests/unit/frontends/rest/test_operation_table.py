"""One table leads every path to its place, and to no other."""

from __future__ import annotations

import re

import pytest

from isthmus.frontends.rest.operation_table import OPERATIONS, ROUTER, RouteMatch


def found(path: str) -> RouteMatch:
    place = ROUTER.find(path)
    assert place is not None
    return place


def test_every_operation_is_found_by_its_own_path() -> None:
    for operation in OPERATIONS:
        place = found(re.sub(r"\{\w+\}", "x", operation.path))
        assert place.methods[operation.method] is operation
        assert place.argument == ("x" if operation.parameter else "")


def test_ids_are_unique() -> None:
    assert len({operation.id for operation in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize("name", ["files.read", "files.a/b", "files.read/call", "a b", "ä", "/", "//x"])
def test_a_name_is_the_whole_rest_of_the_path(name: str) -> None:
    assert found(f"/v1/tools/{name}").argument == name


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/tools/", "/v1/tool", "/v1/resources/other", "/v2/tools", "/"])
def test_other_paths_lead_nowhere(path: str) -> None:
    assert ROUTER.find(path) is None


def test_a_place_names_its_methods() -> None:
    assert found("/v1/tools/x").allow == b"GET, HEAD, POST"
    assert found("/v1/completions").allow == b"POST"
