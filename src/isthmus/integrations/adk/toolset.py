"""`HubToolset`: all or some tools of a hub as a toolset of google-adk.

    agent = LlmAgent(..., tools=[HubToolset(service)])
    agent = LlmAgent(..., tools=[HubToolset(config="mcp.json", tool_filter=["search", "files.read"])])

Listing reads the hub's catalog, which follows the servers' `list_changed`: no server is asked, and each turn of the
model sees the current tools.
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
from isthmus.library.agent_tools import check_approval_names, is_named
from isthmus.library.catalog import Catalog
from isthmus.library.errors import ToolDeniedError, ToolError
from isthmus.library.loop_thread import LoopThread, LoopThreadLock
from isthmus.library.public_types import ToolStatus, UserContext
from isthmus.library.questions import Questions
from isthmus.library.service import ToolService

logger = logging.getLogger(__name__)

UNAVAILABLE = "mcp_tools_unavailable"

Filter: TypeAlias = Iterable[str] | Callable[..., bool] | None
Config: TypeAlias = Mapping[str, Any] | str | Path | None


class HubToolset(BaseToolset, OffersTools):
    """The tools of a given service, or of a service that the toolset makes and closes itself."""

    def __init__(  # noqa: PLR0913 - independent options
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
        """Takes a service, or the configuration of one that is made on first use.

        Args:
            service: An initialized service; its maker shuts it down.
            config: As for `ToolService.initialize`: a dictionary, or the path of a file.
            hub: The address of a running hub.
            key: The key of this program at that hub.
            questions: Handlers for requests from servers, for a service made here.
            tool_filter: Names in any form, or a function of the tool and the context. An empty list means no tools.
            tool_name_prefix: Prefix of function names; long names are cut to make room.
            user_context: The user for lists and calls; tools that the user may not use are not listed.
            user_context_provider: Returns the user for the context of each invocation.
            header_provider: Returns the user's headers, for servers that are configured to receive them.
            require_confirmation: Calls that a person must confirm: all, those of these names, or those for which a
                function of the arguments returns True. An ambiguous name means every tool that has it. With an
                unknown name, no tools are listed.
            long_running: Tools that reply before they are done, with a ticket of their own: all, or these names.
            run_in_background: Tools that run in the background: all, or these names. The model learns that they have
                started; the program gets the result from `background` and sends it.
            fence_descriptions: Mark the servers' descriptions as untrusted.
            progress: Emit progress as partial events.
            timeout: Seconds for each call; a server's own limit may be shorter.
        """
        if (service is None) == (config is None and hub is None):
            raise ValueError("HubToolset needs either a service, or config= or hub= to make one.")
        super().__init__(
            tool_filter=None if tool_filter is None else _choice(tool_filter), tool_name_prefix=tool_name_prefix
        )
        # ADK would cache the list for a whole invocation; listing is free here, and the tools may change.
        self._use_invocation_cache = False
        self._given = service
        self._own: ToolService | None = None
        self._questions = questions
        self._config = (config, hub, key)
        self._opening = LoopThreadLock()
        self._confirmed = _choice(require_confirmation)
        self._has_checked = False
        self._long_running = _choice(long_running)
        self._in_background = _choice(run_in_background)
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
        """The selected tools that the user may use; never raises."""
        try:
            service = await self._service()
            catalog = await service.catalog()
            user = await self._options.user_for(readonly_context)
            return self._tools(service, catalog, user, readonly_context)
        except Exception as error:
            # ADK drops a toolset that raises, and the model would not know that tools exist.
            logger.exception("cannot list the tools of the hub")
            return [_Unavailable(listing_problem(error))]

    def _tools(
        self, service: ToolService, catalog: Catalog, user: UserContext | None, context: ReadonlyContext | None
    ) -> list[BaseTool]:
        for server in catalog.unlisted_servers:
            self._warn(f"The tools of server {server} are not listed: {catalog.missing[server]}")
        wanted = self._named(self.tool_filter, catalog, user) if isinstance(self.tool_filter, list) else None
        if isinstance(self._confirmed, list) and not self._has_checked:
            # Checked until every name has a tool: later, a tool may be gone with its server.
            check_approval_names(self._confirmed, catalog)
            self._has_checked = True
        long_running = self._named(self._long_running, catalog, user)
        in_background = self._named(self._in_background, catalog, user)
        tools: list[BaseTool] = []
        for entry in catalog.reachable(user):
            name = entry.full_name
            if wanted is not None and name not in wanted:
                continue
            universal, confirmed = entry.tool, self._confirmed
            options = replace(
                self._options,
                require_confirmation=is_named(universal, frozenset(confirmed))
                if isinstance(confirmed, list)
                else confirmed,
                is_long_running=_is_chosen(self._long_running, name in long_running),
                background=self.background if _is_chosen(self._in_background, name in in_background) else None,
            )
            tool = HubTool(universal, service, options)
            if not callable(self.tool_filter) or self.tool_filter(tool, context):
                tools.append(tool)
        return tools

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Add the callback for unknown names to the agent, after its own."""
        agent = agent_of(tool_context)
        if agent is not None:
            handle_unknown_tools(agent, self.on_tool_error)

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        """ADK's callback: the reply to a call of an unknown or denied tool; None for other errors."""
        return await explain_unknown_tool(tool, args, tool_context, self)

    async def offer(self, called: str, context: ReadonlyContext) -> OfferedTools:
        """The tools that the model has from here, and why the called one is not among them."""
        prefix = f"{self.tool_name_prefix}_" if self.tool_name_prefix else ""
        try:
            service = await self._service()
            catalog = await service.catalog()
            user = await self._options.user_for(context)
            names = [each.name for each in await self.get_tools_with_prefix(context)]
        except Exception as error:
            logger.exception("cannot list the tools of the hub to explain a call of %s", called)
            return OfferedTools([], problem=listing_problem(error))
        refusal = refusal_of(called.removeprefix(prefix), catalog, user, self._options.name_length)
        return OfferedTools(names, refusal, service=service, user=user)

    def _named(self, names: Any, catalog: Catalog, user: UserContext | None) -> set[str]:
        """The full names of these tools, if the user may use them. Unknown names may appear later."""
        found: set[str] = set()
        for name in names if isinstance(names, list) else ():
            try:
                found.add(catalog.resolve_for(user, name).full_name)
            except ToolDeniedError:
                continue
            except ToolError as error:
                self._warn(str(error))
        return found

    def _warn(self, message: str) -> None:
        """Log a warning once: tools are listed at every turn."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)

    # -- a service of its own ------------------------------------------------------------------------------------------

    async def _service(self) -> ToolService:
        ready = self._given or self._usable
        if ready is not None:
            return ready

        async def open_service() -> ToolService:
            async with self._opening:
                if (usable := self._usable) is not None:
                    return usable
                config, hub, key = self._config
                service = ToolService(questions=self._questions)
                await service.initialize(config, hub=hub, key=key)
                self._own = service
                return service

        return await LoopThread.shared().run(open_service())

    @property
    def _usable(self) -> ToolService | None:
        """The service made here, while it is open; a forked worker makes its own."""
        own = self._own
        return own if own is not None and own.is_initialized and not own.is_inherited else None

    async def close(self) -> None:
        """Cancel background executions and shut down a service made here; it is made again on the next use."""
        self.background.cancel_all()
        if self._given is None:

            async def shut_down() -> None:
                async with self._opening:  # waits for a service that is just opening
                    own, self._own = self._own, None
                    if own is not None:
                        await own.shutdown()

            await LoopThread.shared().run(shut_down())


class _Unavailable(BaseTool):
    """A tool in place of all others, so that the model can tell its user what is wrong."""

    def __init__(self, why: str) -> None:
        self._why = strip_markers(why)
        super().__init__(name=UNAVAILABLE, description=f"The tools are not available at the moment: {self._why}")

    def _get_declaration(self) -> types.FunctionDeclaration:
        schema = {"type": "object", "properties": {}}
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Return the reason."""
        return {"status": ToolStatus.UNAVAILABLE.value, "error": self._why}


def _choice(choice: Any) -> Any:
    """A bool, a function, or a list of names."""
    if isinstance(choice, bool) or callable(choice):
        return choice
    return [choice] if isinstance(choice, str) else list(choice)


def _is_chosen(choice: Any, is_named: bool) -> Any:  # noqa: FBT001 - private
    return is_named if isinstance(choice, list) else choice
