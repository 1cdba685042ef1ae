"""Webhooks that are signed."""
