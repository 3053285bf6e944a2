"""Values that all packages share: frozen, without I/O, clocks or wire formats."""
