"""Tools for programs that speak to a language model by themselves: function JSON, and answers to the model's calls.

`Dispatcher.tools` gives the tools of a service in the form that a provider takes; `Dispatcher.dispatch` takes what the
model replied, executes the calls in it, and returns the messages to send next. Replies may be dictionaries or the
objects of a provider's own package, none of which is needed here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, assert_never, get_args

from isthmus.library.contracts import ToolResult, UniversalTool, UserContext
from isthmus.library.forms import anthropic_form, gemini_form, openai_form
from isthmus.library.owner import Owner
from isthmus.library.parts import Image, Part, Text, parts_of, said_by, value_of
from isthmus.library.service import ToolService
from isthmus.library.toolbox import (
    Approval,
    Listener,
    Selection,
    Terms,
    Toolbox,
    check_values,
    llm_name_of,
    not_approved,
    unreadable,
)

Provider: TypeAlias = Literal["responses", "chat_completions", "anthropic", "gemini"]
"""Whose form: OpenAI's Responses, OpenAI's Chat Completions, Anthropic's Messages, Gemini's `generateContent`."""

PROVIDERS = ("openai", *get_args(Provider))


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call that a model made."""

    provider: Provider
    id: str | None
    name: str
    arguments: Mapping[str, Any] | None
    """None if they are no object."""
    repeats: int = 0
    """How often its id, or, without one, its name, was there before it in its reply."""

    @property
    def key(self) -> str:
        """What tells it from the others of its reply: its id, or, from a provider that gives none, its name.

        The second that has it ends in `#2`, and so on: who agrees to one agrees to no other.
        """
        return f"{self._base}#{self.repeats + 1}" if self.repeats else self._base

    @property
    def _base(self) -> str:
        return self.id or self.name


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A call of a model, and how it ended."""

    call: ModelCall
    result: ToolResult


class Dispatcher:
    """Tools of a service for one conversation with a model."""

    def __init__(
        self,
        service: ToolService,
        names: Selection | None = None,
        user_context: UserContext | None = None,
        *,
        session_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        needs_approval: Approval = False,
        timeout: float | None = None,
        on_event: Listener | None = None,
    ) -> None:
        """What the model has.

        Args:
            service: an initialised service.
            names: in any form, or the tools of a task request; without, everything that the user may use.
            user_context: on whose behalf.
            session_id: what servers are told as the conversation.
            headers: sent to those servers that are configured to receive them.
            needs_approval: which calls are not executed unless `dispatch` is told that they are approved.
            timeout: seconds that a whole call may take; progress does not extend it.
            on_event: told of progress and logs while a tool runs.

        Raises:
            TypeError: one of the user, the session and the headers is a function.
        """
        check_values("A Dispatcher", user_context=user_context, session_id=session_id, headers=headers)
        self._box = Toolbox(service, names, needs_approval=needs_approval)
        self._terms: Terms[None] = Terms(user_context, session_id, headers, timeout)
        self._on_event = on_event

    async def tools(self, provider: Provider | Literal["openai"] = "openai") -> list[dict[str, Any]]:
        """What to send as `tools` (for Gemini: as its one element), as it is at this moment.

        `"openai"` is its Responses, as in a registry's `to_openai_schema`; replies are read whatever the form.

        Raises:
            ToolError, UnresolvedToolsError: at first, for names that are no tool's or not this user's to use.
        """
        forms = [_form(provider, tool) for tool in await self._box.tools(self._terms.lister)]
        return [{"functionDeclarations": forms}] if provider == "gemini" else forms

    async def dispatch(self, reply: Any, *, approved: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Execute all calls of a reply, side by side, and return the messages that answer them; none if it has none.

        Args:
            reply: a response, a message, one call or a list of calls, of any provider.
            approved: ids of calls that somebody agreed to (`ModelCall.key`).

        Raises:
            TypeError: the reply cannot be read, such as one that was not awaited.
        """
        return messages_for(await self.execute(reply, approved=approved))

    async def execute(self, reply: Any, *, approved: Iterable[str] = ()) -> list[Dispatched]:
        """The same with the results as they are; `messages_for` makes messages of them."""
        agreed = frozenset(approved)
        calls = calls_in(reply)
        if len(calls) > 1 and _is_asyncio():
            return await _side_by_side([self._execute(call, agreed) for call in calls])
        return [await self._execute(call, agreed) for call in calls]

    def tools_blocking(self, provider: Provider | Literal["openai"] = "openai") -> list[dict[str, Any]]:
        """`tools` for a program without a loop."""
        return Owner.shared().wait(self.tools(provider))

    def dispatch_blocking(self, reply: Any, *, approved: Iterable[str] = ()) -> list[dict[str, Any]]:
        """`dispatch` for a program without a loop; `on_event` is then called on the hub's own thread."""
        return Owner.shared().wait(self.dispatch(reply, approved=approved))

    async def waiting(self, reply: Any) -> list[ModelCall]:
        """The calls of a reply to which somebody has to agree first."""
        return [call for call in calls_in(reply) if await self._is_waiting(call)]

    async def _is_waiting(self, call: ModelCall) -> bool:
        tool = await self._box.find(call.name, self._terms.lister)
        return tool is not None and self._box.is_approval_needed(tool, call.arguments or {})

    async def _execute(self, call: ModelCall, approved: frozenset[str]) -> Dispatched:
        return Dispatched(call, await self._result(call, approved))

    async def _result(self, call: ModelCall, approved: frozenset[str]) -> ToolResult:
        found = await self._box.look_up(call.name, self._terms.lister)
        tool = found if isinstance(found, ToolResult) else self._unless_refused(found, call, approved)
        if isinstance(tool, ToolResult):
            return self._box.service.noted(tool, call.arguments, self._terms.lister, self._terms.session(None))
        request = self._terms.request(tool, call.arguments or {}, None)
        return await self._box.execute(request, self._on_event)

    def _unless_refused(
        self, tool: UniversalTool, call: ModelCall, approved: frozenset[str]
    ) -> UniversalTool | ToolResult:
        if call.arguments is None:
            return unreadable(tool.name)
        if self._box.is_approval_needed(tool, call.arguments) and call.key not in approved:
            return not_approved(tool)
        return tool


