"""The hub towards OAuth clients: what it says of itself as a resource, and tokens for its own keys."""
