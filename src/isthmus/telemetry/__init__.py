"""What the hub tells of itself: counters and logs."""
