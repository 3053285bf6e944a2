from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from isthmus.library.errors import ServiceClosedError, WrongThreadError
from isthmus.library.owner import CLOSED_MEANWHILE, ENDING, Owner

SECONDS = 20.0


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.stop()


async def where() -> str:
    return threading.current_thread().name


async def for_ever(ended: threading.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


def broken() -> None:
    raise LookupError("nothing there")


async def broken_later() -> None:
    broken()


def test_there_is_one_for_everybody() -> None:
    assert Owner.shared() is Owner.shared()


def test_a_thread_has_functions_and_coroutines_run_on_it(owner: Owner) -> None:
    assert not owner.is_here()
    assert owner.call(owner.is_here)
    assert owner.wait(where()) == "isthmus"


async def test_a_loop_has_functions_and_coroutines_run_on_it(owner: Owner) -> None:
    assert await owner.fetch(owner.is_here)
    assert await owner.run(where()) == "isthmus"


async def test_what_is_raised_there_is_raised_here(owner: Owner) -> None:
    with pytest.raises(LookupError, match="nothing there"):
        owner.call(broken)
    with pytest.raises(LookupError, match="nothing there"):
        owner.wait(broken_later())
    with pytest.raises(LookupError, match="nothing there"):
        await owner.fetch(broken)
    with pytest.raises(LookupError, match="nothing there"):
        await owner.run(broken_later())


def test_on_it_nothing_crosses_and_nobody_stands_still(owner: Owner) -> None:
    async def there() -> tuple[bool, str, bool]:
        with pytest.raises(WrongThreadError, match="would wait for itself for ever"):
            owner.wait(where())
        return await owner.fetch(owner.is_here), await owner.run(where()), owner.call(owner.is_here)

    assert owner.wait(there()) == (True, "isthmus", True)


async def test_who_is_cancelled_cancels_what_runs_there(owner: Owner) -> None:
    ended = threading.Event()
    task = asyncio.create_task(owner.run(for_ever(ended)))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, SECONDS)


async def test_nobody_waits_for_what_is_started(owner: Owner) -> None:
    ran = threading.Event()

    async def later() -> None:
        ran.set()

    owner.start(later())
    assert await asyncio.to_thread(ran.wait, SECONDS)


async def test_what_is_cancelled_there_was_closed(owner: Owner) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ServiceClosedError, match=CLOSED_MEANWHILE):
        owner.wait(cancelled())
    with pytest.raises(ServiceClosedError, match=CLOSED_MEANWHILE):
        await owner.run(cancelled())


def test_who_tries_to_end_the_program_from_it_does_not_end_it(owner: Owner) -> None:
    async def leave() -> None:
        sys.exit("bye")

    owner.post(sys.exit, "bye")
    owner.start(leave())

    assert owner.call(owner.is_here)
    assert owner.wait(where()) == "isthmus"


def test_at_the_end_everything_is_closed_and_what_is_left_is_cancelled(owner: Owner) -> None:
    order: list[str] = []
    ended = threading.Event()

    async def close(name: str) -> None:
        order.append(name)
        if name == "broken":
            raise LookupError(name)

    for name in ("first", "broken", "gone", "last"):
        owner.call(owner.close_at_exit, name, lambda name=name: close(name))
    owner.call(owner.closed, "gone")
    owner.start(for_ever(ended))
    owner.stop()

    assert order == ["first", "broken", "last"]
    assert ended.is_set()
    owner.stop()


async def test_after_the_end_everybody_is_refused(owner: Owner) -> None:
    owner.stop()

    with pytest.raises(ServiceClosedError, match=ENDING):
        owner.call(owner.is_here)
    with pytest.raises(ServiceClosedError, match=ENDING):
        owner.wait(where())
    with pytest.raises(ServiceClosedError, match=ENDING):
        await owner.run(where())
    owner.start(where())


async def test_one_that_was_inherited_refuses_even_on_a_thread_of_the_same_number() -> None:
    inherited = Owner()

    def is_here_after_a_fork() -> bool:
        inherited.inherit()
        return inherited.is_here()

    try:
        assert not inherited.call(is_here_after_a_fork)
        with pytest.raises(ServiceClosedError, match="in each worker, after the fork"):
            inherited.call(inherited.is_here)
        with pytest.raises(ServiceClosedError, match="in each worker, after the fork"):
            await inherited.run(where())
    finally:
        inherited.is_inherited = False
        inherited.stop()
