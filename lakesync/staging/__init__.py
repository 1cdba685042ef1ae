"""Staging: the store that a gateway commits to and the pipeline reads from."""

from lakesync.staging.open import open_store

__all__ = ["open_store"]
