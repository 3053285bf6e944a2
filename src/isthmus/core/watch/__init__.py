"""What callers want to be told beside their calls: updates of resources, and how much servers should log."""
