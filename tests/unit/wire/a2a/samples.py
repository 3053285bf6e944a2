"""Tasks, messages and JSON for the tests of the dialects."""

from __future__ import annotations

import json
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.model.tasks import (
    ABSENT,
    Artifact,
    DataPart,
    FilePart,
    Message,
    Part,
    Task,
    TaskArtifactUpdate,
    TaskState,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
    Update,
)
from isthmus.wire.a2a.operations import PushConfig
from tests.choices import IS_FULL

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

steady = settings(deadline=None, derandomize=True, max_examples=60 if IS_FULL else 20)

AT = 1794726526.993637
TIME = "2026-11-15T07:08:46.993Z"
HOOK = "https://example.com/hook"
TARGET = PushConfig(HOOK, "p1", "tok", "Bearer", "cred")

ODD = Raw(b'{"z":1,"a":[12345678901234567890123,2.50,-0],"n":null}')
"""JSON that a parser would spoil: order, digits, a trailing zero."""

PARTS: tuple[Part, ...] = (
    TextPart("hello"),
    DataPart(ODD, metadata=Raw(b'{"m":1}')),
    FilePart("dGNr", None, "output.txt", "text/plain"),
    FilePart(None, "https://example.com/x", "x"),
)
ASKED = Message("m0", "user", (TextPart("hi"),))
TASK = Task(
    "t1",
    "c1",
    TaskStatus("completed", AT, Message("m2", "agent", (TextPart("done"),))),
    AT - 1,
    (Artifact("a1", PARTS, "art", "made", Raw(b'{"k":1}'), ("urn:x",)),),
    (ASKED, Message("m1", "agent", (TextPart("which?"),))),
    Raw(b'{"tm":[1]}'),
)
UPDATES: tuple[Update, ...] = (
    Task("t1", "c1", TaskStatus("submitted", AT), AT, (), (ASKED,)),
    TaskStatusUpdate("t1", "c1", TaskStatus("working", AT, Message("p1", "agent", (TextPart("half"),)))),
    TaskArtifactUpdate("t1", "c1", Artifact("a1", PARTS[:1]), is_complete=False, at=AT),
    TaskArtifactUpdate("t1", "c1", Artifact("a1", PARTS[1:]), is_more=True, at=AT),
    TaskStatusUpdate("t1", "c1", TaskStatus("completed", AT), is_last=True),
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects: st.SearchStrategy[Json] = st.dictionaries(texts, values, max_size=3)


def raw(value: Json) -> Raw:
    """A value as text; with spaces, as many clients write it."""
    return Raw(json.dumps(value, ensure_ascii=False).encode())


def raws(members: dict[str, Json]) -> dict[str, Raw]:
    """The parameters of a request."""
    return {name: raw(value) for name, value in members.items()}


some_json = values.map(raw)
some_object = objects.map(raw)
metadata = st.just(ABSENT) | some_object
ids = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12)
maybe = st.none() | ids
states: st.SearchStrategy[TaskState] = st.sampled_from(
    ["submitted", "working", "input_required", "auth_required", "completed", "failed", "canceled", "rejected"]
)
moments = st.integers(0, 4_000_000_000_000).map(lambda at: at / 1000)


def parts_of(data: st.SearchStrategy[Raw], *, has_types: bool) -> st.SearchStrategy[Part]:
    """Parts that a generation can say; the first ones had no media types of text and data."""
    types = maybe if has_types else st.none()
    return st.one_of(
        st.builds(TextPart, texts, types, metadata),
        st.builds(DataPart, data, types, metadata),
        st.builds(FilePart, st.just("dGNr"), st.none(), maybe, maybe, metadata),
        st.builds(FilePart, st.none(), st.just("https://example.com/x"), maybe, maybe, metadata),
    )


def messages_of(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Message]:
    """Messages of these parts."""
    several = st.lists(parts, min_size=1, max_size=3).map(tuple)
    extra = st.lists(ids, max_size=2).map(tuple)
    return st.builds(Message, ids, st.sampled_from(["user", "agent"]), several, metadata, extra, extra)


def tasks_of(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Task]:
    """Tasks of these parts, as an agent tells them: when they were made is not said."""
    several = st.lists(parts, min_size=1, max_size=3).map(tuple)
    messages = messages_of(parts)
    extra = st.lists(ids, max_size=2).map(tuple)
    artifacts = st.lists(st.builds(Artifact, ids, several, maybe, maybe, metadata, extra), max_size=2).map(tuple)
    history = st.lists(messages, max_size=2).map(tuple)

    def made(at: float, state: TaskState, message: Message | None) -> st.SearchStrategy[Task]:
        status = st.just(TaskStatus(state, at, message))
        return st.builds(Task, ids, ids, status, st.just(at), artifacts, history, metadata)

    return st.tuples(moments, states, st.none() | messages).flatmap(lambda drawn: made(*drawn))
