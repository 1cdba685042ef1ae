"""How a client reaches its gateway: HTTP, WebSocket, or a gateway in the same process."""
