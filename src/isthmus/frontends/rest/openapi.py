"""The OpenAPI 3.1 document of the REST API, written from the table of operations.

It is the same for every caller and does not mention any server.
"""

from __future__ import annotations

import functools
from typing import Any, get_args

import msgspec

from isthmus import __version__
from isthmus.core.access.budget_rules import PERIODS, PERS
from isthmus.core.admin_ports import AccessBy
from isthmus.frontends.rest.listings import STATES
from isthmus.frontends.rest.operation_table import ACTIONS, HUB_TAG, OPERATIONS, TAGS, Operation, tag_of
from isthmus.frontends.rest.problem_details import REFUSALS
from isthmus.model.callers import FRONTENDS
from isthmus.model.fault_table import FAULTS
from isthmus.model.tasks import TaskState

NULLABLE_TEXT: dict[str, Any] = {"type": ["string", "null"]}
OPEN_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
TEXT: dict[str, Any] = {"type": "string"}
TIME: dict[str, Any] = {"type": "number", "description": "Seconds since the epoch."}
ADDRESS: dict[str, Any] = {**NULLABLE_TEXT, "description": "The client's address; only operators see it."}

BODIES: dict[str, dict[str, Any]] = {
    "preview_servers": {
        "type": "object",
        "required": ["text"],
        "properties": {"text": TEXT, "name": {"type": "string", "minLength": 1}},
    },
    "allow_call": {
        "type": "object",
        "properties": {
            "for": {"enum": ["once", "hour"], "default": "once"},
            "override": {"type": "boolean", "description": "Allow it although it was denied."},
        },
    },
    "deny_call": {"type": "object", "properties": {"reason": {"type": "string", "maxLength": 1000}}},
    "approve_definition": {"type": "object", "required": ["fingerprint"], "properties": {"fingerprint": TEXT}},
}
"""Bodies with members of their own; all others are the arguments of tools and prompts, or as in MCP."""

MISSING: dict[str, Any] = {
    "type": "object",
    "description": "Servers that are away, by name. `listed`: whether the list still includes their entries.",
    "additionalProperties": {
        "type": "object",
        "required": ["state", "reason", "listed"],
        "properties": {"state": {"type": "string"}, "reason": NULLABLE_TEXT, "listed": {"type": "boolean"}},
    },
}


@functools.cache
def document() -> bytes:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_operation(operation)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Isthmus",
                "version": __version__,
                "summary": "The tools, resources and prompts of many MCP servers, and the state of the servers.",
            },
            "security": [{}, {"bearer": []}, {"key": []}],
            "tags": [{"name": tag} for tag in dict.fromkeys([*TAGS.values(), HUB_TAG])],
            "paths": paths,
            "components": {
                "schemas": _schemas(),
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                },
            },
        }
    )


def _describe_operation(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": _reference(operation.shape)}
    if operation.is_call:
        text = (
            "Events `progress`, `log`, `question`, `retracted` and `held` as they occur, then one `result` or `error`"
            " (a problem)."
        )
        content["text/event-stream"] = {"schema": {"type": "string", "description": text}}
    elif operation.events is not None:
        content["text/event-stream"] = {"schema": {"type": "string", "description": operation.events}}
    if operation.id == "get_audit":
        content["application/x-ndjson"] = {"schema": {"type": "string", "description": "Each line is a record."}}
    parameters = [
        _field(each.name, "query", each.description, {"type": each.kind}, is_required=each.is_required)
        for each in operation.query
    ]
    if operation.parameter is not None:
        text = "The rest of the path, percent-encoded where needed."
        parameters.insert(0, _field(operation.parameter, "path", text, {"type": "string"}, is_required=True))
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [tag_of(operation)],
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Success.", "content": content},
            "default": {"description": "Failure.", "content": {"application/problem+json": _reference("Problem")}},
        },
    }
    if operation.body is not None:
        example = msgspec.json.decode(operation.example)
        body = {"application/json": {"schema": BODIES.get(operation.id, OPEN_OBJECT), "example": example}}
        described["requestBody"] = {"description": operation.body, "required": False, "content": body}
    return described


