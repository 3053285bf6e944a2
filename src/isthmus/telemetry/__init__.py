"""The log, call counters, the audit recorder, and the lag of the event loop."""
