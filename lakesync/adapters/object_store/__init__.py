"""Object stores, and the adapter that stores deltas in them."""
