"""The forms that deltas travel and rest in: JSON, protobuf, WebSocket frames, and the log's body."""
