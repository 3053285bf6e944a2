"""Loaded by Python when a watched hub starts: it records connections, and replaces name lookups."""

import os

if "DIALLED_RECORD" in os.environ:
    from tests.security.rebinding import answer_from_now
    from tests.security.sink import record_from_now

    record_from_now()
    answer_from_now()
