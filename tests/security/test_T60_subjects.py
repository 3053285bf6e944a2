"""T60: ids with dots, stars or line ends become subjects of a message bus, and reach other tenants' messages.

Ids are base32 in subjects (`cluster.nats`), which has no dot, star, blank or line end, and no two ids have the same. No
subject has a tenant, a caller, a server or a task: these travel inside messages between two nodes. Asserted is that,
that one module alone speaks to a bus, and that ids which are parts of keys, in the journal and in what callers carry,
cannot be taken for two of them however they are spelt. `tests/cluster/test_nats.py` has the subjects on a real server.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from isthmus.cluster.nats import from_subject, in_subject
from isthmus.config.callers import _tenant, parse_caller_name
from isthmus.core.access.tenants import NO_TENANTS
from isthmus.core.tasks.push_delivery import delivery_id
from isthmus.core.tasks.record import TaskOwner
from isthmus.identity.jwt_callers import _printable_name
from isthmus.model.names import parse_server_name
from tests.security.source import imported, with_words

BUSES = ("nats", "redis", "kafka", "aiokafka", "pika", "aio_pika", "zmq", "paho", "stomp", "etcd3", "consul", "kazoo")
ODD = [".", "*", ">", "a.b", "a b", "a\r\nb", "a\nb", "\n", "", "x" * 1_000, "$SYS", "a\x00b"]
ids = some.one_of(some.sampled_from(ODD), some.text(max_size=12))
nodes = some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def test_one_module_speaks_to_a_message_bus() -> None:
    speaking = {
        name
        for name, found in with_words("|".join(BUSES))
        if {module.partition(".")[0] for module in imported(found)} & set(BUSES)
    }
    assert speaking == {"cluster/nats.py"}


@given(nodes, nodes)
def test_an_id_is_one_plain_word_of_a_subject(one: str, other: str) -> None:
    assert re.fullmatch(r"[a-z2-7]+", in_subject(one))
    assert from_subject(in_subject(one)) == one
    assert (in_subject(one) == in_subject(other)) == (one == other)


@given(some.tuples(ids, ids, some.integers(0, 9)), some.tuples(ids, ids, some.integers(0, 9)))
def test_no_two_things_have_one_key(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    assert (delivery_id(*one) == delivery_id(*other)) == (one == other)


def test_no_two_owners_have_one_key() -> None:
    """A key is the tenant and the name with a line end between: neither a file nor a token can bring one along."""
    assert TaskOwner("acme", "ann").key == "acme\nann"
    for odd in ("a\nb", "\n", "a\rb", "a\u2028b", "a\x00"):
        assert _printable_name(odd, 100) is None
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