async def _side_by_side(works: list[Coroutine[Any, Any, Dispatched]]) -> list[Dispatched]:
    """Do them all at once; if one raises, the others are cancelled, and have ended when it is raised here."""
    failures: list[Exception] = []

    async def watched(work: Coroutine[Any, Any, Dispatched]) -> Dispatched:
        try:
            return await work
        except Exception as error:
            failures.append(error)
            together.cancel()
            raise

    # Without `return_exceptions` the first exception is raised while the others are still running.
    together = asyncio.gather(*(watched(work) for work in works), return_exceptions=True)
    try:
        done = await together
    except asyncio.CancelledError:
        if failures and not _is_being_cancelled():
            raise failures[0] from None
        raise
    return [_unless_raised(each) for each in done]


def _unless_raised(done: Dispatched | BaseException) -> Dispatched:
    if isinstance(done, BaseException):
        raise done
    return done


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _form(provider: Provider | Literal["openai"], tool: UniversalTool) -> dict[str, Any]:
    name, description, schema = llm_name_of(tool), tool.description, tool.parameters_schema
    match provider:
        case "openai":
            return openai_form(name, description, schema)
        case "responses" | "chat_completions":
            return openai_form(name, description, schema, provider)
        case "anthropic":
            return anthropic_form(name, description, schema)
        case "gemini":
            return gemini_form(name, description, schema)
        case _:
            raise ValueError(f"provider must be one of {', '.join(PROVIDERS)}, not {provider!r}")


# -- what a model replied ----------------------------------------------------------------------------------------------


def calls_in(reply: Any) -> list[ModelCall]:
    """The calls in a reply, in their order.

    Raises:
        TypeError: something in it cannot be read, so that nobody knows whether it has any.
    """
    calls: dict[str, ModelCall] = {}
    for call in _found_in(reply):
        while call.key in calls:
            call = replace(call, repeats=call.repeats + 1)  # noqa: PLW2901 - until it is told from all the others
        calls[call.key] = call
    return list(calls.values())


def _found_in(reply: Any) -> list[ModelCall]:
    reply = _plain(reply)
    if isinstance(reply, list | tuple):
        return [call for each in reply for call in _found_in(each)]
    if reply is None or isinstance(reply, str | int | float):
        return []  # words, or nothing said
    if not isinstance(reply, Mapping):
        kind = type(reply).__name__
        raise TypeError(f"a reply is a provider's object or a dictionary, not {kind}: give what its API answered")
    call = _call_of(reply)
    return [call] if call is not None else [found for inner in _inside(reply) for found in _found_in(inner)]


