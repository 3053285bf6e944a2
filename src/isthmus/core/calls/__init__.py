"""The way of a call: stages, the lane of its server, and the in-flight entry that ends exactly once."""
