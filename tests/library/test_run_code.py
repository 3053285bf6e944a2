"""Scripts in a program: `ToolService.run_code`."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.library import BlockingToolService, ToolService, ToolStatus, UserContext, UserPermissions


async def test_a_program_runs_a_script() -> None:
    async with ToolService() as service:
        assert "async def builtin_echo(*, text: str)" in await service.tool_signatures("builtin.echo")
        done = await service.run_code("""
            print('before')
            await builtin_echo(text='hello')
        """)
        assert done.status is ToolStatus.SUCCESS
        assert done.result_data["result"] == {"text": "hello"}
        assert done.result_data["printed"] == "before\n"
        failed = await service.run_code("await builtin_echo(text=1)")
        assert failed.status is ToolStatus.ERROR
        assert "script.py:1:20" in (failed.error_message or "")


async def test_a_script_has_the_permissions_of_its_user() -> None:
    async with ToolService() as service:
        restricted = UserPermissions(["builtin.*"], restrictions={"tools": ["builtin.echo"]})
        user = UserContext("ann", permissions=restricted)
        text = await service.tool_signatures(user_context=user)
        assert "builtin_timestamp" in text
        assert "builtin_echo" not in text
        failed = await service.run_code("await builtin_echo(text='x')", user_context=user)
        assert "used when not defined" in (failed.error_message or "")
        failed = await service.run_code("await _call('builtin.echo', '{}')  # type: ignore", user_context=user)
        assert "unknown_tool" in (failed.error_message or "")


async def test_cancelling_the_caller_ends_the_script() -> None:
    async with ToolService() as service:
        running = asyncio.ensure_future(service.run_code("import asyncio\nawait asyncio.sleep(10)"))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


def test_a_program_without_a_loop_runs_a_script() -> None:
    with BlockingToolService() as service:
        assert service.run_code("1 + 1").result_data["result"] == 2
        assert "builtin_echo" in service.tool_signatures()
