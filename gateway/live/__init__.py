"""WebSocket connections: clients push and pull in frames, and receive broadcasts of new changes.

`hub` accepts connections and has all channels of the server. `connection` serves one connection, and `channel` all
connections of a gateway (one app's stream of changes), with the help of `indexes`.
"""
