"""Sync rules: which rows a client may see, by the claims of its token."""
