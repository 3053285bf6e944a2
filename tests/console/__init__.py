"""The console in a real browser, at a real hub."""
