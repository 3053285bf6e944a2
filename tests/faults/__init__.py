"""Ways to break what lies between the hub and a server, and the oracle that judges what the hub said about it."""
