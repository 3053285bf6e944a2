from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from isthmus.library import (
    ConfigurationError,
    Tool,
    ToolContext,
    ToolDeniedError,
    ToolNotFoundError,
    ToolRequest,
    ToolResult,
    ToolService,
    ToolStatus,
    ToolStreamChunk,
    UniversalTool,
    UnresolvedToolsError,
    UserContext,
    UserPermissions,
    tool,
)
from isthmus.library.agent_tools import AgentTools, Approval, CallOptions, is_destructive, not_approved
from tests.unit.library.benches import Bench
from tests.unit.library.catalogs import catalog_of

ECHOER = UserContext("ann", permissions=UserPermissions(["builtin.echo"]))


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        yield made


def names(tools: list[UniversalTool]) -> list[str]:
    return [each.name for each in tools]


async def test_without_names_it_has_all_that_the_user_may_use(service: ToolService) -> None:
    assert names(await AgentTools(service).tools(ECHOER)) == ["builtin.echo"]
    assert set(names(await AgentTools(service).tools())) >= {"builtin.echo", "builtin.timestamp"}


async def test_names_may_have_any_form_and_keep_their_order(service: ToolService) -> None:
    (echo,) = await AgentTools(service, ["echo"]).tools()
    assert names(await AgentTools(service, ["timestamp", echo]).tools()) == ["builtin.timestamp", "builtin.echo"]


async def test_names_that_are_wrong_at_first_are_reported(service: ToolService) -> None:
    with pytest.raises(ToolNotFoundError, match=r"builtin\.echo"):
        await AgentTools(service, ["builtin.ehco"]).tools()
    with pytest.raises(ToolDeniedError, match="timestamp"):
        await AgentTools(service, ["timestamp"]).tools(ECHOER)
    with pytest.raises(UnresolvedToolsError):
        await AgentTools(service, ["timestamp", "nothing"]).tools(ECHOER)


async def test_shared_names_resolve_to_each_users_permitted_tools(service: ToolService) -> None:
    box = AgentTools(service, ["timestamp", "echo"])
    assert names(await box.tools(ECHOER, is_shared=True)) == ["builtin.echo"]
    assert names(await box.tools(None, is_shared=True)) == ["builtin.timestamp", "builtin.echo"]
    with pytest.raises(ToolNotFoundError):
        await AgentTools(service, ["nothing"]).tools(ECHOER, is_shared=True)


async def test_a_tool_that_goes_later_is_left_out_until_it_is_back(service: ToolService) -> None:
    def visiting() -> str:
        """Come and go."""
        return "here"

    box = AgentTools(service, ["visiting", "echo"])
    tool(visiting)
    try:
        assert names(await box.tools()) == ["builtin.visiting", "builtin.echo"]
        tool.remove("visiting")
        assert names(await box.tools()) == ["builtin.echo"]
        assert await box.find("mcp_builtin_visiting") is None
        tool(visiting)
        assert names(await box.tools()) == ["builtin.visiting", "builtin.echo"]
    finally:
        tool.remove("visiting")


async def test_a_model_calls_the_listed_tools_and_nothing_else(service: ToolService) -> None:
    box = AgentTools(service, ["echo"])
    assert (await box.resolve("mcp_builtin_echo")).name == "builtin.echo"
    with pytest.raises(ToolNotFoundError, match="Did you mean mcp_builtin_echo"):
        await box.resolve("mcp_builtin_ehco")
    for other in ("builtin.echo", "echo", "mcp_builtin_timestamp"):
        with pytest.raises(ToolNotFoundError):
            await box.resolve(other)
    with pytest.raises(ToolDeniedError):
        await AgentTools(service).resolve("mcp_builtin_timestamp", ECHOER)
    with pytest.raises(ToolDeniedError):  # a task has only those that its user may use
        await box.resolve("mcp_builtin_timestamp", ECHOER)


async def test_a_call_of_an_unknown_tool_ends(service: ToolService) -> None:
    box = AgentTools(service, ["echo"])
    assert await box.look_up("mcp_builtin_echo") == await box.resolve("mcp_builtin_echo")
    unknown, denied = await box.look_up("mcp_builtin_ehco"), await box.look_up("mcp_builtin_timestamp", ECHOER)
    assert isinstance(unknown, ToolResult)
    assert isinstance(denied, ToolResult)
    assert (unknown.status, denied.status) == (ToolStatus.NOT_FOUND, ToolStatus.UNAUTHORIZED)
    assert "Did you mean mcp_builtin_echo" in str(unknown.error_message)


