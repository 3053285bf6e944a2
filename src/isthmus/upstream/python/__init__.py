"""Python functions as tools: found in modules or marked with `@tool`, run in the hub's own process."""
