"""The A2A face: the hub as an agent whose skills are the tools of its servers."""
