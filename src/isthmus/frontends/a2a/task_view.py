"""A task as its caller is shown it, made from what is kept of it."""

from __future__ import annotations

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.tasks.record import Asked, Ending, Record
from isthmus.core.tasks.reports import Noted
from isthmus.frontends.a2a.answers import INSTRUCTION_REASONS, Brief, answer_parts, summary
from isthmus.model.conversation import ABSENT, WAITING, Artifact, Data, Message, Part, Status, StatusUpdate, Task, Text
from isthmus.model.events import Log, Progress
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.messages import read_string

RESULT = "result"
"""The id of the one artifact of a task."""

QUESTION = "question-"
"""How the ids of questions go on after the task's."""

ANSWER = "isthmus/answer"
"""What a tool says in the `_meta` of its result to be answered by a `message`, and not by a task."""

_brief = msgspec.json.Decoder(Brief).decode


def brief_of(record: Record) -> Brief:
    """What the face kept of the instruction."""
    return _brief(record.brief) if record.brief else Brief()


def shown(record: Record) -> Task:
    """The whole task. In AgentVault's dialect an answer is a message, everywhere else an artifact."""
    brief = brief_of(record)
    artifacts = artifacts_of(record, brief)
    history = record.said
    if record.origin == "agentvault" and artifacts:
        history = (*history, agent_says(record, RESULT, artifacts[0].parts))
        artifacts = ()
    return Task(
        record.id,
        record.context,
        Status(record.state, record.updated, _status_message(record, brief)),
        record.created,
        artifacts,
        history,
        record.metadata,
    )


def direct_answer(record: Record) -> Message | None:
    """The answer alone, where its tool wants it said without a task around it."""
    ending = record.ending
    if record.state != "completed" or ending is None or ANSWER.encode() not in bytes(ending.result):
        return None
    brief = brief_of(record)
    meta = object_members((object_members(ending.result) or {}).get("_meta", ABSENT)) or {}
    if brief.form != "tool" or read_string(meta.get(ANSWER)) != "message":
        return None
    return replace(agent_says(record, RESULT, answer_parts(ending, brief)), context=record.context)


def artifacts_of(record: Record, brief: Brief) -> tuple[Artifact, ...]:
    """What the work brought forth; a failure too, where its form has a place for it."""
    ending = record.ending
    if ending is None or (brief.form == "tool" and not ending.result and ending.reason not in INSTRUCTION_REASONS):
        return ()
    return (Artifact(RESULT, answer_parts(ending, brief), brief.tool or None),)


def _status_message(record: Record, brief: Brief) -> Message | None:
    if record.asked is not None:
        return question_of(record)
    if record.ending is not None and (text := summary(record.ending, brief)) is not None:
        said = agent_says(record, "status", (Text(text),))
        return msgspec.structs.replace(said, metadata=facts_of(record.ending))
    if record.state in WAITING and record.said and record.said[-1].role == "agent":
        return record.said[-1]  # which tools there are, to who did not say which
    return None


def question_of(record: Record) -> Message | None:
    """What a server asks, as the agent says it now and as it stays in the task's history."""
    if record.asked is None or record.owner.realm:
        return None
    # Nothing else is said while it is open, so this id is its own.
    return agent_says(record, f"{QUESTION}{len(record.said)}", question_parts(record.asked))


def without_questions(task: Task) -> Task:
    """A task whose history lacks what was asked and answered.

    For who just answered: Google's ADK takes the last message of the agent in a task without artifacts for its answer.
    """
    questions = f"{task.id}-{QUESTION}"
    return replace(task, history=tuple(each for each in task.history if not each.id.startswith(questions)))


def facts_of(ending: Ending) -> Raw:
    """What a failure is to programs, whatever the form of the instruction: above all, whether the tool ran."""
    facts: dict[str, Payload] = {"executed": msgspec.json.encode(ending.executed)}
    if ending.reason:
        facts["reason"] = msgspec.json.encode(ending.reason)
    if ending.server is not None:
        facts["server"] = msgspec.json.encode(ending.server)
    if ending.code is not None:
        facts["code"] = msgspec.json.encode(ending.code)
    if ending.data:
        facts["data"] = ending.data
    return Raw(render(facts))


def agent_says(record: Record, what: str, parts: tuple[Part, ...]) -> Message:
    """A message of the agent's; its id is the same whenever it is made."""
    return Message(f"{record.id}-{what}", "agent", parts)


def question_parts(asked: Asked) -> tuple[Part, ...]:
    """A server's question: its words for people, and all of it for programs."""
    members = object_members(asked.params) or {}
    whole = Data(Raw(render({"method": msgspec.json.encode(asked.method), "params": asked.params})), "application/json")
    text = read_string(members.get("message"))
    if read_string(members.get("mode")) == "url":
        text = f"{text or ''}\n{read_string(members.get('url')) or ''}".strip()
    return (whole,) if text is None else (Text(text), whole)


def reported(record: Record, noted: Noted) -> StatusUpdate:
    """What a tool reports while it works; its number tells it from others of the same moment."""
    parts: tuple[Part, ...]
    match noted.event:
        case Progress(members=members):
            text = read_string(members.get("message"))
            data = Data(Raw(render(members)), "application/json")
            parts = (data,) if text is None else (Text(text), data)
        case Log(members=members):
            parts = (Data(Raw(render(members)), "application/json"),)
    message = Message(f"{record.id}-{noted.at:.6f}-{noted.number}", "agent", parts)
    return StatusUpdate(record.id, record.context, Status("working", noted.at, message))
