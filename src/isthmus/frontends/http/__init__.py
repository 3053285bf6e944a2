"""The HTTP listener and authentication that all frontends share."""
