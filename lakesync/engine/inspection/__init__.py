"""Operators' questions to the engine: why a client has or lacks a row, how far it is behind, what was rejected.

`SyncGateway` and the gateway of shards call these modules for the routes below `/admin`. They change nothing that
clients see.
"""
