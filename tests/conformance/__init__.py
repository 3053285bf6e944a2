"""The protocol's conformance suite against the hub: a fixture server, what runs the suite, and what it found."""
