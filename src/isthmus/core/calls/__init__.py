"""The path of a call: the hub and its stages, its server's queue, and the in-flight entry that ends exactly once."""
