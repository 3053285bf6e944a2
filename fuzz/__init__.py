"""Bytes against everything that reads bytes of others: callers' endpoints, and the parsers of what servers answer.

Each target (`fuzz.targets`) takes any bytes and raises where something is wrong: an exception that no caller should
cause, an answer that never comes, two ways of reading that disagree. `make test` gives each a few hundred inputs
(`tests/property/test_fuzz.py`), `make fuzz` as many as there is time for, guided by the code they reach (atheris).
"""
