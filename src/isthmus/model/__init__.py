"""Values that every room shares: frozen, free of I/O, of clocks and of any wire format."""
