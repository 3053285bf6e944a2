"""How servers are reached, kept up and spoken to. Everything a server says is untrusted input."""