def _field(name: str, place: str, description: str, schema: dict[str, Any], *, is_required: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "required": is_required, "description": description, "schema": schema}


def _reference(shape: str) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{shape}"}}


# -- shapes --------------------------------------------------------------------------------------------------------


def _schemas() -> dict[str, dict[str, Any]]:
    return {
        # With `fields` an entry has no schema, and the list has no `missing`.
        "Tools": _open(
            {"tools": {"type": "array", "items": _open({"name": TEXT})}}, {"missing": MISSING, "next": NULLABLE_TEXT}
        ),
        "Tool": _open({"name": {"type": "string"}, "inputSchema": OPEN_OBJECT}),
        "Resources": _list_of("resources", None),
        "Templates": _list_of("resourceTemplates", None),
        "Contents": _open({"contents": {"type": "array", "items": OPEN_OBJECT}}),
        "Prompts": _list_of("prompts", "Prompt"),
        "Prompt": _open({"name": {"type": "string"}}),
        "Messages": _open({"messages": {"type": "array", "items": OPEN_OBJECT}}),
        "Hub": _hub(),
        "Servers": _open({"servers": {"type": "array", "items": {"$ref": "#/components/schemas/Server"}}}),
        "Server": _server(),
        "Stats": _stats(),
        "Log": _log(),
        "Activity": _open({"calls": {"type": "array", "items": _ended_call()}, "capture": _capture_state()}),
        "CallDetails": _call_details(),
        "Capture": _open({"capture": _capture_state()}),
        "Approvals": _open({"approvals": _array_of("Approval"), "total": COUNT, "next": NULLABLE_TEXT}),
        "Approval": _approval(),
        "Budgets": _budgets(),
        "Cluster": _cluster(),
        "Definitions": _open({"pending": {"type": "array", "items": _definition()}}),
        "Definition": _open({"name": TEXT, "fingerprint": TEXT}),
        "Configuration": _open({"findings": {"type": "array", "items": _finding()}}),
        "Access": _access(),
        "AccessServers": _access_servers(),
        "AccessCaller": _access_caller(),
        "AccessPreview": _access_preview(),
        "Audit": _audit(),
        "AuditVerdict": _audit_verdict(),
        "ServerPreview": _server_preview(),
        "SwitchedServer": _open(
            {
                "name": TEXT,
                "enabled": {"type": "boolean"},
                "saved": {"type": "boolean", "description": "Whether the configuration file says so, too."},
                "note": {**TEXT, "description": "How long it stays so."},
            }
        ),
        "Result": _result(),
        "Completion": _open({"completion": OPEN_OBJECT}),
        "Answer": _open({"id": TEXT, "action": {"enum": list(ACTIONS)}}),
        "RelayAgents": _open({"agents": _array_of("RelayCount")}),
        "RelayCount": _relay_agent(COUNT, COUNT),
        "RelayAgent": _relay_agent(_array_of("RelayServer"), _array_of("RelayDevice")),
        "RelayServers": _open({"servers": _array_of("RelayServer")}),
        "RelayServer": _relay_server(),
        "RelayTools": _open({"tools": _array_of("RelayTool")}),
        "RelayTool": _open(
            {
                **dict.fromkeys(("name", "tool", "agent", "server", "serverId"), TEXT),
                "state": {"enum": list(STATES)},
            }
        ),
        "RelayDevices": _open({"devices": _array_of("RelayDevice")}),
        "RelayDevice": _open(
            {
                "id": TEXT,
                "agent": TEXT,
                "since": TIME,
                "title": NULLABLE_TEXT,
                "client": ADDRESS,
                "calls": COUNT,
                "answered": COUNT,
            }
        ),
        "Tasks": _open(
            {
                "tasks": _array_of("TaskEntry"),
                "next": {**TEXT, "description": "The `cursor` of the next page; empty at the end."},
            }
        ),
        "TaskEntry": _open(_task_entry()),
        "Task": _task(),
        "Sessions": _sessions(),
        "Document": OPEN_OBJECT,
        "Problem": _problem(),
    }


