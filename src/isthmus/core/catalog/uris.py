"""URIs of resources: how they are shown where several servers meet, and which template one belongs to.

A URI is passed on as its server spells it, because servers also write it into their results. Only where two servers
have the same one must the name say whose it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from urllib.parse import unquote

from isthmus.core.catalog.names import Pair
from isthmus.model.names import ServerName

_PREFIX = "isthmus://hub/"
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_QUERY = re.compile(r"[?#]")

DECODINGS_MAX = 3
"""How often a URI may be encoded over; servers decode once, and some once more."""


def qualified(server: ServerName, uri: str) -> str:
    """A URI that says whose it is; a template stays one."""
    return f"{_PREFIX}{server}/{uri}"


def uri_table(pairs: Iterable[Pair], claims: TemplateClaims | None = None) -> dict[Pair, str]:
    """The URI under which every resource is shown: its own, unless servers share it.

    Then none of them keeps it: a server must not be able to stand in for another by listing its URIs, nor by listing
    what another's template stands for (`claims`). For the same reason none keeps one that looks like ours, which
    would say that it is another's.
    """
    ordered = sorted(set(pairs))
    shared = Counter(uri for _, uri in ordered)
    keeps = {uri for uri, count in shared.items() if count == 1 and not is_qualified(uri)}
    if claims is not None:
        keeps -= {uri for server, uri in ordered if uri in keeps and claims.by_others(server, uri)}
    return {pair: pair[1] if pair[1] in keeps else qualified(*pair) for pair in ordered}


def split_qualified(uri: str) -> tuple[str, str]:
    """The server that a qualified URI names, and the URI as that server spells it."""
    server, _, own = uri.removeprefix(_PREFIX).partition("/")
    return server, own


def is_qualified(uri: str) -> bool:
    """Whether a URI says whose it is."""
    return uri.startswith(_PREFIX)


def normalized(uri: str) -> str:
    """A URI as the most lenient server would read it: decoded, without dots, double strokes and case.

    Two that are the same like this may be one resource, and are not to be told from one another where one is denied.
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
    """The same of a template, whatever its variables are."""
    return normalized(_EXPRESSION.sub("{}", template))


def without_query(uri: str) -> str:
    """A URI up to what servers may take for a question about it, or for a place in it."""
    return _QUERY.split(uri, 1)[0]


class TemplateShape:
    """What a template's URIs look like: its literal parts, in order, with anything in between.

    It takes more than the template means (a variable may stand for anything), which is for the server to say. It
    looks for texts and not by a regular expression, because a server may send a template that takes one ages.
    """

    __slots__ = ("_parts", "weight")

    def __init__(self, template: str) -> None:
        self._parts = _EXPRESSION.split(template)
        self.weight = sum(map(len, self._parts))
        """The more of a template is literal, the better it says which URIs it means."""

    def fits(self, uri: str) -> bool:
        """Whether the template may stand for this URI."""
        first, *middle = self._parts
        if not middle:
            return uri == first
        last = middle.pop()
        if not uri.startswith(first) or not uri.endswith(last):
            return False
        position, end = len(first), len(uri) - len(last)
        for part in middle:
            found = uri.find(part, position, end)
            if found < 0:
                return False
            position = found + len(part)
        return position <= end


PRECISE_MAX = 32
"""Templates of one server and scheme that are held against every URI; one with more claims the whole scheme."""


class TemplateClaims:
    """Which URIs servers' templates stand for, by scheme: each listed URI is held against those of its scheme alone.

    A template that names no scheme may mean anything, and claims nothing from others.
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
        """Whether a template of another server stands for this URI."""
        shapes = self._shapes.get(_scheme(uri) or "", ())
        return any(owner != server and shape.fits(uri) for owner, shape in shapes)


def _scheme(uri: str) -> str | None:
    scheme, colon, _ = uri.partition(":")
    return scheme if colon and "{" not in scheme else None


def _shapes(scheme: str, templates: list[str]) -> list[TemplateShape]:
    return [TemplateShape(template) for template in (templates if len(templates) <= PRECISE_MAX else [scheme + ":{}"])]
