"""The tests of Isthmus; a package so that tests, peers and fault tools can import one another by name."""
