"""A2A in every generation that the hub speaks: 1.0, 0.3, 0.2, 0.1, and AgentVault's dialect. Bytes in, values out."""
