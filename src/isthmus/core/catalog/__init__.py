"""What there is to call: names on every surface, the snapshot, and each permission set's view of it."""
