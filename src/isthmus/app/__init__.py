"""The composition root: it builds a hub from the other packages."""
