"""The staging store: gateways commit pushes to it, and the pipeline reads its log from it."""

from lakesync.staging.open import open_store
from lakesync.staging.sharded import configured_store, open_staging

__all__ = ["configured_store", "open_staging", "open_store"]
