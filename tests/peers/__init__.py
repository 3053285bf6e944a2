"""MCP servers and clients that are not Isthmus: what the hub is tested against.

Nothing here imports the hub. `python tests/peers NAME …` runs a peer; `launch` starts one from a test.
"""
