"""The hub inside a Python program, as the program sees it."""
