"""Several hubs on one database: real processes, a real PostgreSQL, killed and stopped at any time."""
