"""The WebSocket: who is connected, what it asks, and what it is told without asking.

`protocol` is the wire, `connection` one client's side of it, `room` all connections of a gateway, `hub` all rooms of
the server, `route` the way in.
"""
