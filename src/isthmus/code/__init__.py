"""Code mode: scripts of models that call tools, in a sandbox; see docs/code-mode.md."""
