"""The `isthmus` command. It is the only room that reads the process's environment, arguments and streams."""
