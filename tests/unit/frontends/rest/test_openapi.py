"""The OpenAPI document matches the router exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.frontends.rest.http import RESPONDERS
from isthmus.frontends.rest.openapi import document
from isthmus.frontends.rest.operation_table import OPERATIONS
from isthmus.model.fault_table import leaves

DOCUMENT: dict[str, Any] = json.loads(document())
PAGE = (Path(__file__).parents[4] / "docs" / "rest.md").read_text()


def described() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }


def references(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for member in value.values():
                yield from references(member)
        case list():
            for member in value:
                yield from references(member)
        case _:
            pass


def test_it_describes_every_operation_and_nothing_else() -> None:
    assert described().keys() == {(operation.method, operation.path) for operation in OPERATIONS}


def test_it_has_the_parameters_that_are_read() -> None:
    for operation in OPERATIONS:
        received = described()[operation.method, operation.path]
        names = {(field["name"], field["in"]) for field in received["parameters"]}
        wanted = {(parameter.name, "query") for parameter in operation.query}
        assert names == wanted | ({(operation.parameter, "path")} if operation.parameter else set())
        assert ("requestBody" in received) == (operation.body is not None)
        assert ("text/event-stream" in received["responses"]["200"]["content"]) == (
            operation.is_call or operation.events is not None
        )


def test_every_reference_leads_somewhere() -> None:
    shapes = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) == shapes


def test_problems_name_every_reason() -> None:
    reasons = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["reason"]["enum"]
    assert {leaf.reason for leaf in leaves()} < set(reasons)


def test_every_operation_is_in_a_group_and_every_body_has_an_example() -> None:
    groups = [tag["name"] for tag in DOCUMENT["tags"]]
    assert {operation["tags"][0] for operation in described().values()} == set(groups)
    for operation in described().values():
        if "requestBody" in operation:
            assert isinstance(operation["requestBody"]["content"]["application/json"]["example"], dict)


def test_every_reason_has_its_status() -> None:
    problem = DOCUMENT["components"]["schemas"]["Problem"]
    assert {row["reason"] for row in problem["x-reasons"]} == set(problem["properties"]["reason"]["enum"])
    assert {"status": 422, "reason": "not_a_server", "title": "The text is no server"} in problem["x-reasons"]


def test_every_operation_that_is_not_a_call_has_a_handler() -> None:
    assert set(RESPONDERS) == {operation.id for operation in OPERATIONS if not operation.is_call}


def test_the_page_has_a_row_for_every_operation_and_every_reason() -> None:
    rows = set(re.findall(r"^\| `(GET|POST|DELETE)` \| `([^`]+)` \|", PAGE, re.MULTILINE))
    assert rows == {(operation.method, operation.path) for operation in OPERATIONS}
    reasons = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["reason"]["enum"]
    assert [reason for reason in reasons if f"`{reason}`" not in PAGE] == []
