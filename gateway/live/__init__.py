"""WebSocket connections: push and pull as frames, and broadcasts of new changes.

`route` accepts connections, `connection` is one client's connection, `channel` all connections of a gateway, and `hub`
all channels of the server.
"""
