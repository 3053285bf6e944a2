"""The first hour of a new user, played by `make firsthour`."""
