"""A gateway whose tables belong to *shards*, each with a staging store and a gateway of its own.

A *gateway* is one app's stream of changes. A *staging store* is the database that pushes are committed to. `Engine`
creates a `ShardedGateway` instead of a `SyncGateway` if its store is sharded. Clients see one gateway with one
*cursor*, from which they pull next. The store keeps a *vector* for it: a cursor in each shard. `docs/sharding.md`
explains it.
"""
