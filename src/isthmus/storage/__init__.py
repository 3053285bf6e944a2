"""Where what must last is kept."""
