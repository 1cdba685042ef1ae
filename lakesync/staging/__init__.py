"""Staging: the store that a gateway commits to and the pipeline reads from."""

from lakesync.staging.open import open_store
from lakesync.staging.sharded import open_staging

__all__ = ["open_staging", "open_store"]
