"""The operations of the REST API: one table for routing and for the OpenAPI document.

A path parameter is always the end of its path and takes the rest of it, including slashes. So a tool is called by
`POST /v1/tools/{name}`, and not by a suffix after the name, because a tool's own name could end in that suffix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

Method: TypeAlias = Literal["GET", "POST", "DELETE"]

Shape: TypeAlias = Literal[
    "Tools", "Tool", "Resources", "Templates", "Contents", "Prompts", "Prompt", "Messages", "Hub", "Servers", "Server",
    "Stats", "Log", "Activity", "CallDetails", "Capture", "Definitions", "Definition", "Configuration", "ServerPreview",
    "SwitchedServer", "Approvals", "Approval", "Budgets", "Cluster", "Access", "AccessServers", "AccessPreview",
    "Audit", "AuditVerdict", "Result", "Completion", "Answer", "RelayAgents", "RelayAgent", "RelayServers",
    "RelayServer", "RelayTools", "RelayDevices", "Tasks", "Task", "Sessions", "Document",
]  # fmt: skip
"""The schemas of results; the OpenAPI document defines each."""


ACTIONS = ("accept", "decline", "cancel")
"""What a person can do with a question (MCP, elicitation)."""


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of the query."""

    name: str
    description: str
    kind: Literal["string", "number"] = "string"
    is_required: bool = False


class Operation(msgspec.Struct, frozen=True):
    """One method on one path. `body` describes the request's body; None if it has none."""

    id: str
    method: Method
    path: str
    summary: str
    shape: Shape
    query: tuple[Parameter, ...] = ()
    body: str | None = None
    example: str = "{}"
    """A body as it may be sent."""
    is_call: bool = False
    """It calls a server: it may take long, report progress, and be streamed."""
    events: str | None = None
    """The events of its stream, if `Accept: text/event-stream` makes it one."""

    @property
    def parameter(self) -> str | None:
        """The parameter at the end of the path."""
        return self.path.rpartition("{")[2].removesuffix("}") if self.path.endswith("}") else None


