"""A field inspection to-do list for the terminal, offline first."""
