"""All tools of a hub, or some, as a toolset of google-adk.

    agent = LlmAgent(..., tools=[HubToolset(service)])
    agent = LlmAgent(..., tools=[HubToolset(config="mcp.json", tool_filter=["search", "files.read"])])

Listing reads the hub's own catalog, which follows the servers' `list_changed`: no server is asked, and each turn of the
model sees the tools of that moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from isthmus.integrations.adk.names import (
    OfferedTools,
    OffersTools,
    agent_of,
    explain_unknown_tool,
    handle_unknown_tools,
    listing_problem,
    name_room,
    refusal_of,
)
from isthmus.integrations.adk.results import Background
from isthmus.integrations.adk.tool import Confirmation, HeaderProvider, HubTool, ToolOptions, UserProvider
from isthmus.integrations.untrusted_descriptions import strip_markers
from isthmus.library.catalog import Catalog
from isthmus.library.contracts import ToolStatus, UniversalTool, UserContext
from isthmus.library.errors import ToolDeniedError, ToolError
from isthmus.library.integration_base import check_approval_names, is_named
from isthmus.library.loop_thread import LoopThread, LoopThreadLock
from isthmus.library.questions import Questions
from isthmus.library.service import ToolService

logger = logging.getLogger(__name__)

UNAVAILABLE = "mcp_tools_unavailable"

Filter: TypeAlias = Iterable[str] | Callable[..., bool] | None
Config: TypeAlias = Mapping[str, Any] | str | Path | None


class HubToolset(BaseToolset, OffersTools):
    """The tools of a service, given, or of its own; one of its own is closed with it."""

    def __init__(  # noqa: PLR0913 - a user names the few that are wanted
        self,
        service: ToolService | None = None,
        *,
        config: Config = None,
        hub: str | None = None,
        key: str | None = None,
        questions: Questions | None = None,
        tool_filter: Filter = None,
        tool_name_prefix: str | None = None,
        user_context: UserContext | None = None,
        user_context_provider: UserProvider | None = None,
        header_provider: HeaderProvider | None = None,
        require_confirmation: Confirmation | Iterable[str] = False,
        long_running: bool | Iterable[str] = False,
        run_in_background: bool | Iterable[str] = False,
        fence_descriptions: bool = True,
        progress: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Take a service, or what one is made of when the tools are first asked for.

        Args:
            service: One that is initialised; whoever made it shuts it down.
            config: As for `ToolService.initialize`: a dictionary, or the path of a file.
            hub: The address of a running hub.
            key: What that hub knows this program by.
            questions: Who answers what servers ask back, if a service is made.
            tool_filter: Names in any form, or a function of the tool and the context. An empty list is no tool at all.
            tool_name_prefix: Put before the names that the model sees, which are cut if they get too long by it.
            user_context: On whose behalf tools are listed and executed; what they may not use is not listed.
            user_context_provider: The same, asked with the context of each invocation.
            header_provider: Headers of the user's, for those servers that are configured to receive them.
            require_confirmation: Ask a person first: always, for these names, or when a function of the arguments
                says so. A name that several tools have is every one's; with one that is no tool's there are no tools.
            long_running: Tools that answer before they are done, by a ticket of their own: all, or these names.
            run_in_background: Tools for which nobody waits: all, or these names. The model is told that they have
                begun; the program gets the result from `background`, and sends it.
            fence_descriptions: Mark what servers say of their tools as not being instructions.
            progress: Show what tools say while they run as partial events.
            timeout: Seconds for each execution, if the server's own limit is not shorter.
        """
        if (service is None) == (config is None and hub is None):
            raise ValueError("HubToolset takes either a service, or config= or hub= to make one of.")
        super().__init__(
            tool_filter=None if tool_filter is None else _choice(tool_filter), tool_name_prefix=tool_name_prefix
        )
        # ADK would keep the list for a whole invocation; ours costs nothing, and changes with the servers.
        self._use_invocation_cache = False
        self._given = service
        self._own: ToolService | None = None
        self._questions = questions
        self._recipe = (config, hub, key)
        self._opening = LoopThreadLock()
        self._confirmed = _choice(require_confirmation)
        self._has_checked = False
        self._long_running = _choice(long_running)
        self._unattended = _choice(run_in_background)
        self.background = Background()
        self._warned: set[str] = set()
        self._options = ToolOptions(
            user_context=user_context,
            user_context_provider=user_context_provider,
            header_provider=header_provider,
            is_fenced=fence_descriptions,
            shows_progress=progress,
            timeout=timeout,
            name_length=name_room(tool_name_prefix),
        )

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """What the user may use, of what was asked for; never raises."""
        try:
            service = await self._service()
            catalog = await service.catalog()
            user = await self._options.user_for(readonly_context)
            return self._tools(service, catalog, user, readonly_context)
        except Exception as error:
            # ADK drops a toolset that raises, and the model would not even learn that there are tools.
            logger.exception("the tools of the hub could not be listed")
            return [_Unavailable(listing_problem(error))]

    def _tools(
        self, service: ToolService, catalog: Catalog, user: UserContext | None, context: ReadonlyContext | None
    ) -> list[BaseTool]:
        self._warn_of_missing(catalog)
        wanted = self._named(self.tool_filter, catalog, user) if isinstance(self.tool_filter, list) else None
        self._check_confirmed(catalog)
        long_running = self._named(self._long_running, catalog, user)
        unattended = self._named(self._unattended, catalog, user)
        tools: list[BaseTool] = []
        for entry in catalog.reachable(user):
            name = entry.full_name
            if wanted is not None and name not in wanted:
                continue
            universal = entry.tool
            options = replace(
                self._options,
                require_confirmation=self._confirmation(universal),
                is_long_running=_settle(self._long_running, name in long_running),
                background=self.background if _settle(self._unattended, name in unattended) else None,
            )
            tool = HubTool(universal, service, options)
            if not callable(self.tool_filter) or self.tool_filter(tool, context):
                tools.append(tool)
        return tools

    def _check_confirmed(self, catalog: Catalog) -> None:
        """Until every name is a tool's; one whose server goes later is nobody's mistake."""
        if isinstance(self._confirmed, list) and not self._has_checked:
            check_approval_names(self._confirmed, catalog)
            self._has_checked = True

    def _confirmation(self, tool: UniversalTool) -> Confirmation:
        confirmed: Confirmation | list[str] = self._confirmed
        return is_named(tool, frozenset(confirmed)) if isinstance(confirmed, list) else confirmed

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """See that the agent asks here about names that it does not have; its own callbacks are asked first."""
        agent = agent_of(tool_context)
        if agent is not None:
            handle_unknown_tools(agent, self.on_tool_error)

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        """What the model is told of a name that is no tool's, or not the user's to use; of other errors, nothing."""
        return await explain_unknown_tool(tool, args, tool_context, self)

    async def offer(self, called: str, context: ReadonlyContext) -> OfferedTools:
        """See `OffersTools`."""
        prefix = f"{self.tool_name_prefix}_" if self.tool_name_prefix else ""
        try:
            service = await self._service()
            catalog = await service.catalog()
            user = await self._options.user_for(context)
            names = [each.name for each in await self.get_tools_with_prefix(context)]
        except Exception as error:
            logger.exception("%s was called, and the tools of the hub could not be listed", called)
            return OfferedTools([], trouble=listing_problem(error))
        refusal = refusal_of(called.removeprefix(prefix), catalog, user, self._options.name_length)
        return OfferedTools(names, refusal, service=service, user=user)

    def _named(self, names: Any, catalog: Catalog, user: UserContext | None) -> set[str]:
        """The full names of those that are meant and the user's; one that is not there may come with its server."""
        found: set[str] = set()
        for name in names if isinstance(names, list) else ():
            try:
                found.add(catalog.resolve_for(user, name).full_name)
            except ToolDeniedError:
                continue
            except ToolError as error:
                self._warn(str(error))
        return found

    def _warn_of_missing(self, catalog: Catalog) -> None:
        for server in catalog.silent:
            self._warn(f"The tools of server {server} are not listed: {catalog.missing[server]}")

    def _warn(self, message: str) -> None:
        """Once: the list is made for every turn of the model."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)

    # -- a service of its own ------------------------------------------------------------------------------------------

    async def _service(self) -> ToolService:
        ready = self._given or self._usable
        return ready if ready is not None else await LoopThread.shared().run(self._opened())

    @property
    def _usable(self) -> ToolService | None:
        """Its own service, while it is open; a forked worker has one of its own."""
        own = self._own
        return own if own is not None and own.is_initialized and not own.is_inherited else None

    async def _opened(self) -> ToolService:
        async with self._opening:
            if (ready := self._usable) is not None:
                return ready
            config, hub, key = self._recipe
            service = ToolService(questions=self._questions)
            await service.initialize(config, hub=hub, key=key)
            self._own = service
            return service

    async def close(self) -> None:
        """Cancel what runs in the background, and shut down a service of its own.

        That is made again if the tools are asked for again.
        """
        self.background.cancel_all()
        if self._given is None:
            await LoopThread.shared().run(self._closed())

    async def _closed(self) -> None:
        async with self._opening:  # one that is just being opened is closed when it is
            own, self._own = self._own, None
            if own is not None:
                await own.shutdown()


class _Unavailable(BaseTool):
    """What the model gets instead of tools, so that it can tell its user what is wrong."""

    def __init__(self, why: str) -> None:
        self._why = strip_markers(why)
        super().__init__(name=UNAVAILABLE, description=f"The tools are not available at the moment: {self._why}")

    def _get_declaration(self) -> types.FunctionDeclaration:
        schema = {"type": "object", "properties": {}}
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Say so."""
        return {"status": ToolStatus.UNAVAILABLE.value, "error": self._why}


def _choice(choice: Any) -> Any:
    """Yes, no, a function, or a list of names."""
    if isinstance(choice, bool) or callable(choice):
        return choice
    return [choice] if isinstance(choice, str) else list(choice)


def _settle(choice: Any, is_named: bool) -> Any:  # noqa: FBT001 - one of two ways in which it may be chosen
    return is_named if isinstance(choice, list) else choice
