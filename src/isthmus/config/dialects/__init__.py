"""How each client writes its servers down, and where; `clients.CLIENTS` is the table."""
