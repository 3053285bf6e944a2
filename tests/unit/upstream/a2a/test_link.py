"""Links to agents, over real sockets: their cards and their lists."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from isthmus.model.fault_table import (
    BadReply,
    NotConnected,
)
from isthmus.model.names import ServerName
from isthmus.upstream.a2a.remote_task import TaskIds
from isthmus.upstream.base_link import ConnectFailed
from tests.unit.core.doubles import ANYONE, SERVER
from tests.unit.upstream.a2a.scene import SECONDS, Scene

# -- cards -----------------------------------------------------------------------------------------------------------


async def test_a_card_lists_a_tool_for_each_skill(every: Scene) -> None:
    every.agent.skills.append({"id": "a b", "name": "AB", "description": "Does.", "examples": ["one"], "tags": ["t"]})
    listing = await every.link.list_features(known=await every.link.list_features())
    research, other = listing.tools
    assert (research.name, other.name) == ("research", "a_b")
    members = {key: json.loads(bytes(value)) for key, value in other.definition.items()}
    assert members["description"] == "Does.\n\nFor example:\n- one\n\nTags: t"
    assert members["title"] == "AB"
    assert list(members["inputSchema"]["properties"]) == ["message", "data", "task_id", "context_id"]
    assert every.link.dialect.version == f"A2A {every.agent.kind.version}"


async def test_a_card_that_holds_is_not_read_again(scene: Scene) -> None:
    scene.agent.card_headers = {"etag": '"x"', "cache-control": "public, max-age=300"}
    before = await scene.link.list_features(known=await scene.link.list_features())
    assert before.ttl_seconds == {"tools": 300.0}
    scene.agent.paths = lambda path: (304, b"")
    assert await scene.link.list_features(known=before) == before
    assert 'if-none-match: "x"' in scene.agent.fetched[-1]


async def test_the_earlier_place_of_a_card_is_looked_at_too(scene: Scene) -> None:
    scene.agent.paths = lambda path: None if path == "/.well-known/agent.json" else (404, b"")
    link = scene.dial(scene.agent.origin + "/")
    await link.handshake("legacy")
    await link.ping(SECONDS)
    assert [head.split()[1] for head in scene.agent.fetched[-3:]] == [
        "/.well-known/agent-card.json",
        "/.well-known/agent.json",
        "/.well-known/agent.json",
    ]
    await link.aclose()


async def test_a_card_that_moves_is_found_again(scene: Scene) -> None:
    scene.agent.card_headers = {"etag": '"x"'}
    scene.agent.paths = lambda path: (404, b"") if path.endswith("agent-card.json") else None
    link = scene.dial(scene.agent.origin)
    await link.handshake("legacy")
    before = await link.list_features()
    scene.agent.skills.append({"id": "new", "name": "New", "description": ""})
    scene.agent.paths = lambda path: (404, b"") if path.endswith("agent.json") else None
    assert [tool.name for tool in (await link.list_features(known=before)).tools] == ["research", "new"]
    assert "if-none-match" not in scene.agent.fetched[-1], "it is another document"
    await link.aclose()


async def test_a_caller_that_must_log_in_for_the_card_learns_where(scene: Scene) -> None:
    scene.agent.card_headers = {"www-authenticate": 'Bearer resource_metadata="https://login.example/meta"'}
    scene.agent.paths = lambda path: (401, b"")
    link = scene.dial(scene.agent.origin)
    with pytest.raises(NotConnected) as refused:
        await link.handshake("legacy")
    assert refused.value.login == "https://login.example/meta"
    await link.aclose()


async def test_the_address_of_the_card_itself_will_do(scene: Scene) -> None:
    link = scene.dial(scene.agent.origin + "/cards/mine.json?v=1")
    await link.handshake("legacy")
    assert scene.agent.fetched[-1].split()[1] == "/cards/mine.json?v=1"
    await link.aclose()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((404, b""), NotConnected, "HTTP 404 where its card should be"),
        ((401, b""), NotConnected, "check the credentials"),
        ((304, b""), NotConnected, "HTTP 304 where its card should be"),
        ((200, b"<html>"), ConnectFailed, "the card cannot be read"),
        ((200, b'{"name":"x"}'), ConnectFailed, "no interface"),
        (
            (200, b'{"name":"x","supportedInterfaces":[{"url":"http://h/","protocolBinding":"GRPC",'
             b'"protocolVersion":"1.0"}]}'),
            ConnectFailed,
            "GRPC 1.0 is not supported",
        ),
        ((200, b'{"name":"x","url":"https://other.example/"}'), ConnectFailed, "add it to origins"),
        ((200, b'{"name":"x","url":"ftp://127.0.0.1/"}'), ConnectFailed, "must start with http"),
        ((200, b'{"x":"' + b"y" * (4 << 20) + b'"}'), BadReply, "over 4194304 bytes"),
    ],
)  # fmt: skip
async def test_a_card_that_cannot_be_used_says_why(
    scene: Scene, answer: tuple[int, bytes], error: type[Exception], words: str
) -> None:
    scene.agent.paths = lambda path: answer
    link = scene.dial(scene.agent.origin)
    with pytest.raises(error, match=words):
        await link.handshake("legacy")
    await link.aclose()


async def test_a_card_that_goes_bad_is_a_list_that_cannot_be_had(scene: Scene) -> None:
    known = await scene.link.list_features()
    scene.agent.paths = lambda path: (200, b"{}")
    with pytest.raises(BadReply, match="no interface"):
        await scene.link.list_features(known=known)


async def test_a_card_that_never_comes_is_not_waited_for(scene: Scene) -> None:
    scene.agent.may_publish.clear()
    with pytest.raises(BadReply, match=r"no card within 0\.05 s"):
        await scene.link.ping(0.05)


async def test_a_caller_with_credentials_sees_the_card_for_those(every: Scene) -> None:
    every.agent.has_extended = True
    every.agent.more_skills = [*every.agent.skills, {"id": "secret", "name": "S", "description": "Not for all."}]
    listing = await every.link.list_features(known=await every.link.list_features())
    assert [tool.name for tool in listing.tools] == ["research", "secret"]
    assert "x-key: secret" in every.agent.heads[-1]
    assert listing.notes == {"tools": ()}


async def test_a_card_that_is_promised_and_not_given_is_done_without(every: Scene) -> None:
    every.agent.has_extended = True
    listing = await every.link.list_features(known=await every.link.list_features())
    assert [tool.name for tool in listing.tools] == ["research"]
    assert listing.notes["tools"][0].startswith("it does not return the extended card that it announces: ")


async def test_an_agent_that_answers_anything_is_still_there(scene: Scene) -> None:
    scene.agent.paths = lambda path: (503, b"")
    await scene.link.ping(SECONDS)
    known = await scene.link.list_features()
    assert await scene.link.list_features(frozenset({"prompts"}), known) is known
    with pytest.raises(BadReply, match="HTTP 503 where its card should be"):
        await scene.link.list_features(known=known)
    with pytest.raises(BadReply, match="HTTP 503 where its card should be"):
        await scene.link.refresh_hubs()


async def test_an_agent_that_is_gone_is_not_there(scene: Scene) -> None:
    known = await scene.link.list_features()
    await scene.agent.__aexit__()
    with pytest.raises(NotConnected):
        await scene.link.ping(SECONDS)
    with pytest.raises(NotConnected):
        await scene.link.list_features(known=known)


async def test_hubs_behind_the_agent_are_known_by_its_card(scene: Scene) -> None:
    assert not scene.link.is_hub
    scene.agent.extensions = [{"uri": "urn:isthmus:a2a:hubs:1", "params": {"isthmus/hubs": {"x": 0, "y": 1}}}]
    await scene.link.refresh_hubs()
    assert scene.link.hubs == {"x": 0, "y": 1}


async def test_an_agent_knows_nothing_of_mcp(scene: Scene) -> None:
    with pytest.raises(NotConnected, match=r"does not know resources/subscribe"):
        await scene.link.request("resources/subscribe", b"{}")
    assert scene.link.abilities() == {"tools"}
    scene.link.listen()
    assert scene.agent.asked == []


async def test_a_skill_that_is_gone_is_not_asked_for(scene: Scene) -> None:
    scene.agent.skills = [{"id": "other", "name": "O", "description": ""}]
    await scene.link.refresh_hubs()
    fault = (await scene.outcome()).fault
    assert isinstance(fault, NotConnected)
    assert (fault.executed, scene.agent.asked) == ("no", [])


async def test_a_truncated_card_is_rejected(scene: Scene) -> None:
    scene.agent.card_headers = {"content-length": "999"}
    scene.agent.paths = lambda path: (200, b"{}")
    with pytest.raises((NotConnected, BadReply)):
        await scene.link.ping(0.2)


async def test_an_extension_that_is_required_and_not_known_is_noted(scene: Scene) -> None:
    scene.agent.extensions = [{"uri": "urn:x", "required": True}, {"uri": "urn:y"}]
    listing = await scene.link.list_features(known=await scene.link.list_features())
    assert listing.notes["tools"] == ("it requires the extension 'urn:x', which the hub does not support",)


@pytest.mark.parametrize("tag", ["x", '"' + "x" * 300 + '"', '"a" "b"'])
async def test_an_invalid_etag_is_not_sent_back(scene: Scene, tag: str) -> None:
    scene.agent.card_headers = {"etag": tag}
    for _ in range(2):
        await scene.link.refresh_hubs()
    assert "if-none-match" not in scene.agent.fetched[-1]


OTHER = replace(ANYONE, name="other")


def test_a_task_is_its_callers_alone() -> None:
    ids, nodes = TaskIds(), TaskIds()
    given = ids.public(ANYONE, SERVER, "t.1")
    assert ids.own(ANYONE, SERVER, given) == "t.1"
    assert ids.own(OTHER, SERVER, given) is None
    assert ids.own(replace(ANYONE, tenant="other"), SERVER, given) is None
    assert ids.own(ANYONE, ServerName("other"), given) is None
    for made_up in ("t.1", "", ".", given[1:], given.upper(), f"{given}\ud800"):
        assert ids.own(ANYONE, SERVER, made_up) is None
    assert nodes.own(ANYONE, SERVER, given) is None
    nodes.key = ids.key
    assert nodes.own(ANYONE, SERVER, given) == "t.1", "nodes with one key know each other's ids"
