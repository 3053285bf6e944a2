"""Words of a command line become one JSON object."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.cli.arguments import arguments_of
from isthmus.cli.exits import CommandFailed, Exit

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "shape": {"$ref": "#/$defs/Shape"},
        "lost": {"$ref": "#/$defs/Lost"},
        "free": {},
        "odd": True,
    },
    "$defs": {"Shape": {"type": "object"}},
}

FILES = {"note": "from a file\n", "-": "[1, 2]"}


def read(name: str) -> str:
    if name in FILES:
        return FILES[name]
    raise FileNotFoundError(2, "No such file or directory")


def made(*words: str, whole: str | None = None, schema: Any = SCHEMA) -> str:
    raw = None if schema is None else msgspec.Raw(json.dumps(schema).encode())
    return bytes(arguments_of(words, whole, raw, read)).decode()


def refusal(*words: str, whole: str | None = None) -> CommandFailed:
    with pytest.raises(CommandFailed) as failed:
        made(*words, whole=whole)
    assert failed.value.exit == Exit.USAGE
    assert failed.value.advice
    return failed.value


@pytest.mark.parametrize(
    ("word", "member"),
    [
        ("text=3", '"text":"3"'),
        ("text=", '"text":""'),
        ("text=a=b:=c", '"text":"a=b:=c"'),
        ("count=3", '"count":3'),
        ("count=123456789012345678901234567890", '"count":123456789012345678901234567890'),
        ("ratio=1.10e3", '"ratio":1.10e3'),
        ("flag=true", '"flag":true'),
        ('list=["a"]', '"list":["a"]'),
        ("maybe=null", '"maybe":null'),
        ("either=3", '"either":"3"'),
        ('shape={"a": 1}', '"shape":{"a": 1}'),
        ("lost=3", '"lost":"3"'),
        ("free=3", '"free":"3"'),
        ("odd=3", '"odd":"3"'),
        ("unknown=3", '"unknown":"3"'),
        ("text:=3", '"text":3'),
        ("text:= [1 ] ", '"text":[1 ]'),
        ("text=@note", '"text":"from a file\\n"'),
        ("list=@-", '"list":[1, 2]'),
        ("unknown:=@-", '"unknown":[1, 2]'),
    ],
)
def test_a_word_becomes_what_the_schema_wants(word: str, member: str) -> None:
    assert made(word) == "{" + member + "}"


def test_words_keep_their_order_and_none_are_an_empty_object() -> None:
    assert made("count=1", "text=b", "flag=false") == '{"count":1,"text":"b","flag":false}'
    assert made() == "{}"


@pytest.mark.parametrize("schema", [None, [], {"properties": 3}, {"type": "object"}])
def test_without_a_usable_schema_everything_is_text(schema: Any) -> None:
    assert made("count=3", schema=schema) == '{"count":"3"}'


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("count=abc", "count must be integer"),
        ("maybe=x", "maybe must be integer or null"),
        ("text:=", "text must be JSON"),
        ("count=NaN", "count must be integer"),
        ("list=" + "[" * 100_000, "list must be array"),
        ("word", "'word' is not an argument"),
        ("=3", "'=3' is not an argument"),
        ("text=@nowhere", "text: cannot read 'nowhere': No such file or directory"),
        ("text=\udcff", "text is not UTF-8 text"),
        ("text:=\udcff", "text must be JSON"),
    ],
)
def test_a_bad_word_is_named(word: str, said: str) -> None:
    assert refusal(word).message.startswith(said)


def test_a_name_cannot_be_given_twice() -> None:
    assert refusal("text=a", "text:=1").message == "text is given twice"


def test_a_text_that_begins_with_an_at_sign_has_its_own_advice() -> None:
    assert refusal("text=@nowhere").advice == ("If the text itself begins with @, write text:='\"@nowhere\"'.",)


def test_all_arguments_can_come_as_one_object() -> None:
    assert made(whole=' {"count": 1.50} ') == '{"count": 1.50}'


@pytest.mark.parametrize("whole", ["[]", "3", '{"a":1,"a":2}', "{", "@nowhere"])
def test_one_object_must_be_one(whole: str) -> None:
    assert "--args" in refusal(whole=whole).message


def test_words_and_one_object_exclude_each_other() -> None:
    assert refusal("text=a", whole="{}").message == "--args and name=value exclude each other"


def test_a_schema_that_is_no_json_says_nothing() -> None:
    assert bytes(arguments_of(["count=3"], None, msgspec.Raw(b"{"), read)) == b'{"count":"3"}'