QUERY = Parameter("query", "Only tools with all these words in name, title or description; names that fit come first.")
SERVER = Parameter("server", "Only the entries of this server.")
SET = Parameter("set", "Only what is in this set, under its names there.")
TIMEOUT = Parameter(
    "timeout",
    "Timeout of the whole call in seconds. Progress does not extend it; a silent server ends the call earlier.",
    "number",
)
LOG = Parameter("log", "The lowest level of log messages in the stream: debug, info (default), … emergency.")
URI = Parameter("uri", "The URI of the resource, as listed.", is_required=True)
QUESTIONS = Parameter(
    "questions",
    "Which questions of servers the caller answers during a streamed call: form, url, or both with a comma between.",
)
CALLING = (TIMEOUT, LOG, QUESTIONS, SET)
AGENT = Parameter("agent", "Only entries of this agent.")
STATE = Parameter("state", "Only servers in this state, or agents with such a server: ready, connecting or away.")
TOOL = Parameter("tool", "Only servers with a tool of this name.")
AFTER = Parameter("after", "Only lines with a higher number.", "number")
LIMIT = Parameter("limit", "At most so many, from 0 to 500 (default 100).", "number")
TASK_STATES = Parameter(
    "state",
    "Only tasks in these states, with commas between: submitted, working, input_required, auth_required, completed,"
    " failed, canceled, rejected.",
)
TASK_TOOL = Parameter("tool", "Only tasks that call this tool: `server.tool`, or the tool's own name.")
TASK_CALLER = Parameter("caller", "The caller whose tasks are meant; for operators.")
TASK_TENANT = Parameter("tenant", "The tenant of that caller; for operators.")
TASK_LIMIT = Parameter("limit", "At most so many, from 1 to 100 (default 50).", "number")
CURSOR = Parameter("cursor", "The `next` of the page before.")
ENTRIES = Parameter(
    "limit", "At most so many entries, 1 to 10000. The list then has `next`, the cursor of the next page.", "number"
)
CONTENT = Parameter("content", "`true`: an operator wants to see the messages and the result of another caller's task.")
CALLER = Parameter("caller", "Only callers of this name; `*` stands for any characters.")
FRONTEND = Parameter("frontend", "As on this frontend, which may allow callers less: mcp, sse, a2a or rest.")
NAME = Parameter("tool", "Only what has this name, `server.tool`; `*` stands for any characters.")
ROWS = Parameter("limit", "At most so many, from 1 to 1000 (default 100); fewer if there are many callers.", "number")
RECORDS = Parameter("limit", "At most so many, from 1 to 500 (default 100).", "number")
AUDIT_FILTERS = (
    Parameter("caller", "Only records of this caller."),
    Parameter("server", "Only records of this server."),
    Parameter("tool", "Only calls of this name; `*` stands for any characters."),
    Parameter("outcome", "Only calls that ended so: `result`, `tool_error`, `denied`, or the reason of a fault."),
    Parameter("event", "Only records of this event, such as `call` or `key.*`."),
    Parameter("since", "From this time on: 2026-11-16, 2026-11-16T09:30:00Z, or 24h ago."),
    Parameter("until", "Before this time."),
)
FORMAT = Parameter("format", "`jsonl` exports all records as JSON Lines, the oldest first.")
APPROVAL_STATE = Parameter("state", "Only approvals in this state: pending, allowed or denied.")
APPROVAL_LIMIT = Parameter("limit", "At most so many, from 0 to 100 (default 50); 0 for `total` alone.", "number")
FIELDS = Parameter(
    "fields",
    "Only these members of each entry, with commas between: name, title, description. The list then has no `missing`.",
)
EXPOSE = Parameter("expose", "`all`: every tool that the caller may use, also where lists have only tools of the hub.")
PAGED = (SERVER, SET, ENTRIES, CURSOR)
DIALLED = Parameter("server", "Only the tools of this server, by its name or its id.")

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "list_tools",
        "GET",
        "/v1/tools",
        "The tools that the caller may use.",
        "Tools",
        (SERVER, SET, QUERY, FIELDS, EXPOSE, ENTRIES, CURSOR),
    ),
    Operation("get_tool", "GET", "/v1/tools/{name}", "One tool, as its server describes it.", "Tool", (SET,)),
    Operation(
        "call_tool", "POST", "/v1/tools/{name}", "Call a tool.", "Result", CALLING,
        body="The tool's arguments; may be empty.", example='{"text": "hello"}', is_call=True,
    ),
    Operation("list_resources", "GET", "/v1/resources", "The listed resources.", "Resources", PAGED),
    Operation("list_templates", "GET", "/v1/resources/templates", "The resource templates.", "Templates", PAGED),
    Operation(
        "read_resource", "GET", "/v1/resources/read", "Read a resource.", "Contents", (URI, *CALLING), is_call=True
    ),
    Operation("list_prompts", "GET", "/v1/prompts", "The prompts that the caller may use.", "Prompts", PAGED),
    Operation("get_prompt", "GET", "/v1/prompts/{name}", "One prompt, as its server describes it.", "Prompt", (SET,)),
    Operation(
        "write_prompt", "POST", "/v1/prompts/{name}", "Get the messages of a prompt.", "Messages", CALLING,
        body="The prompt's arguments, all of them strings; may be empty.", is_call=True,
    ),
    Operation(
        "complete", "POST", "/v1/completions", "Suggest values for an argument.", "Completion", (TIMEOUT, SET),
        body='`{"ref": {"type": "ref/prompt", "name": …}, "argument": {"name": …, "value": …}}`, or a `ref` of the '
        "type `ref/resource` with the `uri` of a template; `context` may hold the arguments so far.",
        example='{"ref": {"type": "ref/prompt", "name": "NAME"}, "argument": {"name": "NAME", "value": ""}}',
        is_call=True,
    ),
    Operation(
        "answer_question", "POST", "/v1/questions/{id}", "Answer a question of a running call.", "Answer",
        body='`{"action": "accept", "content": {…}}`, or an `action` of `decline` or `cancel`.',
        example='{"action": "decline"}',
    ),
    Operation("get_hub", "GET", "/v1/hub", "The delay of the hub's event loop; for operators.", "Hub"),
    Operation(
        "get_stats", "GET", "/v1/stats", "Calls, durations and outcomes of each server; for operators.", "Stats"
    ),
    Operation(
        "get_log", "GET", "/v1/logs/{name}", "The last lines of a server's log and stderr; for operators.", "Log",
        (AFTER,),
    ),
    Operation(
        "get_activity", "GET", "/v1/activity", "The last calls of all callers; for operators.", "Activity", (LIMIT,),
        events="First `calls` with the last calls, then `calls` with new ones, at most ten times a second; `capture`"
        " whenever a capture of arguments and results begins, ends or has caught a call.",
    ),
    Operation(
        "get_call", "GET", "/v1/activity/{number}",
        "The way of one of the last calls, with its arguments and result if they were captured; for operators.",
        "CallDetails",
    ),
    Operation(
        "start_capture", "POST", "/v1/activity/capture",
        "Capture arguments and results of calls for some time, or end that; for operators.", "Capture",
        body='`{"seconds": …}` from 0 to 600, where 0 ends it; with `server`, `tool` or `caller` only calls of these.',
    ),
    Operation(
        "forget_captured", "DELETE", "/v1/activity/capture",
        "End the capture and delete what it caught; for operators.", "Capture",
    ),
    Operation(
        "restart_server", "POST", "/v1/restart/{name}", "Restart a server; for operators. The result is its state.",
        "Server",
    ),
    Operation(
        "list_definitions", "GET", "/v1/definitions",
        "Tools that are withheld because their definition changed; for operators.", "Definitions",
    ),
    Operation(
        "approve_definition", "POST", "/v1/definitions/{name}",
        "Approve the definition of a withheld tool; for operators.", "Definition",
        body='`{"fingerprint": …}` of the definition that was read.', example='{"fingerprint": "FINGERPRINT"}',
    ),
    Operation(
        "list_approvals", "GET", "/v1/approvals",
        "Calls that wait for a person, and decisions that are still valid, the oldest first; operators see those of all"
        " callers.", "Approvals", (APPROVAL_STATE, APPROVAL_LIMIT, CURSOR),
    ),
    Operation(
        "allow_call", "POST", "/v1/approvals/allow/{id}", "Allow a call that waits; for operators.", "Approval",
        body='`{"for": "once"}` (default), or `{"for": "hour"}` for the same tool and arguments for an hour.'
        " With `override: true`, also a call that was denied.",
        example='{"for": "once"}',
    ),
    Operation(
        "deny_call", "POST", "/v1/approvals/deny/{id}", "Deny a call that waits; for operators.", "Approval",
        body='`{"reason": …}`, optional; the caller receives it.', example='{"reason": "Ask me first."}',
    ),
    Operation(
        "get_approval", "GET", "/v1/approvals/{id}", "One of them; callers see their own.", "Approval",
    ),
    Operation(
        "list_budgets", "GET", "/v1/budgets",
        "Budgets, and what was used of them in the present period; operators see those of all callers.", "Budgets",
        (LIMIT, CURSOR),
    ),
    Operation("get_cluster", "GET", "/v1/cluster", "The nodes of the cluster; for operators.", "Cluster"),
    Operation(
        "get_configuration", "GET", "/v1/configuration", "Problems of the configuration; for operators.",
        "Configuration",
    ),
    Operation(
        "get_access", "GET", "/v1/access", "Who can reach what, and why; for operators.", "Access",
        (CALLER, SERVER, NAME, FRONTEND, ROWS, CURSOR),
    ),
    Operation(
        "get_access_servers", "GET", "/v1/access/servers", "How much of each server a caller reaches; for operators.",
        "AccessServers", (CALLER, FRONTEND),
    ),
    Operation(
        "preview_access", "POST", "/v1/access/preview", "What other rules would change, without applying them;"
        " for operators.", "AccessPreview",
        body='`{"callers": {NAME: {"allow": […], "deny": […], "frontends": {…}}}, "tenants": {NAME: {…}}}`; what is not'
        " given stays.",
    ),
    Operation(
        "get_audit", "GET", "/v1/audit", "Records of the audit log, the newest first; for operators.", "Audit",
        (*AUDIT_FILTERS, RECORDS, CURSOR, FORMAT),
    ),
    Operation(
        "verify_audit", "POST", "/v1/audit/verify", "Check that the audit log has not been altered; for operators.",
        "AuditVerdict",
        events="`progress` with the `records` so far and in `total`, then one `result` or `error` (a problem).",
    ),
    Operation(
        "preview_servers", "POST", "/v1/configuration/preview",
        "What a pasted text would add to the configuration file; for operators. Nothing is written or started.",
        "ServerPreview",
        body='`{"text": …}` with servers in any client\'s JSON, TOML or YAML, a URL, or a command line. `name` '
        "may rename a single server.",
        example='{"text": "npx -y @modelcontextprotocol/server-filesystem ."}',
    ),
    Operation(
        "enable_server", "POST", "/v1/enable/{name}", "Enable a server; for operators.", "SwitchedServer",
    ),
    Operation(
        "disable_server", "POST", "/v1/disable/{name}",
        "Disable a server, which finishes its calls; for operators.", "SwitchedServer",
    ),
    Operation("list_servers", "GET", "/v1/servers", "The state of all servers.", "Servers"),
    Operation(
        "get_server", "GET", "/v1/servers/{name}", "The state of one server; for operators with its log.",
        "Server",
    ),
    Operation(
        "list_relay_agents", "GET", "/v1/relay/agents", "The agents with servers or devices.",
        "RelayAgents", (AGENT, STATE),
    ),
    Operation(
        "get_relay_agent", "GET", "/v1/relay/agents/{agent}", "One agent, with its servers and devices.", "RelayAgent"
    ),
    Operation(
        "list_relay_servers", "GET", "/v1/relay/servers", "The servers that dialled in.", "RelayServers",
        (AGENT, STATE, TOOL),
    ),
    Operation(
        "forget_relay_server", "DELETE", "/v1/relay/servers/{name}",
        "Forget a server that is away; for operators. The result is its last state.", "RelayServer",
    ),
    Operation(
        "list_relay_tools", "GET", "/v1/relay/tools", "The tools of these servers.", "RelayTools", (AGENT, DIALLED)
    ),
    Operation(
        "list_relay_devices", "GET", "/v1/relay/devices", "The connected devices.", "RelayDevices", (AGENT,)
    ),
    Operation(
        "list_tasks", "GET", "/v1/tasks", "The caller's durable tasks, the last changed first; operators see all.",
        "Tasks", (TASK_LIMIT, CURSOR, TASK_STATES, SERVER, TASK_TOOL, TASK_CALLER, TASK_TENANT),
        events="First `tasks` with the page, then `tasks` with those that changed, at most ten times a second.",
    ),
    Operation(
        "get_task", "GET", "/v1/tasks/{id}", "One task.", "Task", (TASK_CALLER, TASK_TENANT, CONTENT),
        events="First `task` as it is, then `task` with each change, and `progress` and `log` of the running call; it"
        " ends with the task.",
    ),
    Operation(
        "cancel_task", "POST", "/v1/cancel/{id}", "Cancel a task. The result is its state.", "Task",
        (TASK_CALLER, TASK_TENANT),
    ),
    Operation("list_sessions", "GET", "/v1/sessions", "The open sessions of callers; for operators.", "Sessions"),
    Operation("describe", "GET", "/openapi.json", "This description.", "Document"),
)  # fmt: skip


