"""The names of tools and resources on each surface, always as a table in both directions.

Names are looked up, never parsed back: `web` + `search_query` and `web_search` + `query` both flatten to the same text,
so no parser could be right. The tables cover all tools of a snapshot, not only those one caller sees, so that a name
means the same to all callers.

A resource keeps the URI of its server, because servers also write URIs into their results. Only where two servers have
the same URI is it qualified with the server's name.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from urllib.parse import unquote

from isthmus.model.names import FeatureName, ServerName, digits_of, loses_letters, without_accents

Pair: TypeAlias = tuple[ServerName, FeatureName]

LLM_LENGTH_MAX = 64
"""The longest function name that providers of language models accept."""

SUGGESTIONS_MAX = 3
COMPARED_LENGTH_MAX = 128
"""How much of an unknown name is compared with the known ones: comparing takes longer for longer names."""

BUILTIN = ServerName("builtin")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def canonical(pair: Pair) -> str:
    """`server.tool`; unambiguous, because server names contain no dot."""
    return f"{pair[0]}.{pair[1]}"


class CanonicalNames(dict[Pair, str]):
    """The canonical name of every tool, computed on lookup: it depends on no other tool."""

    def __missing__(self, pair: Pair) -> str:
        return canonical(pair)


def llm_table(pairs: Iterable[Pair]) -> dict[Pair, str]:
    """`mcp_{server}_{tool}` for every tool, made legal, short and unique.

    A name that was cut, lost letters, or would be shared by two tools ends in six hex digits of the pair; which tools
    get the digits does not depend on their order.
    """
    plain = {pair: llm_form(pair) for pair in pairs}
    table = {
        pair: name
        for pair, name in plain.items()
        if len(name) <= LLM_LENGTH_MAX and (pair[1].isascii() or not loses_letters(pair[1]))
    }
    taken = set(table.values())
    if len(taken) < len(table):
        shared = Counter(table.values())
        table = {pair: name for pair, name in table.items() if shared[name] == 1}
        taken = set(table.values())
    for pair in sorted(plain.keys() - table.keys()):
        table[pair] = with_digits(plain[pair], pair, taken)
        taken.add(table[pair])
    return table


def llm_form(pair: Pair) -> str:
    """`mcp_{server}_{tool}`, made legal; it may be too long, or shared with another tool.

    A tool keeps its hyphens. A server gets underscores instead, so that the names of its tools begin like identifiers.
    """
    server, tool = pair
    name = f"mcp_{server.replace('-', '_')}_{tool if tool.isascii() else without_accents(tool)}"
    # Most names are legal, and to see that is quicker than to replace nothing.
    is_legal = name.isascii() and name.replace("-", "_").isidentifier()
    return name if is_legal else _ILLEGAL.sub("_", name)


def with_underscores(name: str) -> str:
    """The name without hyphens, as programs and models write it that only know identifiers."""
    return name.replace("-", "_")


def llm_aliases(names: Iterable[str]) -> dict[str, str]:
    """Names with underscores in place of hyphens, and the name that each stands for.

    An alias is never the name of another tool, and an alias that two tools would share is left out.
    """
    known = set(names)
    hyphened = [name for name in known if "-" in name]
    shared = Counter(map(with_underscores, hyphened))
    aliases = {with_underscores(name): name for name in hyphened}
    return {alias: name for alias, name in aliases.items() if shared[alias] == 1 and alias not in known}


def llm_forms(pair: Pair) -> set[str]:
    """All names that language models may have been given for a tool, whatever other tools there were."""
    plain = llm_form(pair)
    forms = (plain, with_digits(plain, pair, set()))
    return {*forms, *map(with_underscores, forms)}


def with_digits(name: str, pair: Pair, taken: set[str]) -> str:
    """A name that is not taken: the beginning of `name`, and six hex digits of the pair."""
    digest = digits_of(*pair)
    stem = name[: LLM_LENGTH_MAX - 7].rstrip("_")
    for start in range(0, len(digest) - 6, 6):
        candidate = f"{stem}_{digest[start : start + 6]}"
        if candidate not in taken:
            return candidate
    raise AssertionError(f"no free name for {pair}")  # twenty independent 24-bit collisions


class AmbiguousName(LookupError):
    """A short name that several tools have; `candidates` are their canonical names."""

    def __init__(self, name: str, candidates: list[str]) -> None:
        super().__init__(f"{name!r} could be {', '.join(candidates)}: use one of these full names")
        self.name = name
        self.candidates = candidates


def resolve(name: str, pairs: Iterable[Pair]) -> Pair | None:
    """The tool that a person means by `name`: canonical, `mcp.tool`, or short; None if no tool matches.

    Raises:
        AmbiguousName: several tools have this short name.
    """
    table = {canonical(pair): pair for pair in pairs}
    if name in table:
        return table[name]
    server, dot, rest = name.partition(".")
    if dot and server == "mcp":
        return _only(name, [pair for pair in table.values() if pair[1] == rest and pair[0] != BUILTIN])
    if (own := (BUILTIN, FeatureName(name))) in set(table.values()):
        return own
    return _only(name, [pair for pair in table.values() if pair[1] == name])


def _only(name: str, found: list[Pair]) -> Pair | None:
    if len(found) > 1:
        raise AmbiguousName(name, sorted(canonical(pair) for pair in found))
    return found[0] if found else None


def suggestions(name: str, known: Iterable[str]) -> list[str]:
    """Full names that are similar to an unknown name in any part, the nearest first.

    The comparison ignores case; tools with exactly this name at other servers come last.
    """
    parts: dict[str, list[str]] = {}
    for full in known:
        for part in {full, full.partition(".")[2]}:
            parts.setdefault(part.casefold(), []).append(full)
    sought = name[:COMPARED_LENGTH_MAX].casefold()
    matches = difflib.get_close_matches(sought, parts, n=SUGGESTIONS_MAX, cutoff=0.6)
    tool = sought.partition(".")[2]
    elsewhere = parts.get(tool, []) if tool else []
    near = dict.fromkeys([*(full for match in matches for full in parts[match]), *elsewhere])
    return list(near)[:SUGGESTIONS_MAX]


_PREFIX = "isthmus://hub/"
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_QUERY = re.compile(r"[?#]")

DECODINGS_MAX = 3
"""How often a URI may be percent-encoded; servers decode once, and some twice."""


def qualified(server: ServerName, uri: str) -> str:
    """A URI that names its server; a template stays a template."""
    return f"{_PREFIX}{server}/{uri}"


def uri_table(pairs: Iterable[Pair], claims: TemplateClaims | None = None) -> dict[Pair, str]:
    """The URI under which every resource is shown: its own, unless servers share it.

    Then none of them keeps it: a server must not be able to impersonate another by listing its URIs, or by listing what
    another's template matches (`claims`). For the same reason no server keeps a URI that looks qualified.
    """
    ordered = sorted(set(pairs))
    shared = Counter(uri for _, uri in ordered)
    keeps = {uri for uri, count in shared.items() if count == 1 and not is_qualified(uri)}
    if claims is not None:
        keeps -= {uri for server, uri in ordered if uri in keeps and claims.by_others(server, uri)}
    return {pair: pair[1] if pair[1] in keeps else qualified(*pair) for pair in ordered}


def split_qualified(uri: str) -> tuple[str, str]:
    """The server that a qualified URI names, and the server's own URI."""
    server, _, own = uri.removeprefix(_PREFIX).partition("/")
    return server, own


