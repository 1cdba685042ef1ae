"""SQL databases as sources: a query's result, polled by a column that grows with each change, or compared completely.

The code for the drivers is separate from that of the adapters (`lakesync.adapters.sql`): an adapter reads only its own
tables of strings and integers, a source reads any query with any types in pages.
"""
