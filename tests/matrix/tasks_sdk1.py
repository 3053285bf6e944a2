"""Both ends of tasks on the official SDK, mcp 1.x: `serve` is a server over stdio, `call` and `hear` connect to a hub.

`plain` is a server that offers the same and knows no tasks.

It runs in an environment of its own; `test_tasks` starts it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.experimental.task_context import ServerTaskContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

CLIENT_SECONDS = 60.0
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}

server: Server[Any, Any] = Server("tasks")
server.experimental.enable_tasks()


@server.list_tools()
async def tools() -> list[types.Tool]:
    """One tool that is only run as a task, and asks before it ends."""
    execution = types.ToolExecution(taskSupport="required")
    return [types.Tool(name="work", inputSchema={"type": "object"}, execution=execution)]


@server.call_tool()
async def call(name: str, arguments: dict[str, Any]) -> types.CreateTaskResult:
    """Start the task."""

    async def work(task: ServerTaskContext) -> types.CallToolResult:
        if arguments.get("for_ever"):
            await anyio.sleep_forever()
        await task.update_status("about to ask")
        answer = await task.elicit("go on?", FORM)
        return types.CallToolResult(content=[types.TextContent(type="text", text=f"{name}: {answer.content}")])

    return await server.request_context.experimental.run_task(work)


plain: Server[Any, Any] = Server("plain")


@plain.list_tools()
async def plain_tools() -> list[types.Tool]:
    """The same tool, without support for tasks."""
    return [types.Tool(name="work", inputSchema={"type": "object"})]


@plain.call_tool()
async def plain_call(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
    """Do it while the caller waits."""
    if arguments.get("for_ever"):
        await anyio.sleep_forever()
    context = plain.request_context
    answer = await context.session.elicit("go on?", FORM, related_request_id=context.request_id)
    return types.CallToolResult(content=[types.TextContent(type="text", text=f"{name}: {answer.content}")])


async def serve(which: Server[Any, Any]) -> None:
    """Be the server."""
    async with stdio_server() as (read, write):
        await which.run(read, write, which.create_initialization_options())


async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Say yes, and to what."""
    related = (params.meta.model_extra or {})["io.modelcontextprotocol/related-task"] if params.meta else {}
    asked.append(related["taskId"])
    return types.ElicitResult(action="accept", content={"ok": True})


asked: list[str] = []


async def call_task(url: str, tool: str) -> dict[str, Any]:
    """Run a tool as a task and take its result, then another and give it up."""
    async with (
        streamable_http_client(url) as (read, write, _),
        ClientSession(read, write, elicitation_callback=answer, message_handler=on_message) as me,
    ):
        greeted = await me.initialize()
        made = await me.experimental.call_tool_as_task(tool, {})
        id = made.task.taskId
        result = await me.experimental.get_task_result(id, types.CallToolResult)
        state = await me.experimental.get_task(id)
        endless = (await me.experimental.call_tool_as_task(tool, {"for_ever": True})).task.taskId
        cancelled = await me.experimental.cancel_task(endless)
        listed = await me.experimental.list_tasks()
        return {
            "tasks": greeted.capabilities.tasks.model_dump(exclude_none=True) if greeted.capabilities.tasks else None,
            "id": id,
            "text": result.content[0].text if isinstance(result.content[0], types.TextContent) else None,
            "related": (result.meta or {})["io.modelcontextprotocol/related-task"]["taskId"],
            "asked": asked,
            "state": [state.taskId, state.status],
            "cancelled": [cancelled.taskId == endless, cancelled.status],
            "unknown": await refused(me, endless[:-1]),
            "listed": {task.taskId: task.status for task in listed.tasks} == {id: "completed", endless: "cancelled"},
            "next": listed.nextCursor,
            "notified": sorted({received.taskId in (id, endless) for received in statuses}),
        }


statuses: list[types.TaskStatusNotificationParams] = []
ended = anyio.Event()


async def on_message(message: Any) -> None:
    """Take down how tasks stand, as it is announced."""
    if isinstance(message, types.ServerNotification) and isinstance(message.root, types.TaskStatusNotification):
        statuses.append(message.root.params)
        if message.root.params.status == "completed":
            ended.set()


async def follow(url: str, tool: str) -> dict[str, Any]:
    """Run a tool as a task and only listen until it has ended."""
    async with (
        streamable_http_client(url) as (read, write, _),
        ClientSession(read, write, message_handler=on_message) as me,
    ):
        await me.initialize()
        id = (await me.experimental.call_tool_as_task(tool, {"topic": "straits"})).task.taskId
        running = await me.experimental.list_tasks()
        await ended.wait()
        listed = await me.experimental.list_tasks()
        result = await me.experimental.get_task_result(id, types.CallToolResult)
        return {
            "notified": [[received.taskId == id, received.status] for received in statuses],
            "running": [[task.taskId == id, task.status] for task in running.tasks],
            "listed": [[task.taskId == id, task.status] for task in listed.tasks],
            "is_error": result.isError,
        }


async def refused(me: ClientSession, id: str) -> int:
    """The code with which a task that is not there is refused."""
    try:
        await me.experimental.get_task(id)
    except McpError as error:
        return error.error.code
    return 0


async def bounded(mode: str, url: str, tool: str) -> None:
    """Run, and report what was found."""
    with anyio.fail_after(CLIENT_SECONDS):
        found = await (call_task if mode == "call" else follow)(url, tool)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    if sys.argv[1] in ("serve", "plain"):
        anyio.run(serve, server if sys.argv[1] == "serve" else plain)
    else:
        anyio.run(bounded, *sys.argv[1:])
