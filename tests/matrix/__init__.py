"""Every official client against every official server, through the hub as a process."""
