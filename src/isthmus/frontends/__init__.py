"""The frontends: one folder per protocol, and the HTTP listener that they share."""
