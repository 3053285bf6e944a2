"""Full-text search over the tools of one view: SQLite's FTS5 in memory, ranked by BM25 and by what a query covers.

An index has the tools of one view and nothing else, so that neither ranks, counts nor times tell a caller of tools that
it may not call. One thread at a time uses it, and never that of the event loop; `core.calls.search_tools` sees to that.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec

from isthmus.core.catalog.view import Route

TEXT_LENGTH_MAX = 2_000
NAME_LENGTH_MAX = 256
ARGUMENTS_MAX = 64
"""How much of a definition is indexed: a server may write megabytes."""

QUERY_LENGTH_MAX = 1_000
WORDS_MAX = 12
"""How many different words of a query count, the first ones; more would only take longer."""

PREFIX_LENGTH_MIN = 3
"""Shorter words match whole words only: most tools have a word that begins with `a`."""

TYPO_LENGTH_MIN = 3
TYPO_LENGTH_MAX = 20
"""Unknown words of other lengths are not corrected: every short word resembles many, and long ones take longer."""

SUGGESTIONS_MAX = 3
"""Names that an error suggests."""

MATCHES_MAX = 800
"""How many matches BM25 compares. A query with a rare word is not searched by its common ones: thousands of tools may
list or get something, and these words are counted afterwards, for the tools that were found."""

CANDIDATES_MAX = 100
"""Tools that are then ranked by what they cover of the query, the best by BM25."""

SUMMARY_LENGTH_MAX = 200
"""How long the first sentence of a description is at most."""

WEIGHTS = {
    "name": 8.0,
    "title": 5.0,
    "server": 5.0,
    "summary": 4.0,
    "description": 1.0,
    "arguments": 1.0,
    "meanings": 2.0,
    "labels": 0,
}
"""The columns of the index, and how much a word in each counts for BM25. `summary` is the first sentence of the
description, which says what a tool does; the rest says how to use it, and names much that other tools do. `meanings`
are the groups of synonyms of the words in name, title and summary; `labels` are the server and the tags, by number,
which searches are limited to."""

COVERAGE = (1.0, 0.9, 0.9, 0.8, 0.4, 0.3)
"""How well a word of the query is covered by a tool that has it in its name, title, server, summary, description,
arguments."""

MEANING = 0.8
"""How well a synonym in the name covers a word; one in the description covers it half as well."""

RELEVANCE = 0.3
"""How much it counts what BM25 says, from 0 for nothing to this for the best."""

TIGHTNESS = 0.1
"""How much it counts if a name has no other words than those of the query."""

DELETION = 0.1
"""How much less a tool counts that deletes something, if the query does not say so."""

SYNONYMS = (
    "list show get display view enumerate see",
    "get read retrieve fetch load open view",
    "delete remove erase drop trash destroy discard clear forget empty purge",
    "create add make new insert compose generate",
    "update edit change modify set patch alter rename",
    "search find query look lookup locate",
    "send post publish write submit",
    "stop cancel end terminate kill abort close halt pause",
    "start run execute launch begin invoke trigger",
    "move transfer rename",
    "copy duplicate clone fork",
    "write save store put push append",
    "file document doc",
    "folder directory dir",
    "repo repository project",
    "issue ticket bug task story card",
    "message text chat conversation thread",
    "email mail inbox gmail",
    "picture image photo screenshot",
    "user person people member contact colleague",
    "meeting event appointment calendar invitation",
    "page website site url webpage tab",
    "comment reply answer respond feedback note",
    "log history output activity changelog",
    "song music track",
    "database db sql",
    "upload attach attachment",
    "download save export",
    "schedule book plan",
    "error exception crash failure bug",
    "customer client",
    "bill invoice charge payment",
    "program command process",
    "machine instance server vm host",
    "temperature warm cold weather rain forecast",
    "several many multiple batch",
    "phone call",
    "phone mobile device android",
    "row record entry",
    "column field",
    "table sheet spreadsheet",
    "excel workbook spreadsheet xlsx",
    "word docx document",
    "latest recent new newest last",
    "share access permission restriction",
    "assign give",
    "subtitle transcript caption",
    "chart diagram graph plot flowchart",
    "status state",
    "wiki confluence wikipedia",
    "company organization business",
    "lint style format",
    "restart rollout redeploy",
    "outline structure toc",
    "popup dialog alert",
    "route direction",
    "rotate orientation",
    "count number amount total",
    "type enter fill",
    "pipeline build workflow ci",
    "replace substitute",
    "buy order purchase",
    "price cost fee",
    "ship deliver delivery shipment",
    "refund reimburse",
    "employee staff worker",
    "car vehicle",
    "trip travel journey",
)
"""Words that mean much the same where tools are described."""

ABBREVIATIONS = {
    "pr": "pull request",
    "prs": "pull request",
    "db": "database",
    "vm": "virtual machine",
    "vms": "virtual machine",
    "k8s": "kubernetes",
    "kubectl": "kubernetes",
    "ls": "list directory",
    "mkdir": "create directory",
    "rm": "delete file",
    "mv": "move file",
    "ps": "list processes",
    "ack": "acknowledge",
    "sms": "text message",
    "env": "environment",
    "config": "configuration",
    "auth": "authentication",
    "doc": "document",
    "docs": "documentation",
    "how many": "count number",
    "turn on": "enable update",
    "turn off": "disable update",
    "look up": "search",
    "log in": "login",
    "sign in": "login",
}
"""What is written short or in two words, and what it means. Both are searched for."""

_STOPWORDS = (
    "a about an and any are as at be by can could did do does for from had has have how i if in into is it its me my of"
    " on or our please should so some someone something that the their them there these they this to up us want was we"
    " were what when where which who will with would you your"
)
STOPWORDS = frozenset(_STOPWORDS.split())
"""Words that say nothing about a tool; a query of such words alone is searched for as it is."""

_WORD = re.compile(r"[^\W\d_]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ENDINGS = ((("ies", "y"), ("es", ""), ("s", "")), (("ing", ""), ("ed", ""), ("e", "")))
_SENTENCE = re.compile(r"[.!?:]\s|\n")


class NoFullTextSearch(RuntimeError):
    """Python's SQLite has no FTS5."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"tool search needs SQLite with FTS5, which the SQLite {version} of this Python does not"
            " have; run the hub with a Python whose sqlite3 module has it"
        )


