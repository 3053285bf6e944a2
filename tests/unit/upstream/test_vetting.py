"""What may be called on a link of single callers, on which its server lists something of its own."""

from __future__ import annotations

from isthmus.core.catalog.pins import Pinning, Pins
from isthmus.core.catalog.review import Review
from isthmus.upstream.listing import Listing
from isthmus.upstream.reconnector import Vetted
from tests.unit.core.doubles import Stage, call, prompt, ready, tool
from tests.unit.upstream.scripted import Scripted


def vetted(link: Scripted, mode: Pinning) -> Vetted:
    return Vetted(link, Review(Pins({}, lambda _: mode, lambda _: None)), Listing)


async def test_a_tool_that_is_withheld_there_is_not_called_and_all_else_is() -> None:
    stage = Stage.of(ready(tool("read"), tool("write"), prompts=[prompt("read")]))
    asked = (call("files.read"), call("files.write"), call("files.read", kind="prompt"))
    calls = [stage.start(each)[0] for each in asked]
    link = Scripted()
    looked = vetted(link, "approve")
    await looked.look()
    assert [looked.may_send(each) for each in calls] == [False, True, True], "it lists no write, and that is its affair"


async def test_where_nothing_is_withheld_it_is_not_even_asked() -> None:
    link = Scripted()
    looked = vetted(link, "warn")
    await looked.look()
    assert link.listings == []
    assert looked.may_send(Stage().start()[0])
