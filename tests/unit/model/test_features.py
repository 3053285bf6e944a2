"""Features of servers: identified by kind, server and name, and by a digest of their definition."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.model.features import Feature, Prompt, Resource, Template, Tool, digest_of
from isthmus.model.names import FeatureName, ServerName

FILES, READ = ServerName("files"), FeatureName("read")
WORDS = {"name": msgspec.Raw(b'"read"'), "new": msgspec.Raw(b"1.0e2")}


@pytest.mark.parametrize("kind", [Tool, Prompt, Resource, Template])
def test_a_feature_keeps_its_servers_definition(kind: type[Feature]) -> None:
    made = kind.of(FILES, READ, WORDS)
    assert (made.server, made.name, made.definition) == (FILES, READ, WORDS)
    assert type(made) is kind
    assert made == kind.of(FILES, READ, dict(WORDS))


def test_kinds_are_distinguished() -> None:
    one, other = (kind.of(FILES, READ, WORDS) for kind in (Tool, Prompt))
    assert one != other


def test_the_digest_changes_exactly_when_the_description_does() -> None:
    assert digest_of(WORDS) == digest_of(dict(WORDS))
    assert digest_of(WORDS) != digest_of({**WORDS, "new": msgspec.Raw(b"100.0")})
    assert digest_of(WORDS) != digest_of({**WORDS, "more": msgspec.Raw(b"1")})
    assert digest_of({}) != digest_of({"": msgspec.Raw(b'""')})