async def test_a_call_of_a_tool_whose_server_did_not_come_ends_as_unavailable() -> None:
    box = AgentTools(Bench("files.read", missing={"web": "connection refused by 10.0.0.7:80"}))
    ended = await box.look_up("mcp_web_fetch")
    assert isinstance(ended, ToolResult)
    assert ended.error is not None
    assert (ended.status, ended.error.reason, ended.error.server) == (ToolStatus.UNAVAILABLE, "not_connected", "web")
    assert (
        ended.error_message
        == "There is no tool 'mcp_web_fetch'. Server web is not connected: connection refused by its address"
    )


async def test_a_caller_without_permission_learns_nothing_of_the_server() -> None:
    box = AgentTools(Bench("builtin.echo", missing={"web": "connection refused"}))
    ended = await box.look_up("mcp_web_fetch", ECHOER)
    assert isinstance(ended, ToolResult)
    assert (ended.status, "refused" in str(ended.error_message)) == (ToolStatus.UNAUTHORIZED, False)


async def test_forbidden_tools_are_not_suggested(service: ToolService) -> None:
    with pytest.raises(ToolNotFoundError) as caught:
        await AgentTools(service).resolve("mcp_builtin_timestmap", ECHOER)
    assert "timestamp" not in str(caught.value)


@pytest.mark.parametrize(
    ("approval", "is_needed", "server_status"),
    [
        (False, False, False),
        (True, True, True),
        (["echo"], True, True),
        (["builtin.echo"], True, True),
        (["mcp_builtin_echo"], True, True),
        (["timestamp"], False, False),
        ("echo", True, True),
        (("timestamp", "echo"), True, True),
        (lambda universal, parameters: parameters["text"] == "loud", True, None),
        (lambda universal, parameters: parameters["text"] == "soft", False, None),
    ],
)
async def test_the_approver(service: ToolService, approval: Approval, is_needed: Any, server_status: Any) -> None:
    box = AgentTools(service, ["echo"], needs_approval=approval)
    (echo,) = await box.tools()
    assert box.is_approval_needed(echo, {"text": "loud"}) is is_needed
    assert box.fixed_approval(echo) is server_status


async def test_a_name_that_needs_approval_has_to_be_a_tool_s(service: ToolService) -> None:
    box = AgentTools(service, needs_approval=["builtin.ehco"])
    for _ in range(2):  # it does not pass the second time
        with pytest.raises(ToolNotFoundError, match=r"Did you mean builtin\.echo"):
            await box.tools()


class Named(Tool):
    async def execute(self, tool_request: ToolRequest) -> ToolResult:
        return ToolResult(self.full_name, ToolStatus.SUCCESS, result_data="done")


async def test_a_short_name_of_several_tools_stands_for_all_of_them(service: ToolService) -> None:
    service.register_tool(Named("erase", "here"))
    service.register_tool(Named("erase", "there"))
    box = AgentTools(service, ["here.erase", "there.erase", "echo"], needs_approval=["erase"])
    needed = {each.name: box.is_approval_needed(each, {}) for each in await box.tools()}
    assert needed == {"here.erase": True, "there.erase": True, "builtin.echo": False}


async def test_a_short_name_of_several_tools_is_the_one_that_the_user_may_use(service: ToolService) -> None:
    service.register_tool(Named("erase", "here"))
    service.register_tool(Named("erase", "there"))
    cleaner = UserContext("cleo", permissions=UserPermissions(["there"]))
    box = AgentTools(service, ["erase"])
    assert names(await box.tools(cleaner)) == ["there.erase"]
    assert (await box.resolve("mcp_there_erase", cleaner)).name == "there.erase"
    with pytest.raises(ToolDeniedError, match=r"here\.erase"):
        await box.resolve("mcp_here_erase", cleaner)
    with pytest.raises(ToolNotFoundError):
        await box.resolve("mcp_there_erase")


