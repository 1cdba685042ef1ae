"""SQL databases as sources: the result of a query, polled by a growing column or compared completely.

The drivers' code is separate from the adapters': an adapter reads its own tables of strings and integers, a source
reads any query with any types in pages.
"""
