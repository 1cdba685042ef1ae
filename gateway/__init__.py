"""The HTTP and WebSocket server of LakeSync: it parses requests, calls the engine and responds."""
