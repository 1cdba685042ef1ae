"""WebSocket connections: clients push and pull in frames, and receive broadcasts of new changes.

`route` accepts connections. `connection` serves one connection, `channel` all connections of a gateway, and `hub` has
all channels of the server.
"""
