"""Which tool or prompt a person means by a name: full, `mcp.tool`, or short; and what to suggest if it is none.

The rules are the catalog's (`core.catalog.names`); here they are applied to what one hub offers, and failures
become words. Called by `isthmus call` and `isthmus prompt`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from isthmus.cli.documents import Absence, Listing, Offer
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.config.settings import Configuration
from isthmus.core.catalog.names import BUILTIN, Ambiguous, Pair, llm_form, resolve, suggestions
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.upstream.local import builtin_tools
from isthmus.wire.mcp.lists import TOOLS, ListShape


def servers_for(name: str, configuration: Configuration, shape: ListShape = TOOLS) -> set[ServerName] | None:
    """Return which servers have to be started for `name`; None if any could have it.

    A full name needs its own server only, and a built-in tool none: nobody waits for the others.
    """
    server = ServerName(name.partition(".")[0])
    if shape is TOOLS and (server == BUILTIN or name in _builtin_names()):
        return set()
    if "." in name and any(server == configured.name for configured in configuration.servers):
        return {server}
    return None


def _builtin_names() -> set[str]:
    return {tool.name for tool in builtin_tools(MemoryJournal(), time.time)}


def choose(name: str, listing: Listing, shape: ListShape = TOOLS) -> Offer:
    """Return the tool, or whatever the list is of, that is meant.

    Raises:
        CommandFailed: several could be meant, or none.
    """
    exact = {offer.name: offer for offer in listing.offers}
    if name in exact:
        return exact[name]
    pairs = {pair: offer for offer in listing.offers if (pair := _pair(offer)) is not None}
    try:
        found = resolve(name, pairs)
    except Ambiguous as several:
        listed = "\n  ".join(several.candidates)
        text = f"{name!r} could be any of these:\n  {listed}"
        raise CommandFailed(Exit.USAGE, text, "Call it by its full name.") from None
    if found is None:
        raise _unknown(name, listing.offers, listing.absences, shape)
    return pairs[found]


def _pair(offer: Offer) -> Pair | None:
    """Take a full name apart; names of another style have no parts, and only the whole of them counts."""
    server, dot, tool = offer.name.partition(".")
    return (ServerName(server), FeatureName(tool)) if dot else None


def _unknown(name: str, offers: Sequence[Offer], absences: Mapping[str, Absence], shape: ListShape) -> CommandFailed:
    server, dot, _ = name.partition(".")
    if not dot:  # perhaps a name that language models are given
        fitting = [each for each in absences if name.startswith(llm_form((ServerName(each), FeatureName(""))))]
        server = max(fitting, key=len, default="")
    if server in absences:
        gone = absences[server]
        why = gone.reason or f"it is {gone.state}"
        return CommandFailed(
            Exit.CALL_FAILED,
            f"cannot call {name}: server {server} is not connected: {why}",
            "executed: no. `isthmus doctor` says how each server stands.",
        )
    advice = f"`isthmus {shape.member}` lists what there is."
    if near := suggestions(name, (offer.name for offer in offers)):
        advice = f"Did you mean {' or '.join(near)}? {advice}"
    if absences:
        advice += f" Not connected, so not listed: {', '.join(sorted(absences))}."
    return CommandFailed(Exit.CALL_FAILED, f"there is no {shape.noun} {name!r}", advice)
