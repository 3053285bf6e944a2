"""Isthmus inside the agent frameworks: one module for each, which imports the framework when it is imported itself."""
