"""Tools of a hub for a program that speaks to a model by itself: replies of every provider, real servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.library import Dispatcher, TaskEngine, ToolService, UserContext
from isthmus.library.dispatcher import Provider, messages_for
from tests.frameworks.inside.served import (
    EXECUTED,
    MISSES,
    READER,
    SECONDS,
    TYPED,
    UNREADABLE,
    let_go,
    seconds_for,
    serving,
    wait_for_note,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dispatcher")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ToolService]:
    with serving(folder) as made:
        yield made


def reply(provider: Provider, name: str, arguments: Any) -> dict[str, Any]:
    """A call in the words of a provider; arguments may be the text that a model wrote."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    match provider:
        case "openai":
            return {"id": "call", "type": "function", "function": {"name": name, "arguments": written}}
        case "responses":
            return {"type": "function_call", "call_id": "call", "name": name, "arguments": written}
        case "anthropic":
            return {"type": "tool_use", "id": "call", "name": name, "input": arguments}
        case "gemini":
            return {"functionCall": {"name": name, "args": arguments}}


def text_for_model(provider: Provider, message: dict[str, Any]) -> str:
    """What the model reads in an answer."""
    match provider:
        case "openai":
            return str(message["content"])
        case "responses":
            return str(message["output"])
        case "anthropic":
            (result,) = message["content"]
            return "".join(block["text"] for block in result["content"])
        case "gemini":
            (part,) = message["parts"]
            return str(part["functionResponse"]["response"].get("error"))


PROVIDERS: list[Provider] = ["openai", "responses", "anthropic", "gemini"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("name", "arguments", "status", "words"), [*EXECUTED, *UNREADABLE])
async def test_every_way_to_fail_has_its_own_status_and_message(
    service: ToolService, provider: Provider, name: str, arguments: Any, status: str, words: str
) -> None:
    dispatcher = Dispatcher(service, timeout=seconds_for(status))
    (done,) = await dispatcher.execute(reply(provider, name, arguments))
    (message,) = messages_for([done])
    assert done.result.status == status
    assert re.search(words, text_for_model(provider, message))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("name", "user", "status", "words"), MISSES)
async def test_an_unlisted_name_is_answered_with_its_status(
    service: ToolService, provider: Provider, name: str, user: UserContext | None, status: str, words: str
) -> None:
    (done,) = await Dispatcher(service, user_context=user).execute(reply(provider, name, {}))
    (message,) = messages_for([done])
    assert done.result.status == status
    assert words in text_for_model(provider, message)


async def test_a_task_from_typed_names_to_the_answer(service: ToolService) -> None:
    task = await TaskEngine(service).create_task_request(
        tool_names=TYPED, description="Index, then search.", user_context=READER, session_id="task 1"
    )
    seen: list[Any] = []

    async def hear(chunk: Any) -> None:
        seen.append(chunk.content["progress"])
        await let_go(service)  # the tool goes on only when its progress was seen

    dispatcher = Dispatcher(service, task.available_tools, task.user_context, session_id=task.session_id, on_event=hear)
    offered = [each["name"] for each in await dispatcher.tools("anthropic")]
    calls = [("mcp_docs_index", {"steps": 2}), ("mcp_docs_search", {"query": "locks"}), ("mcp_docs_erase", {})]
    async with asyncio.timeout(SECONDS):
        indexed, searched, erased = await dispatcher.execute([reply("anthropic", *call) for call in calls])
    assert (offered, seen) == (["mcp_docs_search", "mcp_docs_index"], [1, 2])
    assert [each.result.status for each in (indexed, searched, erased)] == ["success", "success", "unauthorized"]
    assert searched.result.result_data["meta"]["isthmus/session"] == "task 1"


async def test_cancelling_the_wait_cancels_the_tool(service: ToolService, folder: Path) -> None:
    started = asyncio.Event()
    dispatcher = Dispatcher(service, on_event=lambda chunk: started.set())
    running = asyncio.create_task(dispatcher.dispatch(reply("openai", "mcp_docs_hang", {"token": "plain"})))
    await asyncio.wait_for(started.wait(), SECONDS)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_for_note(folder, "cancelled plain")
