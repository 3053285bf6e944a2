"""T29: a key, or a signature, is guessed letter by letter from the time that a refusal takes.

Of keys only SHA-256 digests are kept. What is shown is digested first, so that nobody can choose what is compared, and
then compared in constant time; good and bad keys go the same way. Shown by structure, since time on a shared machine
shows nothing: no code of ours compares a secret in another way, and every key costs the same steps.
"""

from __future__ import annotations

import ast
import gc
import hmac
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import isthmus
from isthmus.app.caller_identity import Identities
from isthmus.config.settings import Configuration, HubSettings
from isthmus.identity.keys import digest_of
from isthmus.model.callers import Caller, Grants

SOURCE = Path(isthmus.__file__).parent
ROOMS = ("identity", "credentials", "frontends", "app", "transport")

SECRET = re.compile(r"(^|_)(secret|token|digest|signature|password|passphrase|credential|api_key|hmac|bearer)s?$")
"""Names of secrets. `key` alone is the name of a member nearly everywhere but in identity."""

NO_SECRETS = {
    (
        "app/access.py",
        "was.route.feature.digest != is_now.route.feature.digest",
    ): "digests of definitions, which operators read",
    (
        "credentials/server_logins.py",
        "text[at:at + end + 1] == secret[:end + 1]",
    ): "blanks it in the words of a server to which it was sent",
    (
        "frontends/a2a/service.py",
        "message_digest(one) == message_digest(other)",
    ): "digests of messages, which their sender has",
    ("frontends/a2a/service.py", "used.digest != digest_of(said)"): "the same",
    ("frontends/mcp/subscriptions.py", "digests[topic] != digest"): "the digest of a list, which its reader has",
    ("frontends/mcp/http_streams.py", "session.notified[topic] != self._digest(topic)"): "the same",
    ("frontends/mcp/subscriptions.py", "digest != self._last_digest"): "the digest of a task, which its owner has",
    ("frontends/relay/agents.py", "digest == self._announced"): "the digest of a list of tools",
    ("frontends/relay/agents.py", "table.digest != self._announced"): "the same",
}
"""Comparisons of names that look like secrets, and why they are not."""


def compared(tree: ast.AST, *, means_keys: bool) -> Iterator[str]:
    """Comparisons of a value named like a secret; searching it for a constant does not count."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        are_telling = any(isinstance(each, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for each in node.ops)
        is_search = isinstance(node.left, ast.Constant) and isinstance(node.ops[0], ast.In | ast.NotIn)
        if are_telling and not is_search and any(_is_secret(each, means_keys=means_keys) for each in sides):
            yield ast.unparse(node)


def _is_secret(node: ast.expr, *, means_keys: bool) -> bool:
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return SECRET.search(name) is not None or (means_keys and name == "key")


def test_no_secret_is_compared_with_an_operator() -> None:
    found = {
        (str(file.relative_to(SOURCE)), text)
        for room in ROOMS
        for file in sorted((SOURCE / room).rglob("*.py"))
        for text in compared(ast.parse(file.read_text()), means_keys=room == "identity")
    }
    assert found - NO_SECRETS.keys() == set(), "compare secrets with hmac.compare_digest"


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("token == given", True),
        ("given != self._secret", True),
        ("digest_of(x) == y", False),
        ("self.digest(x) == y", True),
        ("digest in known", True),
        ("held.api_key == key", True),
        ("key == given", True),
        ("b' ' in token", False),
        ("token is None", False),
        ("hmac.compare_digest(token, given)", False),
    ],
)
def test_such_a_comparison_would_be_found(code: str, *, is_found: bool) -> None:
    assert bool(list(compared(ast.parse(code), means_keys=True))) is is_found


KEY, OTHER = "k3y-of-the-planner-0123456789", "an0ther-key-of-somebody"
KEYS = {
    "right": KEY,
    "the first letter is wrong": "x" + KEY[1:],
    "the last letter is wrong": KEY[:-1] + "x",
    "too short": KEY[:3],
    "too long": KEY * 100,
    "another's": OTHER,
    "empty": "",
}


@pytest.fixture
def known(tmp_path: Path) -> Identities:
    callers = (
        (digest_of(KEY), Caller("planner", "default", Grants(("*",)))),
        (digest_of(OTHER), Caller("other", "default", Grants(("*",)))),
    )
    made = Identities(replace(Configuration(None, HubSettings(state=str(tmp_path))), callers=callers))
    made.decide()
    return made


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_key_is_compared_once_and_by_digests_of_one_length(
    known: Identities, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        sizes.append((len(one), len(other)))
        return compare_digest(one, other)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr("isthmus.identity.keys.hmac.compare_digest", compare)
    caller = known.by_key(key.encode())
    assert sizes == [(32, 32)]
    assert (caller is not None) is (key in (KEY, OTHER))


def test_nothing_that_is_kept_is_a_key(known: Identities) -> None:
    """Everything that hangs together with who is known, to its end: digests are there, and no key is."""
    assert isinstance(known.identify({b"x-api-key": KEY.encode()}), Caller)
    seen: dict[int, object] = {}
    todo: list[object] = [known]
    while todo:
        each = todo.pop()
        if id(each) not in seen and not isinstance(each, type) and type(each).__name__ not in ("module", "function"):
            seen[id(each)] = each
            todo += gc.get_referents(each)
    texts = [each for each in seen.values() if isinstance(each, str | bytes)]
    assert digest_of(KEY) in texts
    assert not [each for each in texts if each in (KEY, KEY.encode())]
