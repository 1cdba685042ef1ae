"""Webhook connector: posts signed events."""
