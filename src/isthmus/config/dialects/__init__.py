"""How other clients write servers, and where their files are; `clients.CLIENTS` lists them."""
