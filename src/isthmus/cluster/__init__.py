"""Several nodes as one hub: the bus between them, and what it carries. The core does not know that there are nodes."""
