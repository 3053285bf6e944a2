"""The members of a caller's request that are forwarded."""

from __future__ import annotations

import json

from isthmus.wire.mcp.forwarded_methods import INPUT_MEMBERS, passed_extra, passed_meta
from isthmus.wire.mcp.modern import OWN_KEYS
from isthmus.wire.mcp.tasks import RELATED
from tests.unit.core.doubles import raw


def nobodys(id: str) -> None:
    """The name of a task that is not its caller's."""


def test_the_hubs_own_metadata_is_removed_in_every_spelling() -> None:
    said = {key: raw(1) for key in (*OWN_KEYS, "progressToken")}
    shouted = {key.upper(): value for key, value in said.items()}
    assert passed_meta({**said, **shouted, "trace": raw("t")}, nobodys) == {"trace": raw("t")}
    assert passed_meta({key: raw(1) for key in OWN_KEYS}, nobodys) == {}


def test_a_task_is_named_as_its_server_knows_it_or_not_at_all() -> None:
    mine = {RELATED: raw({"taskId": "shown", "x": 1}), RELATED.upper(): raw({"taskId": "other"})}
    passed = passed_meta(mine, {"shown": "own"}.get)
    assert {key: json.loads(bytes(value)) for key, value in passed.items()} == {RELATED: {"taskId": "own", "x": 1}}
    assert passed_meta(mine, nobodys) == {}


def test_answers_travel_only_where_they_are_kept_and_in_their_own_spelling() -> None:
    extra = {key: raw(1) for key in ("requestState", "RequestState", "inputResponses", "InputResponses", "own")}
    assert list(passed_extra(extra, INPUT_MEMBERS)) == ["own"]
    assert list(passed_extra(extra, INPUT_MEMBERS, INPUT_MEMBERS)) == ["requestState", "inputResponses", "own"]
