"""Build and release: the artifacts contain these sources alone, with pinned dependencies."""
