"""`expose = "code"`: models see tools of the hub that run scripts, and each call of a script is a call of the hub."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client as FastMcpClient
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from isthmus.code.sandbox_in_child import NICENESS, worker_cores
from isthmus.model.callers import VIRTUAL_TOOLS
from isthmus.transport.process_tree import descendants
from tests.agents.field import run as run_agent
from tests.code.conftest import KEYS, CodeHub
from tests.faults.watching import eventually
from tests.hubs import MODERN, TRUSTED, Raw
from tests.peers.client_sdk2 import Mode

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("code")]

MODES = ["legacy", MODERN]
SEEN = {"search_tools", "tool_signatures", "run_code"}


async def run(raw: Raw, code: str, **more: Any) -> dict[str, Any]:
    """Run a script; its result."""
    answer = await raw.call("run_code", {"code": code, **more})
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


async def returned(hub: CodeHub, code: str, who: str = "plain", **more: Any) -> Any:
    """What a script returns."""
    async with hub.raw(who) as raw:
        result = await run(raw, code, **more)
    assert not result.get("isError"), result
    return result["structuredContent"]["result"]


async def refused(hub: CodeHub, code: str, who: str = "plain", **more: Any) -> dict[str, Any]:
    """How a script fails."""
    async with hub.raw(who) as raw:
        result = await run(raw, code, **more)
    assert result["isError"], result
    told: dict[str, Any] = result["structuredContent"]
    return told


# -- what a model sees -------------------------------------------------------------------------------------------------


async def test_a_model_sees_only_the_tools_of_code_mode(hub: CodeHub) -> None:
    async with hub.raw() as raw:
        names = set(await raw.names())
    assert names == SEEN == VIRTUAL_TOOLS.keys() - {"call_tool"}


async def test_a_caller_whose_tools_are_listed_has_no_scripts(hub: CodeHub) -> None:
    async with hub.raw("listed") as raw:
        assert "shop.add" in await raw.names()
        answer = await raw.call("run_code", {"code": "1"})
        assert answer["error"]["data"]["reason"] == "unknown_tool"
        assert 'for callers with expose = "code" (of [hub], a set or the caller)' in answer["error"]["message"]


async def signatures(hub: CodeHub, who: str = "plain", **arguments: Any) -> str:
    async with hub.raw(who) as raw:
        answer = await raw.call("tool_signatures", arguments)
    text: str = answer["result"]["content"][0]["text"]
    return text


async def test_signatures_are_those_of_the_tools_that_the_caller_may_call(hub: CodeHub) -> None:
    whole = await signatures(hub)
    assert "async def shop_add(*, a: int, b: int) -> ShopAddResult:" in whole
    assert '"""shop.add: Add two numbers."""' in whole
    assert "shop_secret" not in whole
    narrow = await signatures(hub, "narrow")
    assert narrow.count("async def") == 1
    assert "shop_add" in narrow


async def test_signatures_have_classes_for_objects_and_literals_for_enums(hub: CodeHub) -> None:
    text = await signatures(hub, names=["shop.order"])
    assert "class ShopOrderOrdersItem(TypedDict):\n    item: str\n    amount: NotRequired[int]" in text
    assert "speed: Literal['slow', 'fast'] = ..." in text
    assert "shop_add" not in text


async def test_tools_with_equal_python_names_get_different_names(hub: CodeHub) -> None:
    text = await signatures(hub, names=["shop.same-name", "shop.same_name", "shop.nothing"])
    first, second = (line for line in text.splitlines() if line.startswith("async def shop_same_name_"))
    assert first != second
    assert "# Unknown tool: 'shop.nothing'" in text
    name = first.removeprefix("async def ").partition("(")[0]
    assert await returned(hub, f"await {name}()") in ("same-name", "same_name")


async def test_a_model_finds_a_tool_and_reads_its_signature(hub: CodeHub) -> None:
    async with hub.raw() as raw:
        found = (await raw.call("search_tools", {"query": "add two numbers"}))["result"]["structuredContent"]["tools"]
    assert found[0]["name"] == "shop.add"
    assert "async def shop_add(*, a: int, b: int)" in await signatures(hub, names=[found[0]["name"]])


# -- scripts -----------------------------------------------------------------------------------------------------------


async def test_a_script_returns_its_last_value_and_what_it_printed(hub: CodeHub) -> None:
    async with hub.raw() as raw:
        result = await run(raw, "total = await shop_add(a=1, b=2)\nprint('so far')\ntotal['sum'] + 1")
    assert result["content"] == [{"type": "text", "text": "so far\n4"}]
    told = result["structuredContent"]
    assert (told["result"], told["printed"], told["calls"]) == (4, "so far\n", 1)


async def test_a_call_without_structured_content_returns_its_text(hub: CodeHub) -> None:
    assert await returned(hub, "await shop_pay(nonce='text')") == "text"


async def test_a_wrong_argument_costs_no_call_and_is_reported_with_line_and_column(hub: CodeHub) -> None:
    before = len(hub.ledger.lines())
    code = "await shop_pay(nonce='first')\nawait shop_add(a=1, b='two')\nawait shop_order(orders=[{'amount': 1}])"
    told = await refused(hub, code)
    assert told["error"] == "refused"
    assert "script.py:2:21: error[invalid-argument-type]" in told["message"]
    assert "script.py:3:" in told["message"]
    assert len(hub.ledger.lines()) == before


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ("a", "orders = [{'item': 'a', 'amount': 2}]\nprint(len(orders))"),
        ("b", "orders = []\nfor item in ['b']:\n    orders.append({'item': item, 'amount': 2})"),
        ("c", "orders = [{'item': each, 'amount': 2} for each in ['c']]\nprint(orders)"),
        ("d", "one = {'item': 'd'}\none['amount'] = 2\norders = [one]"),
    ],
)
async def test_arguments_may_be_put_into_variables_first(hub: CodeHub, item: str, code: str) -> None:
    async with rest(hub, "plain") as client:
        calling = f"{code}\nawait shop_order(orders=orders)"
        told = (await client.post("/v1/tools/run_code?timeout=3", json={"code": calling})).json()
    # The type check has let it pass: an operator is asked about exactly these arguments.
    assert told["reason"] == "approval_pending", told
    async with rest(hub, "operator") as operator:
        pending = (await operator.get(f"/v1/approvals/{told['approval']}")).json()
        assert pending["arguments"] == {"orders": [{"item": item, "amount": 2}]}
        assert (await operator.post(f"/v1/approvals/deny/{told['approval']}", json={})).status_code == 200


async def test_a_wrong_value_in_a_variable_is_refused_before_anything_runs(hub: CodeHub) -> None:
    before = len(hub.ledger.lines())
    told = await refused(hub, "await shop_pay(nonce='first')\norders = [{'item': 1}]\nawait shop_order(orders=orders)")
    assert told["error"] == "refused"
    assert "script.py:3:18: error[invalid-argument-type]" in told["message"]
    told = await refused(hub, "orders = [{'itm': 'lamp'}]\nawait shop_order(orders=orders)")
    # Whether a name is right only shows when the call is checked, before it is sent.
    assert "bad_arguments" in told["message"]
    assert "(executed: no)" in told["message"]
    assert len(hub.ledger.lines()) == before


async def test_a_warning_of_the_type_checker_refuses_nothing(hub: CodeHub) -> None:
    assert await returned(hub, "# type: ignore\n1 + 1") == 2


@pytest.mark.parametrize(
    "code",
    [
        "shop_pay(nonce='n')",
        "shop_pay(nonce='n')\n1",
        "async def pay() -> None:\n    shop_pay(nonce='n')\nawait pay()",
        "async def pay() -> int:\n    return 1\npay()",
        "shop_add(a=1, b=2)['sum']",
        "if shop_pay(nonce='n'):\n    print('paid')",
    ],
)
async def test_a_call_without_await_is_refused_before_anything_runs(hub: CodeHub, code: str) -> None:
    told = await refused(hub, code)
    assert (told["error"], told["calls"], told["printed"]) == ("refused", 0, "")
    assert "script.py:" in told["message"]
    assert "forgot `await`" in told["message"]


@pytest.mark.parametrize(
    ("code", "function"),
    [
        ("paid = shop_pay(nonce='n')\nawait shop_add(a=1, b=2)", "shop_pay"),
        ("[shop_pay(nonce=each) for each in 'ab']", "shop_pay"),
        ("print(shop_pay(nonce='n'))", "shop_pay"),
        ("import asyncio\npaid = asyncio.gather(shop_pay(nonce='a'), shop_pay(nonce='b'))\n1", "shop_pay"),
        ("async def pay() -> int:\n    return 1\n{'paid': [pay()]}", "pay"),
    ],
)
async def test_a_script_with_a_call_that_was_never_awaited_fails(hub: CodeHub, code: str, function: str) -> None:
    told = await refused(hub, code)
    assert told["error"] == "failed"
    assert "You forgot `await`" in told["message"]
    assert f"`{function}`" in told["message"]


async def test_a_call_that_an_error_beside_it_has_kept_from_starting_is_no_forgotten_await(hub: CodeHub) -> None:
    own = "async def fails() -> None:\n    raise ValueError('no')"
    beside = "try:\n    await asyncio.gather(fails(), shop_add(a=1, b=2))\nexcept ValueError:\n    pass"
    assert await returned(hub, f"import asyncio\n{own}\n{beside}\n'caught'") == "caught"


async def test_gathered_calls_run_side_by_side(hub: CodeHub) -> None:
    code = "import asyncio\nawait asyncio.gather(*[shop_meet(count=3) for _ in range(3)])"
    assert await returned(hub, code) == ["met", "met", "met"]


async def test_a_failed_call_raises_its_reason_and_whether_it_ran(hub: CodeHub) -> None:
    code = "try:\n    await shop_fail(why='no stock')\nexcept RuntimeError as error:\n    said = str(error)\nsaid"
    assert await returned(hub, code) == "tool_error: no stock (executed: yes)"
    told = await refused(hub, "x = 1\nawait shop_fail(why='no stock')")
    assert told["error"] == "failed"
    assert 'File "script.py", line 2' in told["message"]
    assert "tool_error: no stock (executed: yes)" in told["message"]


async def test_gather_with_return_exceptions_is_refused_with_a_function_that_does_the_same(hub: CodeHub) -> None:
    calls = "shop_add(a=1, b=2), shop_fail(why='no stock'), shop_fail(why='closed')"
    told = await refused(hub, f"import asyncio\nawait asyncio.gather({calls}, return_exceptions=True)")
    assert (told["error"], told["calls"]) == ("refused", 0)
    said, _, advice = told["message"].partition("\n")
    assert said == "script.py:2:7: error[unsupported] asyncio.gather takes no return_exceptions. Write instead:"
    found = await returned(hub, f"{advice.replace('...', calls)}\n[str(each) for each in results]")
    assert ["no stock" in found[1], "closed" in found[2], "Error" in found[0]] == [True, True, False]
    given = f"import asyncio\nawait asyncio.gather({calls}, **{{'return_exceptions': True}})"
    assert advice in (await refused(hub, given))["message"]
    own = "async def gather(*, return_exceptions: bool) -> int:\n    return 1\nawait gather(return_exceptions=True)"
    assert await returned(hub, own) == 1


async def test_a_failed_call_in_a_gather_is_named_with_its_lines(hub: CodeHub) -> None:
    code = "import asyncio\nx = 1\nawait asyncio.gather(shop_add(a=1, b=2), shop_fail(why='no stock'))"
    told = await refused(hub, code)
    assert told["message"] == (
        'Traceback (most recent call last):\n  File "script.py", line 3, in a gathered call of shop_fail\n'
        "RuntimeError: tool_error: no stock (executed: yes)"
    )
    told = await refused(hub, f"{code}\nshop_fail")
    assert 'File "script.py", line 3 or 4, in a gathered call of shop_fail' in told["message"]


async def test_a_denied_tool_looks_like_a_missing_one_and_is_not_called(hub: CodeHub) -> None:
    before = len(hub.ledger.lines())
    told = await refused(hub, "await shop_secret()")
    assert "`shop_secret` used when not defined" in told["message"]
    raw = "await _call('{}', '{{}}')  # type: ignore"
    denied = await refused(hub, raw.format("shop.secret"))
    missing = await refused(hub, raw.format("shop.nobody"))
    assert "unknown_tool: Unknown tool: shop.secret (executed: no)" in denied["message"]
    assert "unknown_tool: Unknown tool: shop.nobody (executed: no)" in missing["message"]
    assert len(hub.ledger.lines()) == before


async def test_a_script_cannot_run_another(hub: CodeHub) -> None:
    told = await refused(hub, "await _call('run_code', '{\"code\": \"1\"}')  # type: ignore")
    assert "unknown_tool: Unknown tool: run_code (executed: no)" in told["message"]


async def test_a_script_that_does_not_end_in_time_is_ended_with_its_calls(hub: CodeHub) -> None:
    told = await refused(hub, "print('begun')\nawait shop_hold(nonce='late')", timeout=3)
    assert told["message"] == (
        "The script did not end in time: it had 3 s, the timeout of the call. Calls that it had made: 1."
    )
    assert (told["error"], told["printed"], told["calls"]) == ("limit", "begun\n", 1)


async def test_a_result_that_is_too_long_raises_in_the_script(hub: CodeHub) -> None:
    told = await refused(hub, "await shop_large(bytes=200000)")
    assert "too_long: the result has" in told["message"]
    assert await returned(hub, "len(await shop_large(bytes=50000))") == 50_000


async def test_a_script_may_make_so_many_calls(hub: CodeHub) -> None:
    told = await refused(hub, "for each in range(100):\n    await shop_add(a=1, b=1)")
    assert "a script may make 40 calls" in told["message"]
    assert told["calls"] == 40


async def test_a_script_may_be_so_long(hub: CodeHub) -> None:
    assert "script_bytes" in (await refused(hub, "#" * 30_000))["message"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can keep a process off a core")
async def test_a_script_computes_with_low_priority_and_leaves_a_core_alone(hub: CodeHub) -> None:
    def look() -> list[tuple[set[int], list[int]]]:
        """The priorities of the threads, and the cores, of each worker and of the process that has started them."""
        seen = []
        for pid in descendants(hub.process.pid):
            with suppress(OSError):  # a worker of an earlier script, which has just ended
                if "monty" in Path(f"/proc/{pid}/comm").read_text():
                    starter = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                    seen += [(priorities(each), sorted(os.sched_getaffinity(each))) for each in (starter, pid)]
        return seen

    def priorities(pid: int) -> set[int]:
        return {os.getpriority(os.PRIO_PROCESS, int(each.name)) for each in Path(f"/proc/{pid}/task").iterdir()}

    async with hub.raw() as raw:
        running = asyncio.ensure_future(run(raw, "while True:\n    pass"))
        await eventually(lambda: bool(look()), "a worker")
        cores = worker_cores(os.sched_getaffinity(hub.process.pid))
        lower = min(os.getpriority(os.PRIO_PROCESS, hub.process.pid) + NICENESS, 19)
        assert [each for each in look() if each != ({lower}, cores)] == []
        assert not running.done()
        assert (await running)["structuredContent"]["error"] == "limit"


async def test_a_script_may_sleep(hub: CodeHub) -> None:
    sleeping = "await asyncio.gather(asyncio.sleep(0.01, 'slept'), shop_add(a=1, b=1))"
    code = f"import asyncio, time\ntime.sleep(0.01)\n{sleeping}"
    assert await returned(hub, code) == ["slept", {"sum": 2}]


async def test_a_script_that_computes_too_long_gets_the_name_of_the_setting(hub: CodeHub) -> None:
    told = await refused(hub, "while True:\n    pass")
    said = "The script computed longer than 2 s ([code] cpu_seconds). Time in which it waits for calls does not count."
    assert (told["error"], told["message"]) == ("limit", said)
    told = await refused(hub, "raise TimeoutError('my own')")
    assert told["message"].endswith("TimeoutError: my own")


@asynccontextmanager
async def rest(hub: CodeHub, who: str) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {KEYS[who]}"}
    url = f"http://127.0.0.1:{hub.process.port}"
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60, verify=TRUSTED) as client:
        yield client


async def allow_all(hub: CodeHub, count: int) -> None:
    """Allow the calls that wait once there are so many."""
    pending: list[Any] = []

    async with rest(hub, "operator") as operator:

        async def are_pending() -> bool:
            pending[:] = (await operator.get("/v1/approvals?state=pending")).json()["approvals"]
            return len(pending) == count

        await eventually(are_pending, "the calls wait", within=60)
        assert await returned(hub, "1 + 1") == 2, "a script starts although others wait"
        for each in pending:
            assert (await operator.post(f"/v1/approvals/allow/{each['id']}", json={})).status_code == 200


async def test_scripts_that_wait_for_people_leave_their_workers_to_others(hub: CodeHub) -> None:
    asking = [
        (who, f"await shop_order(orders=[{{'item': '{who} {at}'}}])") for who in ("plain", "operator") for at in "ab"
    ]
    scripts = [asyncio.ensure_future(returned(hub, code, who)) for who, code in asking]
    await allow_all(hub, len(scripts))
    found = await asyncio.gather(*scripts)
    assert [json.loads(each)["orders"][0]["item"] for each in found] == [
        "plain a",
        "plain b",
        "operator a",
        "operator b",
    ]


async def test_a_script_over_rest_that_waits_for_approval_too_long_names_it(hub: CodeHub) -> None:
    code = "await shop_order(orders=[{'item': 'late'}])"
    async with rest(hub, "plain") as client:
        told = await client.post("/v1/tools/run_code?timeout=3", json={"code": code})
        problem = told.json()
        assert problem["type"].endswith(":approval_pending"), problem
        assert (problem["executed"], problem["approval"][:3]) == ("no", "ap_")
        after = f"await shop_pay(nonce='paid')\n{code}"
        other = (await client.post("/v1/tools/run_code?timeout=3", json={"code": after})).json()
        assert (other["executed"], other["approval"]) == ("unknown", problem["approval"])
        assert "Other calls of the script may have run" in other["detail"]
        await allow_all(hub, 1)
        done = await client.post("/v1/tools/run_code", json={"code": code})
        assert done.status_code == 200, done.text


async def test_the_audit_log_has_each_call_with_the_script_that_made_it(hub: CodeHub) -> None:
    async with hub.raw() as raw:
        script = (await run(raw, "await shop_pay(nonce='audited')"))["structuredContent"]["script"]
    address = f"http://127.0.0.1:{hub.process.port}/v1/audit"
    headers = {"authorization": f"Bearer {KEYS['operator']}"}
    async with httpx2.AsyncClient(verify=TRUSTED, headers=headers) as client:

        async def is_recorded() -> bool:
            records = (await client.get(address, params={"tool": "shop.pay"})).json()["records"]
            return any(record["record"].get("script") == script for record in records)

        await eventually(is_recorded, "the call is in the audit log with its script")


@pytest.mark.parametrize("more", ["", ", 'level': 3"])
async def test_arguments_whose_names_are_not_pythons_are_given_as_a_dictionary(hub: CodeHub, more: str) -> None:
    given = f"{{'its-id': 'a'{more}}}"
    assert await returned(hub, f"await shop_mark(\n    **{given}\n)") == json.dumps(ast.literal_eval(given))
    told = await refused(hub, "await shop_mark(**{'its-id': 'a', 'level': 'high'})")
    assert "executed: no" in told["message"]


@pytest.mark.parametrize("character", ["a", "ü", "😀"])
async def test_what_a_script_prints_is_bounded_in_bytes(hub: CodeHub, character: str) -> None:
    async with hub.raw() as raw:
        printed = (await run(raw, f"print('{character}' * 20_000)"))["structuredContent"]["printed"]
    kept, _, note = printed.partition("\n")
    assert set(kept) == {character}
    assert 20_000 - 4 < len(kept.encode()) <= 20_000
    assert "output_bytes" in note


async def test_a_script_that_has_printed_exactly_as_much_as_it_may_is_told_that_more_is_cut(hub: CodeHub) -> None:
    code = "print('a' * 19_999)\nawait shop_add(a=1, b=2)\n"
    async with hub.raw() as raw:
        exact = (await run(raw, code))["structuredContent"]["printed"]
        more = (await run(raw, f"{code}print('more')"))["structuredContent"]["printed"]
    assert exact == "a" * 19_999 + "\n"
    assert more.startswith(exact)
    assert "output_bytes" in more


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_runs_a_script_and_receives_the_progress_of_its_calls(
    hub: CodeHub, mode: Mode
) -> None:
    heard: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    headers = {"authorization": f"Bearer {KEYS['plain']}"}
    async with (
        httpx2.AsyncClient(verify=TRUSTED, headers=headers, timeout=30) as http,
        Client(streamable_http_client(hub.process.url, http_client=http), mode=mode) as client,
    ):
        assert {tool.name for tool in (await client.list_tools()).tools} >= SEEN
        result = await client.call_tool("run_code", {"code": "await shop_report()"}, progress_callback=on_progress)
    assert result.structured_content is not None
    assert result.structured_content["result"] == "reported"
    assert heard == ["half way"]


@pytest.mark.parametrize("mode", MODES)
async def test_fastmcp_runs_a_script(hub: CodeHub, mode: Mode) -> None:
    async with FastMcpClient(hub.process.url, auth=KEYS["plain"], mode=mode) as client:
        result = await client.call_tool("run_code", {"code": "(await shop_add(a=2, b=3))['sum']"})
    assert result.structured_content is not None
    assert result.structured_content["result"] == 5


async def test_the_official_a2a_client_runs_a_script_as_a_task(hub: CodeHub) -> None:
    url = f"http://localhost:{hub.process.port}"
    done, failed, listed = await run_agent("a2a10", "code_v1", url, KEYS["plain"], KEYS["listed"])
    assert done["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    [part] = [part for part in done["task"]["artifacts"][0]["parts"] if "data" in part]
    assert part["data"]["result"] == {"sum": 5}
    assert failed["task"]["status"]["state"] == "TASK_STATE_FAILED"
    assert "invalid-argument-type" in str(failed["task"]["artifacts"])
    assert listed["task"]["status"]["state"] == "TASK_STATE_FAILED"
    assert 'expose = "code"' in str(listed["task"])
