"""A gateway whose tables belong to shards, each with a staging store and a gateway of its own.

`Engine` creates a `ShardedGateway` instead of a `SyncGateway` if its store is sharded. See `docs/sharding.md`.
"""

from lakesync.engine.sharding.gateway import ShardedGateway

__all__ = ["ShardedGateway"]
