"""What callers receive beside their calls: updates of resources, log messages, and the states of their tasks."""
