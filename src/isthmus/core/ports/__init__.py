"""What the core needs of its neighbours, one file per neighbour."""
