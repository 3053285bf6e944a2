"""An agent of the official SDK of A2A 1.0: `agent_v1 [--binding HTTP+JSON] [--silent]`."""

from __future__ import annotations

import base64

from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as wire
from google.protobuf.struct_pb2 import Struct, Value
from starlette.applications import Starlette

from tests.agents.agent_behaviour import Options, listen, parse_options, respond, serve
from tests.peers.serving import note

STATES = {
    "completed": wire.TASK_STATE_COMPLETED,
    "failed": wire.TASK_STATE_FAILED,
    "rejected": wire.TASK_STATE_REJECTED,
    "input_required": wire.TASK_STATE_INPUT_REQUIRED,
    "auth_required": wire.TASK_STATE_AUTH_REQUIRED,
}


class SdkReply:
    """The reply to one message, sent with the SDK's own classes."""

    def __init__(self, context: RequestContext, queue: EventQueue) -> None:
        self._context = context
        self._queue = queue
        self.text = context.get_user_input()
        self.is_follow_up = context.current_task is not None
        self._updater = TaskUpdater(queue, context.task_id, context.context_id)

    async def begin(self) -> None:
        await self._queue.enqueue_event(new_task_from_user_message(self._context.message))

    async def report(self, text: str) -> None:
        await self._updater.start_work(self._updater.new_agent_message([wire.Part(text=text)]))

    async def make(self, *parts: wire.Part, id: str, is_more: bool = False) -> None:
        await self._updater.add_artifact(list(parts), artifact_id=id, append=is_more)

    async def end(self, how: str, text: str = "") -> None:
        message = self._updater.new_agent_message([wire.Part(text=text)]) if text else None
        await self._updater.update_status(STATES[how], message)

    async def say(self, text: str) -> None:
        await self._queue.enqueue_event(self._updater.new_agent_message([wire.Part(text=text)]))

    def text_part(self, text: str) -> wire.Part:
        return wire.Part(text=text)

    def data_part(self, data: dict[str, object]) -> wire.Part:
        struct = Struct()
        struct.update(data)
        return wire.Part(data=Value(struct_value=struct))

    def file_part(self, content: str, name: str, media_type: str) -> wire.Part:
        return wire.Part(raw=base64.b64decode(content), filename=name, media_type=media_type)

    def link_part(self, url: str, name: str, media_type: str) -> wire.Part:
        return wire.Part(url=url, filename=name, media_type=media_type)


class Executor(AgentExecutor):
    """Does what messages say."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await respond(SdkReply(context, event_queue))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        note("cancelled")
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str, options: Options) -> wire.AgentCard:
    """The agent's card."""
    return wire.AgentCard(
        name="Official 1.0",
        description="An agent of the official SDK.",
        version="1",
        supported_interfaces=[
            wire.AgentInterface(url=url, protocol_binding=options.binding, protocol_version="1.0"),
        ],
        capabilities=wire.AgentCapabilities(streaming=not options.silent),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[wire.AgentSkill(id="run_tools", name="Run tools", description="Does what it is told.", tags=["test"])],
    )


def main() -> None:
    """Serve until killed."""
    options = parse_options()
    socket = listen(options.port)
    port = options.public or socket.getsockname()[1]
    described = card(f"http://127.0.0.1:{port}/rpc", options)
    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore(), described)
    if options.binding == "JSONRPC":
        routes = create_jsonrpc_routes(handler, "/rpc")
    else:
        routes = create_rest_routes(handler, path_prefix="/rpc")
    serve(Starlette(routes=[*create_agent_card_routes(described), *routes]), socket)


main()
