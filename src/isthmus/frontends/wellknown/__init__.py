"""What the hub publishes of itself for those who do not know it yet."""
