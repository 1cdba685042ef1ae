"""The console: a page that shows an operator how far a gateway and its clients are, and why a client lacks a row."""
