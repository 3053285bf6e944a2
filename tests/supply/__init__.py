"""What is built and shipped: that it is made of these sources alone, and what it stands on."""
