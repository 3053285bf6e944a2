"""The hub's credentials for servers: OAuth logins, tokens, their storage, and signatures."""
