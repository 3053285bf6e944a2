"""Tools for programs that call a language model's API themselves.

`Dispatcher.tools` returns the tools of a service in a provider's form; `Dispatcher.dispatch` takes the model's reply,
executes the calls in it, and returns the messages to send next. Replies may be dictionaries or objects of a provider's
package; none of these packages is needed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, assert_never, get_args

from isthmus.library.agent_tools import (
    AgentTools,
    Approval,
    CallOptions,
    Listener,
    Selection,
    check_values,
    llm_name_of,
    not_approved,
    parse_arguments,
    unreadable_arguments,
)
from isthmus.library.loop_thread import LoopThread
from isthmus.library.provider_formats import (
    ModelImage,
    ModelText,
    anthropic_schema,
    gemini_schema,
    model_parts,
    openai_schema,
    result_text,
    result_value,
)
from isthmus.library.public_types import ToolResult, UniversalTool, UserContext
from isthmus.library.service import ToolService

Provider: TypeAlias = Literal["responses", "chat_completions", "anthropic", "gemini"]
"""OpenAI's Responses and Chat Completions, Anthropic's Messages, Gemini's `generateContent`."""

PROVIDERS = ("openai", *get_args(Provider))


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A tool call by a model."""

    provider: Provider
    id: str | None
    name: str
    arguments: Mapping[str, Any] | None
    """None if they are not a JSON object."""
    repeats: int = 0
    """How many earlier calls of the reply have the same id, or the same name if there is no id."""

    @property
    def key(self) -> str:
        """Identifies the call within its reply: the id, or the name if the provider gives no id.

        A second call with the same key ends in `#2`, and so on: approving one approves no other.
        """
        base = self.id or self.name
        return f"{base}#{self.repeats + 1}" if self.repeats else base


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A model's call and its result."""

    call: ModelCall
    result: ToolResult


