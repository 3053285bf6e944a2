"""How callers come in: one protocol a folder, and the HTTP door that they share."""
