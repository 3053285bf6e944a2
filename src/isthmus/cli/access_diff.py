"""`isthmus access --diff`: what another configuration would let appear, vanish or change, and for whom."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from isthmus.cli.access import callers_of, tell_missing
from isthmus.cli.access_sources import snapshots_of
from isthmus.cli.exits import Exit
from isthmus.cli.output import aligned, say, write, write_json
from isthmus.cli.sources import configuration_of
from isthmus.config.settings import Configuration
from isthmus.core.catalog.reasons import Reason, reasons
from isthmus.core.catalog.snapshot import Listed, Snapshot
from isthmus.model.callers import FACES, Caller, Face
from isthmus.upstream.settings import ServerSettings

Who: TypeAlias = tuple[str, str, Face | None]
"""A caller by its name and, if it has one of its own in the state folder, its key; and the face that it comes by."""

What: TypeAlias = tuple[Listed, str]
"""A list and a name in it."""

COMPARED = ("timeout", "max_calls", "max_queued", "isolation", "pin")
"""Settings of a server that its callers may notice."""

TARGETS = "servers that it names by their addresses, as far as [targets] allows them"
OPERATOR = "how every server stands, and what that logs (operator)"

Change: TypeAlias = Literal["appear", "vanish"]


@dataclass(slots=True)
class Difference:
    """What is otherwise for one caller."""

    who: Who
    tenant: str
    appearing: list[What] = field(default_factory=list)
    vanishing: list[What] = field(default_factory=list)
    changing: dict[What, list[str]] = field(default_factory=dict)
    targets: Change | None = None
    """What becomes of its right to name servers by their addresses."""
    operator: Change | None = None
    """What becomes of its right to see how every server stands."""

    def __bool__(self) -> bool:
        return bool(self.appearing or self.vanishing or self.changing or self.targets or self.operator)


async def show_difference(old_file: Path | None, new_file: Path, *, wait: float, is_json: bool) -> Exit:
    """Print what would change; `CALL_FAILED` if anything does, so that a script can ask.

    Raises:
        CommandFailed: one of the configurations cannot be used.
    """
    old, new = configuration_of(old_file), configuration_of(new_file)
    before, after = await snapshots_of(old, new, wait=wait)
    found = [each for each in differences((old, before), (new, after)) if each]
    if is_json:
        write_json(msgspec.json.encode([_document(each) for each in found]))
    elif found:
        write("\n\n".join("\n".join(_lines(each)) for each in found))
    else:
        say("Nobody would notice a difference.")
    for finding in new.warnings:
        say(str(finding))
    tell_missing(before, " of the old configuration")
    tell_missing(after, " of the new configuration")
    return Exit.CALL_FAILED if found else Exit.WELL


# -- comparing ---------------------------------------------------------------------------------------------------------


def differences(old: tuple[Configuration, Snapshot], new: tuple[Configuration, Snapshot]) -> Iterator[Difference]:
    """What each caller of either would notice, in the order of their names."""
    known = callers_of(old[0]), callers_of(new[0])
    held = {who for callers in known for caller in callers for who in _held(caller)}
    before, after = (_forms(callers, held) for callers in known)
    for who in sorted({**before, **after}, key=lambda who: (who[0], who[1], who[2] or "")):
        was, is_now = before.get(who), after.get(who)
        caller = is_now or was
        assert caller is not None, "it is in one of them"
        told = Difference(who, caller.tenant)
        told.targets = _change(*(each is not None and each.can_name_targets for each in (was, is_now)))
        told.operator = _change(*(each is not None and each.is_operator for each in (was, is_now)))
        yield _difference(told, _reached(was, old[1]), _reached(is_now, new[1]), _settings(old[0], new[0]))


def _held(caller: Caller) -> list[Who]:
    """A caller as each face has it that holds it to less."""
    return [(caller.name, caller.key, face) for face in FACES if caller.on(face).grants != caller.grants]


def _forms(callers: Iterable[Caller], held: Container[Who]) -> dict[Who, Caller]:
    """Callers at large, and on the faces that hold them to less here, or in what this is compared with."""
    forms: dict[Who, Caller] = {}
    for caller in callers:
        forms[caller.name, caller.key, None] = caller
        ways: list[Who] = [(caller.name, caller.key, face) for face in FACES]
        forms.update({who: caller.on(face) for who, face in zip(ways, FACES, strict=True) if who in held})
    return forms


def _change(*may: bool) -> Change | None:
    """What becomes of a right, by whether it was there and is now."""
    was, is_now = may
    return None if was == is_now else "appear" if is_now else "vanish"


def _reached(caller: Caller | None, snapshot: Snapshot) -> dict[What, Reason]:
    if caller is None:
        return {}
    found = reasons(snapshot, caller.grants)
    return {(reason.listed, reason.exposed): reason for reason in found if reason.is_reached}


def _difference(
    told: Difference, before: Mapping[What, Reason], after: Mapping[What, Reason], settings: Mapping[str, list[str]]
) -> Difference:
    told.appearing = [what for what in after if what not in before]
    told.vanishing = [what for what in before if what not in after]
    for what in (what for what in after if what in before):
        changes = [*_changes(before[what], after[what]), *settings.get(after[what].route.feature.server, ())]
        if changes:
            told.changing[what] = changes
    return told


def _changes(before: Reason, after: Reason) -> Iterator[str]:
    if before.route.feature.digest != after.route.feature.digest:
        yield "definition"
    if before.route.keep_seconds != after.route.keep_seconds:
        yield f"cache {before.route.keep_seconds:g} → {after.route.keep_seconds:g} s"
    if before.labels.believed != after.labels.believed:
        yield "tags or hints"


def _settings(old: Configuration, new: Configuration) -> dict[str, list[str]]:
    """By server: which of its settings are others, and how."""
    before = {server.name: server for server in old.servers}
    return {
        server.name: [
            f"{name} {_shown(was)} → {_shown(now)}"
            for name in COMPARED
            if (was := _setting(before[server.name], name, old)) != (now := _setting(server, name, new))
        ]
        for server in new.servers
        if server.name in before
    }


def _setting(server: ServerSettings, name: str, configuration: Configuration) -> object:
    value = getattr(server, name)
    return configuration.hub.pin if name == "pin" and value is None else value


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- telling -----------------------------------------------------------------------------------------------------------


def _lines(difference: Difference) -> Iterator[str]:
    name, key, face = difference.who
    by = f", by key {key}" if key else ""
    on = "" if face is None else f", on {face}"
    yield f"{name} (tenant {difference.tenant}{by}{on})"
    yield from _named("+", difference.appearing)
    yield from _named("-", difference.vanishing)
    for change, right in ((difference.targets, TARGETS), (difference.operator, OPERATOR)):
        if change is not None:
            yield f"  {'+' if change == 'appear' else '-'} {right}"
    rows = [(f"  ~ {_name(what)}", ", ".join(changes)) for what, changes in difference.changing.items()]
    yield from aligned(rows)


def _named(mark: str, found: Iterable[What]) -> Iterator[str]:
    return (f"  {mark} {_name(what)}" for what in found)


def _name(what: What) -> str:
    listed, exposed = what
    return exposed if listed == "tools" else f"{exposed} ({listed.removesuffix('s')})"


def _document(difference: Difference) -> Mapping[str, object]:
    name, key, face = difference.who
    return {
        "caller": name,
        "tenant": difference.tenant,
        "key": key or None,
        "face": face,
        "appear": [_entry(what) for what in difference.appearing],
        "vanish": [_entry(what) for what in difference.vanishing],
        "change": [{**_entry(what), "what": changes} for what, changes in difference.changing.items()],
        "targets": difference.targets,
        "operator": difference.operator,
    }


def _entry(what: What) -> dict[str, object]:
    return {"list": what[0], "name": what[1]}
