"""Server cards and the AI catalog, which the hub publishes for discovery."""
