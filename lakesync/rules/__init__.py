"""Sync rules: which rows a client may see, by the claims (fields) of its token.

`model` has the rules and their meaning. `keys` computes the *bucket keys* by which the gateway finds a client's rows.
"""
