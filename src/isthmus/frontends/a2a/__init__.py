"""The A2A frontend: the hub as an agent whose skills are the tools of its servers."""
