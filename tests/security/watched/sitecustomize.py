"""Read by Python at the start of a hub that a test watches: whom it dials is noted, and no name server is asked."""

import os

if "DIALLED_RECORD" in os.environ:
    from tests.security.rebinding import answer_from_now
    from tests.security.sink import record_from_now

    record_from_now()
    answer_from_now()
