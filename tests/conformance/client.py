"""The client that the conformance suite examines: the hub, with a caller that runs each scenario.

The suite starts `python -m tests.conformance.client ADDRESS` beside a server of its own, names the scenario in the
environment, and checks what reaches that server. So a hub is started with that address as its only server, and the
official SDK calls it in the revision's era. `run` names the command; what it prints the suite keeps.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult

from tests.conformance.logins import Operator, is_login, oauth_of
from tests.hubs import PATIENT, HubProcess, Raw, serving
from tests.peers.serving import MODERN_VERSION

SERVER = "scenario"
CALL_SECONDS = 15.0
FOCAL_TOOL = "json_schema_2020_12_tool"

JsonObject = dict[str, Any]
Given: TypeAlias = Mapping[str, Any]
"""The settings of a scenario for its client, beside the address."""


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """A hub in front of a scenario's server, and a caller."""

    hub: HubProcess
    client: Client
    given: Given


Script: TypeAlias = Callable[[ScenarioRun], Awaitable[object]]


async def look(scenario_run: ScenarioRun) -> None:
    """List the tools, which makes the hub meet its server."""
    await scenario_run.client.list_tools()


async def add(scenario_run: ScenarioRun) -> None:
    """Call a tool with arguments."""
    await scenario_run.client.call_tool("add_numbers", {"a": 5, "b": 3})


def calling(*tools: str) -> Script:
    """Call tools that need no arguments, one after the other."""

    async def call(scenario_run: ScenarioRun) -> None:
        for tool in tools:
            await scenario_run.client.call_tool(tool, {})

    return call


async def give_back_a_schema(scenario_run: ScenarioRun) -> None:
    """Call one tool with the schema that another is listed with."""
    tools = {tool.name: tool for tool in (await scenario_run.client.list_tools()).tools}
    await scenario_run.client.call_tool("json_schema_echo", {"schema": tools[FOCAL_TOOL].input_schema})


async def use_everything(scenario_run: ScenarioRun) -> None:
    """List all there is, and use each of it."""
    for tool in (await scenario_run.client.list_tools()).tools:
        await scenario_run.client.call_tool(tool.name, {})
    for resource in (await scenario_run.client.list_resources()).resources:
        await scenario_run.client.read_resource(resource.uri)
    for prompt in (await scenario_run.client.list_prompts()).prompts:
        await scenario_run.client.get_prompt(prompt.name)


async def call_scenario_tools(scenario_run: ScenarioRun) -> None:
    """Make the calls that the scenario asks for, without the arguments that are null.

    One stands where the schema wants a boolean, which the hub refuses. To the scenario null and absent are the same.
    """
    await scenario_run.client.list_tools()
    for call in scenario_run.given["toolCalls"]:
        arguments = {name: value for name, value in call["arguments"].items() if value is not None}
        await scenario_run.client.call_tool(call["name"], arguments)


async def call_what_is_listed(scenario_run: ScenarioRun) -> None:
    """Call every tool that the hub lists over plain HTTP: the SDK leaves malformed ones out by itself."""
    async with Raw(scenario_run.hub.url_of(SERVER)) as raw:
        names = await raw.names()
    print("listed:", *names)
    for name in names:
        await scenario_run.client.call_tool(name, {"region": "us-west1"})


SCRIPTS: Mapping[str, Script] = {
    "initialize": look,
    "tools_call": add,
    "elicitation-sep1034-client-defaults": calling("test_client_elicitation_defaults"),
    "sse-retry": calling("test_reconnection"),
    "json-schema-2020-12-preservation": give_back_a_schema,
    "json-schema-ref-no-deref": look,
    "request-metadata": look,
    "sep-2322-client-request-state": calling("test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_no_result_type"),
    "http-standard-headers": use_everything,
    "http-custom-headers": call_scenario_tools,
    "http-invalid-tool-headers": call_what_is_listed,
}
"""What to do in each scenario that needs no authorisation server."""

UNRELATED = {"sep-2322-client-request-state": "test_mrtr_unrelated"}
"""A tool to call while a question of another is open."""


class Person:
    """The user that is asked: accepts each form with its proposals, and interrupts where the scenario wants it."""

    def __init__(self, unrelated: str | None) -> None:
        self._unrelated = unrelated
        self.client: Client | None = None

    async def answer(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Fill in a form."""
        if self._unrelated and self.client:
            await self.client.call_tool(self._unrelated, {})
        return ElicitResult(action="accept", content=filled(getattr(params, "requested_schema", {})))


def filled(schema: JsonObject) -> JsonObject:
    """What an obliging person enters: the defaults, and yes to everything else."""
    properties: Mapping[str, JsonObject] = schema.get("properties", {})
    return {name: property.get("default", True) for name, property in properties.items()}


async def run_scenario(url: str, scenario: str, revision: str, given: Given) -> None:
    """Start a hub before the address and do there what the scenario wants."""
    person = Person(UNRELATED.get(scenario))
    mode = MODERN_VERSION if revision == MODERN_VERSION else "legacy"
    if is_login(scenario):
        await log_in(url, scenario, given)
        return
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), {SERVER: {"url": url}}, limits=PATIENT) as hub:
            transport = streamable_http_client(hub.url_of(SERVER))
            async with Client(
                transport, mode=mode, elicitation_callback=person.answer, read_timeout_seconds=CALL_SECONDS
            ) as client:
                person.client = client
                await SCRIPTS[scenario](ScenarioRun(hub, client, given))
        print("".join(hub.said))


async def log_in(url: str, scenario: str, given: Given) -> None:
    """Start a hub before an address that wants a login, with its operator."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "isthmus.json"
        entry = {"url": url, "oauth": oauth_of(scenario, given)}
        async with serving(Path(folder), {SERVER: entry}, limits=PATIENT) as hub:
            try:
                await Operator(hub, config, SERVER).use()
            finally:
                print("".join(hub.said))


if __name__ == "__main__":
    asyncio.run(
        run_scenario(
            sys.argv[1],
            os.environ["MCP_CONFORMANCE_SCENARIO"],
            os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"],
            json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")),
        )
    )
