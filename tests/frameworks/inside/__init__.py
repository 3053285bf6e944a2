"""Tests that run in the frameworks' environment. Pytest does not collect the files; they are run by name."""