def is_qualified(uri: str) -> bool:
    """Whether a URI names its server."""
    return uri.startswith(_PREFIX)


def normalized(uri: str) -> str:
    """A URI as the most lenient server would read it: decoded, without dots, double slashes and case.

    Two URIs that are equal like this may be one resource: if one is denied, so is the other.
    """
    for _ in range(DECODINGS_MAX):
        if (decoded := unquote(uri)) == uri:
            break
        uri = decoded
    scheme, _, rest = uri.replace("\\", "/").casefold().partition(":")
    kept: list[str] = []
    for part in map(str.strip, rest.split("/")):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    return f"{scheme.strip()}:{'/'.join(kept)}"


def normalized_template(template: str) -> str:
    """The same for a template, whatever its variables."""
    return normalized(_EXPRESSION.sub("{}", template))


def without_query(uri: str) -> str:
    """A URI without its query and fragment."""
    return _QUERY.split(uri, 1)[0]


class TemplateShape:
    """The literal parts of a URI template, in order, with anything in between.

    It matches more than the template means, because a variable may stand for anything; the server decides. It searches
    for text instead of using a regular expression, because a server may send a template that takes one ages.
    """

    __slots__ = ("_parts", "weight")

    def __init__(self, template: str) -> None:
        self._parts = _EXPRESSION.split(template)
        self.weight = sum(map(len, self._parts))
        """The length of the literal parts: a longer one is more specific."""

    def fits(self, uri: str) -> bool:
        """Whether the template may stand for this URI."""
        return has_parts(uri, self._parts)


def has_parts(text: str, parts: Sequence[str]) -> bool:
    """Whether a text begins with the first of these parts, ends with the last, and has the others between, in order."""
    first, *middle = parts
    if not middle:
        return text == first
    last = middle.pop()
    if not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return position <= end


PRECISE_MAX = 32
"""Templates of one server and scheme that are compared with every URI; a server with more claims the whole scheme."""


class TemplateClaims:
    """Which URIs servers' templates match, by scheme: each URI is compared only with templates of its scheme.

    A template without a literal scheme could mean anything, and claims nothing.
    """

    def __init__(self, templates: Iterable[Pair]) -> None:
        grouped: dict[str, dict[ServerName, list[str]]] = {}
        for server, template in sorted(set(templates)):
            if (scheme := _scheme(template)) is not None:
                grouped.setdefault(scheme, {}).setdefault(server, []).append(template)
        self._shapes = {
            scheme: [(server, shape) for server, texts in of.items() for shape in _shapes(scheme, texts)]
            for scheme, of in grouped.items()
        }

    def by_others(self, server: ServerName, uri: str) -> bool:
        """Whether a template of another server matches this URI."""
        shapes = self._shapes.get(_scheme(uri) or "", ())
        return any(owner != server and shape.fits(uri) for owner, shape in shapes)


def _scheme(uri: str) -> str | None:
    scheme, colon, _ = uri.partition(":")
    return scheme if colon and "{" not in scheme else None


def _shapes(scheme: str, templates: list[str]) -> list[TemplateShape]:
    return [TemplateShape(template) for template in (templates if len(templates) <= PRECISE_MAX else [scheme + ":{}"])]
