"""Large results are cut by rule, and the whole stays readable by its caller for a while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from isthmus.core.calls import result_cuts as module
from isthmus.core.calls.result_cuts import (
    URI,
    ResultCuts,
    ResultLimits,
    StoredResults,
    contents_passes,
    cut_string,
    split_result,
)
from isthmus.core.catalog.sets import SetSettings
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.event_loop import LONG_BYTES
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, Result, Surface
from isthmus.model.fault_table import Lost, UnknownResource
from isthmus.model.features import Tool
from isthmus.model.names import ServerName
from tests.unit.core.calls.test_fleet_calls import Lab
from tests.unit.core.doubles import ANYONE, SERVER, Listener, Stage, call, ready, tool

LIMIT = 4096
OTHER = Caller("other", "default", Grants(("*",)))
SCHEMA = {"type": "object", "required": ["rows"]}


class Cut(Stage):
    """A hub that cuts results, and a clock that the test moves. The link answers with `answer`."""

    def __init__(self, *tools: Tool, limits: ResultLimits | None = None, **bounds: Any) -> None:
        super().__init__(*(tools or (tool("read"), tool("rows", outputSchema=SCHEMA))))
        self.time = 1_000_000.0
        self.cuts = ResultCuts(lambda: self.time)
        self.cuts.change(limits or ResultLimits(LIMIT), Limits(**bounds))
        self.hub.change_cuts(self.cuts, is_cutting=True)
        self.answer = Result(Raw(b"{}"))
        self.link.at_once = lambda inflight: inflight.finish(self.answer)

    async def result(self, made: Call | None = None) -> Result:
        _, listener = self.start(made or call())
        return await result_of(listener)

    async def cut(self, result: object, made: Call | None = None, **about: Any) -> dict[str, Any]:
        """What the caller gets of a result."""
        self.answer = Result(Raw(json.dumps(result, ensure_ascii=False).encode()), **about)
        got = await self.result(made)
        assert len(memoryview(got.payload)) <= LIMIT
        shown: dict[str, Any] = json.loads(bytes(got.payload))
        assert got.is_error == bool(shown.get("isError"))
        return shown

    async def read(self, uri: str, caller: Caller = ANYONE) -> list[dict[str, Any]]:
        """The contents of a kept result."""
        payload = (await self.result(call(uri, kind="resource", caller=caller))).payload
        contents: list[dict[str, Any]] = json.loads(bytes(payload))["contents"]
        return contents

    def refusal(self, uri: str, caller: Caller = ANYONE) -> str:
        """Why a kept result cannot be read."""
        _, listener = self.start(call(uri, kind="resource", caller=caller))
        assert isinstance(listener.fault, UnknownResource), listener.fault
        return listener.fault.message


async def result_of(listener: Listener) -> Result:
    async with asyncio.timeout(5):
        await listener.ended.wait()
    (end,) = listener.ends
    assert isinstance(end, Result), end
    return end


def link_of(shown: dict[str, Any]) -> str:
    """The URI in the link of a cut result, which its text names, too."""
    link = shown["content"][-1]
    assert link["type"] == "resource_link"
    assert link["uri"] in "".join(block.get("text", "") for block in shown["content"])
    uri: str = link["uri"]
    return uri


@pytest.mark.parametrize("text", ["é€😀x" * 3, 'a\\"\\\\b', "\ud83d\ude00é\\\\\\", "\n\t\u0000\u20ac" * 2, "\\" * 7])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_text_is_cut_between_characters_wherever_it_is_cut(text: str, *, is_ascii: bool) -> None:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16")  # halves of a pair become one character
    written = json.dumps(whole, ensure_ascii=is_ascii).encode()
    lengths = []
    for most in range(len(written)):
        cut = json.loads(b'"' + cut_string(Raw(written), most) + b'"')
        assert whole.startswith(cut)
        lengths.append(len(cut))
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(whole)
    assert set(lengths) == set(range(len(whole) + 1)), "no character is missing"


async def test_a_result_within_the_limit_is_the_same_object() -> None:
    stage = Cut()
    stage.answer = Result(Raw(b'{"content":[{"type":"text","text":"%b"}]}' % (b"x" * (LIMIT - 39))))
    assert len(memoryview(stage.answer.payload)) == LIMIT
    assert await stage.result() is stage.answer
    assert len(stage.cuts.kept) == 0


@pytest.mark.parametrize("length", [LIMIT, LONG_BYTES * 2])
async def test_a_text_is_cut_with_a_line_and_a_link_and_the_whole_is_readable(length: int) -> None:
    stage = Cut()
    text = "ä\n" * length
    shown = await stage.cut({"content": [{"type": "text", "text": text}], "isError": False, "_meta": {"a": 1}})
    assert (shown["isError"], shown["_meta"]) == (False, {"a": 1})
    begun, note = shown["content"][0]["text"].rsplit("\n[", 1)
    assert text.startswith(begun)
    assert len(begun.encode()) > LIMIT / 2
    assert note.startswith("Cut by the hub: ")
    (content,) = await stage.read(link_of(shown))
    assert content == {"uri": link_of(shown), "mimeType": "text/plain", "text": text}


async def test_blocks_that_do_not_fit_are_left_out_and_those_that_do_are_kept() -> None:
    stage = Cut()
    image = {"type": "image", "data": "QUJD" * LIMIT, "mimeType": "image/png"}
    small = {"type": "text", "text": "a chart", "annotations": {"priority": 1}}
    embedded = {"type": "resource", "resource": {"uri": "file:///a", "blob": "QUJD" * LIMIT}}
    odd = {"type": "hologram", "x": "y" * LIMIT}
    shown = await stage.cut({"content": [image, small, embedded, odd]})
    assert shown["content"][0] == small
    assert "3 of 4 content blocks" in shown["content"][1]["text"]
    contents = await stage.read(link_of(shown))
    assert contents[0] == {"uri": link_of(shown), "mimeType": "image/png", "blob": image["data"]}
    assert contents[1]["text"] == "a chart"
    assert contents[2] == embedded["resource"]
    assert json.loads(contents[3]["text"]) == odd


async def test_structured_content_is_kept_whole_or_left_out() -> None:
    stage = Cut()
    rows = {"rows": [{"name": 'é"\\'}] * LIMIT}
    shown = await stage.cut({"content": [{"type": "text", "text": "many rows"}], "structuredContent": rows})
    assert "structuredContent" not in shown
    assert "isError" not in shown
    assert shown["content"][0]["text"] == "many rows"
    assert "(structuredContent)" in shown["content"][1]["text"]
    contents = await stage.read(link_of(shown))
    assert contents[1]["mimeType"] == "application/json"
    assert contents[1]["text"] == json.dumps(rows, ensure_ascii=False), "as the server wrote it"
    few = {"rows": [1]}
    shown = await stage.cut({"content": [{"type": "text", "text": "x" * LIMIT}], "structuredContent": few})
    assert shown["structuredContent"] == few


@pytest.mark.parametrize("character", ["a", "ü", "\x01"])
async def test_long_names_of_members_and_tools_leave_the_result_within_the_limit(character: str) -> None:
    name = character * 120
    stage = Cut(tool(name))
    members = {f"{name}{number}": "x" * LIMIT for number in range(4)}
    shown = await stage.cut({"content": [{"type": "text", "text": "x" * LIMIT}], **members}, call(f"files.{name}"))
    assert character * 5 in shown["content"][0]["text"].rpartition("are left out")[2]


@pytest.mark.parametrize(("frontend", "is_error"), [("mcp", True), ("sse", True), ("rest", False), ("a2a", False)])
async def test_a_cut_result_without_declared_members_is_an_error_for_checking_clients(
    frontend: str, *, is_error: bool
) -> None:
    stage = Cut()
    made = msgspec.structs.replace(call("files.rows"), frontend=frontend)
    shown = await stage.cut({"content": [], "structuredContent": {"rows": ["x" * LIMIT]}}, made)
    assert bool(shown.get("isError")) is is_error
    assert ("The tool ran and succeeded; do not repeat the call" in shown["content"][0]["text"]) is is_error


async def test_a_result_that_is_no_tool_result_is_cut_as_text() -> None:
    stage = Cut()
    value = [{"é": "x" * 10}] * LIMIT
    shown = await stage.cut(value, is_bare=True)
    assert json.dumps(value, ensure_ascii=False).startswith(shown["content"][0]["text"].rsplit("\n[", 1)[0])
    (content,) = await stage.read(link_of(shown))
    assert (content["mimeType"], json.loads(content["text"])) == ("application/json", value)


async def test_of_very_many_blocks_the_whole_is_one_json_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKS_MAX", 3)
    stage = Cut()
    result = {"content": [{"type": "text", "text": "x" * 900}] * 9}
    shown = await stage.cut(result)
    assert "6 of 9 content blocks" in "".join(block.get("text", "") for block in shown["content"])
    (content,) = await stage.read(link_of(shown))
    assert json.loads(content["text"]) == result


async def test_the_limit_is_the_callers_else_the_sets_else_the_servers_else_the_hubs() -> None:
    limits = ResultLimits(1, {"some": 2, "free": 0}, {SERVER: 3})
    own = msgspec.structs.replace(ANYONE, max_result_bytes=4)
    some = Surface(set="some")
    assert limits.limit_of(call(caller=own, surface=some), SERVER) == 4
    assert limits.limit_of(call(surface=some), SERVER) == 2
    assert limits.limit_of(call(surface=Surface(set="free")), SERVER) == 0
    assert limits.limit_of(call(surface=Surface(set="other")), SERVER) == 3
    assert limits.limit_of(call(), None) == 1
    stage = Cut(limits=limits)
    stage.hub.change_sets({"free": SetSettings(("*",))})
    stage.answer = Result(Raw(b'{"content":["%b"]}' % (b"x" * 9 * LIMIT)))
    assert await stage.result(call("read", surface=Surface(set="free"))) is stage.answer


async def test_scripts_and_functions_get_the_whole() -> None:
    stage = Cut()
    stage.answer = Result(Raw(b'{"content":["%b"]}' % (b"x" * 9 * LIMIT)))
    assert await stage.result(msgspec.structs.replace(call(), script="s1")) is stage.answer


def fleet(limits: ResultLimits, *names: str) -> tuple[Lab, ResultCuts]:
    lab, cuts = Lab(*names, read_only=("*",)), ResultCuts(lambda: 0.0)
    cuts.change(limits, Limits())
    lab.hub.change_cuts(cuts, is_cutting=True)
    return lab, cuts


def long_text(length: int, **members: Any) -> Result:
    return Result(Raw(json.dumps({"content": [{"type": "text", "text": "x" * length}], **members}).encode()))


@pytest.mark.parametrize("length", [LIMIT, LIMIT // 4, 100])
async def test_the_result_of_all_members_has_their_outcomes_within_the_limit_of_the_caller(length: int) -> None:
    lab, cuts = fleet(ResultLimits(LIMIT), "m1", "m2", "m3")
    listener = lab.start("all")
    for name in ("m1", "m2"):
        lab.finish(name, long_text(length))
    lab.finish("m3", Lost(ServerName("m3"), "gone", executed="unknown"))
    got = await result_of(listener)
    assert len(memoryview(got.payload)) <= LIMIT
    shown = json.loads(bytes(got.payload))
    assert [row["executed"] for row in shown["structuredContent"]["members"]] == ["yes", "yes", "unknown"]
    assert not len(cuts.kept), "nothing is cut"
    assert ("result" in shown["structuredContent"]["members"][0]) == (length == 100)
    assert shown["content"][0]["text"].startswith("2 of 3 members succeeded\nm3: failed: ")


async def test_of_too_many_outcomes_for_the_limit_the_failures_are_kept() -> None:
    lab, cuts = fleet(ResultLimits(LIMIT), *(f"m{number}" for number in range(100, 200)))
    for link in lab.links.values():
        link.at_once = lambda inflight: inflight.finish(long_text(1000))
    lab.links["m199"].at_once = lambda inflight: inflight.finish(Lost(ServerName("m199"), "gone", executed="unknown"))
    listener = lab.start("all")
    await asyncio.wait_for(listener.ended.wait(), 5)
    shown = json.loads(bytes((await result_of(listener)).payload))
    assert shown["content"][0]["text"].startswith("99 of 100 members succeeded\nm199: failed: ")
    assert "Cut by the hub" in shown["content"][0]["text"]
    assert len(cuts.kept) == 1


async def test_the_result_of_one_member_is_cut_by_its_own_limit() -> None:
    lab, cuts = fleet(ResultLimits(0, servers={ServerName("m1"): LIMIT}), "m1", "m2")
    for name in ("m1", "m2"):
        listener = lab.start(name)
        lab.finish(name, long_text(2 * LIMIT))
        got = await result_of(listener)
        assert ("Cut by the hub" in str(bytes(got.payload))) == (name == "m1")
        assert json.loads(bytes(got.payload))["_meta"] == {"isthmus/member": name}
    assert len(cuts.kept) == 1


async def test_a_cached_result_is_cut_for_each_caller_by_its_own_limit() -> None:
    stage = Cut()
    stage.hub.publish(ready(tool("read"), rules=ToolRules(cached=("read",), cache_seconds=60)))
    first = await stage.cut({"content": [{"type": "text", "text": "x" * 3 * LIMIT}]})
    second = json.loads(bytes((await stage.result()).payload))
    assert len(stage.link.sent) == 1
    assert link_of(first) != link_of(second)


async def test_only_its_caller_reads_a_kept_result_and_others_learn_nothing() -> None:
    stage = Cut()
    uri = link_of(await stage.cut({"content": [{"type": "text", "text": "x" * 3 * LIMIT}]}))
    assert await stage.read(uri)
    received = stage.refusal(uri, OTHER)
    assert received.removeprefix(f"Resource not found: {uri}") == stage.refusal(f"{URI}x", OTHER).removeprefix(
        f"Resource not found: {URI}x"
    )
    assert "kept for 3600 s" in received


async def test_an_expired_result_and_a_dropped_one_say_so() -> None:
    stage = Cut(caller_kept_bytes=9 * LIMIT, kept_result_seconds=60)
    big = {"content": [{"type": "text", "text": "x" * 4 * LIMIT}]}
    first = link_of(await stage.cut(big))
    second = link_of(await stage.cut(big))
    third = link_of(await stage.cut(big))
    assert "dropped to make room for newer results" in stage.refusal(first)
    assert await stage.read(third)
    stage.time += 60
    assert "it expired after 60 s" in stage.refusal(second)
    shown = await stage.cut({"content": [{"type": "text", "text": "x" * 10 * LIMIT}]})
    assert "The whole result is too large to be kept." in shown["content"][0]["text"]
    assert [block["type"] for block in shown["content"]] == ["text"]


async def test_a_client_whose_protocol_has_no_links_finds_the_address_in_the_text() -> None:
    stage = Cut()
    big = {"content": [{"type": "text", "text": "x" * 4 * LIMIT}]}
    shown = await stage.cut(big, msgspec.structs.replace(call(), knows_links=False))
    (block,) = shown["content"]
    uri = block["text"].partition("The whole result is the resource ")[2].partition(" ")[0]
    assert (await stage.read(uri))[0]["text"] == "x" * 4 * LIMIT


async def test_one_caller_with_many_results_costs_no_other_theirs() -> None:
    kept = StoredResults(lambda: 0.0)
    kept.caller_bytes, kept.hub_bytes = 100, 120
    modest = kept.store(("t", "modest"), Raw(b"x" * 20), None, 0)
    assert modest is not None
    for _ in range(9):
        assert kept.store(("t", "greedy"), Raw(b"x" * 50), None, 0) is not None
    assert not isinstance(kept.find(("t", "modest"), modest[0]), str)
    assert kept.size_bytes <= 120
    kept.close()


async def test_expired_results_leave_memory_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.0)
    now = 0.0
    kept = StoredResults(lambda: now)
    kept.caller_bytes = kept.hub_bytes = 100
    kept.store(("t", "a"), Raw(b"x"), None, 0)
    now = 3600.0
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(kept), kept.size_bytes) == (0, 0)


async def test_a_defect_costs_no_caller_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Cut()
    monkeypatch.setattr(module, "_fit", None)
    stage.answer = Result(Raw(b'{"content":["%b"]}' % (b"x" * 9 * LIMIT)))
    assert await stage.result() is stage.answer


async def test_results_that_were_cut_stay_readable_when_the_limits_are_gone() -> None:
    stage = Cut()
    uri = link_of(await stage.cut({"content": [{"type": "text", "text": "x" * 3 * LIMIT}]}))
    stage.hub.change_cuts(stage.cuts, is_cutting=False)
    assert await stage.result() is stage.answer
    assert await stage.read(uri)


def test_json_is_written_as_a_text_in_slices_between_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_BYTES", 5)
    payload = json.dumps({"content": [], "structuredContent": {"é€😀": '\n"x'}}, ensure_ascii=False).encode()
    split = split_result(payload)
    kept = module._StoredResult(("t", "a"), Raw(payload), split, 0.0, len(payload), 0)

    def contents() -> Iterator[Raw]:
        yield (yield from contents_passes(f"{URI}x", kept))  # type: ignore[misc]

    (*_, payload) = contents()
    (content,) = json.loads(bytes(payload))["contents"]
    assert content["text"] == json.dumps({"é€😀": '\n"x'}, ensure_ascii=False)


# -- parts -------------------------------------------------------------------------------------------------------------


async def rest_of(stage: Cut, uri: str) -> list[dict[str, Any]]:
    """All entries from the address of a part on, as a model would read them: each part says where it goes on."""
    found: list[dict[str, Any]] = []
    while uri:
        *entries, last = await stage.read(uri)
        assert sum(len(entry.get("text", "").encode("utf-8", "surrogatepass")) for entry in entries) <= LIMIT
        is_end = last["uri"] == uri
        found += [*entries, last] if is_end else entries
        assert is_end or f"Read on at {last['uri']}]" in last["text"]
        uri = "" if is_end else last["uri"]
    return found


def next_part(shown: str) -> tuple[str, str]:
    """The text that is shown, and the address of what follows it."""
    text, _, note = shown.rpartition("\n[Cut by the hub")
    uri = note.partition("Z; ")[2].partition(" is the next part of it.")[0]
    assert uri.startswith(URI)
    return text, uri


TEXTS = ["x" * 20_000, "é€😀" * 3_000, '"\\\n\t/' * 4_000, "\\" * 9_001]


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize("text", TEXTS, ids=["plain", "wide", "escaped", "backslashes"])
async def test_the_omitted_part_can_be_read_in_pieces(text: str, *, is_ascii: bool) -> None:
    stage = Cut()
    written = json.dumps({"content": [{"type": "text", "text": text}]}, ensure_ascii=is_ascii)
    stage.answer = Result(Raw(written.encode()))
    shown = json.loads(bytes((await stage.result()).payload))
    begun, uri = next_part(shown["content"][0]["text"])
    parts = [entry["text"] for entry in await rest_of(stage, uri)]
    assert len(parts) > 1
    assert begun + "".join(parts) == text
    first = uri.partition("?")[0] + "?from=0"
    assert "".join(entry["text"] for entry in await rest_of(stage, first)) == text


async def test_a_part_that_begins_within_a_character_begins_with_it() -> None:
    stage = Cut()
    text = '😀\\"é' * 4_000
    uri = link_of(await stage.cut({"content": [{"type": "text", "text": text}]}))
    for start in range(1, 60):
        first, *_ = await stage.read(f"{uri}?from={start}")
        assert first["text"] in text


async def test_parts_have_other_blocks_whole_and_structured_content_at_the_end() -> None:
    stage = Cut()
    rows = {"rows": ['é"\\'] * 2_000}
    blocks = [
        {"type": "text", "text": "a" * 3_000},
        {"type": "image", "data": "A" * 1_000, "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "r" * 100}},
        {"type": "text", "text": ""},
        {"type": "text", "text": "b" * 5_000},
    ]
    shown = await stage.cut({"content": blocks, "structuredContent": rows})
    uri = link_of(shown)
    found = await rest_of(stage, f"{uri}?from=0")
    texts = "".join(entry.get("text", "") for entry in found if entry.get("mimeType") != "application/json")
    assert texts == "a" * 3_000 + "r" * 100 + "b" * 5_000
    assert [entry["blob"] for entry in found if "blob" in entry] == ["A" * 1_000]
    data = "".join(entry["text"] for entry in found if entry.get("mimeType") == "application/json")
    assert json.loads(data) == rows


async def test_a_large_image_is_a_part_of_its_own() -> None:
    stage = Cut()
    image = {"type": "image", "data": "A" * 9_000, "mimeType": "image/png"}
    uri = link_of(await stage.cut({"content": [{"type": "text", "text": "a" * 10}, image]}))
    (text, then) = await stage.read(f"{uri}?from=0")
    assert text["text"] == "a" * 10
    assert [entry["blob"] for entry in await stage.read(then["uri"])] == ["A" * 9_000]


@pytest.mark.parametrize("bare", [True, False])
async def test_a_result_that_is_kept_as_json_is_read_in_parts_as_json(*, bare: bool) -> None:
    stage = Cut()
    many = {"content": [{"type": "text", "text": f"é{number}"} for number in range(2_000)]}
    shown = await stage.cut([many["content"]] if bare else many, is_bare=bare)
    *_, note, _ = shown["content"]
    begun, uri = next_part(f"\n{note['text']}")
    parts = "".join(entry["text"] for entry in await rest_of(stage, uri))
    assert json.loads((begun.removeprefix("\n") if bare else "") + parts) == ([many["content"]] if bare else many)


@pytest.mark.parametrize("start", ["99999999", "-1", "x", "", "1.5", "1" * 20])
async def test_a_part_that_does_not_exist_is_refused(start: str) -> None:
    stage = Cut()
    uri = link_of(await stage.cut({"content": [{"type": "text", "text": "x" * 3 * LIMIT}]}))
    assert f"the result has {3 * LIMIT} bytes" in stage.refusal(f"{uri}?from={start}")
    assert "for the caller that got them" in stage.refusal(f"{uri}?from={start}", OTHER)
