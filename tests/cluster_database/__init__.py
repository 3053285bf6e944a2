"""Several hubs on one PostgreSQL database, as processes."""
