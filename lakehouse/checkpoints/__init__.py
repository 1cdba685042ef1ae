"""Cuts of the state tables at one arrival, and the checkpoint frames that are made of them."""
