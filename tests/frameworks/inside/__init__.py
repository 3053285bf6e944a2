"""What runs in the frameworks' environment. Functions are tests; the files are not called so, and are run by name."""
