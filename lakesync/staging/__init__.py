"""The staging store: gateways commit pushes to it, and the pipeline reads its log from it into the lake.

`store` has the protocols, `records` their values; `sqlite`, `postgres`, `memory`, `sharded` and `remote` implement
them. The engine and the pipeline open a store with `open_staging`, or with `configured_store` from the settings.
"""

from lakesync.staging.open import open_store
from lakesync.staging.sharded import configured_store, open_staging

__all__ = ["configured_store", "open_staging", "open_store"]
