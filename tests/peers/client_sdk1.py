"""A client on the official SDK, mcp 1.x, as a script: JSON steps on stdin, one JSON line per step out.

It runs in an environment of its own; from a test call `run_sdk1` of `sdk1_steps`. Steps: `{"do": "hello"}`,
`{"do": "list"}`, `{"do": "ping"}`, `{"do": "call", "tool": …, "arguments": …, "progress": true, "meta": …}`,
`{"do": "cancel", "tool": …, "arguments": …}` (cancels at the first progress, or after `seconds` without any, and waits
`grace` seconds for an answer)
and `{"do": "changed", "within": seconds, "lists": tool}` (waits for an announcement; with `lists`, for as many as it
takes until the tool is listed, and gives the listing; `what` names another list than that of the tools).
Further ones, for `survey`: `resources`, `templates`, `prompts`, `read`, `prompt`, `complete`, `listen` and `updated` (a
resource's changes), `announcements`, and a call's `level`. Answers: `{"ok": true, …}` or `{"ok": false, "error": …}`.
With `--many` it serves many sessions at a time: each is a line `[number, options, steps]`, and so is each outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import httpx
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.websocket import websocket_client
from pydantic import AnyUrl

CALL_SECONDS = 30.0
"""What a peer may take for one answer before the step fails instead of hanging."""
GRACE_SECONDS = 1.0
"""How long to wait for the answer to a call that was cancelled, where none is expected."""


class Steps:
    """The steps of one session, and the notifications between them."""

    def __init__(self, session_streams: tuple[Any, Any]) -> None:
        self._announced: list[str] = []
        self._awaited: dict[str, int] = {}
        self._woken = anyio.Event()
        self._logs: list[dict[str, Any]] = []
        self.session = ClientSession(
            *session_streams,
            message_handler=self._hear,
            logging_callback=self._log,
            read_timeout_seconds=timedelta(seconds=CALL_SECONDS),
        )
        self._listings = {
            "tools": self.session.list_tools,
            "prompts": self.session.list_prompts,
            "resources": self.session.list_resources,
        }

    async def _hear(self, message: Any) -> None:
        match getattr(message, "root", None):
            case types.ToolListChangedNotification():
                self._announce("tools")
            case types.PromptListChangedNotification():
                self._announce("prompts")
            case types.ResourceListChangedNotification():
                self._announce("resources")
            case types.ResourceUpdatedNotification(params=params):
                self._announce(str(params.uri))
            case _:
                pass

    def _announce(self, word: str) -> None:
        self._announced.append(word)
        self._woken.set()
        self._woken = anyio.Event()

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self._logs.append(_plain(params))

    async def run(self, step: dict[str, Any], hello: types.InitializeResult) -> dict[str, Any]:
        """Do one step and return what to print; a refusal of the server is an answer too."""
        try:
            return {"ok": True, **await self._do(step, hello)}
        except McpError as refused:
            return {"ok": False, "error": refused.error.model_dump(mode="json", exclude_none=True)}
        except TimeoutError:
            return {"ok": False, "error": {"message": f"nothing within {step.get('within')} seconds"}}

    async def _do(self, step: dict[str, Any], hello: types.InitializeResult) -> dict[str, Any]:
        match step["do"]:
            case "hello":
                return {"hello": _plain(hello)}
            case "list":
                return _plain(await self.session.list_tools())
            case "ping":
                return {"pong": _plain(await self.session.send_ping())}
            case "call":
                return await self._call(step)
            case "cancel":
                return await self._cancel(step)
            case "changed":
                return await self._await_change(step)
            case _:
                return await self._survey(step)

    async def _survey(self, step: dict[str, Any]) -> dict[str, Any]:
        match step["do"]:
            case "resources" | "prompts" as what:
                return _plain(await self._listings[what]())
            case "templates":
                return _plain(await self.session.list_resource_templates())
            case "read":
                return {"result": _plain(await self.session.read_resource(AnyUrl(step["uri"])))}
            case "prompt":
                return {"result": _plain(await self.session.get_prompt(step["name"], step.get("arguments")))}
            case "complete":
                return {"result": _plain(await self._complete(step))}
            case "listen":
                return _plain(await self.session.subscribe_resource(AnyUrl(step["uri"])))
            case "updated":
                with anyio.fail_after(step["within"]):
                    await self._next(step["uri"])
                return {}
            case "announcements":
                return {"announcements": self._announced}
            case other:
                raise ValueError(f"no step is called {other!r}")

    async def _complete(self, step: dict[str, Any]) -> Any:
        ref = step["ref"]
        kind = types.PromptReference if ref["type"] == "ref/prompt" else types.ResourceTemplateReference
        return await self.session.complete(kind(**ref), step["argument"], step.get("known"))

    async def _call(self, step: dict[str, Any]) -> dict[str, Any]:
        seen: list[tuple[float, float | None, str | None]] = []

        async def watch(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total, message))

        if "level" in step:
            await self.session.set_logging_level(step["level"])
        self._logs.clear()
        result = await self.session.call_tool(
            step["tool"],
            step.get("arguments") or {},
            progress_callback=watch if step.get("progress") else None,
            meta=step.get("meta"),
        )
        return {"result": _plain(result), "progress": seen, "logs": list(self._logs)}

    async def _cancel(self, step: dict[str, Any]) -> dict[str, Any]:
        """Call, then send `notifications/cancelled` by hand: this SDK sends none when a task is cancelled."""
        begun, ended = anyio.Event(), anyio.Event()
        request_id = self.session._request_id
        answer: dict[str, Any] = {}

        async def watch(*_: Any) -> None:
            begun.set()

        async def call() -> None:
            try:
                result = await self.session.call_tool(step["tool"], step["arguments"], progress_callback=watch)
                answer["result"] = _plain(result)
            except McpError as refused:
                answer["error"] = refused.error.model_dump(mode="json", exclude_none=True)
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            with anyio.move_on_after(step.get("seconds", CALL_SECONDS)):
                await begun.wait()
            await self.session.send_notification(_cancelled(request_id))
            # Some servers answer a cancelled call and some do not; either is an answer to this step.
            with anyio.move_on_after(step.get("grace", GRACE_SECONDS)):
                await ended.wait()
            group.cancel_scope.cancel()
        return {"answer": answer}

    async def _await_change(self, step: dict[str, Any]) -> dict[str, Any]:
        what, awaited = step.get("what", "tools"), step.get("lists")
        with anyio.fail_after(step.get("within", CALL_SECONDS)):
            while True:
                await self._next(what)
                if awaited is None:
                    return {}
                listing = _plain(await self._listings[what]())
                if awaited in {item["uri" if what == "resources" else "name"] for item in listing[what]}:
                    return listing

    async def _next(self, word: str) -> None:
        """Wait for an announcement that no step has waited for yet; several at once are one."""
        while self._announced.count(word) <= self._awaited.get(word, 0):
            await self._woken.wait()
        self._awaited[word] = self._announced.count(word)


def _plain(model: Any) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _cancelled(request_id: int) -> Any:
    params = types.CancelledNotificationParams(requestId=request_id, reason="the test said so")
    return types.ClientNotification(types.CancelledNotification(params=params))


@asynccontextmanager
async def streams(options: argparse.Namespace) -> AsyncIterator[tuple[Any, Any]]:
    """The message streams of whichever server was named."""
    if options.url is None:
        words = StdioServerParameters(command=options.command[0], args=options.command[1:], env=dict(os.environ))
        async with stdio_client(words) as pipes:
            yield pipes
        return
    if options.url.startswith("ws:"):
        async with websocket_client(options.url) as pair:
            yield pair
        return
    headers = dict(given.split(":", 1) for given in options.header)
    if options.sse:
        async with sse_client(options.url, headers, CALL_SECONDS, httpx_client_factory=_without_proxies) as pair:
            yield pair
        return
    async with (
        httpx.AsyncClient(headers=headers, trust_env=False, timeout=CALL_SECONDS) as http,
        streamable_http_client(options.url, http_client=http) as (read, write, _),
    ):
        yield read, write


def _without_proxies(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(headers=headers, timeout=timeout, auth=auth, trust_env=False)


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line: `--url` with `--header name:value`s and perhaps `--sse`, or `--command` and its words.

    An address of WebSocket takes no headers: the SDK has no way to give any.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--many", action="store_true", help="many sessions, each a line on stdin and one on stdout")
    parser.add_argument("--url")
    parser.add_argument("--sse", action="store_true", help="the old HTTP+SSE transport")
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--command", nargs=argparse.REMAINDER, default=[])
    return parser.parse_args(words)


async def run(options: argparse.Namespace, todo: list[dict[str, Any]], show: Callable[[dict[str, Any]], None]) -> None:
    """Connect, do the steps in order, show each answer as it comes."""
    async with streams(options) as pair:
        steps = Steps(pair)
        async with steps.session as session:
            hello = await session.initialize()
            for step in todo:
                show(await steps.run(step, hello))


def _print(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


async def _run_one_of_many(number: int, words: list[str], todo: list[dict[str, Any]]) -> None:
    answers: list[dict[str, Any]] = []
    try:
        await run(parse_options(words), todo, answers.append)
    except Exception:  # noqa: BLE001 (the test of this session gets the error, and the others go on)
        _print({"number": number, "answers": answers, "error": traceback.format_exc()})
    else:
        _print({"number": number, "answers": answers})


async def main() -> None:
    """Do the steps of one session, or of as many at a time as are asked for."""
    options = parse_options()
    if not options.many:
        await run(options, json.loads(sys.stdin.read()), _print)
        return
    async with anyio.create_task_group() as group:
        async for line in anyio.wrap_file(sys.stdin):
            group.start_soon(_run_one_of_many, *json.loads(line))


if __name__ == "__main__":
    anyio.run(main)