def _open(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object with at least these members; servers and later versions may add others."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _list_of(member: str, shape: str | None) -> dict[str, Any]:
    items = OPEN_OBJECT if shape is None else {"$ref": f"#/components/schemas/{shape}"}
    return _open({member: {"type": "array", "items": items}, "missing": MISSING}, {"next": NULLABLE_TEXT})


def _hub() -> dict[str, Any]:
    seconds = {"type": "number", "minimum": 0}
    loop = {
        "lag_seconds": {**seconds, "description": "The last measured delay of the event loop."},
        "lag_seconds_max": {**seconds, "description": "The longest delay in the last minute."},
        "busy_seconds_max": {
            **seconds,
            "description": "The most processor time between two measurements, since the start.",
        },
        "held": {**COUNT, "description": "How often one step blocked the event loop for over 50 ms."},
        "busy_over": {
            "type": "object",
            "additionalProperties": COUNT,
            "description": "How often the event loop used more processor time than this between two measurements.",
        },
    }
    return _open({"event_loop": _open(loop)})


def _server() -> dict[str, Any]:
    required: dict[str, Any] = {
        "name": {"type": "string"},
        "state": {"enum": ["starting", "ready", "retrying", "login", "away", "stopped", "disabled"]},
        "reason": NULLABLE_TEXT,
        "transport": NULLABLE_TEXT,
        "era": NULLABLE_TEXT,
        "capabilities": {"type": "array", "items": {"type": "string"}},
        "unlisted": {"type": "boolean"},
        "tools": COUNT,
        "prompts": COUNT,
        "resources": COUNT,
        "resourceTemplates": COUNT,
    }
    line = _open({"at": {"type": "number"}, "level": {"type": "string"}, "text": {"type": "string"}})
    for_operators = {
        "detail": NULLABLE_TEXT,
        "fix": {**NULLABLE_TEXT, "description": "What to do about a server that cannot be used, if the hub knows."},
        "place": {**NULLABLE_TEXT, "description": "File and line of its entry, if a change there is the fix."},
        "notes": {"type": "array", "items": {"type": "string"}},
        "log": {"type": "array", "items": line},
    }
    return _open(required, for_operators)


def _stats() -> dict[str, Any]:
    seconds = {"type": "number", "minimum": 0}
    latency = _open({"calls": COUNT, "p50": seconds, "p99": seconds})
    outcomes = {
        "type": "object",
        "additionalProperties": COUNT,
        "description": "Calls by how they ended: `result`, `tool_error`, or the reason of a fault.",
    }
    server = {
        "name": {**NULLABLE_TEXT, "description": "Null for calls that reached no server."},
        "state": NULLABLE_TEXT,
        "running": COUNT,
        "queued": COUNT,
        "calls": {**COUNT, "description": "Calls that have ended, since the start of the hub."},
        "seconds": {**seconds, "description": "How long they took together."},
        "late": {**COUNT, "description": "Replies that came after the end of their call."},
        "outcomes": outcomes,
        "latency": {
            "anyOf": [latency, {"type": "null"}],
            "description": "Of the last calls, in seconds; measured while a client reads this every 15 seconds.",
        },
    }
    return _open({"at": TIME, "servers": {"type": "array", "items": _open(server)}, "event_loop": OPEN_OBJECT})


def _log() -> dict[str, Any]:
    line = {
        "at": TIME,
        "level": {**NULLABLE_TEXT, "description": "Only of lines that the server logged."},
        "text": TEXT,
        "source": {
            "enum": ["log", "stderr", "hub"],
            "description": "Logged by the server outside of calls, written to standard error, or noted by the hub.",
        },
        "number": {**COUNT, "description": "Increases by one from line to line."},
    }
    return _open({"server": TEXT, "lines": {"type": "array", "items": _open(line)}})


def _ended_call() -> dict[str, Any]:
    return _open(
        {
            "number": {**COUNT, "description": "Increases by one from call to call."},
            "at": {**TIME, "description": "When it ended, in seconds since the epoch."},
            "seconds": {"type": "number", "minimum": 0},
            "caller": TEXT,
            "tenant": TEXT,
            "frontend": TEXT,
            "kind": TEXT,
            "name": TEXT,
            "server": {**NULLABLE_TEXT, "description": "Null if no server was found."},
            "outcome": {**TEXT, "description": "`result`, `tool_error`, or the reason of a fault."},
            "executed": {"enum": ["no", "yes", "unknown"]},
            "message": {**NULLABLE_TEXT, "description": "What a fault says."},
            "denied": {
                "type": "boolean",
                "description": "Whether what was called exists, and the caller may not use it.",
            },
        }
    )


def _call_details() -> dict[str, Any]:
    text = _open({"text": TEXT, "bytes": COUNT, "isCut": {"type": "boolean"}, "isRedacted": {"type": "boolean"}})
    captured = {"description": "Null unless it was captured.", "anyOf": [text, {"type": "null"}]}
    return _open(
        {
            "call": _ended_call(),
            "tool": {**NULLABLE_TEXT, "description": "The canonical name of the tool."},
            "steps": {"type": "array", "items": _open({"step": TEXT, "seconds": {"type": "number", "minimum": 0}})},
            "isCut": {"type": "boolean", "description": "Whether events are left out."},
            "arguments": captured,
            "result": captured,
        }
    )


def _capture_state() -> dict[str, Any]:
    state = _open(
        {
            "isOn": {"type": "boolean"},
            "by": {**TEXT, "description": "The operator who began it."},
            "since": TIME,
            "until": TIME,
            "calls": {**COUNT, "description": "How many calls were captured."},
            **dict.fromkeys(("server", "tool", "caller"), NULLABLE_TEXT),
        }
    )
    return {"description": "Null if nothing is captured.", "anyOf": [state, {"type": "null"}]}


def _cluster() -> dict[str, Any]:
    seconds = {"type": "number", "description": "In seconds since 1970."}
    node = {
        "name": TEXT,
        "isSelf": {"type": "boolean", "description": "Whether it is the node that was asked."},
        "since": seconds,
        "version": TEXT,
        "servers": {"type": "array", "items": TEXT, "description": "The servers that it owns, by name."},
        "differs": {"type": "array", "items": TEXT, "description": "Tables of its configuration that differ."},
        "epoch": {**TEXT, "description": "Changes when the node starts again, or has lost the bus."},
        "silence": {
            "type": ["number", "null"],
            "description": "Seconds since something came from it; null for the node that was asked.",
        },
        "lag": {
            "type": ["number", "null"],
            "description": "Seconds that a request to it and its answer take; null for the node that was asked, and "
            "without an answer within a second.",
        },
    }
    bus = {"state": {"enum": ["connected", "away"]}, "since": seconds, "reason": TEXT}
    return _open({"node": TEXT, "bus": _open(bus), "nodes": {"type": "array", "items": _open(node)}})


def _budgets() -> dict[str, Any]:
    names = {"type": "array", "items": TEXT}
    limits = {"calls": COUNT, "resultBytes": COUNT, "cost": {"type": "number"}}
    budget = _open(
        {"name": TEXT, "per": {"enum": list(PERS)}, "period": {"enum": list(PERIODS)}},
        {
            **limits,
            "callers": names,
            "tenants": names,
            "sets": names,
            "tools": names,
            "costs": OPEN_OBJECT,
            "refused": {**COUNT, "description": "Calls that it refused since the hub started; for operators."},
        },
    )
    counter = _open(
        {
            "budget": TEXT,
            "subject": {**OPEN_OBJECT, "description": "Whose it is: `caller` and `tenant`, `tenant`, `set` or `tool`."},
            "began": {"type": "number"},
            "renewed": {"type": "number", "description": "When it is renewed, in seconds since 1970."},
            **limits,
        }
    )
    shown = {
        "budgets": {"type": "array", "items": budget},
        "counters": {"type": "array", "items": counter},
        "total": COUNT,
        "next": NULLABLE_TEXT,
    }
    return _open(shown)


def _approval() -> dict[str, Any]:
    nullable_time = {"type": ["number", "null"], "description": "Seconds since the epoch."}
    return _open(
        {
            "id": TEXT,
            "state": {"enum": ["pending", "allowed", "denied"]},
            "tool": {**TEXT, "description": "`server.tool`."},
            "name": {**TEXT, "description": "The name by which it was called."},
            "arguments": {**OPEN_OBJECT, "description": "As the caller sent them, whole."},
            "added": {"type": "array", "items": TEXT, "description": "Names of arguments that the hub adds."},
            "digest": {**TEXT, "description": "Of caller, set, tool, definition and arguments."},
            "caller": TEXT,
            "tenant": TEXT,
            "set": NULLABLE_TEXT,
            "frontend": TEXT,
            "rule": TEXT,
            "by": {"enum": ["operator", "caller"]},
            "requested": TIME,
            "expires": TIME,
            "decided": nullable_time,
            "decidedBy": NULLABLE_TEXT,
            "reason": NULLABLE_TEXT,
            "scope": {"enum": ["once", "hour", None], "description": "For what it was allowed."},
            "script": {**NULLABLE_TEXT, "description": "The id of the script that makes the call."},
            "scriptLines": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "The lines of the script that name the tool.",
            },
            "why": {
                **NULLABLE_TEXT,
                "description": "Why a person is asked, where the rule alone does not tell: the use of a budget.",
            },
        }
    )


