"""The `isthmus` command. It is the only package that reads the process's environment, arguments and streams."""

COMPLETE_VARIABLE = "_ISTHMUS_COMPLETE"
"""Set by a shell that completes a command; the name is click's."""
