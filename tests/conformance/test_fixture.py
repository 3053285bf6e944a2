"""The fixture holds together; whether it conforms is for the suite to say."""

from __future__ import annotations

from mcp.server.streamable_http import EventMessage
from mcp_types import ClientCapabilities, JSONRPCNotification, SamplingCapability

from tests.conformance import listings, tools
from tests.conformance.questions import Questions, answerable, model, roots, user
from tests.conformance.replay import Book


def test_every_tool_that_is_listed_does_something() -> None:
    assert {tool.name for tool in listings.TOOLS} == set(tools.HANDLERS) - {tools.extra_tool.name}


def test_a_caller_gets_only_questions_of_its_capabilities() -> None:
    questions: Questions = {"user": user("Who?", listings.NAME_FORM), "model": model("Hello."), "roots": roots()}
    assert answerable(questions, ClientCapabilities(sampling=SamplingCapability())).keys() == {"model"}
    assert not answerable(questions, None)


async def test_a_returning_caller_gets_missed_events_of_its_own_stream() -> None:
    book, sent = Book(), list[EventMessage]()
    mine, other = (JSONRPCNotification(jsonrpc="2.0", method=f"notifications/{word}") for word in ("mine", "other"))

    async def send(event: EventMessage) -> None:
        sent.append(event)

    first = await book.store_event("a", None)
    await book.store_event("b", other)
    last = await book.store_event("a", mine)
    assert await book.replay_events_after(first, send) == "a"
    assert sent == [EventMessage(mine, last)]
    assert await book.replay_events_after("99", send) is None
