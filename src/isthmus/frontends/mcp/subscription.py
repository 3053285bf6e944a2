"""A modern caller's subscription on whichever carrier: what it follows, until it is closed.

The carrier says when the acknowledgement is out, and closes it; what is told, and how it is marked, is `marked`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.frontends.mcp.changes import ChangeFeed
from isthmus.frontends.mcp.interests import Interests
from isthmus.frontends.mcp.kept_tasks import KeptTasks
from isthmus.frontends.mcp.marked import MarkedStream, follow_all
from isthmus.frontends.mcp.task_polls import TaskPolls
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.features import Topic
from isthmus.model.questions import ClientCapabilities
from isthmus.wire.mcp.modern import Wanted


class Subscription:
    """One subscription, which tells on its stream."""

    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        surface: Surface,
        client_caps: ClientCapabilities,
        stream: MarkedStream,
        is_crowded: Callable[[], bool],
        *,
        session: str = "",
        kept: KeptTasks | None = None,
    ) -> None:
        """`is_crowded` says that the caller has not taken yet what it was told; `kept` are tasks of the hub's own."""
        self.stream = stream
        self._hub = hub
        self._caller = caller
        self._surface = surface
        self._profile = client_caps
        self._polls = TaskPolls(hub, caller, surface, client_caps, stream.tell_task, kept)
        self._interests = Interests(
            hub, caller, surface, stream.tell_update, client_caps=client_caps, session=session, is_crowded=is_crowded
        )
        self._feed: ChangeFeed | None = None

    async def agree(self, wanted: Wanted) -> Wanted:
        """Follow what can be followed; returns what will be honoured."""
        honoured = await follow_all(self._interests, wanted)
        return msgspec.structs.replace(honoured, tasks=await self._polls.agree(wanted.tasks))

    def begin(self) -> None:
        """The acknowledgement is out: tell what came before it, and ask after tasks from now on."""
        self.stream.release()
        self._polls.start()

    def tell_changes(self, topics: Set[Topic]) -> None:
        """Tell of changes of these lists too, where the carrier does not see to it."""
        self._feed = ChangeFeed(
            self._hub, self._caller.grants, self._surface, self.stream.tell_change, topics, client_caps=self._profile
        )

    def close(self) -> None:
        """Follow nothing any more."""
        if self._feed is not None:
            self._feed.close()
        self._interests.close()
        self._polls.close()