def _definition() -> dict[str, Any]:
    as_json = "As the server sent it, JSON in a string."
    return _open(
        {
            "server": TEXT,
            "tool": TEXT,
            "listedTo": {**NULLABLE_TEXT, "description": "Client capabilities that it is listed to; null for all."},
            "fingerprint": TEXT,
            "at": TIME,
            "before": {**NULLABLE_TEXT, "description": f"The accepted definition; null for a new tool. {as_json}"},
            "now": {**TEXT, "description": as_json},
        }
    )


def _finding() -> dict[str, Any]:
    return _open({"code": TEXT, "file": NULLABLE_TEXT, "path": TEXT, "problem": TEXT, "fix": TEXT})


BY: dict[str, Any] = {"enum": list(get_args(AccessBy)), "description": "What decides."}
NULLABLE_FRONTEND: dict[str, Any] = {"enum": [*FRONTENDS, None]}
PATTERNS: dict[str, Any] = {"type": "array", "items": TEXT}
LEFT_OUT: dict[str, Any] = {**COUNT, "description": "Callers beyond the first 200: name some with `caller`."}
NEXT: dict[str, Any] = {**NULLABLE_TEXT, "description": "The `cursor` of the next page; null on the last page."}


def _access_caller() -> dict[str, Any]:
    return _open(
        {
            "name": TEXT,
            "tenant": TEXT,
            "key": {**NULLABLE_TEXT, "description": "The id of a key of the state folder."},
            "frontend": NULLABLE_FRONTEND,
            "frontends": {"type": "array", "items": {"enum": list(FRONTENDS)}, "description": "Those that allow less."},
            "operator": {"type": "boolean"},
            "targets": {"type": "boolean"},
            "allow": PATTERNS,
            "deny": PATTERNS,
            "set": {**NULLABLE_TEXT, "description": "The set that the caller is bound to."},
        }
    )


