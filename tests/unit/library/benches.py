"""A service without a hub, with given tools and given outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.library.catalog import Catalog
from isthmus.library.errors import ServiceClosedError
from isthmus.library.loop_thread import LoopThread
from isthmus.library.public_types import ToolRequest, ToolResult, ToolStatus
from isthmus.library.resolver import register_service, unregister_service
from isthmus.library.service import BlockingToolService, ToolService
from tests.unit.library.catalogs import catalog_of


def text_result(text: str) -> ToolResult:
    """A tool answered with these words."""
    return ToolResult(
        "a.b", ToolStatus.SUCCESS, result_data=text, metadata={"content": [{"type": "text", "text": text}]}
    )


class Bench(ToolService):
    """See the module."""

    def __init__(self, *names: str, missing: dict[str, str] | None = None) -> None:
        super().__init__()
        self.held = catalog_of(*names, missing=missing)
        self.result = text_result("done")
        self.requests: list[ToolRequest] = []
        self.given: Any = None
        self.left_out: dict[str, tuple[str, ...]] = {}
        self.is_open = True
        self.watchers: list[Callable[[], object]] = []

    def change(self, *names: str, missing: dict[str, str] | None = None) -> None:
        """Have other tools from now on, and say so."""
        self.set_catalog(catalog_of(*names, missing=missing))

    def set_catalog(self, catalog: Catalog) -> None:
        """Have this catalog from now on, and say so."""
        self.held = catalog
        for watcher in list(self.watchers):
            LoopThread.shared().call(watcher)

    async def initialize(self, config: Any = None, **_: Any) -> None:
        self.given = config
        register_service(self)

    async def shutdown(self) -> None:
        self.is_open = False
        unregister_service(self)

    async def catalog(self) -> Catalog:
        return self._catalog_now()

    def _catalog_now(self) -> Catalog:
        self._check()
        return self.held

    @property
    def failures(self) -> dict[str, str]:
        self._check()
        return dict(self.held.missing)

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        return self.left_out

    def watch(self, callback: Callable[[], object]) -> Callable[[], None]:
        self.watchers.append(callback)
        return lambda: self.watchers.remove(callback)

    async def execute_tool(self, request: ToolRequest) -> ToolResult:
        self._check()
        self.requests.append(request)
        return self.result

    @property
    def blocking(self) -> BlockingToolService:
        return BlockingBench(self)

    def _check(self) -> None:
        if not self.is_open:
            raise ServiceClosedError("This ToolService is shut down.")


class BlockingBench(BlockingToolService):
    """The same for threads."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(service=bench)
        self._bench = bench

    def execute_tool(self, request: ToolRequest) -> ToolResult:
        self._bench._check()
        LoopThread.shared().check_may_block()
        self._bench.requests.append(request)
        return self._bench.result
