"""A gateway whose tables belong to shards, each a store of its own."""

from lakesync.engine.sharding.gateway import ShardedGateway

__all__ = ["ShardedGateway"]
