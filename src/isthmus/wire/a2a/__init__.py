"""A2A in every generation that is spoken: 1.0, 0.3, 0.1, and AgentVault's dialect of it. Bytes in, values out."""