def _access() -> dict[str, Any]:
    cell = _open({"allowed": {"type": "boolean"}, "by": BY, "reason": TEXT})
    cells = {"type": "array", "items": cell, "description": "In the order of the callers."}
    feature = _open({"list": TEXT, "name": TEXT, "server": TEXT, "cells": cells})
    return _open(
        {
            "callers": _array_of("AccessCaller"),
            "callersLeftOut": LEFT_OUT,
            "features": {"type": "array", "items": feature},
            "next": NEXT,
        }
    )


def _access_servers() -> dict[str, Any]:
    reached = {"type": "array", "items": COUNT, "description": "By caller, in the order of the callers."}
    server = _open({"name": TEXT, "state": TEXT, "features": COUNT, "reached": reached})
    return _open(
        {
            "callers": _array_of("AccessCaller"),
            "callersLeftOut": LEFT_OUT,
            "servers": {"type": "array", "items": server},
        }
    )


def _access_preview() -> dict[str, Any]:
    feature = _open({"list": TEXT, "name": TEXT, "server": TEXT, "by": BY, "reason": TEXT})
    features = {"type": "array", "items": feature}
    change = _open(
        {
            "caller": TEXT,
            "tenant": TEXT,
            "key": NULLABLE_TEXT,
            "frontend": NULLABLE_FRONTEND,
            "appears": COUNT,
            "vanishes": COUNT,
            "appear": features,
            "vanish": features,
        }
    )
    complete = {"type": "boolean", "description": "Whether everything that changes is listed: at most 5,000 entries."}
    return _open({"changes": {"type": "array", "items": change}, "complete": complete})


