"""The tests of `tests.relay.test_dialin`, with servers at one node, and callers and devices at another."""

from __future__ import annotations

from tests.relay.test_dialin import *  # noqa: F403
