"""OAuth: metadata documents, challenges, and tokens for the hub's own keys."""