@pytest.mark.parametrize("others", [["files.delete.all"], []])
@pytest.mark.parametrize("first", [["files.delete.all"], []])
async def test_a_tool_that_waits_for_approval_does_so_when_language_models_call_it_otherwise(
    first: list[str], others: list[str]
) -> None:
    bench = Bench("files.delete_all", *first)
    box = AgentTools(bench, needs_approval=[bench.held.entries["files.delete_all"].llm_name])
    bench.held = catalog_of("files.delete_all", "files.read", *others)
    needed = {each.name: box.is_approval_needed(each, {}) for each in await box.tools()}
    assert (needed["files.delete_all"], needed["files.read"]) == (True, False)


async def test_names_may_be_an_iterator(service: ToolService) -> None:
    box = AgentTools(service, (name for name in ["echo", "timestamp"]), needs_approval=(name for name in ["echo"]))
    for _ in range(2):
        assert [box.is_approval_needed(each, {}) for each in await box.tools()] == [True, False]


async def test_an_absent_server_costs_only_its_own_tools() -> None:
    async with ToolService() as service:
        await service.shutdown()
        gone = {"name": "gone", "command": "/nonexistent"}
        await service.initialize({"mcp_servers": [gone]})
        box = AgentTools(service, needs_approval=["gone.erase"])
        assert "builtin.echo" in names(await box.tools())


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (None, True),
        ({"readOnlyHint": True}, False),
        ({"readOnlyHint": "yes"}, True),
        ({"destructiveHint": False}, False),
        ({"readOnlyHint": False, "destructiveHint": True}, True),
    ],
)
def test_a_tool_may_destroy_unless_a_trusted_server_says_that_it_does_not(annotations: Any, expected: Any) -> None:
    metadata = {} if annotations is None else {"annotations": annotations}
    assert is_destructive(UniversalTool("docs.erase", metadata={**metadata, "trusted": True}), {}) is expected
    assert is_destructive(UniversalTool("docs.erase", metadata=metadata), {}) is True


def test_an_unapproved_call_was_not_executed() -> None:
    result = not_approved(UniversalTool("docs.erase", namespace="docs"), "too risky")
    assert (result.status, result.error and result.error.executed) == ("unauthorized", "no")
    assert result.error_message == "docs.erase was not executed: it was not approved (too risky)."


@pytest.fixture
def counting() -> Any:
    @tool
    async def counting(steps: int, context: ToolContext) -> str:
        """Count."""
        for step in range(1, steps + 1):
            context.progress(step, steps)
        return f"{context.session}: {steps}"

    yield counting
    tool.remove("counting")


async def test_a_listener_gets_progress_and_the_result(service: ToolService, counting: Any) -> None:
    box = AgentTools(service, ["counting"])
    (found,) = await box.tools()
    received: list[ToolStreamChunk] = []

    async def hear(chunk: ToolStreamChunk) -> None:
        received.append(chunk)

    request = ToolRequest(found.name, parameters={"steps": 2}, session_id="s")
    assert (await box.execute(request, hear)).text == "s: 2"
    assert (await box.execute(request)).text == "s: 2"
    blocking = await asyncio.to_thread(box.execute_blocking, request, received.append)
    assert blocking.text == (await asyncio.to_thread(box.execute_blocking, request)).text == "s: 2"
    assert [chunk.content["progress"] for chunk in received] == [1, 2, 1, 2]


async def test_a_listener_that_raises_ends_the_call(service: ToolService, counting: Any) -> None:
    box = AgentTools(service, ["counting"])
    (found,) = await box.tools()

    def fail(chunk: ToolStreamChunk) -> None:
        raise ValueError("deaf")

    with pytest.raises(ValueError, match="deaf"):
        await box.execute(ToolRequest(found.name, parameters={"steps": 1}), fail)


async def test_a_thread_has_no_use_for_an_asynchronous_listener(service: ToolService, counting: Any) -> None:
    async def hear(chunk: ToolStreamChunk) -> None:
        """Never awaited."""

    request = ToolRequest("counting", parameters={"steps": 1})
    loop = asyncio.get_running_loop()
    for listener in (hear, lambda chunk: loop.create_future()):
        with pytest.raises(TypeError, match="async function"):
            await asyncio.to_thread(AgentTools(service).execute_blocking, request, listener)


