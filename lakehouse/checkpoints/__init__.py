"""Checkpoints: snapshots of all state tables of a gateway at one arrival, and the frames that are made of them."""
