"""Staging: the store that a gateway commits to and the pipeline reads from."""

from lakesync.staging.open import open_store
from lakesync.staging.sharded import configured_store, open_staging

__all__ = ["configured_store", "open_staging", "open_store"]
