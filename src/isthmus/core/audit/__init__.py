"""What happened, for whoever has to prove it: the facts, their records, and the chain that holds these together."""
