"""A2A agents (1.0 and 0.3) as servers: a skill is a tool, and a call is a remote task."""
