"""The hub against servers as they are found: published ones, odd ones, and ones that never stop."""
