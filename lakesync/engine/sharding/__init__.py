"""A gateway whose tables belong to shards, each with a store and a gateway of its own."""

from lakesync.engine.sharding.gateway import ShardedGateway

__all__ = ["ShardedGateway"]
