"""Ways to break what lies between hub and server, and the oracle that judges what the hub then said."""
