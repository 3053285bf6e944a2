"""The HTTP door that every face shares, and who may come in by it."""
