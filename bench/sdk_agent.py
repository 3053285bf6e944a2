"""An agent of the official SDK of A2A that echoes: what the hub's tasks are compared with.

Run by the interpreter that has the SDK as `python -m bench.sdk_agent memory`, or with the path of a file for the
SDK's own store on SQLite, or the URL of a database for the same on PostgreSQL; it prints `PORT n` first. It does no
more than examples of the SDK do for one answer: a task, that it is worked on, an artifact and the end.
"""

from __future__ import annotations

import socket
import sys

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import a2a_pb2 as wire
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

PATH = "/a2a"


class Echo(AgentExecutor):
    """Gives back the text among the arguments of the message's data."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer one message."""
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        arguments = context.message.parts[0].data.struct_value.fields["arguments"].struct_value
        await updater.start_work()
        await updater.add_artifact([wire.Part(text=arguments.fields["text"].string_value)])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing takes long enough."""


def store(place: str) -> TaskStore:
    """Where the SDK keeps tasks: in memory, in a file, or in a database."""
    if place == "memory":
        return InMemoryTaskStore()
    if place.startswith("postgresql"):
        return DatabaseTaskStore(create_async_engine(place))
    return DatabaseTaskStore(create_async_engine(f"sqlite+aiosqlite:///{place}"))


def main() -> None:
    """Serve until killed."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    card = wire.AgentCard(
        name="Echo",
        description="Echoes.",
        version="1",
        supported_interfaces=[
            wire.AgentInterface(
                url=f"http://127.0.0.1:{port}{PATH}", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=wire.AgentCapabilities(),
        default_input_modes=["application/json"],
        default_output_modes=["text/plain"],
        skills=[wire.AgentSkill(id="echo", name="Echo", description="Echoes.", tags=["bench"])],
    )
    handler = DefaultRequestHandler(Echo(), store(sys.argv[1]), card)
    print(f"PORT {port}", flush=True)
    app = Starlette(routes=create_jsonrpc_routes(handler, PATH))
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    main()