# -- words -------------------------------------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; `camelCase`, `snake_case` and `kebab-case` are several."""
    return [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))]


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """A word without its usual ending. FTS5 stems what is left once more."""
    for endings in _ENDINGS:
        if len(word) > 3 and not word.endswith("ss"):
            for ending, instead in endings:
                if word.endswith(ending) and len(word) > len(ending) + 2:
                    word = word[: -len(ending)] + instead
                    break
    return word


def _synonym_groups() -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for number, group in enumerate(SYNONYMS):
        for word in group.split():
            groups.setdefault(stem(word), []).append(f"m{number}m")  # no text has such a word: see `_WORD`
    return {word: tuple(of) for word, of in groups.items()}


_GROUPS = _synonym_groups()
_DELETIONS = frozenset(_GROUPS[stem("delete")])


def _stems(text: str) -> list[str]:
    return [stem(word) for word in words_of(text)]


def _groups(stems: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(group for stem in stems for group in _GROUPS.get(stem, ())))


def _typos(word: str) -> Iterator[str]:
    """The words that differ from this one by one letter, or by two neighbours in the other order."""
    cuts = [(word[:at], word[at:]) for at in range(len(word) + 1)]
    for before, after in cuts:
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        if after:
            yield before + after[1:]
        for letter in string.ascii_lowercase:
            yield before + letter + after[1:]
            yield before + letter + after


# -- the texts of a tool -----------------------------------------------------------------------------------------------


class _Schema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}


class IndexedTool(NamedTuple):
    """One tool as the index has it: its columns, each a text of stems with a space on both sides of each."""

    name: str
    title: str
    server: str
    summary: str
    description: str
    arguments: str
    meanings: str
    name_meanings: str

    @classmethod
    def of(cls, route: Route) -> IndexedTool:
        """Read its definition, which may be anything."""
        feature, definition = route.feature, route.feature.definition
        # Of `server.tool` only the second part: the server has a column of its own.
        name = _stems((feature.name if route.exposed.endswith(feature.name) else route.exposed)[:NAME_LENGTH_MAX])
        title, description = (_text(definition.get(key))[:TEXT_LENGTH_MAX].strip() for key in ("title", "description"))
        sentence = _SENTENCE.search(description)
        cut = min(SUMMARY_LENGTH_MAX, sentence.end() if sentence else len(description))
        titled, summary = _stems(title), _stems(description[:cut])
        columns = (
            name,
            titled,
            _stems(feature.server),
            summary,
            _stems(description[cut:]),
            _stems(" ".join(_argument_names(definition.get("inputSchema")))),
            _groups((*name, *titled, *summary)),
            _groups(name),
        )
        return cls(*(f" {' '.join(stems)} " for stems in columns))


