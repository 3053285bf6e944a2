"""Arguments as messages."""

from __future__ import annotations

import pytest
from msgspec import Raw

from isthmus.model.conversation import ABSENT, Data, Text
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.agent.messages import Told, told_by
from isthmus.upstream.agent.skills import Offered

TOOL = Tool.of(ServerName("far"), FeatureName("t"), {})
WORDED = Offered(TOOL, 'a "b"', is_worded=True)


def test_words_and_data_are_parts_and_the_rest_says_where_they_belong() -> None:
    told = told_by(WORDED, Raw(b'{"message":"hi","data":{"n":1.0},"task_id":"t","context_id":"c","more":1}'))
    parts = (Text("hi"), Data(Raw(b'{"n":1.0}'), "application/json"))
    assert told == Told(parts, Raw(b'{"skill":"a \\"b\\""}'), "t", "c")


def test_what_is_null_is_not_there() -> None:
    told = told_by(WORDED, Raw(b'{"message":"hi","data":null,"task_id":null,"context_id":null}'))
    assert isinstance(told, Told)
    assert (told.parts, told.task, told.context) == ((Text("hi"),), "", "")


def test_arguments_of_a_schema_are_one_part_as_they_are() -> None:
    told = told_by(Offered(TOOL, "s", is_worded=False), Raw(b'{ "n": 1.50 }'))
    assert isinstance(told, Told)
    assert (told.parts, told.is_worded) == ((Data(Raw(b'{ "n": 1.50 }'), "application/json"),), False)


def test_an_agent_as_a_whole_is_told_no_skill() -> None:
    told = told_by(Offered(TOOL, "", is_worded=True), Raw(b'{"message":"hi"}'))
    assert isinstance(told, Told)
    assert told.metadata == ABSENT


@pytest.mark.parametrize("arguments", [b"{}", b'{"message":7}', b'{"message":"","task_id":7}'])
def test_arguments_that_are_none_say_what_is_wrong(arguments: bytes) -> None:
    assert isinstance(told_by(WORDED, Raw(arguments)), str)
