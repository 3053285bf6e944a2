"""T60: ids with dots, stars or line ends become subjects of a message bus, and reach other tenants' messages.

It does not apply: there is no cluster and no message bus. The hub is one process; what passes between its parts are
values in memory. Asserted is that nothing of the package speaks to one, and that ids which are parts of keys, in the
journal and in what callers carry, cannot be taken for two of them however they are spelt.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from isthmus.config.callers import _tenant, parse_caller_name
from isthmus.core.access.tenants import NO_TENANTS
from isthmus.core.tasks.delivery import delivery_id
from isthmus.core.tasks.record import TaskOwner
from isthmus.identity.issuers import _word
from isthmus.model.names import parse_server_name
from tests.security.source import imported, texts, with_words

BUSES = ("nats", "redis", "kafka", "aiokafka", "pika", "aio_pika", "zmq", "paho", "stomp", "etcd3", "consul", "kazoo")
ODD = [".", "*", ">", "a.b", "a b", "a\r\nb", "a\nb", "\n", "", "x" * 1_000, "$SYS", "a\x00b"]
ids = some.one_of(some.sampled_from(ODD), some.text(max_size=12))


def test_nothing_speaks_to_a_message_bus() -> None:
    for name, found in with_words("|".join(BUSES)):
        assert not {module.partition(".")[0] for module in imported(found)} & set(BUSES), name
    assert not [name for name in texts() if name.startswith(("cluster/", "wire/peer/"))], "then this test is too short"


@given(some.tuples(ids, ids, some.integers(0, 9)), some.tuples(ids, ids, some.integers(0, 9)))
def test_no_two_things_have_one_key(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    assert (delivery_id(*one) == delivery_id(*other)) == (one == other)


def test_no_two_owners_have_one_key() -> None:
    """A key is the tenant and the name with a line end between: neither a file nor a token can bring one along."""
    assert TaskOwner("acme", "ann").key == "acme\nann"
    for odd in ("a\nb", "\n", "a\rb", "a\u2028b", "a\x00"):
        assert _word(odd, 100) is None
        with pytest.raises(ValueError, match="printable"):
            _tenant({"tenant": odd}, NO_TENANTS)
        with pytest.raises(ValueError, match="must"):
            parse_caller_name(odd)


def test_the_name_of_a_server_is_of_few_letters() -> None:
    for odd in ODD:
        try:
            parse_server_name(odd)
        except ValueError:
            continue
        raise AssertionError(f"{odd!r} is taken for a name")