def _text(raw: msgspec.Raw | None) -> str:
    try:
        return "" if raw is None else msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def _argument_names(schema: msgspec.Raw | None) -> list[str]:
    try:
        properties = {} if schema is None else msgspec.json.decode(schema, type=_Schema).properties
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [name[:NAME_LENGTH_MAX] for name in list(properties)[:ARGUMENTS_MAX]]


# -- the index ---------------------------------------------------------------------------------------------------------


class _QueryWord(NamedTuple):
    stem: str
    groups: tuple[str, ...]
    rarity: float
    """How much it tells: more, the fewer tools have it."""


class _IndexRow(NamedTuple):
    number: int
    digest: bytes
    tool: IndexedTool
    labels: str


class ToolIndex:
    """The index of one view's tools, by their exposed names."""

    def __init__(self) -> None:
        """Create an empty index.

        Raises:
            NoFullTextSearch: SQLite has no FTS5.
        """
        import sqlite3  # noqa: PLC0415 - programs that embed the hub and never search should not load a database

        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        columns = ", ".join(WEIGHTS)
        try:
            self._database.execute(
                f"CREATE VIRTUAL TABLE tools USING fts5({columns}, content = '', tokenize = 'porter unicode61')"
            )
        except sqlite3.OperationalError as error:
            self._database.close()
            raise NoFullTextSearch(sqlite3.sqlite_version) from error
        values = f"({', '.join('?' * len(WEIGHTS))})"
        weights = ", ".join(map(str, WEIGHTS.values()))
        self._insert = f"INSERT INTO tools (rowid, {columns}) VALUES (?, {values[1:]}"  # noqa: S608 - our own names
        self._delete = f"INSERT INTO tools (tools, rowid, {columns}) VALUES ('delete', ?, {values[1:]}"  # noqa: S608
        self._select = (
            f"SELECT id, rank FROM (SELECT rowid AS id, bm25(tools, {weights}) AS rank FROM tools WHERE tools MATCH ?"  # noqa: S608
            f" LIMIT {MATCHES_MAX}) ORDER BY rank, id LIMIT {CANDIDATES_MAX}"
        )
        self._rows: dict[str, _IndexRow] = {}
        self._names: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        """How many tools have a stem, a group of synonyms or a label."""
        self._labels: dict[str, str] = {}
        """The word of the index for each label."""
        self._last = 0

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Free its memory."""
        self._database.close()

    def update(self, routes: Mapping[str, Route], tags: Mapping[str, Iterable[str]] = {}) -> None:
        """Let the index have exactly these tools, with these tags; only changed ones are indexed anew."""
        self._database.execute("BEGIN")
        labels = {name: self._label_words(route, tags.get(name, ())) for name, route in routes.items()}
        for name, row in list(self._rows.items()):
            route = routes.get(name)
            if route is None or route.feature.digest != row.digest or labels[name] != row.labels:
                del self._rows[name], self._names[row.number]
                self._database.execute(self._delete, (row.number, *row.tool[:7], row.labels))
                self._counts.subtract(_counted(row))
        for name, route in routes.items():
            if name not in self._rows:
                self._last += 1
                row = self._rows[name] = _IndexRow(
                    self._last, route.feature.digest, IndexedTool.of(route), labels[name]
                )
                self._names[row.number] = name
                self._database.execute(self._insert, (row.number, *row.tool[:7], row.labels))
                self._counts.update(_counted(row))
        self._database.execute("COMMIT")
        self._counts = +self._counts

    def _label_words(self, route: Route, tags: Iterable[str]) -> str:
        names = (f"server {route.feature.server}", *(f"tag {tag}" for tag in sorted(tags)))
        return " ".join(self._labels.setdefault(name, f"n{len(self._labels)}n") for name in names)

    def search(self, query: str, limit: int, *, server: str | None = None, tag: str | None = None) -> list[str]:
        """The names of the tools that fit best, the best first; without words in the query, the first ones by name."""
        wanted = [f"server {server}"] * (server is not None) + [f"tag {tag}"] * (tag is not None)
        labels = [self._labels.get(each) for each in wanted]
        if None in labels:
            return []
        words = self._query_words(query)
        if not words:
            fitting = (name for name, row in self._rows.items() if set(row.labels.split()).issuperset(labels))
            return sorted(fitting)[:limit]
        expression = " AND ".join((f"({self._expression(words)})", *(f'labels : "{label}"' for label in labels)))
        found = [(self._names[number], rank) for number, rank in self._database.execute(self._select, (expression,))]
        best = found[0][1] if found else 0.0  # ranks of FTS5 are negative, and that of the best is the lowest
        scores = {
            name: _coverage(words, self._rows[name].tool) + (RELEVANCE * rank / best if best else 0.0)
            for name, rank in found
        }
        return sorted(scores, key=lambda name: (-scores[name], name))[:limit]

    def _query_words(self, query: str) -> list[_QueryWord]:
        plain = words_of(query[:QUERY_LENGTH_MAX])
        words: dict[str, None] = {}
        for word, after in zip(plain, (*plain[1:], ""), strict=False):
            meant = (ABBREVIATIONS.get(f"{word} {after}", ""), ABBREVIATIONS.get(word, ""))
            words |= dict.fromkeys((word, *" ".join(meant).split()))
        words |= {joined: None for pair in pairwise(plain) if stem(joined := "".join(pair)) in self._counts}
        terms = [word for word in words if word not in STOPWORDS] or list(words)
        stems = dict.fromkeys(known for word in terms[:WORDS_MAX] for known in self._known_stems(word))
        return [_QueryWord(stem, groups := _GROUPS.get(stem, ()), self._rarity(stem, groups)) for stem in stems]

    def _known_stems(self, word: str) -> list[str]:
        """The stem of a word; for a word that no tool has, of what it may be: two words in one, or a typing error."""
        own = stem(word)
        is_usual = own in self._counts or own in _GROUPS or not TYPO_LENGTH_MIN <= len(own) <= TYPO_LENGTH_MAX
        if is_usual or any(count.startswith(own) for count in self._counts):
            return [own]
        for at in range(PREFIX_LENGTH_MIN, len(word) - PREFIX_LENGTH_MIN + 1):
            parts = [stem(word[:at]), stem(word[at:])]
            if all(part in self._counts for part in parts):
                return parts
        # Hardly anybody mistypes the first letter; most words that differ in it are other words.
        near = {typo: self._counts[typo] for typo in _typos(own) if typo in self._counts and typo[0] == own[0]}
        return [own] if not near else [max(near, key=lambda typo: (near[typo], typo))]

    def _rarity(self, own: str, groups: tuple[str, ...]) -> float:
        count = self._counts[own] or min((self._counts[group] for group in groups), default=0)
        return math.log(1 + (len(self._rows) + 1) / (count + 0.5))

    def _expression(self, words: list[_QueryWord]) -> str:
        """The query in the language of FTS5. The words have letters and digits only, and are in quotation marks."""
        parts: list[tuple[int, str]] = []
        for word in words:
            count = self._counts[word.stem]
            if count or len(word.stem) < PREFIX_LENGTH_MIN:
                parts.append((count, f'"{word.stem}"'))
            else:
                prefixed = sum(of for each, of in self._counts.items() if each.startswith(word.stem))
                parts.append((prefixed, f'"{word.stem}"*'))
            parts += [(self._counts[group], f'"{group}"') for group in word.groups]
        parts = sorted(part for part in dict.fromkeys(parts) if part[0]) or parts[:1]
        chosen: list[str] = []
        total = 0
        for count, part in parts:
            if chosen and total + count > MATCHES_MAX:
                break
            chosen.append(part)
            total += count
        return " OR ".join(chosen)


def _counted(row: _IndexRow) -> set[str]:
    return {word for text in row.tool[:7] for word in text.split()}


def _coverage(words: list[_QueryWord], tool: IndexedTool) -> float:
    """How much of a query a tool covers, from 0 to 1, and a little more if its name says nothing else."""
    covered = 0.0
    for word in words:
        padded = f" {word.stem} "
        best = next((weight for text, weight in zip(tool, COVERAGE, strict=False) if padded in text), 0.0)
        if best < MEANING:
            if any(f" {group} " in tool.name_meanings for group in word.groups):
                best = MEANING
            elif best < MEANING / 2 and any(f" {group} " in tool.meanings for group in word.groups):
                best = MEANING / 2
        covered += best * word.rarity
    name = tool.name.split()
    stems, groups = {word.stem for word in words}, {group for word in words for group in word.groups}
    named = sum(each in stems or not groups.isdisjoint(_GROUPS.get(each, ())) for each in name)
    is_surprise = groups.isdisjoint(_DELETIONS) and any(_DELETIONS & {*_GROUPS.get(each, ())} for each in name)
    score = covered / sum(word.rarity for word in words) + TIGHTNESS * named / max(1, len(name))
    return score - DELETION if is_surprise else score