def _audit() -> dict[str, Any]:
    record = _open(
        {"number": COUNT, "digest": TEXT, "record": OPEN_OBJECT},
        {"slot": {**COUNT, "description": "The slot of its log, if it is not the serving hub's."}},
    )
    return _open(
        {
            "mode": {"enum": ["off", "batched", "strict"]},
            "records": {"type": "array", "items": record},
            "next": {**NEXT, "description": "The `cursor` of older records, also if the search found few or none yet."},
            "scanned": {**COUNT, "description": "How many records were read."},
        }
    )


def _audit_verdict() -> dict[str, Any]:
    bad = _open({"record": {"type": ["integer", "null"]}, "why": TEXT})
    return _open(
        {
            "good": {"type": "boolean"},
            "records": COUNT,
            "first": COUNT,
            "last": COUNT,
            "digest": TEXT,
            "key": NULLABLE_TEXT,
            "open": COUNT,
            "lost": COUNT,
            "unsigned": COUNT,
            "bad": {"anyOf": [bad, {"type": "null"}], "description": "The first record that was altered."},
            "slots": {"type": "array", "items": OPEN_OBJECT, "description": "The same of each other log."},
            "said": {"type": "array", "items": TEXT, "description": "The verdict in plain words."},
        }
    )


def _server_preview() -> dict[str, Any]:
    entry = {
        "name": {**TEXT, "description": "A name that is free, or that of the same server in the hub."},
        "wanted": {**TEXT, "description": "The name in the text, or one from the address or the command."},
        "outcome": {"enum": ["new", "same", "broken"], "description": "`same`: the hub has it already."},
        "transport": NULLABLE_TEXT,
        "entry": {**OPEN_OBJECT, "description": "Its keys in the hub's own file."},
        "text": {**TEXT, "description": "Its lines in the hub's own file."},
        "command": {**NULLABLE_TEXT, "description": "The `isthmus add` that does the same, if there is one."},
        "hasSecrets": {"type": "boolean", "description": "Whether it contains a secret in plain text."},
    }
    return _open(
        {
            "form": {"enum": ["json", "toml", "yaml", "url", "command"]},
            "client": {**NULLABLE_TEXT, "description": "The client whose format it is, if that is known."},
            "file": {**TEXT, "description": "The hub's configuration file."},
            "isNewFile": {"type": "boolean"},
            "place": {**TEXT, "description": "Where in the file the text belongs."},
            "text": {**TEXT, "description": "All new servers, ready to be put there."},
            "servers": {"type": "array", "items": _open(entry)},
            "findings": {"type": "array", "items": _finding()},
        }
    )