class Dispatcher:
    """The tools of a service for one conversation with a model."""

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
        """Select the tools and the user of the conversation.

        Args:
            service: an initialized service.
            names: names in any form, or the tools of a task request; by default all that the user may use.
            user_context: the user of the calls.
            session_id: the conversation, sent to servers.
            headers: sent to servers that are configured to receive them.
            needs_approval: calls that are executed only if `dispatch` gets their keys in `approved`.
            timeout: seconds for a whole call; progress does not extend it.
            on_event: called with progress and log chunks while a tool runs.

        Raises:
            TypeError: `user_context`, `session_id` or `headers` is a function.
        """
        check_values("A Dispatcher", user_context=user_context, session_id=session_id, headers=headers)
        self._tools = AgentTools(service, names, needs_approval=needs_approval)
        self._options: CallOptions[None] = CallOptions(user_context, session_id, headers, timeout)
        self._on_event = on_event

    async def tools(self, provider: Provider | Literal["openai"] = "openai") -> list[dict[str, Any]]:
        """The current tools for the provider's `tools` parameter.

        `"openai"` is the Responses API, as in `ToolRegistry.to_openai_schema`.

        Raises:
            ToolError, UnresolvedToolsError: on the first call, for names that are unknown or denied.
        """
        schemas = [_schema(provider, tool) for tool in await self._tools.tools(self._options.list_user)]
        return [{"functionDeclarations": schemas}] if provider == "gemini" else schemas

    async def dispatch(self, reply: Any, *, approved: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Execute all calls of a reply concurrently and return the messages with their results.

        Args:
            reply: a response, a message, one call or a list of calls, of any provider.
            approved: keys of approved calls (`ModelCall.key`).

        Raises:
            TypeError: the reply is unreadable, for example a coroutine that was not awaited.
        """
        return messages_for(await self.execute(reply, approved=approved))

    async def execute(self, reply: Any, *, approved: Iterable[str] = ()) -> list[Dispatched]:
        """Execute all calls of a reply and return the results; `messages_for` makes messages of them."""
        keys = frozenset(approved)
        calls = calls_in(reply)
        if len(calls) > 1:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass  # Trio: one after the other
            else:
                return await _concurrently([self._execute(call, keys) for call in calls])
        return [await self._execute(call, keys) for call in calls]

    def tools_blocking(self, provider: Provider | Literal["openai"] = "openai") -> list[dict[str, Any]]:
        """`tools` for a program without a loop."""
        return LoopThread.shared().run_blocking(self.tools(provider))

    def dispatch_blocking(self, reply: Any, *, approved: Iterable[str] = ()) -> list[dict[str, Any]]:
        """`dispatch` for a program without a loop; `on_event` is then called on the hub's thread."""
        return LoopThread.shared().run_blocking(self.dispatch(reply, approved=approved))

    async def waiting(self, reply: Any) -> list[ModelCall]:
        """The calls of a reply that need approval."""
        calls: list[ModelCall] = []
        for call in calls_in(reply):
            tool = await self._tools.find(call.name, self._options.list_user)
            if tool is not None and self._tools.is_approval_needed(tool, call.arguments or {}):
                calls.append(call)
        return calls

    async def _execute(self, call: ModelCall, approved: frozenset[str]) -> Dispatched:
        user = self._options.list_user
        found = await self._tools.look_up(call.name, user)
        if isinstance(found, ToolResult):
            refusal = found
        elif call.arguments is None:
            refusal = unreadable_arguments(found.name)
        elif self._tools.is_approval_needed(found, call.arguments) and call.key not in approved:
            refusal = not_approved(found)
        else:
            request = self._options.request(found, call.arguments, None)
            return Dispatched(call, await self._tools.execute(request, self._on_event))
        session = self._options.session(None)
        return Dispatched(call, self._tools.service.noted(refusal, call.arguments, user, session))


async def _concurrently(works: list[Coroutine[Any, Any, Dispatched]]) -> list[Dispatched]:
    """Run all at once; if one raises, cancel the others and wait for their end before raising it."""
    failures: list[Exception] = []

    async def watched(work: Coroutine[Any, Any, Dispatched]) -> Dispatched:
        try:
            return await work
        except Exception as error:
            failures.append(error)
            together.cancel()
            raise

    # Without `return_exceptions` the first exception would be raised while the others still run.
    together = asyncio.gather(*(watched(work) for work in works), return_exceptions=True)
    try:
        results = await together
    except asyncio.CancelledError:
        task = asyncio.current_task()
        is_cancelled = task is not None and task.cancelling() > 0
        if failures and not is_cancelled:
            raise failures[0] from None
        raise
    done: list[Dispatched] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


def _schema(provider: Provider | Literal["openai"], tool: UniversalTool) -> dict[str, Any]:
    name, description, schema = llm_name_of(tool), tool.description, tool.parameters_schema
    match provider:
        case "openai":
            return openai_schema(name, description, schema)
        case "responses" | "chat_completions":
            return openai_schema(name, description, schema, provider)
        case "anthropic":
            return anthropic_schema(name, description, schema)
        case "gemini":
            return gemini_schema(name, description, schema)
        case _:
            raise ValueError(f"provider must be one of {', '.join(PROVIDERS)}, not {provider!r}")


# -- calls in a reply --------------------------------------------------------------------------------------------------


def calls_in(reply: Any) -> list[ModelCall]:
    """The calls in a reply, in order.

    Raises:
        TypeError: part of the reply is unreadable and might hold calls.
    """
    calls: dict[str, ModelCall] = {}
    for call in _find_calls(reply):
        while call.key in calls:
            call = replace(call, repeats=call.repeats + 1)  # noqa: PLW2901 - until its key is unique
        calls[call.key] = call
    return list(calls.values())


def _find_calls(reply: Any) -> list[ModelCall]:
    reply = _plain(reply)
    if isinstance(reply, list | tuple):
        return [call for each in reply for call in _find_calls(each)]
    if reply is None or isinstance(reply, str | int | float):
        return []  # text, or nothing
    if not isinstance(reply, Mapping):
        kind = type(reply).__name__
        raise TypeError(f"a reply must be a provider's object or a dictionary, not {kind}: pass what its API returned")
    call = _call_of(reply)
    inside = [_plain(reply[key]) for key in _INSIDE if key in reply and not isinstance(reply[key], str)]
    return [call] if call is not None else [found for inner in inside for found in _find_calls(inner)]


_INSIDE = (
    "choices",
    "message",
    "tool_calls",
    "output",
    "content",
    "candidates",
    "parts",
)
"""Members of a reply that hold calls, for all providers, from the outside in."""


def _plain(value: Any) -> Any:
    """A provider's pydantic object as a dictionary; other values unchanged."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", by_alias=True, exclude_none=True) if callable(dump) else value


def _call_of(item: Mapping[str, Any]) -> ModelCall | None:
    match item:
        case {"type": "function_call", "call_id": str(id_), "name": str(name)}:
            return ModelCall("responses", id_, name, parse_arguments(item.get("arguments")))
        case {"type": "tool_use", "id": str(id_), "name": str(name)}:
            return ModelCall("anthropic", id_, name, parse_arguments(item.get("input")))
        case {"id": str(id_), "function": {"name": str(name)} as function}:
            return ModelCall("chat_completions", id_, name, parse_arguments(function.get("arguments")))
        case {"function_call": {"name": str(name), "arguments": arguments}}:  # OpenAI before `tool_calls`
            return ModelCall("chat_completions", None, name, parse_arguments(arguments))
        case {"functionCall": {"name": str(name)} as function} | {"function_call": {"name": str(name)} as function}:
            return ModelCall("gemini", function.get("id"), name, parse_arguments(function.get("args")))
        case _:
            return None


# -- messages for the model -------------------------------------------------------------------------------------------


def messages_for(done: Iterable[Dispatched]) -> list[dict[str, Any]]:
    """The messages with the results: one per call, or, for Anthropic and Gemini, one for all calls."""
    messages: list[dict[str, Any]] = []
    tool_results: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    for each in done:
        call, result = each.call, each.result
        provider: Provider = call.provider
        match provider:
            case "chat_completions" if call.id is None:
                messages.append({"role": "function", "name": call.name, "content": result_text(result)})
            case "chat_completions":
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result_text(result)})
            case "responses":
                output: Any = result_text(result)
                parts = model_parts(result)
                if any(isinstance(part, ModelImage) for part in parts):
                    output = [
                        {"type": "input_image", "image_url": part.url}
                        if isinstance(part, ModelImage)
                        else {"type": "input_text", "text": part.text}
                        for part in parts
                    ]
                messages.append({"type": "function_call_output", "call_id": call.id, "output": output})
            case "anthropic":
                content = [
                    {"type": "image", "source": {"type": "base64", "media_type": part.mime, "data": part.data}}
                    if isinstance(part, ModelImage)
                    else {"type": "text", "text": part.text}
                    for part in model_parts(result)
                    if part != ModelText("")  # a text block must not be empty; the list may be
                ]
                is_error = {} if result.is_success else {"is_error": True}
                tool_results.append({"type": "tool_result", "tool_use_id": call.id, "content": content, **is_error})
            case "gemini":
                body = {"output": result_value(result)} if result.is_success else {"error": result_text(result)}
                response = {"name": call.name, "response": body}
                responses.append({"functionResponse": response if call.id is None else {**response, "id": call.id}})
            case _:
                assert_never(provider)
    if tool_results:
        messages.append({"role": "user", "content": tool_results})
    if responses:
        messages.append({"role": "user", "parts": responses})
    return messages
