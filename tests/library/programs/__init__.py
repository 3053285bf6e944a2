"""Separate programs, because their effects on a process would disturb the tests'."""
