"""The console, a page for operators: how far a gateway and its clients are, and why a client has or lacks a row."""
