"""Sync rules: which rows a client may see, by its token's claims."""
