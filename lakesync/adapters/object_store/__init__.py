"""Object stores, and `ObjectDeltas`, the adapter that stores deltas (changes of rows) in them."""
