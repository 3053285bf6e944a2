"""Tasks that outlive their requests: the engine, their storage, and push notifications."""
