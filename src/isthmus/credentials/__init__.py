"""What the hub shows of itself to servers."""