_INSIDE = (
    "choices",
    "message",
    "tool_calls",
    "output",
    "content",
    "candidates",
    "parts",
)
"""Where a reply has its calls: chat completions, Responses, Messages and Gemini, from the outside in."""


def _inside(reply: Mapping[str, Any]) -> list[Any]:
    return [_plain(reply[key]) for key in _INSIDE if key in reply and not isinstance(reply[key], str)]


def _plain(value: Any) -> Any:
    """A provider's object as the dictionary that it stands for; whatever else it is, as it is."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", by_alias=True, exclude_none=True) if callable(dump) else value


def _call_of(item: Mapping[str, Any]) -> ModelCall | None:
    match item:
        case {"type": "function_call", "call_id": str(id_), "name": str(name)}:
            return ModelCall("responses", id_, name, _arguments(item.get("arguments")))
        case {"type": "tool_use", "id": str(id_), "name": str(name)}:
            return ModelCall("anthropic", id_, name, _arguments(item.get("input")))
        case {"id": str(id_), "function": {"name": str(name)} as function}:
            return ModelCall("chat_completions", id_, name, _arguments(function.get("arguments")))
        case {"function_call": {"name": str(name), "arguments": arguments}}:  # as OpenAI had it before `tool_calls`
            return ModelCall("chat_completions", None, name, _arguments(arguments))
        case {"functionCall": {"name": str(name)} as function} | {"function_call": {"name": str(name)} as function}:
            return ModelCall("gemini", function.get("id"), name, _arguments(function.get("args")))
        case _:
            return None


def _arguments(given: Any) -> Mapping[str, Any] | None:
    """Arguments, as an object or as its JSON; models leave them out where there are none."""
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return None
    return given if isinstance(given, dict) else None


# -- what the model is told --------------------------------------------------------------------------------------------


def messages_for(done: Iterable[Dispatched]) -> list[dict[str, Any]]:
    """Messages that answer calls: one for each, or, for Anthropic and Gemini, one for all of them."""
    messages: list[dict[str, Any]] = []
    tool_results: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    for each in done:
        provider: Provider = each.call.provider
        match provider:
            case "chat_completions":
                messages.append(_tool_message(each))
            case "responses":
                messages.append(_function_call_output(each))
            case "anthropic":
                tool_results.append(_tool_result(each))
            case "gemini":
                responses.append(_function_response(each))
            case _:
                assert_never(provider)
    if tool_results:
        messages.append({"role": "user", "content": tool_results})
    if responses:
        messages.append({"role": "user", "parts": responses})
    return messages


def _tool_message(done: Dispatched) -> dict[str, Any]:
    told = said_by(done.result)
    if done.call.id is None:
        return {"role": "function", "name": done.call.name, "content": told}
    return {"role": "tool", "tool_call_id": done.call.id, "content": told}


def _function_call_output(done: Dispatched) -> dict[str, Any]:
    parts = parts_of(done.result)
    has_images = any(isinstance(part, Image) for part in parts)
    output = [_input_item(part) for part in parts] if has_images else said_by(done.result)
    return {"type": "function_call_output", "call_id": done.call.id, "output": output}


def _input_item(part: Part) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": part.url}
    return {"type": "input_text", "text": part.text}


def _tool_result(done: Dispatched) -> dict[str, Any]:
    # A block of text must not be empty, the list of blocks may.
    content = [_block(part) for part in parts_of(done.result) if part != Text("")]
    answer = {"type": "tool_result", "tool_use_id": done.call.id, "content": content}
    return answer if done.result.is_success else {**answer, "is_error": True}


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "image", "source": {"type": "base64", "media_type": part.mime, "data": part.data}}
    return {"type": "text", "text": part.text}


def _function_response(done: Dispatched) -> dict[str, Any]:
    """Gemini's words for the two ends are `output` and `error`."""
    result = done.result
    told = {"output": value_of(result)} if result.is_success else {"error": said_by(result)}
    response = {"name": done.call.name, "response": told}
    if done.call.id is not None:
        response["id"] = done.call.id
    return {"functionResponse": response}
