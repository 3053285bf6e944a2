"""Other agents, of A2A 1.0 and 0.3, as servers: a skill is a tool, and a call of it is a task over there."""