async def test_everything_is_there_without_a_loop(service: ToolService) -> None:
    box = AgentTools(service, ["echo"])
    assert names(await asyncio.to_thread(box.tools_blocking)) == ["builtin.echo"]
    missed = await asyncio.to_thread(box.look_up_blocking, "mcp_builtin_timestamp")
    assert isinstance(missed, ToolResult)
    assert missed.status is ToolStatus.NOT_FOUND


def test_terms_are_fixed_or_read_from_the_context_of_a_call() -> None:
    erase = UniversalTool("docs.erase")
    fixed: CallOptions[dict[str, Any]] = CallOptions(ECHOER, "s", {"X-User": "ann"})
    request = fixed.request(erase, {"path": "a"}, {}, "framework's")
    assert (request.user_context, request.session_id, request.parameters) == (ECHOER, "s", {"path": "a"})
    assert request.metadata == {"headers": {"X-User": "ann"}}
    assert fixed.list_user is ECHOER
    read: CallOptions[dict[str, Any]] = CallOptions(
        lambda context: context["user"], lambda context: context["session"], lambda context: context["headers"]
    )
    request = read.request(erase, {}, {"user": ECHOER, "session": "t", "headers": None}, "framework's")
    assert (request.user_context, request.session_id, request.metadata) == (ECHOER, "t", {})
    assert read.list_user is None
    none: CallOptions[None] = CallOptions()
    assert none.request(erase, {}, None, "framework's").session_id == "framework's"


def test_headers_are_not_shown() -> None:
    terms: CallOptions[None] = CallOptions(headers={"Authorization": "Bearer secret"})
    assert "secret" not in repr(terms)
    request = terms.request(UniversalTool("docs.erase"), {}, None)
    assert request.metadata == {"headers": {"Authorization": "Bearer secret"}}
    assert "secret" not in repr(request)


async def test_a_vanished_tool_is_reported_under_the_models_name_for_it() -> None:
    bench = Bench("docs.find", "docs.erase")
    box = AgentTools(bench)
    find, _ = await box.tools()
    bench.change("docs.fund")
    gone = ToolResult("docs.find", ToolStatus.NOT_FOUND, "docs", error_message="There is no tool 'docs.find'.")
    explained = await box.explain(find, gone, None)
    assert explained.error_message == "There is no tool 'mcp_docs_find'. Did you mean mcp_docs_fund?"
    blocking = await asyncio.to_thread(box.explain_blocking, find, gone, None)
    assert blocking.error_message == explained.error_message
    bench.change("docs.find")  # and is there again
    assert await box.explain(find, gone, None) is gone


async def awaited(*_: Any) -> Any:
    """A coroutine that is not awaited."""


class Awaited:
    async def __call__(self, *_: Any) -> Any:
        """The same, in an object."""


@pytest.mark.parametrize("function", [awaited, Awaited()])
@pytest.mark.parametrize("name", ["user_context", "session_id", "headers"])
def test_an_async_function_is_refused_where_it_cannot_be_awaited(name: str, function: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{name} is an async function, which is not awaited here"):
        CallOptions(**{name: function})
    with pytest.raises(TypeError, match=r"^needs_approval is an async function"):
        AgentTools(Bench(), needs_approval=function)


def given_by(headers: Any) -> CallOptions[None]:
    return CallOptions(headers=headers)


async def test_a_wrong_return_type_of_a_function_is_named() -> None:
    it = UniversalTool("docs.find")
    with pytest.raises(TypeError, match=r"^headers must be a dictionary of strings, not list"):
        given_by(lambda _: [1]).request(it, {}, None)
    with pytest.raises(TypeError, match=r"^user_context must be a UserContext, not str"):
        CallOptions(user_context=lambda _: "ann").request(it, {}, None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"^session_id must be a string, not int"):
        CallOptions(session_id=lambda _: 7).request(it, {}, None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"^headers is an async function"):
        given_by(lambda _: awaited()).request(it, {}, None)
    with pytest.raises(TypeError, match=r"^needs_approval is an async function"):
        AgentTools(Bench(), needs_approval=lambda *_: awaited()).is_approval_needed(it, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", ["5", -1, True])
def test_an_invalid_timeout_is_refused_before_a_model_sees_it(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout must be a number of seconds, 0 or more, not "):
        CallOptions(timeout=timeout)
