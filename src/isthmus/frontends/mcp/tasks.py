"""Task ids as MCP callers see them.

A public id contains the server, that server's own id, and a signature for one caller. So ids of two servers cannot be
confused, nothing has to be stored, and an id that was overheard, guessed or invented is worthless. `methods` reads
these ids, exchanges write them; `core.watch.server_tasks` knows which tasks exist. Tasks that the hub itself runs are
in `hub_tasks`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from functools import partial

import msgspec

from isthmus.core.catalog.view import View
from isthmus.core.watch.server_tasks import ServerTask, ServerTasks
from isthmus.frontends.http.nodes import TAG_END
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Event, Question, Result, Surface
from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import Payload, notification, object_members, render
from isthmus.wire.mcp.forwarded_methods import passed_meta
from isthmus.wire.mcp.messages import Era, Members
from isthmus.wire.mcp.tasks import (
    LEGACY_METHODS,
    MODERN_METHODS,
    STATUS_NOTIFICATION,
    TASK,
    rename_ids,
    rename_related,
)

NOT_FOUND = "Task not found"

_ABILITY: dict[Era, Ability] = {"legacy": "tasks", "modern": "task_handles"}
_METHODS: dict[Era, frozenset[str]] = {"legacy": LEGACY_METHODS, "modern": MODERN_METHODS}

_KEY = secrets.token_bytes(32)
"""Signs ids for the life of this process. Servers forget their tasks when the links of this process close."""

_PREFIX = ""
"""What ids begin with: in a cluster, the tag of the node that knows the server's tasks."""

_HUB_TASK_ID = re.compile(r"[0-9a-f]{32}")


def name_node(prefix: str) -> None:
    """Begin all ids with the tag of this node, from now on."""
    global _PREFIX  # noqa: PLW0603  # beside the key, which is the process's own, too
    _PREFIX = prefix


def node_prefix() -> str:
    """What ids begin with; empty without a cluster."""
    return _PREFIX


def is_task_method(method: str, era: Era, view: View, *, has_hub_tasks: bool = False) -> bool:
    """Whether this era has the method and some visible server, or the hub itself, has tasks."""
    return method in _METHODS[era] and (has_hub_tasks or _ABILITY[era] in view.abilities)


def is_of_other_node(id: str) -> bool:
    """Whether another node of a cluster has made an id, and knows the task."""
    return TAG_END in id and not (_PREFIX and id.startswith(_PREFIX))


def is_hub_task_id(id: str) -> bool:
    """Whether an id could be that of a hub task; ids of server tasks name their server."""
    return _HUB_TASK_ID.fullmatch(id) is not None


def public_id(caller: Caller, server: ServerName, own: str) -> str:
    """The id that the caller uses for a server's task: server, the server's own id, and a signature."""
    text = base64.urlsafe_b64encode(own.encode("utf-8", "surrogatepass")).decode().rstrip("=")
    return f"{_PREFIX}{server}.{text}.{_signature(caller, server, own)}"


def server_id(caller: Caller, public: str) -> tuple[ServerName, str] | None:
    """The server and its own id for a public id; None if the id was not issued to this caller."""
    server, _, rest = public.removeprefix(_PREFIX).partition(".")
    text, _, signature = rest.partition(".")
    try:
        own = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeError, ValueError):
        return None
    expected = _signature(caller, ServerName(server), own)
    is_genuine = secrets.compare_digest(expected.encode(), signature.encode("utf-8", "surrogatepass"))
    return (ServerName(server), own) if is_genuine and public_id(caller, ServerName(server), own) == public else None


def _signature(caller: Caller, server: ServerName, own: str) -> str:
    signed = msgspec.json.encode([caller.tenant, caller.name, server, own.encode("utf-8", "surrogatepass").hex()])
    return hashlib.blake2b(signed, digest_size=16, key=_KEY).hexdigest()


def route_task_call(call: Call, view: View, known: ServerTasks) -> Call | None:
    """A call about a task, addressed to the task's server; None if this caller has no such task.

    An id can outlive its task, and its server may have reused its own id for another caller's: `known` tells.
    """
    found = server_id(call.caller, call.name)
    if found is None or found[0] not in view.servers or call.surface.server not in (None, found[0]):
        return None
    server, own = found
    if known.belongs_to_other(call.caller, server, own):
        return None
    return msgspec.structs.replace(call, name=own, surface=Surface("own", server))


def with_supported_task(call: Call, view: View, era: Era, *, has_hub_tasks: bool = False) -> Call:
    """A call that asks for a task; without that wish where neither the server nor the hub would run it as one."""
    route = view.routes.get(call.name)
    abilities = frozenset() if route is None else view.servers[route.feature.server]
    is_known = route is not None or call.name in view.virtual
    is_supported = "tasks" in abilities or (has_hub_tasks and is_known and call.kind == "tool")
    if era == "legacy" and is_supported:
        return call
    return msgspec.structs.replace(call, extra={key: value for key, value in call.extra.items() if key != TASK})


def needs_session(call: Call) -> bool:
    """Whether the task that a call asks for belongs to its session, because its caller is anonymous."""
    return call.caller.is_anyone and TASK in call.extra


def with_public_id(result: Result, caller: Caller, server: ServerName) -> Result:
    """A result of a server's task with the id that the caller uses."""
    payload = rename_ids(result.payload, partial(public_id, caller, server))
    return msgspec.structs.replace(result, payload=msgspec.Raw(payload))


def public_params(question: Question, call: Call) -> Payload:
    """The parameters of a server's question, with the id that the caller uses for the related task, if any."""
    if question.task_of is None:
        return question.params
    return rename_ids(question.params, partial(public_id, call.caller, question.task_of))


def with_public_related(event: Event, caller: Caller) -> Event:
    """An event with the id that the caller uses for the related task, if any."""
    if event.task_of is None:
        return event
    members = rename_related(event.members, partial(public_id, caller, event.task_of))
    return msgspec.structs.replace(event, members=members)


def server_meta(meta: Members, caller: Caller) -> Members:
    """The members of a caller's `_meta` that are passed on, with the server's own id for the related task, if any."""
    return passed_meta(meta, partial(_own, caller))


def server_result(result: msgspec.Raw, caller: Caller) -> msgspec.Raw:
    """A caller's answer, with the server's own id for the related task, if any."""
    members = object_members(result) or {}
    renamed = rename_related(members, partial(_own, caller))
    return result if renamed is members else msgspec.Raw(render(renamed))


def _own(caller: Caller, public: str) -> str | None:
    found = server_id(caller, public)
    return None if found is None else found[1]


def status_notification(task: ServerTask, caller: Caller) -> bytes:
    """The legacy notification of a task's status."""
    return notification(STATUS_NOTIFICATION, public_state(task, caller))


def public_state(task: ServerTask, caller: Caller) -> Payload:
    """The state of a task, with the id that the caller uses."""
    if task.has_caller_id:
        return render(task.state.members)
    return rename_ids(render(task.state.members), partial(public_id, caller, task.server))


def is_visible(task: ServerTask, view: View, surface: Surface) -> bool:
    """Whether a legacy caller can use its task on this surface."""
    if surface.server not in (None, task.server):
        return False
    return task.server in view.servers if task.has_caller_id else "tasks" in view.servers.get(task.server, ())


def is_listed(session: str, caller: Caller, here: str) -> bool:
    """Whether a task of one session is listed in another (`here`). Anonymous callers see only their session's."""
    return not caller.is_anyone or (here != "" and session == here)
