"""Encodings of deltas: JSON, protobuf, WebSocket and checkpoint frames, log bodies, columns of the history."""
