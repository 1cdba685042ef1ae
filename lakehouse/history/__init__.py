"""The lake's `deltas`: every delta of every gateway, carried there once."""