TAGS = {
    "tools": "Tools",
    "resources": "Resources and prompts",
    "prompts": "Resources and prompts",
    "completions": "Resources and prompts",
    "questions": "Tools",
    "servers": "Servers",
    "logs": "Servers",
    "restart": "Servers",
    "enable": "Servers",
    "disable": "Servers",
    "configuration": "Servers",
    "tasks": "Tasks and sessions",
    "cancel": "Tasks and sessions",
    "sessions": "Tasks and sessions",
    "approvals": "Access and audit",
    "budgets": "Access and audit",
    "access": "Access and audit",
    "audit": "Access and audit",
    "relay": "Relay",
}
"""The group of an operation, by the first word of its path after `/v1`; the others are about the hub itself."""

HUB_TAG = "Hub"


def tag_of(operation: Operation) -> str:
    """The group of an operation in the document."""
    first = operation.path.removeprefix("/v1/").partition("/")[0]
    return TAGS.get(first, HUB_TAG)


class RouteMatch(msgspec.Struct, frozen=True):
    """The operations of a path by method, and the value of its parameter."""

    methods: Mapping[str, Operation]
    argument: str = ""

    @property
    def allow(self) -> bytes:
        """The value of the `Allow` header."""
        names = [*self.methods, *(["HEAD"] if "GET" in self.methods else [])]
        return ", ".join(sorted(names)).encode()


class Router:
    """Finds operations by path. Exact paths win over those that end in a parameter."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._exact: dict[str, dict[str, Operation]] = {}
        self._prefixes: dict[str, dict[str, Operation]] = {}
        for operation in operations:
            table = self._exact if operation.parameter is None else self._prefixes
            table.setdefault(operation.path.partition("{")[0], {})[operation.method] = operation

    def find(self, path: str) -> RouteMatch | None:
        """The operations of a decoded path; None if it is unknown."""
        if (methods := self._exact.get(path)) is not None:
            return RouteMatch(methods)
        for prefix, methods in self._prefixes.items():
            if len(path) > len(prefix) and path.startswith(prefix):
                return RouteMatch(methods, path[len(prefix) :])
        return None


ROUTER = Router(OPERATIONS)
