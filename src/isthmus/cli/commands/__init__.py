"""The words and options of the commands, each in the module of its name or of what it is about."""
