"""Tasks as callers know them: ids that say whose task it is, and that nobody else can use.

An id that the hub gives out holds the server and that server's own id, and is signed for the caller it is given to.
So two servers' ids cannot be confused, none has to be remembered to be used, and an id that was overheard, guessed or
made up leads nowhere. The dialogue reads ids, exchanges write them. Which tasks there are, `core.watch.tasks` knows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from functools import partial

import msgspec

from isthmus.core.catalog.view import View
from isthmus.core.watch.tasks import Task, Tasks
from isthmus.frontends.mcp.faults import Era
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Surface
from isthmus.model.events import Event
from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import Question
from isthmus.wire.jsonrpc import Payload, notification, object_members, render
from isthmus.wire.mcp.messages import Members
from isthmus.wire.mcp.passing import passed_meta
from isthmus.wire.mcp.tasks import (
    LEGACY_METHODS,
    MODERN_METHODS,
    STATUS,
    TASK,
    with_ids,
    with_related,
)

NOT_FOUND = "Task not found"

_ABILITY: dict[Era, Ability] = {"legacy": "tasks", "modern": "task_handles"}
_METHODS: dict[Era, frozenset[str]] = {"legacy": LEGACY_METHODS, "modern": MODERN_METHODS}

_KEY = secrets.token_bytes(32)
"""Signs ids while this process lives. Tasks are their servers', which forget them with the links of this process."""


def are_spoken(method: str, era: Era, view: View, *, are_kept: bool = False) -> bool:
    """Whether a caller of this era can ask this of some server that it sees, or of the hub, if tasks are kept there."""
    return method in _METHODS[era] and (are_kept or _ABILITY[era] in view.abilities)


def shown_id(caller: Caller, server: ServerName, own: str) -> str:
    """The id under which a caller knows a task."""
    text = base64.urlsafe_b64encode(own.encode("utf-8", "surrogatepass")).decode().rstrip("=")
    return f"{server}.{text}.{_signature(caller, server, own)}"


def own_id(caller: Caller, shown: str) -> tuple[ServerName, str] | None:
    """Whose task a caller's id stands for, and what its server calls it; None if it was not given to this caller."""
    server, _, rest = shown.partition(".")
    text, _, signature = rest.partition(".")
    try:
        own = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeError, ValueError):
        return None
    expected = _signature(caller, ServerName(server), own)
    is_given = secrets.compare_digest(expected.encode(), signature.encode("utf-8", "surrogatepass"))
    return (ServerName(server), own) if is_given and shown_id(caller, ServerName(server), own) == shown else None


def _signature(caller: Caller, server: ServerName, own: str) -> str:
    signed = msgspec.json.encode([caller.tenant, caller.name, server, own.encode("utf-8", "surrogatepass").hex()])
    return hashlib.blake2b(signed, digest_size=16, key=_KEY).hexdigest()


def aimed(call: Call, view: View, known: Tasks) -> Call | None:
    """A call about a task, as a call to the server whose it is; None if that is nobody's that this caller may know.

    An id may have outlived its task: by what is `known`, its server may have given its own id to another caller.
    """
    found = own_id(call.caller, call.name)
    if found is None or found[0] not in view.servers or call.surface.server not in (None, found[0]):
        return None
    server, own = found
    if known.is_anothers(call.caller, server, own):
        return None
    return msgspec.structs.replace(call, name=own, surface=Surface("own", server))


def asked_for(call: Call, view: View, era: Era, *, are_kept: bool = False) -> Call:
    """A call that asks for a task; where nobody would know what that is, it asks for none.

    `are_kept` says that the hub keeps one where its server does not.
    """
    route = view.routes.get(call.name)
    abilities = frozenset() if route is None else view.servers[route.feature.server]
    is_known = "tasks" in abilities or (are_kept and route is not None and call.kind == "tool")
    if era == "legacy" and is_known:
        return call
    return msgspec.structs.replace(call, extra={key: value for key, value in call.extra.items() if key != TASK})


def is_of_session(call: Call) -> bool:
    """Whether a call asks for a task that is to be its conversation's, as its caller cannot be told from others."""
    return call.caller.is_anyone and TASK in call.extra


def shown(outcome: Outcome, call: Call) -> Outcome:
    """An outcome with the id of its task, if it names one, as the caller knows it."""
    if not isinstance(outcome, Result) or outcome.task_of is None:
        return outcome
    payload = with_ids(outcome.payload, partial(shown_id, call.caller, outcome.task_of))
    return msgspec.structs.replace(outcome, payload=msgspec.Raw(payload))


def shown_params(question: Question, call: Call) -> Payload:
    """The parameters of what a server asks, with the task that it is about, if any, as the caller knows it."""
    if question.task_of is None:
        return question.params
    return with_ids(question.params, partial(shown_id, call.caller, question.task_of))


def shown_event(event: Event, caller: Caller) -> Event:
    """An event with the task to which it relates, if any, as the caller knows it."""
    if event.task_of is None:
        return event
    members = with_related(event.members, partial(shown_id, caller, event.task_of))
    return msgspec.structs.replace(event, members=members)


def own_meta(meta: Members, caller: Caller) -> Members:
    """What travels on of a caller's `_meta`, with the task to which it relates, if any, as its server knows it."""
    return passed_meta(meta, partial(_own, caller))


def own_result(result: msgspec.Raw, caller: Caller) -> msgspec.Raw:
    """What a caller answers, with the task to which it relates, if any, as its server knows it."""
    members = object_members(result) or {}
    renamed = with_related(members, partial(_own, caller))
    return result if renamed is members else msgspec.Raw(render(renamed))


def _own(caller: Caller, shown: str) -> str | None:
    found = own_id(caller, shown)
    return None if found is None else found[1]


def status_message(task: Task, caller: Caller) -> bytes:
    """How a task stands, as a caller of the earlier era is told that nobody asked."""
    return notification(STATUS, stated(task, caller))


def stated(task: Task, caller: Caller) -> Payload:
    """How a task stands, under the id by which its caller knows it."""
    if task.is_kept:
        return render(task.state.members)
    return with_ids(render(task.state.members), partial(shown_id, caller, task.server))


def is_seen(task: Task, view: View, surface: Surface) -> bool:
    """Whether a caller of the earlier era can ask about a task of its own here."""
    if surface.server not in (None, task.server):
        return False
    return task.server in view.servers if task.is_kept else "tasks" in view.servers.get(task.server, ())
