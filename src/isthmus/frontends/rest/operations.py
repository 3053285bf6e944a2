"""What can be asked of the REST face: one table, from which requests are routed and the OpenAPI document is written.

Nothing is answered here. A parameter in a path is always its end and takes all that is left of it, slashes too:
that is why a tool is called by `POST /v1/tools/{name}` and not by something after the name, which a tool's own
name could end in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

Method: TypeAlias = Literal["GET", "POST", "DELETE"]

Shape: TypeAlias = Literal[
    "Tools", "Tool", "Resources", "Templates", "Contents", "Prompts", "Prompt", "Messages", "Hub", "Servers", "Server",
    "Result", "Completion", "RelayAgents", "RelayAgent", "RelayServers", "RelayServer", "RelayTools",
    "RelayDevices", "Document",
]  # fmt: skip
"""What an answer looks like; the OpenAPI document spells each out."""


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of the query."""

    name: str
    description: str
    kind: Literal["string", "number"] = "string"
    is_required: bool = False


class Operation(msgspec.Struct, frozen=True):
    """One method on one path. `body` says what a request's body is; None if it has none."""

    id: str
    method: Method
    path: str
    summary: str
    shape: Shape
    query: tuple[Parameter, ...] = ()
    body: str | None = None
    is_call: bool = False
    """It is asked of a server: it may take its time, fail, report progress, and be streamed."""

    @property
    def parameter(self) -> str | None:
        """The parameter in which the path ends."""
        return self.path.rpartition("{")[2].removesuffix("}") if self.path.endswith("}") else None


SERVER = Parameter("server", "Only what this server offers.")
TIMEOUT = Parameter(
    "timeout",
    "Seconds that the whole call may take. Progress does not extend it; silence of the server ends a call earlier.",
    "number",
)
LOG = Parameter("log", "From which level on the server's log is streamed: debug, info (if not given), … emergency.")
URI = Parameter("uri", "What to read, as it is listed.", is_required=True)
CALLING = (TIMEOUT, LOG)
AGENT = Parameter("agent", "Only what belongs to this agent.")
STATE = Parameter("state", "Only servers in this state, or agents that have one: ready, connecting or away.")
TOOL = Parameter("tool", "Only servers that have a tool of this name.")
DIALLED = Parameter("server", "Only the tools of this server, by its name or by its id under the agent.")

OPERATIONS: tuple[Operation, ...] = (
    Operation("list_tools", "GET", "/v1/tools", "The tools that the caller may use.", "Tools", (SERVER,)),
    Operation("get_tool", "GET", "/v1/tools/{name}", "One tool, as its server describes it.", "Tool"),
    Operation(
        "call_tool", "POST", "/v1/tools/{name}", "Call a tool.", "Result", CALLING,
        body="The tool's arguments; no body stands for none.", is_call=True,
    ),
    Operation("list_resources", "GET", "/v1/resources", "What can be read.", "Resources", (SERVER,)),
    Operation("list_templates", "GET", "/v1/resources/templates", "Families of resources.", "Templates", (SERVER,)),
    Operation(
        "read_resource", "GET", "/v1/resources/read", "Read a resource.", "Contents", (URI, *CALLING), is_call=True
    ),
    Operation("list_prompts", "GET", "/v1/prompts", "The prompts there are.", "Prompts", (SERVER,)),
    Operation("get_prompt", "GET", "/v1/prompts/{name}", "One prompt, as its server describes it.", "Prompt"),
    Operation(
        "write_prompt", "POST", "/v1/prompts/{name}", "Write a prompt out.", "Messages", CALLING,
        body="The prompt's arguments, all of them strings; no body stands for none.", is_call=True,
    ),
    Operation(
        "complete", "POST", "/v1/completions", "Suggest values for an argument.", "Completion", (TIMEOUT,),
        body='`{"ref": {"type": "ref/prompt", "name": …}, "argument": {"name": …, "value": …}}`, or a `ref` of the '
        "type `ref/resource` with the `uri` of a template; `context` may hold the arguments chosen so far.",
        is_call=True,
    ),
    Operation("get_hub", "GET", "/v1/hub", "How late the hub's event loop runs; for operators.", "Hub"),
    Operation("list_servers", "GET", "/v1/servers", "How the servers stand.", "Servers"),
    Operation(
        "get_server", "GET", "/v1/servers/{name}", "How one server stands; to the operator, also what it logged.",
        "Server",
    ),
    Operation(
        "list_relay_agents", "GET", "/v1/relay/agents", "The agents under which servers dialled in or devices call.",
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
        "Forget a server that is away; the operator's. The answer is what was known of it.", "RelayServer",
    ),
    Operation(
        "list_relay_tools", "GET", "/v1/relay/tools", "The tools of these servers.", "RelayTools", (AGENT, DIALLED)
    ),
    Operation(
        "list_relay_devices", "GET", "/v1/relay/devices", "The devices that are connected.", "RelayDevices", (AGENT,)
    ),
    Operation("describe", "GET", "/openapi.json", "This description.", "Document"),
)  # fmt: skip


class Place(msgspec.Struct, frozen=True):
    """Where a path leads: what can be done there, by method, and the end of the path if that is a parameter."""

    methods: Mapping[str, Operation]
    argument: str = ""

    @property
    def allow(self) -> bytes:
        """The methods, as an Allow header names them."""
        names = [*self.methods, *(["HEAD"] if "GET" in self.methods else [])]
        return ", ".join(sorted(names)).encode()


class Router:
    """Finds a place by its path. Whole paths come before those that end in a parameter."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._whole: dict[str, dict[str, Operation]] = {}
        self._begun: dict[str, dict[str, Operation]] = {}
        for operation in operations:
            table = self._whole if operation.parameter is None else self._begun
            table.setdefault(operation.path.partition("{")[0], {})[operation.method] = operation

    def find(self, path: str) -> Place | None:
        """The place of a decoded path."""
        if (methods := self._whole.get(path)) is not None:
            return Place(methods)
        for beginning, methods in self._begun.items():
            if len(path) > len(beginning) and path.startswith(beginning):
                return Place(methods, path[len(beginning) :])
        return None


ROUTER = Router(OPERATIONS)
