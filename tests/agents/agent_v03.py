"""An agent of the last official SDK of A2A 0.3: `agent_v03 [--binding HTTP+JSON] [--silent]`."""

from __future__ import annotations

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    Part,
    TaskState,
    TextPart,
)
from a2a.utils import new_task

from tests.agents.agent_behaviour import Options, listen, parse_options, respond, serve
from tests.peers.serving import note

STATES = {
    "completed": TaskState.completed,
    "failed": TaskState.failed,
    "rejected": TaskState.rejected,
    "input_required": TaskState.input_required,
    "auth_required": TaskState.auth_required,
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
        await self._queue.enqueue_event(new_task(self._context.message))

    async def report(self, text: str) -> None:
        await self._updater.start_work(self._updater.new_agent_message([self.text_part(text)]))

    async def make(self, *parts: Part, id: str, is_more: bool = False) -> None:
        await self._updater.add_artifact(list(parts), artifact_id=id, append=is_more)

    async def end(self, how: str, text: str = "") -> None:
        message = self._updater.new_agent_message([self.text_part(text)]) if text else None
        await self._updater.update_status(STATES[how], message, final=True)

    async def say(self, text: str) -> None:
        await self._queue.enqueue_event(self._updater.new_agent_message([self.text_part(text)]))

    def text_part(self, text: str) -> Part:
        return Part(root=TextPart(text=text))

    def data_part(self, data: dict[str, object]) -> Part:
        return Part(root=DataPart(data=data))

    def file_part(self, content: str, name: str, media_type: str) -> Part:
        return Part(root=FilePart(file=FileWithBytes(bytes=content, name=name, mime_type=media_type)))

    def link_part(self, url: str, name: str, media_type: str) -> Part:
        return Part(root=FilePart(file=FileWithUri(uri=url, name=name, mime_type=media_type)))


class Executor(AgentExecutor):
    """Does what messages say."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await respond(SdkReply(context, event_queue))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        note("cancelled")
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str, options: Options) -> AgentCard:
    """The agent's card."""
    return AgentCard(
        name="Official 0.3",
        description="An agent of the official SDK.",
        version="1",
        url=url,
        preferred_transport=options.binding,
        capabilities=AgentCapabilities(streaming=not options.silent),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="run_tools", name="Run tools", description="Does what it is told.", tags=["test"])],
    )


def main() -> None:
    """Serve until killed."""
    options = parse_options()
    socket = listen(options.port)
    origin = f"http://127.0.0.1:{options.public or socket.getsockname()[1]}"
    described = card(f"{origin}/rpc" if options.binding == "JSONRPC" else origin, options)
    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore())
    if options.binding == "JSONRPC":
        serve(A2AStarletteApplication(described, handler).build(rpc_url="/rpc"), socket)
    else:
        serve(A2ARESTFastAPIApplication(described, handler).build(), socket)


main()
