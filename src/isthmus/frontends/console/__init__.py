"""The console: a page for browsers that shows and operates the hub through its REST API."""
