"""The protocol's conformance suite against the hub: a fixture server, a runner, and the comparison of results."""
