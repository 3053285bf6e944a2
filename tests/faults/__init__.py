"""Ways to break the connection between hub and server, and the oracle that judges the hub's reports."""