def _array_of(shape: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{shape}"}}


def _relay_agent(servers: dict[str, Any], devices: dict[str, Any]) -> dict[str, Any]:
    states = _open(dict.fromkeys(STATES, COUNT))
    return _open(
        {"agent": TEXT, "states": states, "servers": servers, "tools": COUNT, "devices": devices, "calls": COUNT}
    )


def _relay_server() -> dict[str, Any]:
    return _open(
        {
            "agent": TEXT,
            "serverId": TEXT,
            "name": TEXT,
            "state": {"enum": list(STATES)},
            "since": TIME,
            "reason": NULLABLE_TEXT,
            "title": NULLABLE_TEXT,
            "tools": {"type": "array", "items": TEXT},
            "client": ADDRESS,
            "shared": {"type": "boolean", "description": "Whether it shares its socket with other servers."},
            "calls": COUNT,
        }
    )


def _task_entry() -> dict[str, Any]:
    progress = {"type": ["object", "null"], "description": "What a running call reported last."}
    return {
        "id": TEXT,
        "protocol": {"enum": ["a2a", "mcp"]},
        "state": {"enum": list(get_args(TaskState))},
        "server": {**NULLABLE_TEXT, "description": "Null if the task calls no configured server."},
        "tool": NULLABLE_TEXT,
        "caller": TEXT,
        "tenant": TEXT,
        "created": TIME,
        "updated": TIME,
        "outcome": {**NULLABLE_TEXT, "description": "`result`, `tool_error`, or the reason of a fault."},
        "executed": {"enum": ["no", "yes", "unknown", None], "description": "Null while the task runs."},
        "message": {**NULLABLE_TEXT, "description": "The open question, what went wrong, or what the task waits for."},
        "progress": progress,
    }


def _task() -> dict[str, Any]:
    part = {**OPEN_OBJECT, "description": "Its `kind` is `text`, `data` or `file`."}
    message = _open({"id": TEXT, "role": {"enum": ["user", "agent"]}, "parts": {"type": "array", "items": part}})
    nullable = {"type": ["object", "null"]}
    content = {
        "context": TEXT,
        "content": {"type": "boolean", "description": "Whether the members below are filled."},
        "messages": {"type": "array", "items": message},
        "question": {**nullable, "description": "`method` and `params` of the server's open question."},
        "result": {"description": "As the server sent it; null if it is longer than 1 MiB."},
        "resultBytes": COUNT,
        "error": {**nullable, "description": "A server's own error: `code`, `message` and `data`."},
    }
    return _open({**_task_entry(), **content})


def _sessions() -> dict[str, Any]:
    session = {
        "frontend": {"enum": ["mcp", "sse", "console"]},
        "caller": TEXT,
        "tenant": TEXT,
        "client": {**NULLABLE_TEXT, "description": "The name that the client gives itself."},
        "clientVersion": NULLABLE_TEXT,
        "protocol": {**NULLABLE_TEXT, "description": "The version of MCP."},
        "since": TIME,
        "lastUsed": TIME,
        "calls": {**COUNT, "description": "Running calls."},
        "streams": {**COUNT, "description": "Open event streams."},
    }
    streams = {"frontend": TEXT, "caller": TEXT, "tenant": TEXT, "streams": COUNT}
    return _open(
        {
            "sessions": {"type": "array", "items": _open(session)},
            "total": {**COUNT, "description": "All sessions; the list has the 500 last used ones."},
            "streams": {
                "type": "array",
                "items": _open(streams),
                "description": "Open event streams by caller, those of sessions included.",
            },
        }
    )


def _result() -> dict[str, Any]:
    described = (
        "The server's result. A tool that ran and failed has `isError: true`."
        " A plain JSON-RPC server may return any JSON value, which is passed on unchanged."
    )
    optional = {"isError": {"type": "boolean"}, "structuredContent": {}}
    result = _open({"content": {"type": "array", "items": OPEN_OBJECT}}, optional)
    return {"anyOf": [result, {}], "description": described}


def _problem() -> dict[str, Any]:
    reasons = [*FAULTS, *REFUSALS]
    required: dict[str, Any] = {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "reason": {"enum": reasons},
        "executed": {"enum": ["no", "yes", "unknown"], "description": "Whether the tool ran."},
    }
    optional = {
        "server": {"type": "string"},
        "retryAfter": {"type": "number", "description": "Seconds."},
        "approval": {**TEXT, "description": "The id of the approval that the call waits for, or was denied."},
        "error": _open({"code": {"type": "integer"}, "message": {"type": "string"}}, {"data": {}}),
    }
    # The statuses are for people and for the page at /docs; programs compare the reason.
    refused = [(status, reason, title) for reason, (status, title) in REFUSALS.items()]
    rows = sorted([*refused, *((fault.http, reason, fault.title) for reason, fault in FAULTS.items())])
    listed = [{"status": status, "reason": reason, "title": title} for status, reason, title in rows]
    return {**_open(required, optional), "x-reasons": listed}
