"""Sync rules: which rows a client may see, by the claims (fields) of its token.

`model` has the rules and their meaning, `keys` the index by which the gateway finds the rows of a client.
"""
