"""The addresses of a host, and the error if one cannot be bound."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

import pytest

from isthmus.frontends.http.listener import ListenError, advice, bind_all


async def bound_port(host: str, port: int = 0) -> tuple[int, int]:
    """How many sockets `host` gave, and the port they share."""
    sockets = await bind_all(host, port)
    try:
        (shared,) = {sock.getsockname()[1] for sock in sockets}
        return len(sockets), shared
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", ""])
async def test_all_addresses_of_a_host_share_one_port(host: str) -> None:
    count, port = await bound_port(host)
    assert count >= 1
    assert port > 0


async def test_an_address_in_use_is_named_with_a_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*in use") as caught:
            await bound_port("127.0.0.1", port)
        assert (caught.value.host, caught.value.port) == ("127.0.0.1", port)


async def test_one_taken_address_of_a_host_with_two_frees_the_other_again() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    port = await port_of_which_one_half_is_free()
    with socket.create_server(("::", port), family=socket.AF_INET6):
        with pytest.raises(ListenError, match=f":{port}: the address is in use"):
            await bound_port("", port)
        assert await bound_port("127.0.0.1", port) == (1, port)


async def port_of_which_one_half_is_free() -> int:
    """A port that nobody on this machine has on either address: the system looks for one at one address only."""
    while True:
        with socket.create_server(("::", 0), family=socket.AF_INET6) as found:
            port: int = found.getsockname()[1]
            with suppress(ListenError):
                await bound_port("127.0.0.1", port)
                return port


async def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0: this machine does not have that address"):
        await bound_port("192.0.2.1")


async def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(ListenError, match=r"no such host\.invalid:0: the host name is not known"):
        await bound_port("no such host.invalid")


async def test_a_port_is_free_again_after_closing() -> None:
    _, port = await bound_port("127.0.0.1")
    assert await bound_port("127.0.0.1", port) == (1, port)


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EACCES, "not permitted"), (errno.EPERM, "not permitted"), (errno.EMFILE, "refused")],
)
def test_every_refusal_of_the_system_has_words(number: int, words: str) -> None:
    assert words in advice(OSError(number, "system's words"))


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert "[::1]:80" in str(ListenError("::1", 80, "taken"))
