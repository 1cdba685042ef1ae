"""The staging store: the database to which gateways commit pushes, and from which the data pipeline fills the lake.

A *push* is a client's request with changes of rows, and the *lake* is the Iceberg tables. The store has the log of
pushes, the merged rows, the feed (what changed, for pulls), and what is stored about each client.
`store` has the protocols by caller, `records` their values; `sqlite`, `postgres`, `memory`, `sharded` and `remote`
implement them. The engine and the pipeline open a store with `open_staging`, or with `configured_store` from the
settings.
"""

from lakesync.staging.sharded import configured_store, open_staging
from lakesync.staging.store_urls import open_store

__all__ = ["configured_store", "open_staging", "open_store"]
