"""A notebook: cells run one by one on a loop that keeps running, some of them await, some do not, some run twice."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest

from isthmus.library import BlockingToolService
from tests.library.process_resources import ProcessResources, leaked_since, process_resources
from tests.library.services import raw_server, with_servers


class Notebook:
    """Runs cells as a kernel does: code objects that may await, on one loop, in one namespace."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"servers": with_servers(raw_server())}

    async def run(self, cell: str) -> Any:
        """Run a cell, and return the value of its last line, if that is an expression."""
        *body, last = ast.parse(inspect.cleandoc(cell)).body
        if not isinstance(last, ast.Expr):
            await self._exec(ast.Module([*body, last], []), "exec")
            return None
        await self._exec(ast.Module(body, []), "exec")
        return await self._exec(ast.Expression(last.value), "eval")

    async def _exec(self, tree: ast.Module | ast.Expression, mode: str) -> Any:
        code: CodeType = compile(tree, "<cell>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        found = eval(code, self.names)
        return await found if inspect.isawaitable(found) else found


@pytest.fixture
def before() -> Iterator[ProcessResources]:
    with BlockingToolService(with_servers(raw_server())):
        pass  # what lasts as long as the program is made with the first process
    has = process_resources()
    yield has
    assert leaked_since(has) == {}


async def test_cells_that_block_and_cells_that_await_share_a_service(before: ProcessResources) -> None:
    notebook = Notebook()
    await notebook.run("""
        from isthmus.library import BlockingToolService, ToolRequest, tool
        tools = BlockingToolService(servers)
        tools.initialize()
    """)
    request = 'ToolRequest("raw.echo", parameters={"text": "hello"})'

    assert await notebook.run(f"tools.execute_tool({request}).text") == "hello"
    assert await notebook.run(f"(await tools.service.execute_tool({request})).text") == "hello"
    chunks = f"[chunk.chunk_type for chunk in tools.execute_tool_stream({request})]"
    assert await notebook.run(chunks) == ["data", "complete"]
    awaited = f"[chunk.chunk_type async for chunk in tools.service.execute_tool_stream({request})]"
    assert await notebook.run(awaited) == ["data", "complete"]
    await notebook.run("tools.shutdown()")


async def test_a_cell_with_a_tool_runs_twice(before: ProcessResources) -> None:
    notebook = Notebook()
    await notebook.run("""
        from isthmus.library import BlockingToolService, ToolRequest, tool
        tools = BlockingToolService()
        tools.initialize()
    """)
    for greeting in ("Hello", "Good day"):
        await notebook.run(f"""
            @tool
            def greet(name: str) -> str:
                "Greet somebody."
                return f"{greeting}, {{name}}!"
        """)
        said = await notebook.run('tools.execute_tool(ToolRequest("greet", parameters={"name": "Ann"})).text')
        assert said == f"{greeting}, Ann!"
    await notebook.run("""
        tool.remove("greet")
        tools.shutdown()
    """)


async def test_a_cell_that_is_interrupted_leaves_the_service_usable(before: ProcessResources) -> None:
    notebook = Notebook()
    await notebook.run("""
        from isthmus.library import ToolRequest, ToolService
        service = ToolService()
        await service.initialize(servers)
    """)
    slow = 'ToolRequest("raw.echo", parameters={"text": "never", "mode": "sleep:60"})'
    cell = asyncio.create_task(notebook.run(f"await service.execute_tool({slow})"))
    await asyncio.sleep(0)
    cell.cancel()
    await asyncio.wait([cell])

    assert cell.cancelled()
    quick = 'ToolRequest("raw.echo", parameters={"text": "again"})'
    assert await notebook.run(f"(await service.execute_tool({quick})).text") == "again"
    await notebook.run("await service.shutdown()")
