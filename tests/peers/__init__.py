"""MCP servers and clients of other projects, which the hub is tested with.

Nothing here imports the hub. `python tests/peers NAME …` runs a peer; `launch` starts one from a test.
"""
